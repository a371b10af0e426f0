//! Runs the units of a suite on both sides and holds one against the other.

use super::readers::{self, Tally};
use super::report::{Row, Suspect};
use super::{READERS, Suite, Unit};
use crate::definitions::{self, set};
use crate::process::{Process, tail};
use crate::stage::{Side, Size, Stage};
use crate::variables::fill;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often a test that failed only with the library is run again without it.
const AGAIN: usize = 2;

/// Where the two sides of a suite run, one after the other: what finds its way into outputs from
/// the names of directories is equal.
pub(super) struct Bench<'a> {
    pub(super) suite: &'static Suite,
    pub(super) size: Size,
    pub(super) library: &'a Path,
    pub(super) pause: Duration,
    pub(super) home: PathBuf,
}

impl Bench<'_> {
    pub(super) fn stage(&self, side: Side) -> Result<Stage> {
        Stage::open(&self.home, self.size, side, self.library, self.pause)
    }

    /// Runs one unit on both sides, one right after the other, so that both meet the same weather.
    pub(super) fn run(&self, unit: &Unit, row: &mut Row) -> Result<()> {
        let without = self.side(unit, Side::Without, row)?;
        let with = self.side(unit, Side::With, row)?;
        let (tests, failures) = (with.tests, without.failed.len());
        let only = self.only_with(&without, with);
        let (name, more) = (&unit.name, only.len());
        eprintln!("  {name}: {tests} tests, {failures} failures, {more} only with the library");
        // Once more alone: a test that minds a busy machine fails without it, sooner or later.
        let mut unsteady = BTreeSet::new();
        for _ in 0..if only.is_empty() { 0 } else { AGAIN } {
            unsteady
                .extend(self.side(unit, Side::Without, &mut Row::default())?.failed.into_keys());
        }
        row.suspects.extend(only.into_iter().map(|(name, message)| Suspect {
            test: unit.full_name(&name),
            unsteady: unsteady.contains(&name),
            message,
        }));
        Ok(())
    }

    /// The tests that failed with the library and not without, and why.
    fn only_with(&self, without: &Tally, with: Tally) -> BTreeMap<String, String> {
        let same = self.suite.script.is_none() || with.output == without.output;
        let wrong = match same {
            false => difference(&without.output, &with.output),
            true if with.tests == 0 && without.tests > 0 => Some("no test was seen".to_owned()),
            true => None,
        };
        let mut failed = with.failed;
        if failed.is_empty() {
            failed.extend(wrong.map(|wrong| (String::new(), wrong)));
        }
        failed.retain(|name, _| !without.failed.contains_key(name));
        failed
    }

    /// Runs one unit on one side.
    fn side(&self, unit: &Unit, side: Side, row: &mut Row) -> Result<Tally> {
        let start = Instant::now();
        let stage = self.stage(side)?;
        let process = self.process(unit, &stage)?;
        let ended = set(process, &self.suite.env, &unit.variables).run()?;
        let reader = unit.group.and_then(|group| Some(&READERS[group.reads.as_ref()?]));
        // Without its own, those of automake; a program skips nothing.
        let skips = |group: &'static Suite| group.skips.as_deref().unwrap_or(&[77]);
        let skips = unit.group.map_or(&[][..], skips);
        let (log, is_program) = (ended.stderr.clone(), self.suite.script.is_some());
        let mut tally = readers::read(reader, skips, ended)?;
        // What a suite provokes is told, and no failure.
        for line in log.lines().filter(|line| line.starts_with("cairn:")) {
            eprintln!("  it said: {line}");
            if is_program {
                tally.failed.insert(line.to_owned(), "the library complained".to_owned());
            }
        }
        if is_program && !tally.failed.is_empty() {
            eprint!("{}", tail(&log));
        }
        for (name, count) in stage.close()? {
            *row.loaded.entry(name).or_default() += count;
        }
        let outcome = if side == Side::With { &mut row.with } else { &mut row.without };
        outcome.seconds += start.elapsed().as_secs_f64();
        outcome.tests += tally.tests;
        outcome.failed.extend(tally.failed.keys().map(|name| unit.full_name(name)));
        Ok(tally)
    }

    fn process<'a>(&self, unit: &Unit, stage: &'a Stage) -> Result<Process<'a>> {
        let variables = &unit.variables;
        let Some(group) = unit.group else {
            // Each command stands in the log, and at the end of it the one that failed.
            let script = self.suite.script.as_deref().context("neither a script nor groups")?;
            let script = format!(". {{scripts}}/prelude.sh\nset -x\n{script}");
            return Ok(stage.process("sh")?.script(&script, variables));
        };
        let linked = group.run_with.as_ref().filter(|_| stage.library.is_some());
        let words = definitions::words(linked.unwrap_or(&group.run), variables)?;
        let process = stage.process(&words[0])?.with(|command| command.args(&words[1..]));
        let mut process = set(process, &group.test_env, variables);
        if linked.is_some() {
            process = process.with(|command| command.env_remove("LD_PRELOAD"));
        }
        if let Some(directory) = &group.directory {
            process = process.with(|command| command.current_dir(fill(directory, variables)));
        }
        Ok(match group.limit {
            Some(seconds) => process.limit(seconds),
            None => process,
        })
    }
}

/// Where two outputs differ.
fn difference(without: &str, with: &str) -> Option<String> {
    let (mut without, mut with) = (without.lines(), with.lines());
    for line in 1.. {
        match (without.next(), with.next()) {
            (None, None) => break,
            (before, after) if before == after => {}
            (before, after) => {
                let [before, after] = [before, after].map(|text| text.unwrap_or("nothing"));
                return Some(format!("line {line} was `{before}` and is `{after}`"));
            }
        }
    }
    None
}

impl Unit {
    fn full_name(&self, test: &str) -> String {
        if test.is_empty() { self.name.clone() } else { format!("{}: {test}", self.name) }
    }
}
