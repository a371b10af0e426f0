//! Changes the core in small ways, one at a time, and sees whether its tests notice.
//!
//! cargo-mutants makes and runs the changes. It leaves functions alone that are `unsafe`, which
//! many here are, though what is in them is as good to change as anything: it works on a copy of
//! the core in which they are not so called. The copy is built and changed in place.

use crate::{explained, library};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this file, as `arena/mod.rs`; several may be named.
    #[arg(long)]
    file: Vec<String>,
    /// Go on from the last run: what was noticed then is not tried again.
    #[arg(long)]
    iterate: bool,
    /// Only so many of the three stages.
    #[arg(long, default_value_t = STAGES.len())]
    stages: usize,
    /// Only a part of each file's changes: K/N, every Nth from the Kth on, counted from 0.
    #[arg(long)]
    shard: Option<String>,
    /// Only report on what the last runs have found.
    #[arg(long)]
    report_only: bool,
}

const CORE: &str = "crates/cairn";
const PAGE: &str = "docs/results/verification.md";
/// What is changed, everything between the system calls and the interface, and the tests that
/// are about it.
const FILES: [(&str, &str); 19] = [
    ("remote.rs", "tests::remote"),
    ("size_class.rs", "size_class"),
    ("arena/tree.rs", "tree"),
    ("span.rs", "tests::span"),
    ("orphans.rs", "tests::span"),
    ("arena/mod.rs", "tests::arena"),
    ("block.rs", "tests::remote"),
    ("heap/mod.rs", "tests::heap"),
    ("heap/sending.rs", "tests::heaps"),
    ("heap/upkeep.rs", "tests::heap"),
    ("heap/pool.rs", "tests::heap"),
    ("heap/commons.rs", "tests::heaps"),
    ("large/mod.rs", "tests::large"),
    ("large/mapping.rs", "tests::large"),
    ("address_map.rs", "tests::window"),
    ("os/lock.rs", "tests::lock"),
    ("ledger.rs", "tests::heap"),
    ("thread/mod.rs", "tests::forks"),
    ("api.rs", "tests::heap"),
];

/// How a change is tried; the next way is for what the one before lets through.
struct Stage {
    /// Targets of the test build.
    targets: &'static [&'static str],
    /// Arguments of the test programs; the filter of the file if there are none.
    filters: &'static [&'static str],
    /// Seconds: many times what the tests take without a change.
    timeout: &'static str,
}

/// The tests about the file, a second or less; all tests beside the code but failing system
/// calls; these, random operations and traffic between threads.
const STAGES: [Stage; 3] = [
    Stage { targets: &["--lib"], filters: &[], timeout: "60" },
    Stage { targets: &["--lib"], filters: &["--skip", "faults_"], timeout: "120" },
    Stage {
        targets: &["--lib", "--test=oracle", "--test=traffic", "--test=full_spans"],
        filters: &["--quiet"],
        timeout: "500",
    },
];
/// A change may make a test allocate without end.
const DATA_MAX: u64 = 4 << 30;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let named =
        |(file, _): &(&str, &str)| args.file.is_empty() || args.file.iter().any(|f| f == file);
    let files: Vec<_> = FILES.into_iter().filter(named).collect();
    ensure!(!files.is_empty(), "the files are {:?}", FILES.map(|(file, _)| file));
    let home = library::target_dir("mutants");
    if !args.report_only {
        let copy = home.join("copy");
        make_copy(&copy)?;
        limit_data();
        try_unchanged(&copy)?;
        let results = home.join("results");
        for (stage, how) in STAGES.iter().enumerate().take(args.stages) {
            for (file, filter) in &files {
                let which = match &args.shard {
                    _ if stage > 0 || args.iterate && tried(&results, file) => Which::Left,
                    Some(shard) => Which::Shard(shard),
                    None => Which::All,
                };
                try_mutants(&copy, &results, file, filter, how, which)?;
            }
        }
    }
    let mut found = Vec::new();
    println!("file: changes tried, noticed, hung, did not build, not noticed");
    for (file, _) in files {
        report(&home.join("results"), file, &mut found)?;
    }
    explained::judge(PAGE, "survivors", &found)
}

/// The core, in a workspace of its own.
fn make_copy(copy: &Path) -> Result<()> {
    let root = library::workspace();
    let source = copy.join(CORE);
    // The build's own folder stays: it makes the next run start soon.
    let _ = fs::remove_dir_all(&source);
    copy_tree(&root.join(CORE), &source)?;
    fs::copy(root.join("Cargo.lock"), copy.join("Cargo.lock"))?;
    let mut manifest: toml::Table = toml::from_str(&fs::read_to_string(root.join("Cargo.toml"))?)?;
    let workspace = manifest.get_mut("workspace").and_then(toml::Value::as_table_mut);
    let workspace = workspace.context("the manifest is a workspace's")?;
    workspace.insert("members".into(), toml::Value::Array(vec![CORE.into()]));
    workspace.insert("default-members".into(), toml::Value::Array(vec![CORE.into()]));
    fs::write(copy.join("Cargo.toml"), toml::to_string(&manifest)?)?;
    for (file, _) in FILES {
        let path = source.join("src").join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("no file {file}"))?;
        fs::write(&path, text.replace("unsafe fn ", "fn "))?;
    }
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), &to)?;
        }
    }
    Ok(())
}

/// For this process and all that it starts.
fn limit_data() {
    let maximum = getrlimit(Resource::Data).maximum;
    let _ = setrlimit(Resource::Data, Rlimit { current: Some(DATA_MAX), maximum });
}

/// Short stress: a change that it does not notice soon it would notice by luck.
fn in_copy(command: &mut Command, copy: &Path) {
    command.current_dir(copy).env("CARGO_TARGET_DIR", copy.join("target"));
    command.env("CAIRN_STRESS_SECONDS", "1");
    command.env("RUST_BACKTRACE", "0").env("CARGO_PROFILE_DEV_DEBUG", "0");
}

