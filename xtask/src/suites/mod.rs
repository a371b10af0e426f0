//! Runs test suites that others wrote, with and without the library, and names the tests that
//! fail only with it.
//!
//! A [`Suite`] says what it needs, how its sources come and are built, and into which [`Unit`]s it
//! falls: processes whose output a reader turns into a [`Tally`]. The runner knows nothing of any
//! suite; a suite knows nothing of the comparison. The story for readers: docs/results/suites.md.

mod allocators;
mod databases;
mod glibc;
mod go;
mod languages;
mod posix;
mod report;
mod rust;
mod shop;
mod stress;
mod tally;

use crate::programs::install::{self, Need};
use crate::programs::process::Process;
use crate::programs::stage::{Scale, Side, Stage};
use crate::programs::{private_copy, report::machine, report::write};
use crate::steps::not_run;
use anyhow::{Context, Result, bail, ensure};
use report::{Outcome, Row, Suspect};
use shop::Shop;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tally::Tally;

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A part of every suite, about an hour in all.
    #[arg(long)]
    quick: bool,
    /// Only these suites, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Only units whose name contains this.
    #[arg(long, value_name = "TEXT")]
    unit: Option<String>,
    /// A malloc library to try instead of a freshly built libcairn.so.
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// Where sources, builds and results are kept from run to run, instead of target/suites.
    #[arg(long, value_name = "PATH")]
    scratch: Option<PathBuf>,
    /// Install nothing; suites that lack something are reported so.
    #[arg(long)]
    no_install: bool,
    /// Run nothing; make the table of the results that are kept.
    #[arg(long)]
    table: bool,
    /// Write the table to this file, between its markers if it has them.
    #[arg(long, value_name = "OUT")]
    markdown: Option<PathBuf>,
}

/// A test suite.
struct Suite {
    name: &'static str,
    needs: &'static [Need],
    /// What is run, for the table.
    what: &'static str,
    /// Brings the sources, builds without the library, and says what there is to run.
    prepare: fn(&Shop) -> Result<Prepared>,
    /// Failures with the library alone that are understood: the test (a `*` at the end stands for
    /// anything) and why.
    explained: &'static [(&'static str, &'static str)],
}

/// What a suite has made ready.
struct Prepared {
    version: String,
    units: Vec<Unit>,
    /// What a reader of the table should know, such as what was left out and why.
    notes: Vec<String>,
}

/// A part of a suite that runs in one process, on both sides.
struct Unit {
    name: String,
    start: Box<Start>,
    reads: fn(&Ended) -> Tally,
}

/// Makes the process of one side, its time limit included.
type Start = dyn for<'a> Fn(&'a Stage) -> Result<Process<'a>>;

impl Unit {
    fn new(
        name: impl Into<String>,
        reads: fn(&Ended) -> Tally,
        start: impl for<'a> Fn(&'a Stage) -> Result<Process<'a>> + 'static,
    ) -> Self {
        Self { name: name.into(), start: Box::new(start), reads }
    }
}

/// What a unit's process left behind.
struct Ended {
    /// Standard output, then standard error.
    output: String,
    /// `None` if the time limit or a signal ended it.
    code: Option<i32>,
    /// How it ended, in words.
    how: String,
}

/// Every suite, in the order of the table.
const SUITES: [&Suite; 19] = [
    &glibc::MALLOC,
    &glibc::THREADS,
    &allocators::JEMALLOC,
    &allocators::SCUDO,
    &allocators::MIMALLOC,
    &allocators::GPERFTOOLS,
    &stress::STRESS_NG,
    &posix::POSIX,
    &languages::PYTHON_MALLOC,
    &languages::PYTHON,
    &languages::PERL,
    &languages::RUBY,
    &databases::REDIS,
    &databases::SQLITE,
    &databases::POSTGRES,
    &rust::LIBRARY,
    &rust::CRATES,
    &rust::CRATES_LINKED,
    &go::CGO,
];

