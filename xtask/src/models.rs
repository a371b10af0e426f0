//! Runs the models of the protocols between threads, and sees whether they find the bugs that
//! are seeded for them.

use crate::library::{Build, workspace};
use crate::steps::{self, Ended, Steps};
use anyhow::{Context, Result, ensure};
use serde::de::IgnoredAny;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// With larger bounds: more threads, blocks and preemptions.
    #[arg(long, conflicts_with = "seeded")]
    full: bool,
    /// Plant each bug of models/seeds.toml in turn: its model must fail. They are made for the default build.
    #[arg(long, conflicts_with = "hardened")]
    seeded: bool,
    #[command(flatten)]
    build: Build,
    /// Only these models, or these bugs, by a part of the name.
    only: Vec<String>,
}

/// The crate in models/tests that has the loom models.
const LOOM: &str = "protocol";
/// Beyond what the slowest model needs with the larger bounds.
const LIMIT: Duration = Duration::from_secs(2 * 3600);
/// What building with a bug and finding it may take.
const SEED_LIMIT: Duration = Duration::from_secs(1200);

/// The bugs of models/seeds.toml, which models/build.rs plants: by the core's file, by the test that
/// must fail (the crate in models/tests, then its name there), and by name.
type Seeds = BTreeMap<String, BTreeMap<String, BTreeMap<String, IgnoredAny>>>;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.seeded {
        seeded(args)?
    } else {
        models(args)?
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
    steps::not_run_with(args.build, &left_out.collect::<Vec<_>>().join(", "));
    Ok(())
}

fn cargo_test(build: Build, seed: &str, test: &str) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "-p", "cairn-models", "--features", build.features(), "--test", test]);
    command.env("CAIRN_SEED", seed).current_dir(workspace());
    command
}

/// Runs the loom models and prints the table of what they ran.
fn models(args: &Args) -> Result<()> {
    let mut steps = Steps::new(&args.build.target_dir("models"), LIMIT, "")?;
    let mut rows = Vec::new();
    let mut command = cargo_test(args.build, "", LOOM);
    command.arg("--").args(&args.only).arg("--nocapture");
    command.env("CAIRN_MODELS", if args.full { "full" } else { "quick" });
    steps.run("loom models", command, |ended: &Ended| {
        ended.ensure_success()?;
        // The test harness may have begun the line.
        let row = |line: &str| Some(format!("|{}", line.split_once("model |")?.1));
        rows = ended.output.lines().filter_map(row).collect();
        ensure!(!rows.is_empty(), "no model has run");
        Ok(format!("{} models", rows.len()))
    });
    rows.sort();
    println!("| model | preemptions | executions | seconds |\n| --- | --- | ---: | ---: |");
    rows.iter().for_each(|row| println!("{row}"));
    steps.finish()
}

/// Plants one bug after the other, and runs the model that must find it.
fn seeded(args: &Args) -> Result<()> {
    let text = std::fs::read_to_string(workspace().join("models/seeds.toml"))?;
    let seeds: Seeds = toml::from_str(&text).context("models/seeds.toml")?;
    let named = |(model, bugs): (String, BTreeMap<_, _>)| {
        bugs.into_keys().map(move |name| (name, model.clone()))
    };
    let seeds: BTreeMap<_, _> = seeds.into_values().flatten().flat_map(named).collect();
    let mut steps = Steps::new(&args.build.target_dir("models"), SEED_LIMIT, "")?;
    for (name, model) in &seeds {
        let is_named = |part: &String| name.contains(part) || model.contains(part);
        if !args.only.is_empty() && !args.only.iter().any(is_named) {
            continue;
        }
        let (test, function) = model.split_once("::").context("`model` names no test")?;
        let mut command = cargo_test(args.build, name, test);
        if test == LOOM {
            // What takes time there is loom, which stays optimised; this is built again for each bug.
            let keys = ["opt-level", "debug"];
            command
                .args(keys.map(|key| format!("--config=profile.dev.package.cairn-models.{key}=0")));
        }
        command.args(["--", "--exact", function, "--nocapture"]).env("RUST_BACKTRACE", "0");
        // The whole core's models search until they find something, or so long. One bug has taken 110 s.
        command.env("CAIRN_MODEL_SECONDS", "400");
        steps.run(&format!("{name} ({model})"), command, |ended| {
            let ran = ended.output.contains("running 1 test");
            ensure!(ran, "it does not build, or has no such test");
            let status = ended.status.context("not caught: no end")?;
            ensure!(!status.success(), "not caught");
            Ok(format!("caught: {}", reason(&ended.output)))
        });
    }
    steps.finish()
}

/// The first thing that went wrong.
fn reason(output: &str) -> String {
    let mut lines = output.lines();
    let panicked = lines.by_ref().any(|line| line.contains("panicked at"));
    let line = if panicked { lines.next() } else { output.lines().rfind(|l| l.contains("signal")) };
    let line: String = line.unwrap_or("it ended badly").trim().chars().take(90).collect();
    line.replace('|', "/")
}