fn try_unchanged(copy: &Path) -> Result<()> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--quiet", "-p", "cairn-malloc", "--lib", "--", "--skip", "faults_"]);
    cargo.env("RUSTFLAGS", "--cap-lints=warn");
    in_copy(&mut cargo, copy);
    let status = cargo.status().context("cannot start cargo")?;
    ensure!(status.success(), "the tests fail without any change");
    Ok(())
}

/// Where the results of one file are.
fn results(home: &Path, file: &str) -> PathBuf {
    home.join(file.replace(['/', '.'], "-"))
}

/// Which changes of a file are tried.
enum Which<'a> {
    All,
    Shard(&'a str),
    /// Those that were tried and not noticed.
    Left,
}

/// Whether some of the file's changes have been tried.
fn tried(home: &Path, file: &str) -> bool {
    results(home, file).join("mutants.out").exists()
}

/// Patterns for the changes that the last run has let through. Those that hung are noticed: they
/// are added to those that were, or they would be tried again.
fn left(latest: &Path) -> Result<Vec<String>> {
    let lines = |name: &str| fs::read_to_string(latest.join(name)).unwrap_or_default();
    let hung = lines("timeout.txt");
    if !hung.is_empty() {
        fs::write(latest.join("caught.txt"), lines("caught.txt") + &hung)?;
        fs::write(latest.join("timeout.txt"), "")?;
    }
    let escaped = |c: char| {
        if c.is_alphanumeric() { c.to_string() } else { format!("\\x{{{:x}}}", c as u32) }
    };
    Ok(lines("missed.txt").lines().map(|name| name.chars().map(escaped).collect()).collect())
}

fn try_mutants(
    copy: &Path,
    home: &Path,
    file: &str,
    filter: &str,
    stage: &Stage,
    which: Which,
) -> Result<()> {
    let output = results(home, file);
    fs::create_dir_all(&output)?;
    let mut mutants = Command::new("cargo");
    mutants.args(["mutants", "--in-place", "--baseline=skip", "--no-times", "--colors=never"]);
    // A build takes a second or two; a change may make the compiler compute a constant for ever.
    mutants.args(["--build-timeout=120", "--cap-lints=true", "--timeout", stage.timeout]);
    mutants.arg("--file").arg(format!("{CORE}/src/{file}")).arg("--output").arg(&output);
    match which {
        Which::All => {}
        Which::Shard(shard) => _ = mutants.args(["--sharding=round-robin", "--shard", shard]),
        Which::Left => {
            let left = left(&output.join("mutants.out"))?;
            if left.is_empty() {
                return Ok(());
            }
            mutants.arg("--iterate").args(left.iter().flat_map(|name| ["--re", name]));
        }
    }
    mutants.args(stage.targets.iter().map(|target| format!("--cargo-arg={target}")));
    mutants.args(["--", "--"]);
    if stage.filters.is_empty() {
        mutants.arg(filter);
    }
    mutants.args(stage.filters);
    in_copy(&mut mutants, copy);
    let status = mutants.status().context("cannot start cargo mutants")?;
    // 2: some were not noticed; 3: some hung.
    match status.code() {
        Some(0 | 2 | 3) => Ok(()),
        _ => bail!("cargo mutants failed ({status}): cargo install cargo-mutants"),
    }
}

#[derive(Deserialize)]
struct Outcomes {
    outcomes: Vec<Outcome>,
}

#[derive(Deserialize)]
struct Outcome {
    scenario: Scenario,
    summary: String,
}

#[derive(Deserialize)]
enum Scenario {
    Baseline,
    Mutant { name: String, span: Span },
}

#[derive(Deserialize)]
struct Span {
    start: Start,
}

#[derive(Deserialize)]
struct Start {
    line: usize,
}

/// Prints one file's counts and adds what was not noticed: (place, what to look up in the page).
fn report(home: &Path, file: &str, found: &mut Vec<(String, String)>) -> Result<()> {
    let latest = results(home, file).join("mutants.out");
    let Ok(text) = fs::read_to_string(latest.join("outcomes.json")) else {
        println!("{file}: not tried");
        return Ok(());
    };
    let Outcomes { outcomes } = serde_json::from_str(&text)?;
    let lines = |name: &str| -> usize {
        fs::read_to_string(latest.join(name)).map_or(0, |text| text.lines().count())
    };
    let count = |what: &str| outcomes.iter().filter(|outcome| outcome.summary == what).count();
    // The changes that an earlier stage has dealt with, unviable ones among them.
    let before = lines("previously_caught.txt");
    let (noticed, hung, missed) = (count("CaughtMutant"), count("Timeout"), count("MissedMutant"));
    let unviable = count("Unviable");
    let all = before + noticed + hung + missed + unviable;
    println!("{file}: {all}, {} (hung {hung}), {missed}", before + noticed + unviable);
    let source = fs::read_to_string(library::workspace().join(CORE).join("src").join(file))?;
    let source: Vec<&str> = source.lines().map(str::trim).collect();
    for outcome in outcomes.iter().filter(|outcome| outcome.summary == "MissedMutant") {
        let Scenario::Mutant { name, span } = &outcome.scenario else { continue };
        // crates/cairn/src/FILE:LINE:COLUMN: what is changed in what
        let change = name.split_once(": ").map_or(name.as_str(), |(_, change)| change);
        let line = source.get(span.start.line - 1).copied().unwrap_or_default();
        found.push((
            format!("{CORE}/src/{file}:{}", span.start.line),
            format!("{file}: {change}: {line}"),
        ));
    }
    Ok(())
}