/// Looking at `/proc` costs time that busy tests want.
const PAUSE: Duration = Duration::from_millis(250);

/// How often a test that failed only with the library is run again, on both sides.
const AGAIN: usize = 2;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let chosen = choose(args)?;
    let scratch = match &args.scratch {
        Some(path) => path.clone(),
        None => crate::library::workspace().join("target/suites"),
    };
    fs::create_dir_all(scratch.join("results"))?;
    let scratch = scratch.canonicalize()?;
    fs::set_permissions(&scratch, fs::Permissions::from_mode(0o755))?;
    let mut bad = Vec::new();
    if !args.table {
        let missing = install::missing(chosen.iter().flat_map(|suite| suite.needs));
        if !missing.is_empty() && !args.no_install {
            install::install(&missing);
        }
        // Of this run alone: another must not write into a library that is mapped.
        let copy = tempfile::tempdir_in(&scratch)?;
        fs::set_permissions(copy.path(), fs::Permissions::from_mode(0o755))?;
        let library = private_copy(args.library.as_deref(), copy.path())?;
        for suite in &chosen {
            eprintln!("{}: {}", suite.name, suite.what);
            let mut row = judge(suite, args, &library, &scratch)?;
            row.explain(suite.explained);
            eprint!("{}", row.detail());
            if args.unit.is_none() {
                row.save(&scratch)?;
            }
            if row.fails() {
                bad.push(suite.name);
            }
        }
    }
    let mut rows = Vec::new();
    for suite in SUITES {
        let mut row = Row::load(suite.name, &scratch)?.unwrap_or_else(|| Row::absent(suite));
        row.explain(suite.explained);
        rows.push(row);
    }
    let table = report::table(&rows, &machine());
    println!("{table}");
    if let Some(out) = &args.markdown {
        write(out, "suites", &table)?;
    }
    if !bad.is_empty() {
        bail!("look into {}; logs are in {}", bad.join(", "), scratch.display());
    }
    not_run(&match (args.table, SUITES.len() - chosen.len()) {
        (true, _) => "the suites themselves (cargo xtask suites)".to_owned(),
        (false, _) if args.quick => "the rest of each suite (cargo xtask suites)".to_owned(),
        (false, 0) => "the real programs (cargo xtask programs)".to_owned(),
        (false, others) => format!("{others} more suites (cargo xtask suites)"),
    });
    Ok(())
}

fn choose(args: &Args) -> Result<Vec<&'static Suite>> {
    for name in &args.only {
        let known = SUITES.iter().any(|suite| suite.name == name);
        let names = SUITES.map(|suite| suite.name).join(", ");
        ensure!(known, "no suite is called {name}; there are {names}");
    }
    let wanted = |suite: &&Suite| args.only.is_empty() || args.only.iter().any(|n| n == suite.name);
    Ok(SUITES.into_iter().filter(wanted).collect())
}

/// Prepares and runs one suite. What cannot be prepared is a row too: it says why.
fn judge(suite: &'static Suite, args: &Args, library: &Path, scratch: &Path) -> Result<Row> {
    let scale = if args.quick { Scale::Quick } else { Scale::Full };
    let mut row = Row::new(suite, args.quick);
    if let Some(need) = suite.needs.iter().find(|need| !need.present()) {
        row.problem = Some(format!("needs {} (package {})", need.file, need.package));
        return Ok(row);
    }
    let home = scratch.join(suite.name);
    let stage = Stage::open(&home, scale, Side::Bare, library)?;
    let shop = Shop::new(&stage, scratch);
    let prepared = (suite.prepare)(&shop);
    row.quick &= shop.has_picked();
    stage.close()?;
    let mut prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            row.problem = Some(format!("{error:#}"));
            return Ok(row);
        }
    };
    if let Some(part) = &args.unit {
        prepared.units.retain(|unit| unit.name.contains(part.as_str()));
    }
    ensure!(!prepared.units.is_empty(), "{} has nothing to run", suite.name);
    row.version = prepared.version;
    row.notes = prepared.notes;
    let bench = Bench {
        without: Stage::open(&home.join("without"), scale, Side::Baseline, library)?,
        with: Stage::open(&home.join("with"), scale, Side::Preloaded, library)?,
    };
    for unit in &prepared.units {
        bench.run(unit, &mut row)?;
    }
    row.loaded = bench.with.loaded();
    let stray = bench.without.loaded();
    ensure!(stray.is_empty(), "the library is mapped although nobody asked: {stray:?}");
    bench.without.close()?;
    bench.with.close()?;
    Ok(row)
}

