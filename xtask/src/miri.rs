//! Runs under Miri what needs no real system: the core's unit tests of single rooms, and the whole core
//! in the simulated system of the models. Miri interprets, and reports undefined behaviour: accesses
//! outside of what a pointer is for, values that were never written, data races.

use crate::library::{Build, workspace};
use crate::steps::{Ended, LIMIT, Steps, not_run_with};
use anyhow::{Context, Result, ensure};
use std::process::Command;

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only steps with this in their names.
    #[arg(long, value_name = "TEXT", default_value = "")]
    step: String,
    #[command(flatten)]
    build: Build,
}

/// The core's tests that make no system call, by what their names begin with. Of the others those of `size_class` have
/// no pointers and would take hours, and all else reserves memory, or starts processes, which Miri has not: the models
/// run that.
const ROOMS: [&str; 4] =
    ["slices::arena::bits::", "slices::arena::tree::", "tests::remote::", "tests::rooms::"];

/// Every pointer has its right from the one that it is made of. Tests may ask for the time, and leave memory behind.
const FLAGS: &str = "-Zmiri-strict-provenance -Zmiri-disable-isolation -Zmiri-ignore-leaks";
/// By the hardened build's heaps stand rows of blocks, behind what a reference to the heap covers. Of Miri's two
/// models of references only Tree Borrows lets a pointer out of one go there.
const HARDENED: &str = "-Zmiri-tree-borrows";

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut steps = Steps::new(&args.build.target_dir("miri"), LIMIT, &args.step)?;
    let tests = |ended: &Ended| {
        let passed = ended.passed()?;
        ensure!(passed > 0, "no test has run");
        Ok(format!("{passed} tests passed"))
    };
    let rooms = cargo_miri(args.build, &["-p", "cairn-malloc", "--lib", "--"]);
    steps.run("single rooms", with(rooms, &ROOMS), tests);
    // What Miri finds ends the process: each model has one.
    let models = || cargo_miri(args.build, &["-p", "cairn-models", "--test", "whole", "--"]);
    let list = with(models(), &["--list"]).output().context("cannot start cargo")?;
    let list = String::from_utf8(list.stdout)?;
    let names: Vec<&str> = list.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    ensure!(!names.is_empty(), "cargo miri lists no models; rustup component add miri rust-src");
    for name in names {
        let step = format!("the whole core, {name}");
        steps.run(&step, with(models(), &["--exact", name]), tests);
    }
    steps.finish()?;
    not_run_with(args.build, "tests that make system calls (cargo test -p cairn-malloc)");
    Ok(())
}

fn with(mut command: Command, words: &[&str]) -> Command {
    command.args(words);
    command
}

fn cargo_miri(build: Build, words: &[&str]) -> Command {
    let flags = if build.features().is_empty() { FLAGS } else { &format!("{FLAGS} {HARDENED}") };
    // The nightly's cargo, whichever one runs this.
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "miri", "test", "--features", build.features()]);
    command.args(words).current_dir(workspace()).env("MIRIFLAGS", flags);
    command.env("CARGO_TARGET_DIR", build.target_dir("miri"));
    command
}
