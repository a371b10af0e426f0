//! What became of the suites: kept as JSON from run to run, so that hours of tests can be run in
//! parts, and made into one table.

use super::{Kind, Suite};
use crate::tables;
use anyhow::{Context, Result};
use glob::Pattern;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One side of a suite.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) tests: usize,
    pub(super) failed: BTreeSet<String>,
    pub(super) seconds: f64,
}

/// A test that failed with the library and not without.
#[derive(Serialize, Deserialize)]
pub(super) struct Suspect {
    pub(super) test: String,
    /// It failed without the library as well when it ran again.
    pub(super) unsteady: bool,
    pub(super) message: String,
}

/// One line of the table.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) version: String,
    /// Only a part of the suite was run.
    pub(super) quick: bool,
    /// Why it could not be run at all.
    pub(super) problem: Option<String>,
    pub(super) without: Outcome,
    pub(super) with: Outcome,
    pub(super) suspects: Vec<Suspect>,
    /// The processes that were seen with the library mapped.
    pub(super) loaded: BTreeMap<String, usize>,
}

/// What is known of a suspect.
#[derive(PartialEq)]
enum Known {
    Unsteady,
    /// By this entry of the suite.
    Explained(usize),
    Unexplained,
}

impl Suspect {
    fn kind(&self, suite: &Suite) -> Known {
        let fits = |[pattern, _]: &[String; 2]| {
            Pattern::new(pattern).is_ok_and(|pattern| pattern.matches(&self.test))
        };
        match suite.explained.iter().position(fits) {
            _ if self.unsteady => Known::Unsteady,
            Some(nth) => Known::Explained(nth),
            None => Known::Unexplained,
        }
    }
}

impl Row {
    fn file(suite: &Suite, results: &Path) -> PathBuf {
        results.join(format!("{}.json", suite.name))
    }