/// The two sides of a suite.
struct Bench {
    without: Stage,
    with: Stage,
}

impl Bench {
    /// Runs one unit on both sides, one right after the other, so that both meet the same weather.
    fn run(&self, unit: &Unit, row: &mut Row) -> Result<()> {
        let without = side(unit, &self.without, &mut row.without)?;
        let with = side(unit, &self.with, &mut row.with)?;
        row.units += 1;
        row.said.extend(self.with.said());
        if without.tests != with.tests {
            row.counts.push(format!("{}: {} and {}", unit.name, without.tests, with.tests));
        }
        eprintln!(
            "  {}: {} tests, {} and {} failures",
            unit.name,
            without.tests,
            without.failed.len(),
            with.failed.len()
        );
        let only: Vec<&String> =
            with.failed.keys().filter(|it| !without.failed.contains_key(*it)).collect();
        if only.is_empty() {
            return Ok(());
        }
        // Once more alone: a test that minds a busy machine fails on either side, sooner or later.
        let mut failures: BTreeMap<&String, (usize, usize)> =
            only.into_iter().map(|name| (name, (0, 1))).collect();
        for _ in 0..AGAIN {
            let mut ignored = Outcome::default();
            let again =
                [side(unit, &self.without, &mut ignored)?, side(unit, &self.with, &mut ignored)?];
            row.said.extend(self.with.said());
            for (name, count) in &mut failures {
                count.0 += usize::from(again[0].failed.contains_key(*name));
                count.1 += usize::from(again[1].failed.contains_key(*name));
            }
        }
        for (name, (before, after)) in failures {
            row.suspects.push(Suspect {
                test: full_name(unit, name),
                without: before,
                with: after,
                message: with.failed[name].clone(),
                explained: None,
            });
        }
        Ok(())
    }
}

/// Runs one unit on one side.
fn side(unit: &Unit, stage: &Stage, outcome: &mut Outcome) -> Result<Tally> {
    let start = Instant::now();
    let finished = (unit.start)(stage)?.pause(PAUSE).run_to_limit()?;
    let ended = Ended {
        output: finished.text() + &finished.stderr,
        code: if finished.killed { None } else { finished.status.code() },
        how: if finished.killed { "the time limit".into() } else { finished.status.to_string() },
    };
    let mut tally = (unit.reads)(&ended);
    if !tally.skipped && ended.code != Some(0) && tally.failed.is_empty() {
        tally.fail("", format!("ended with {}", ended.how));
    }
    outcome.seconds += start.elapsed().as_secs_f64();
    outcome.tests += tally.tests;
    outcome.failed.extend(tally.failed.keys().map(|name| full_name(unit, name)));
    Ok(tally)
}

fn full_name(unit: &Unit, test: &str) -> String {
    if test.is_empty() { unit.name.clone() } else { format!("{}: {test}", unit.name) }
}

/// The names of a list in the source.
fn words(list: &str) -> BTreeSet<String> {
    list.split_whitespace().map(str::to_owned).collect()
}

/// The files of a directory whose names end so, sorted, without that end.
fn stems(directory: &Path, end: &str) -> Result<Vec<String>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut stems: Vec<String> =
        names.filter_map(|name| name.strip_suffix(end).map(str::to_owned)).collect();
    stems.sort();
    Ok(stems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = SUITES.iter().map(|suite| suite.name).collect();
        assert_eq!(names.len(), SUITES.len());
    }
}
