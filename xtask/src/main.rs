//! The workspace's own checks and reports: `cargo xtask <command>`.

mod fast_path;
mod library;
mod programs;
mod tidy;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "cairn's own checks and reports")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check the structural rules of the source (room order, headers, sizes).
    Tidy(tidy::Args),
    /// Count the instructions of the fast paths in libcairn.so and compare with the golden table.
    FastPath(fast_path::Args),
    /// Run real programs with and without cairn and compare output and exit status.
    Programs(programs::Args),
    /// Build the release libcairn.so and libcairn.a and print their paths.
    Library,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Tidy(args) => tidy::run(&args),
        Command::FastPath(args) => fast_path::run(&args),
        Command::Programs(args) => programs::run(&args),
        Command::Library => {
            let built = library::build()?;
            println!("{}\n{}", built.shared.display(), built.archive.display());
            Ok(())
        }
    }
}
