//! Runs the soak test of the core for long: optimised, with debug assertions.

use crate::library::{self, target_dir};
use crate::steps::not_run;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::Command;

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long; rounded up to whole cycles of one minute.
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// Threads at once.
    #[arg(long, default_value_t = 16)]
    threads: usize,
    /// Where the curve of resident and live memory goes.
    #[arg(long, default_value = "target/soak.csv")]
    csv: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(["test", "--quiet", "--release", "-p", "cairn-malloc", "--test", "soak"])
        .args(["--config", "profile.release.debug-assertions=true", "--target-dir"])
        .arg(target_dir("soak"))
        .args(["--", "--nocapture"])
        .env("CAIRN_SOAK_SECONDS", (args.minutes * 60).to_string())
        .env("CAIRN_SOAK_THREADS", args.threads.to_string())
        .env("CAIRN_SOAK_CSV", library::workspace().join(&args.csv))
        .current_dir(library::workspace())
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "the soak test failed");
    println!("curve: {}", args.csv.display());
    not_run("a soak of hours (--minutes), or of other numbers of threads (--threads)");
    Ok(())
}
