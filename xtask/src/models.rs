//! Runs the models of the protocols between threads, and sees whether they find the bugs that
//! are seeded for them.

use crate::library::workspace;
use crate::steps::{self, Ended, Steps};
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// With larger bounds: more threads, blocks and preemptions.
    #[arg(long, conflicts_with = "seeded")]
    full: bool,
    /// Plant each bug of models/seeds.toml in turn: its model must fail.
    #[arg(long)]
    seeded: bool,
    /// Only these models, or these bugs, by a part of the name.
    only: Vec<String>,
}

/// The crate in models/tests that has the loom models.
const LOOM: &str = "protocol";
/// Beyond what the slowest model needs with the larger bounds.
const LIMIT: Duration = Duration::from_secs(2 * 3600);
/// What building with a bug may take, and what finding it may.
const SEED_LIMIT: Duration = Duration::from_secs(600);

/// A bug; models/build.rs plants it.
#[derive(Deserialize)]
struct Seed {
    /// The test that must fail: the crate in models/tests, then its name there.
    model: String,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.seeded {
        seeded(&args.only)?
    } else {
        models(args.full, &args.only)?
    }
    let all = [
        ("larger bounds (cargo xtask models --full)", args.full),
        ("the seeded bugs (cargo xtask models --seeded)", args.seeded),
        (
            "the whole core for long (CAIRN_MODEL_SECONDS=600 cargo test -p cairn-models --test whole)",
            false,
        ),
    ];
    let left_out = all.iter().filter(|(_, ran)| !ran).map(|(what, _)| *what);
    steps::not_run(&left_out.collect::<Vec<_>>().join(", "));
    Ok(())
}

fn cargo_test(seed: &str, test: &str) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "-p", "cairn-models", "--test", test]);
    command.env("CAIRN_SEED", seed).current_dir(workspace());
    command
}

/// Runs the loom models and prints the table of what they ran.
fn models(full: bool, only: &[String]) -> Result<()> {
    let mut steps = Steps::new("models", LIMIT, "")?;
    let mut rows = Vec::new();
    let mut command = cargo_test("", LOOM);
    command.arg("--").args(only).arg("--nocapture");
    command.env("CAIRN_MODELS", if full { "full" } else { "quick" });
    steps.run("loom models", command, |ended: &Ended| {
        ended.ensure_success()?;
        rows = ended.output.lines().filter_map(row).collect();
        ensure!(!rows.is_empty(), "no model has run");
        Ok(format!("{} models", rows.len()))
    });
    rows.sort();
    println!("| model | preemptions | executions | seconds |\n| --- | --- | ---: | ---: |");
    rows.iter().for_each(|row| println!("{row}"));
    steps.finish()
}

/// A model's own account of its run as a row of the table.
fn row(line: &str) -> Option<String> {
    // The test harness may have begun the line.
    let (_, rest) = line.split_once("model protocol::")?;
    let (name, rest) = rest.split_once(": preemptions ")?;
    let (bound, rest) = rest.split_once(", executions ")?;
    let (executions, seconds) = rest.split_once(", ")?;
    Some(format!("| {name} | {bound} | {executions} | {} |", seconds.trim_end_matches(" s")))
}

/// Plants one bug after the other.
fn seeded(only: &[String]) -> Result<()> {
    let text = std::fs::read_to_string(workspace().join("models/seeds.toml"))?;
    let seeds: BTreeMap<String, Seed> = toml::from_str(&text).context("models/seeds.toml")?;
    let mut steps = Steps::new("models", SEED_LIMIT, "")?;
    for (name, seed) in &seeds {
        let wanted =
            |part: &String| name.contains(part.as_str()) || seed.model.contains(part.as_str());
        if only.is_empty() || only.iter().any(wanted) {
            let log = steps.log(name);
            steps.step(&format!("{name} ({})", seed.model), |limit| plant(name, seed, &log, limit));
        }
    }
    steps.finish()
}

/// Builds with a bug, and runs the model that must find it; what that said.
fn plant(name: &str, seed: &Seed, log: &Path, limit: Duration) -> Result<String> {
    let (test, model) = seed.model.split_once("::").context("`model` names no test")?;
    let mut build = cargo_test(name, test);
    build.arg("--no-run");
    if test == LOOM {
        // What takes time there is loom, which stays optimised; this is built again for each bug.
        build.args(
            ["opt-level", "debug"]
                .map(|key| format!("--config=profile.dev.package.cairn-models.{key}=0")),
        );
    }
    let built = steps::run(&mut build, log, limit)?;
    built.ensure_success().with_context(|| format!("it does not build: {}", log.display()))?;
    // Cargo's last line: "Executable tests/... (path)", seen from the workspace if it is below it.
    let program = built.output.trim_end().rsplit(['(', ')']).nth(1).context("no test was built")?;
    let start = Instant::now();
    let mut command = Command::new(workspace().join(program));
    command.args(["--exact", model, "--nocapture"]);
    command.current_dir(workspace().join("models")).env("RUST_BACKTRACE", "0");
    // The whole core's models search for some seconds; on a busy machine that is a few runs.
    command.env("CAIRN_MODEL_SECONDS", "60");
    let ended = steps::run(&mut command, log, limit)?;
    let seconds = start.elapsed().as_secs_f64();
    match ended.status {
        None => bail!("not caught: no end after {} s", limit.as_secs()),
        Some(status) if status.success() => bail!("not caught: {}", log.display()),
        Some(_) => Ok(format!("caught after {seconds:.1} s: {}", reason(&ended.output))),
    }
}

/// The first thing that went wrong.
fn reason(output: &str) -> String {
    let mut lines = output.lines();
    let panicked = lines.by_ref().any(|line| line.contains("panicked at"));
    let line = if panicked { lines.next() } else { output.lines().rfind(|l| l.contains("signal")) };
    let line: String = line.unwrap_or("it ended badly").trim().chars().take(90).collect();
    line.replace('|', "/")
}
