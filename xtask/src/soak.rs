//! Runs the soak test of the core for long: optimised, with debug assertions.

use crate::library::{Build, shell, workspace};
use crate::steps::not_run_with;
use anyhow::Result;
use std::path::PathBuf;
use xshell::cmd;

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long; rounded up to whole cycles of one minute.
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// Threads at once.
    #[arg(long, default_value_t = 16)]
    threads: usize,
    /// Where the curve of resident and live memory goes, if not to soak.csv in the build's target folder.
    #[arg(long)]
    csv: Option<PathBuf>,
    #[command(flatten)]
    build: Build,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (shell, target) = (shell()?, args.build.target_dir("soak"));
    let own = || args.build.target_dir("soak.csv");
    let csv = args.csv.as_ref().map_or_else(own, |csv| workspace().join(csv));
    let options = ["--config", "profile.release.debug-assertions=true"];
    cmd!(shell, "cargo test --quiet --release -p cairn-malloc --test soak {options...}")
        .args(["--features", args.build.features(), "--target-dir"])
        .arg(target)
        .args(["--", "--nocapture"])
        .env("CAIRN_SOAK_SECONDS", (args.minutes * 60).to_string())
        .env("CAIRN_SOAK_THREADS", args.threads.to_string())
        .env("CAIRN_SOAK_CSV", &csv)
        .run()?;
    println!("curve: {}", csv.display());
    let left_out = "a soak of hours (--minutes), or of other numbers of threads (--threads)";
    not_run_with(args.build, left_out);
    Ok(())
}
