//! The workspace's own checks and reports: `cargo xtask <command>`.

mod c_programs;
mod counts;
mod fast_path;
mod fresh;
mod fuzz;
mod kernel;
mod library;
mod miri;
mod models;
mod nightly;
mod package;
mod sanitizers;
mod scaling;
mod soak;
mod steps;
mod targets;
mod tidy;
mod traces;

use clap::{Parser, Subcommand};
use library::Build;
use package::{dist, install, wheel};
use programs::suites::{self, Kind, run};
use std::process::ExitCode;

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
    /// Count how often cache lines move between cores, with up to 256 threads, and judge it.
    Scaling(scaling::Args),
    /// Count what small programs cost on libcairn.so and compare with the table that is kept.
    Counts(counts::Args),
    /// Run real programs with and without cairn and compare output and exit status.
    Programs(Compared),
    /// Run test suites that others wrote, with and without cairn, and compare their failures.
    Suites(Compared),
    /// Run the README's two commands on a new Debian with little in it, as an ordinary user.
    Fresh(fresh::Args),
    /// Build for other machines and run the tests there, on simulators.
    Targets(targets::Args),
    /// Run under the compiler's sanitizers and under valgrind's tools.
    Sanitizers(sanitizers::Args),
    /// Run a server's mix for long and see whether memory stays flat.
    Soak(soak::Args),
    /// Run the loom models of the protocols between threads, or see them find seeded bugs.
    Models(models::Args),
    /// Run what needs no real system under Miri, which finds undefined behaviour (nightly Rust).
    Miri(miri::Args),
    /// Run everything that takes long, and write a page of it; goes on where it was stopped.
    Nightly(nightly::Args),
    /// Run programs of operations against an oracle: guided by coverage, or at random.
    Fuzz(fuzz::Args),
    /// Record three real programs, and replay them under cairn and the system's allocator.
    Traces(traces::Args),
    /// Make the wheel for Python.
    Wheel(wheel::Args),
    /// Build the release libcairn.so and libcairn.a and print their paths.
    Library(Build),
    /// Build the libraries and the command, and install them with all that belongs to them.
    Install(install::Args),
    /// Take away what `install` has put into a prefix.
    Uninstall(install::Place),
    /// Make a tarball and a package for Debian.
    Dist(dist::Args),
}

/// Options of programs and suites.
#[derive(clap::Args)]
struct Compared {
    #[command(flatten)]
    args: suites::Args,
    #[command(flatten)]
    build: Build,
}

fn main() -> ExitCode {
    let Err(error) = run_command(Cli::parse().command) else { return ExitCode::SUCCESS };
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}

fn run_command(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Tidy(args) => tidy::run(&args)?,
        Command::FastPath(args) => fast_path::run(&args)?,
        Command::Scaling(args) => scaling::run(&args)?,
        Command::Counts(args) => counts::run(&args)?,
        Command::Programs(compared) => compare(Kind::Programs, &compared)?,
        Command::Suites(compared) => compare(Kind::Suites, &compared)?,
        Command::Fresh(args) => fresh::run(&args)?,
        Command::Targets(args) => targets::run_all(&args)?,
        Command::Sanitizers(args) => sanitizers::run_all(&args)?,
        Command::Soak(args) => soak::run(&args)?,
        Command::Models(args) => models::run(&args)?,
        Command::Miri(args) => miri::run(&args)?,
        Command::Nightly(args) => nightly::run(&args)?,
        Command::Fuzz(args) => fuzz::run(&args)?,
        Command::Install(args) => install::install(&args)?,
        Command::Uninstall(place) => install::uninstall(&place)?,
        Command::Dist(args) => dist::run(&args)?,
        Command::Traces(args) => traces::run(&args)?,
        Command::Wheel(args) => wheel::run(&args)?,
        Command::Library(build) => {
            let shared = build.library()?;
            println!("{}\n{}", shared.display(), shared.with_extension("a").display());
        }
    }
    Ok(())
}

fn compare(kind: Kind, Compared { args, build }: &Compared) -> anyhow::Result<()> {
    let left_out = run(kind, args, build.features(), || build.library())?;
    steps::not_run_with(*build, &left_out);
    Ok(())
}
