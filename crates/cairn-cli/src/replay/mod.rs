//! `cairn replay`: a trace's calls under several allocators, or with several settings of cairn.
//!
//! Owns which allocators these are, and what is said of them. The one idea: each replay is a process of its own, which
//! has the same calls, and all take turns, so that what the machine does meanwhile is everybody's. It must never call a
//! difference one that another turn does not show.
//!
//! | module | holds |
//! | --- | --- |
//! | [`plan`] | what there is in a trace, and its calls by thread |
//! | [`window`] | the memory through which the calls go |
//! | [`child`] | one replay, as its parent sees it |
//! | [`worker`] | the same from inside |
//! | [`table`] | what is printed |

mod child;
mod plan;
mod table;
mod window;
pub(crate) mod worker;

use crate::embedded;
use anyhow::{Context, Result, ensure};
use child::Figures;
use plan::Plan;
use std::fs;
use std::path::PathBuf;

/// Settings of cairn that may help a program.
const SETTINGS: [(&str, &[(&str, &str)]); 4] = [
    ("CAIRN_PURGE_DELAY=0", &[("CAIRN_PURGE_DELAY", "0")]),
    ("CAIRN_PURGE_DELAY=10s", &[("CAIRN_PURGE_DELAY", "10s")]),
    ("CAIRN_PURGE_DELAY=never", &[("CAIRN_PURGE_DELAY", "never")]),
    ("CAIRN_HUGE_PAGES=0", &[("CAIRN_HUGE_PAGES", "0")]),
];

/// Replay a trace under cairn and other allocators
///
/// As many threads as made the calls make them again, each in its order; a block that goes from one to another does so
/// again. They write to each page of a block, and read before they free. Between the calls nothing else is done, so that
/// times are those of the allocators.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cairn replay cairn.trace                  cairn beside the system's allocator
  cairn replay -a jemalloc=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2 cairn.trace
  cairn replay --settings cairn.trace       would a setting help?
  CAIRN_PURGE_DELAY=0 cairn replay --only cairn cairn.trace
  cairn replay --json cairn.trace | jq '.allocators[0]'
The columns and the fields of --json are in docs/guide/traces.md.")]
pub(crate) struct Args {
    /// What `cairn record` has made
    trace: PathBuf,

    /// One more allocator: what to call it, and its library
    #[arg(short, long = "allocator", value_name = "NAME=LIB", value_parser = allocator)]
    allocators: Vec<(String, PathBuf)>,

    /// Replay under this one, and no others: cairn, system, or what -a names
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// Try settings of cairn, not other allocators
    #[arg(long, conflicts_with_all = ["allocators", "only"])]
    settings: bool,

    /// Replay it so many times, and print the median
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,

    /// Refuse a trace whose blocks take more; three quarters of the memory that is free if nothing is said
    #[arg(long, value_name = "BYTES", value_parser = memory)]
    memory: Option<u64>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn allocator(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, library)) if !name.is_empty() && !library.is_empty() => {
            Ok((name.to_owned(), library.into()))
        }
        _ => Err("it is a name, =, and the path of a library".to_owned()),
    }
}

fn memory(text: &str) -> Result<u64, String> {
    let bytes = crate::advice::values::bytes(text.as_bytes()).filter(|&bytes| bytes > 0);
    let bytes = bytes.map(|bytes| bytes as u64);
    bytes.ok_or_else(|| "it is a number of bytes such as 2G or 512MiB".to_owned())
}

/// Who replays.
struct Candidate {
    name: String,
    /// None is the system's.
    library: Option<PathBuf>,
    variables: &'static [(&'static str, &'static str)],
}

/// Who has replayed, and how.
struct Outcome {
    name: String,
    runs: Vec<Figures>,
}

/// Replays, and prints what came of it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let candidates = candidates(args)?;
    let memory = args.memory.unwrap_or_else(available);
    let name = args.trace.display().to_string();
    let plan = Plan::of(&args.trace, memory).with_context(|| name.clone())?;
    ensure!(plan.extent.calls > 0, "{name}: no calls are in it");
    let mut outcomes: Vec<Outcome> = candidates
        .iter()
        .map(|candidate| Outcome { name: candidate.name.clone(), runs: Vec::new() })
        .collect();
    for _ in 0..args.runs {
        for (candidate, outcome) in candidates.iter().zip(&mut outcomes) {
            let figures = child::replay(&plan, candidate);
            outcome.runs.push(figures.with_context(|| candidate.name.clone())?);
        }
    }
    let text = match args.json {
        true => table::json(&plan.extent, &outcomes)?,
        false => table::text(&plan.extent, &outcomes, args.settings),
    };
    crate::print(text.as_bytes())
}

fn candidates(args: &Args) -> Result<Vec<Candidate>> {
    let cairn = embedded::install(&embedded::DEFAULT)?;
    let of_cairn = |name: &str, variables| Candidate {
        name: name.to_owned(),
        library: Some(cairn.clone()),
        variables,
    };
    let mut candidates = vec![of_cairn("cairn", &[])];
    if args.settings {
        candidates.extend(SETTINGS.map(|(name, variables)| of_cairn(name, variables)));
        return Ok(candidates);
    }
    candidates.push(Candidate { name: "system".to_owned(), library: None, variables: &[] });
    for (name, library) in &args.allocators {
        let library = fs::canonicalize(library).with_context(|| library.display().to_string())?;
        candidates.push(Candidate { name: name.clone(), library: Some(library), variables: &[] });
    }
    for only in &args.only {
        let is_there = candidates.iter().any(|candidate| candidate.name == *only);
        ensure!(is_there, "--only {only}: there are cairn, system, and what -a names");
    }
    candidates.retain(|candidate| args.only.is_empty() || args.only.contains(&candidate.name));
    Ok(candidates)
}

/// Three quarters of what the system could give now.
fn available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| (kib << 10) / 4 * 3)
}
