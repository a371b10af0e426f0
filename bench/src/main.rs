//! cairn beside its peers: runs all workloads under all allocators and prints the tables.

use anyhow::{Context, Result, bail, ensure};
use cairn_bench::case::Run;
use cairn_bench::child::Limits;
use cairn_bench::machine::{Machine, available_mib};
use cairn_bench::report::Report;
use cairn_bench::rounds::{self, Plan};
use cairn_bench::{cases, peers};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Measure cairn and other allocators side by side.
#[derive(Parser)]
struct Cli {
    /// Small sizes, few rounds: some minutes (the default).
    #[arg(long)]
    quick: bool,
    /// Full sizes, more rounds.
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Only cases whose name contains one of these (comma-separated).
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    only: Vec<String>,
    /// Only these allocators (comma-separated).
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    allocators: Vec<String>,
    /// Another allocator, or another library for one of the known names.
    #[arg(long, value_name = "NAME=LIBRARY", value_parser = named)]
    peer: Vec<(String, PathBuf)>,
    /// Rounds that count; one more is run first and dropped.
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds after which a single run is stopped.
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// Resident MiB at which a single run is stopped [default: 60% of what is available]
    #[arg(long, value_name = "MIB")]
    memory: Option<f64>,
    /// Write every value to a file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print the tables as Markdown.
    #[arg(long)]
    markdown: bool,
    /// List the cases.
    #[arg(long)]
    list: bool,
}

fn named(argument: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = argument.split_once('=').ok_or("expected NAME=LIBRARY")?;
    Ok((name.to_owned(), path.into()))
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let wanted = |name: &str| cli.only.is_empty() || cli.only.iter().any(|p| name.contains(p));
    let cases: Vec<_> = cases::all().filter(|case| wanted(case.name)).collect();
    if cli.list {
        for case in cases {
            let kind = if let Run::Program(_) = case.run { "program" } else { "workload" };
            println!("{:18} {kind:9} {}", case.name, case.about);
        }
        return Ok(());
    }
    ensure!(!cases.is_empty(), "no case matches; see --list");
    if cfg!(debug_assertions) {
        bail!("the figures of a debug build mean nothing: run with --release");
    }

    let limits = Limits {
        timeout: Duration::from_secs_f64(cli.timeout.unwrap_or(if cli.full { 60.0 } else { 15.0 })),
        memory_mib: cli.memory.unwrap_or(0.6 * available_mib()),
    };
    let workload = build_workload()?;
    let mut peers = peers::all(&default_cairn(), &cli.peer);
    if !cli.allocators.is_empty() {
        peers.retain(|peer| cli.allocators.contains(&peer.name));
    }
    for peer in &peers {
        if let Some(why) = &peer.missing {
            eprintln!("{} is missing: {why}", peer.name);
        }
    }

    let machine = Machine::read();
    let scratch = tempfile::tempdir()?;
    let rounds = cli.rounds.unwrap_or(if cli.full { 7 } else { 3 });
    let plan = Plan {
        cases,
        rounds,
        quick: !cli.full,
        limits,
        workload: &workload,
        scratch: scratch.path(),
    };
    let outcomes = rounds::run(&plan, &peers);
    let report = Report::new(&peers, &outcomes, machine, rounds);
    println!("{}", report.print(cli.markdown));
    if let Some(path) = &cli.json {
        std::fs::write(path, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The library that `cargo build --release -p cairn-c` makes.
fn default_cairn() -> PathBuf {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
    bench.with_file_name("target").join("release/libcairn.so")
}

/// The workload binary beside this one; `cargo run` has built only the driver, so under
/// cargo it is brought up to date first.
fn build_workload() -> Result<PathBuf> {
    let directory = std::env::current_exe()?.parent().context("no directory")?.to_owned();
    let workload = directory.join("cairn-workload");
    if let Some(cargo) = std::env::var_os("CARGO") {
        let target = directory.parent().context("no target directory")?;
        let status = Command::new(cargo)
            .args(["build", "--quiet", "--release", "-p", "cairn-bench", "--bin", "cairn-workload"])
            .arg("--target-dir")
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .context("cannot start cargo")?;
        ensure!(status.success(), "cannot build cairn-workload");
    }
    ensure!(workload.exists(), "no {}", workload.display());
    Ok(workload)
}
