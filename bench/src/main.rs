//! The lab's command line.

use anyhow::{Context, Result, ensure};
use cairn_bench::allocators::{self, Candidate, Workshop};
use cairn_bench::journal::Journal;
use cairn_bench::machine::{Machine, available_mib};
use cairn_bench::named::Named;
use cairn_bench::plan::{self, Entry};
use cairn_bench::progress::Progress;
use cairn_bench::result::{FORMAT, Form, LabResult, SUBJECT};
use cairn_bench::rounds::Plan;
use cairn_bench::{attacks, compare, core_hash, documents, report, table};
use cairn_workloads::case::Case;
use clap::{Args, Parser, Subcommand};
use programs::given::Suite;
use programs::process::Limits;
use programs::traces::Traces;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// cairn beside every other allocator: time, memory, tail latency.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Subcommand)]
enum Command {
    /// Print the tables of a result, as Markdown.
    Table {
        /// A result.
        result: PathBuf,
        /// Only cases whose name contains one of these (comma-separated).
        #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
        only: Vec<String>,
    },
    /// Write a result as an HTML page with its charts.
    Report {
        /// A result.
        result: PathBuf,
        /// Where the page goes [default: beside the result]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Draw the charts of a result as SVG files; needs Chromium.
    Charts {
        /// A result.
        result: PathBuf,
        /// The folder that they go to.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Tell what became better and worse from one result to another, as Markdown.
    Compare {
        /// The earlier result.
        old: PathBuf,
        /// The later result.
        new: PathBuf,
        /// Of this allocator.
        #[arg(long, value_name = "NAME", default_value = SUBJECT)]
        allocator: String,
        /// In the later result, which may be the same one, of this allocator.
        #[arg(long, value_name = "NAME")]
        with: Option<String>,
    },
    /// List the cases.
    List,
    /// Build or find all allocators and tell of each.
    Allocators,
    /// Run attacks on the heap under each allocator; the table, as Markdown.
    Attacks {
        /// Under these (comma-separated).
        #[arg(long, value_name = "NAME", value_delimiter = ',', default_values = allocators::CHECKED)]
        allocators: Vec<String>,
    },
    /// Bring the project's pages up to date with a result.
    Document {
        /// The result to tell of; without one, only the list of packages is renewed.
        result: Option<PathBuf>,
    },
}

#[derive(Args, Clone)]
struct RunArgs {
    /// Small sizes, few rounds: some ten minutes once the peers are built (the default). `taskset`
    /// in front of any run keeps it to some processors.
    #[arg(long)]
    quick: bool,
    /// Full sizes, more rounds. Can be stopped at any time; the same command goes on.
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Start over instead of going on with a run that was stopped.
    #[arg(long)]
    fresh: bool,
    /// Only cases whose name contains one of these (comma-separated).
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    only: Vec<String>,
    /// Only programs of your own, from this TOML file or the `suite.toml` in this folder; see
    /// docs/results/benchmarks.md. They have one size; --full runs them in more rounds.
    #[arg(long, value_name = "FILE_OR_FOLDER", conflicts_with = "threads")]
    suite: Option<PathBuf>,
    /// Only these allocators (comma-separated).
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    allocators: Vec<String>,
    /// Another allocator, or another library for one of the known names; `old=lib.so,CAIRN_PURGE_DELAY=0` sets a
    /// variable for its programs alone.
    #[arg(long, value_name = "NAME=LIBRARY[,VARIABLE=VALUE]...")]
    peer: Vec<Named>,
    /// Rounds that count; one more is run first and dropped.
    #[arg(long)]
    rounds: Option<usize>,
    /// Threads, where a case does not fix their number [default: the machine's cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Seconds after which a single run is stopped.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    timeout: f64,
    /// Resident MiB at which a single run is stopped [default: 60% of what is available]
    #[arg(long, value_name = "MIB")]
    memory: Option<f64>,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let Some(command) = cli.command else { return run(&cli.run) };
    match command {
        Command::Table { result, only } => {
            let mut result = LabResult::read(&result)?;
            result.cases.retain(|case| is_named(&case.case.name, &only));
            ensure!(!result.cases.is_empty(), "no case matches; see `list`");
            println!("{}", table::print(&result));
            Ok(())
        }
        Command::Report { result, output } => {
            let output = output.unwrap_or_else(|| result.with_extension("html"));
            report::write(&LabResult::read(&result)?, &output)?;
            println!("report: {}", output.display());
            Ok(())
        }
        Command::Charts { result, out } => {
            for path in report::pictures(&LabResult::read(&result)?, &out)? {
                println!("{}", path.display());
            }
            Ok(())
        }
        Command::Compare { old, new, allocator, with } => {
            let (old, new) = (LabResult::read(&old)?, LabResult::read(&new)?);
            let names = [&*allocator, with.as_deref().unwrap_or(&allocator)];
            println!("{}", compare::compare(&old, &new, names)?.print());
            Ok(())
        }
        Command::List => {
            for entry in plan::all() {
                let Case { about, origin, .. } = entry.case();
                let origin = if origin.is_empty() { "" } else { &format!(" ({origin})") };
                println!("{:28} {about}{origin}", entry.label());
            }
            Ok(())
        }
        Command::Allocators => print_allocators(),
        Command::Attacks { allocators } => {
            let (workshop, scratch) = (Workshop::new()?, tempfile::tempdir()?);
            workshop.build_own()?;
            let candidates = workshop.all(&[], &[Form::Preloaded], |name| {
                allocators.iter().any(|named| named == name)
            })?;
            print!("{}", attacks::table(&project()?, &candidates, scratch.path())?);
            Ok(())
        }
        Command::Document { result } => document(result.as_deref()),
    }
}

fn print_allocators() -> Result<()> {
    let workshop = Workshop::new()?;
    workshop.build_own()?;
    for candidate in workshop.all(&[], &[Form::Preloaded, Form::Linked], |_| true)? {
        let told = candidate.public;
        println!("{} {}: {}", told.name, told.version, told.about);
        println!("    {} {}", told.source, told.flags);
        for (form, why) in [("preloaded", told.no_preload), ("linked", told.no_engine)] {
            println!("    {form}: {}", why.as_deref().unwrap_or("yes"));
        }
    }
    Ok(())
}

/// The project's folder.
fn project() -> Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no project")?.to_owned())
}

/// Rewrites the generated parts of the pages.
fn document(result: Option<&Path>) -> Result<()> {
    let root = project()?;
    let result = result.map(LabResult::read).transpose()?;
    for (page, name, text) in documents::parts(result.as_ref(), &core_hash::of_tree(&root)?) {
        documents::replace(&root.join(page), name, &text)?;
    }
    Ok(())
}

/// Whether a case's name contains one of these patterns, if there are any.
fn is_named(name: &str, patterns: &[String]) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| name.contains(pattern))
}