    pub(super) fn save(&self, suite: &Suite, results: &Path) -> Result<()> {
        let file = Self::file(suite, results);
        fs::write(&file, serde_json::to_string_pretty(self)?)
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// The result that is kept; without one a row that says so.
    fn load(suite: &Suite, results: &Path) -> Result<Self> {
        let file = Self::file(suite, results);
        if !file.exists() {
            let problem = Some("there is no result yet".to_owned());
            return Ok(Self { problem, ..Self::default() });
        }
        serde_json::from_str(&fs::read_to_string(&file)?)
            .with_context(|| format!("{} is of another version", file.display()))
    }

    /// Something is here that nobody has explained.
    pub(super) fn fails(&self, suite: &Suite) -> bool {
        let bad = |suspect: &Suspect| suspect.kind(suite) == Known::Unexplained;
        self.problem.is_some() || self.suspects.iter().any(bad)
    }

    /// The lines for whoever watches.
    pub(super) fn detail(&self, suite: &Suite) -> String {
        if let Some(problem) = &self.problem {
            return format!("  NOT RUN: {problem}\n");
        }
        let [without, with] = [&self.without, &self.with].map(|outcome| outcome.seconds);
        let mut text = format!("  {without:.1} s and {with:.1} s; library in {:?}\n", self.loaded);
        for suspect in &self.suspects {
            let kind = match suspect.kind(suite) {
                Known::Unsteady => "unsteady",
                Known::Explained(_) => "explained",
                Known::Unexplained => "ONLY WITH THE LIBRARY",
            };
            let _ = writeln!(text, "  {kind}: {}: {}", suspect.test, suspect.message);
        }
        text
    }

    /// The tests that only failed with the library.
    fn only(&self, suite: &Suite) -> String {
        let of = |kind: fn(&Known) -> bool| {
            self.suspects.iter().filter(move |suspect| kind(&suspect.kind(suite)))
        };
        let unexplained = of(|kind| *kind == Known::Unexplained);
        let mut only: Vec<String> = unexplained.map(|it| format!("**{}**", it.test)).collect();
        match of(|kind| matches!(kind, Known::Explained(_))).count() {
            0 if only.is_empty() => only.push("none".to_owned()),
            0 => {}
            explained => only.push(format!("{explained}, below")),
        }
        only.join(", ")
    }

    /// Its line in the table of suites.
    fn cells(&self, suite: &Suite) -> Vec<String> {
        let (without, with) = (&self.without, &self.with);
        let part = if self.quick { ", a part" } else { "" };
        let what = format!("{}{part}", suite.what);
        let mut cells = vec![suite.name.clone(), self.version.clone(), what];
        cells.push(match without.tests == with.tests {
            true => with.tests.to_string(),
            false => format!("{} / {}", without.tests, with.tests),
        });
        cells.extend([without, with].map(|side| side.failed.len().to_string()));
        cells.push(self.only(suite));
        cells
    }
}

/// The list of programs, or the table of suites: with the machine it comes from, and what has no result.
pub(super) fn table(kind: Kind, results: &Path) -> Result<String> {
    let (mut rows, mut missing) = (Vec::new(), Vec::new());
    for suite in kind.all() {
        match Row::load(suite, results)? {
            Row { problem: Some(_), .. } => missing.push(suite.name.as_str()),
            row => rows.push((suite, row)),
        }
    }
    let seconds = rows.iter().map(|(_, row)| row.without.seconds + row.with.seconds).sum::<f64>();
    // A number without its machine says little.
    const MACHINE: &str = ". /etc/os-release
echo $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, $PRETTY_NAME, \
Linux $(uname -r | sed 's/-.*//'), $(date +%F)";
    let machine = Command::new("sh").args(["-c", MACHINE]).output()?.stdout;
    let machine = String::from_utf8_lossy(&machine).trim().to_owned();
    let (count, name, minutes) = (rows.len(), kind.name(), seconds / 60.0);
    let mut text = format!("{machine}; {count} {name} in {minutes:.0} minutes.\n\n");
    text += &match kind {
        Kind::Programs => versions(&rows),
        Kind::Suites => counts(&rows),
    };
    if !missing.is_empty() {
        let _ = writeln!(text, "\nWithout a result: {}.", missing.join(", "));
    }
    let differ = rows.iter().filter(|(it, row)| row.fails(it)).map(|(it, _)| it.name.as_str());
    let differ = differ.collect::<Vec<_>>().join(", ");
    match (kind, differ.is_empty()) {
        (Kind::Programs, true) => text += "\nEach printed the same on both sides.\n",
        (Kind::Programs, false) => {
            let _ = writeln!(text, "\n**Not the same on both sides: {differ}.**");
        }
        (Kind::Suites, _) => text += &explanations(&rows),
    }
    Ok(text)
}

/// Which programs they are.
fn versions(rows: &[(&Suite, Row)]) -> String {
    let one = |(suite, row): &(&Suite, Row)| format!("{} {}", suite.name, row.version);
    rows.iter().map(one).collect::<Vec<_>>().join(", ") + ".\n"
}

/// What each suite's tests said.
fn counts(rows: &[(&Suite, Row)]) -> String {
    let columns =
        ["suite", "version", "what was run", "tests", "fail without", "with", "only with cairn"];
    let cells = rows.iter().map(|(suite, row)| row.cells(suite));
    tables::markdown(&columns, |at| (3..6).contains(&at), cells)
}

/// Why some tests fail only with the library.
fn explanations(rows: &[(&Suite, Row)]) -> String {
    let of = |(suite, row): &(&Suite, Row)| {
        let why = suite.explained.iter().enumerate().filter_map(|(nth, [_, why])| {
            let is_it = |suspect: &&Suspect| suspect.kind(suite) == Known::Explained(nth);
            let tests = row.suspects.iter().filter(is_it).map(|it| format!("`{}`", it.test));
            let tests = tests.collect::<Vec<_>>().join(", ");
            (!tests.is_empty()).then(|| vec![format!("{} {tests}", suite.name), why.clone()])
        });
        why.collect::<Vec<_>>()
    };
    let table = tables::markdown(&["test", "why"], |_| false, rows.iter().flat_map(of));
    format!("\n### What fails only with cairn\n\n{table}")
}
