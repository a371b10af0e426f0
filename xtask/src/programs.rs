//! Real programs.

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("not written yet")
}