fn run(arguments: &RunArgs) -> Result<()> {
    ensure!(!cfg!(debug_assertions), "a debug build's figures mean nothing: run with --release");
    let quick = !arguments.full;
    let suite = arguments.suite.as_deref().map(Suite::read).transpose()?;
    let mut entries = entries(arguments, suite.as_ref());
    ensure!(!entries.is_empty(), "no case matches; see `list`");
    let forms: Vec<Form> = entries.iter().map(|entry| entry.form).collect();

    let workshop = Workshop::new()?;
    let workload = workshop.build_own()?;
    let candidates = candidates(arguments, &workshop, &forms)?;
    let machine = Machine::read();
    let scratch = tempfile::tempdir()?;
    let traces = traces(&workshop, &mut entries, scratch.path())?;
    let plan = Plan {
        entries,
        candidates: &candidates,
        rounds: arguments.rounds.unwrap_or(if quick { 2 } else { 5 }),
        quick,
        threads: arguments.threads,
        limits: limits(arguments, &machine),
        workload: &workload,
        scratch: scratch.path(),
        traces: traces.as_ref(),
    };
    if available_mib() < plan.limits.memory_mib {
        eprintln!("only {:.0} MiB are free: large cases may be stopped early", available_mib());
    }

    let directory = workshop.results();
    std::fs::create_dir_all(&directory)?;
    let name = suite.as_ref().map(|suite| format!("suite-{}", suite.name));
    let name = name.unwrap_or_else(|| if quick { "quick" } else { "full" }.to_owned());
    let path = directory.join(format!("{name}.journal"));
    let mut journal = Journal::open(&path, &plan.identity(), arguments.fresh)?;
    if !journal.done.is_empty() {
        eprintln!("going on after {} runs (--fresh starts over)", journal.done.len());
    }
    let core = core_hash::of_tree(&project()?)?;
    let cases = plan.run(&mut journal)?;
    let result = LabResult {
        format: FORMAT,
        command: command_line(),
        date: jiff::Zoned::now().date().to_string(),
        machine,
        quick: quick && suite.is_none(),
        suite: suite.as_ref().map(|suite| suite.name.clone()),
        core: candidates.iter().any(Candidate::is_of_tree).then_some(core),
        rounds: plan.rounds,
        allocators: candidates.iter().map(|candidate| candidate.public.clone()).collect(),
        cases,
    };
    let json = directory.join(format!("{name}.json"));
    result.write(&json)?;
    journal.finish()?;
    tell(&result, &json)
}

