//! Makes the traces of real programs that the lab replays, and replays them.

use crate::library::{shell, target_dir, workspace};
use anyhow::Result;
use programs::lab;
use programs::traces::Traces;
use std::path::PathBuf;
use xshell::cmd;

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the traces are, and go if they are not there: where the lab finds them if nothing is said.
    #[arg(long)]
    folder: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let shell = shell()?;
    cmd!(shell, "cargo build --quiet --release -p cairn-malloc-cli").run()?;
    let cairn = target_dir("release").join("cairn");
    let folder = args.folder.as_ref().map(|folder| workspace().join(folder));
    let folder = folder.unwrap_or_else(|| target_dir("traces"));
    let traces = Traces::new(cairn.clone(), folder);
    let scratch = tempfile::tempdir()?;
    for timed in lab::replays() {
        let trace = timed.trace(&traces, scratch.path())?;
        cmd!(shell, "{cairn} replay {trace}").quiet().run()?;
    }
    println!("traces: {}", traces.folder().display());
    Ok(())
}