/// The cases that are asked for: a suite's, or the lab's own.
fn entries<'a>(arguments: &RunArgs, suite: Option<&'a Suite>) -> Vec<Entry<'a>> {
    let all = match suite {
        Some(suite) => suite.rows.iter().map(Entry::given).collect(),
        None => plan::all(),
    };
    let wanted = |entry: &Entry<'_>| {
        let scale = if arguments.full { 1.0 } else { entry.case().quick_scale };
        scale > 0.0 && is_named(&entry.label(), &arguments.only)
    };
    all.into_iter().filter(wanted).collect()
}

/// Makes the traces that are to be replayed and not there yet; leaves out those that cannot be made. None if there are
/// none.
fn traces(
    workshop: &Workshop,
    entries: &mut Vec<Entry<'_>>,
    scratch: &Path,
) -> Result<Option<Traces>> {
    if entries.iter().all(|entry| entry.trace().is_none()) {
        return Ok(None);
    }
    let traces = workshop.traces()?;
    let mut progress = Progress::of_runs(0);
    entries.retain(|entry| {
        let Some(timed) = entry.trace() else { return true };
        progress.step(&format!("recording {}", entry.label()));
        let made = timed.trace(&traces, scratch);
        if let Err(error) = &made {
            let label = entry.label();
            eprintln!("{label} is left out: {error:#}; `cargo xtask traces` makes its trace");
        }
        made.is_ok()
    });
    ensure!(!entries.is_empty(), "there is nothing to run");
    Ok(Some(traces))
}

/// The allocators that are asked for.
fn candidates(arguments: &RunArgs, workshop: &Workshop, forms: &[Form]) -> Result<Vec<Candidate>> {
    let chosen = |name: &str| match &arguments.allocators[..] {
        // A quick run leaves out the second builds of the same allocators.
        [] => arguments.full || !name.ends_with(allocators::AGAIN),
        named => named.iter().any(|n| n == name),
    };
    let candidates = workshop.all(&arguments.peer, forms, chosen)?;
    for name in &arguments.allocators {
        let is_there = candidates.iter().any(|candidate| candidate.public.name == *name);
        ensure!(is_there, "no allocator {name}; see `allocators`, or give its library by --peer");
    }
    Ok(candidates)
}

fn limits(arguments: &RunArgs, machine: &Machine) -> Limits {
    Limits {
        timeout: Duration::from_secs_f64(arguments.timeout),
        // Of all memory, not of what is free: that differs when a stopped run goes on.
        memory_mib: arguments.memory.unwrap_or(0.6 * machine.memory_mib as f64),
    }
}

/// Prints the result, and writes its report beside it.
fn tell(result: &LabResult, json: &Path) -> Result<()> {
    println!("{}", table::print(result));
    println!("\nresult: {}", json.display());
    let page = json.with_extension("html");
    report::write(result, &page)?;
    println!("report: {}", page.display());
    if result.suite.is_some() {
        return Ok(());
    }
    let left_out = if result.quick { "full sizes (cargo lab --full)" } else { MORE_CORES };
    println!("not run here: {left_out}");
    Ok(())
}

/// What no run on this machine can tell.
const MORE_CORES: &str = "more cores than there are (cargo xtask scaling)";

/// As typed, without the path of the executable.
fn command_line() -> String {
    let arguments = std::env::args().skip(1);
    ["cairn-bench".to_owned()].into_iter().chain(arguments).collect::<Vec<_>>().join(" ")
}
