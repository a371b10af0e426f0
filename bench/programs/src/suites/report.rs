//! What became of the suites: kept as JSON from run to run, so that hours of tests can be run in
//! parts, and made into one table.

use super::Suite;
use crate::tables;
use anyhow::{Context, Result};
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

/// A test that failed with the library and not without, and how often it failed in three runs.
#[derive(Serialize, Deserialize)]
pub(super) struct Suspect {
    pub(super) test: String,
    pub(super) without: usize,
    pub(super) with: usize,
    pub(super) message: String,
}

/// One line of the table.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Row {
    suite: String,
    what: String,
    pub(super) version: String,
    /// Only a part of the suite was run.
    pub(super) quick: bool,
    date: String,
    /// Why it could not be run at all.
    pub(super) problem: Option<String>,
    pub(super) units: usize,
    pub(super) without: Outcome,
    pub(super) with: Outcome,
    pub(super) suspects: Vec<Suspect>,
    /// Units that counted another number of tests on each side.
    pub(super) counts: Vec<String>,
    pub(super) notes: Vec<String>,
    /// Lines that the library wrote.
    pub(super) said: Vec<String>,
    /// The processes that were seen with the library mapped.
    pub(super) loaded: BTreeMap<String, usize>,
}

/// What is known of a suspect.
enum Kind<'a> {
    /// It failed without the library as well when it ran again.
    Unsteady,
    Explained(&'a str),
    Unexplained,
}

impl Suspect {
    fn kind<'a>(&self, explained: &'a [[String; 2]]) -> Kind<'a> {
        let known = explained.iter().find(|[pattern, _]| fits(pattern, &self.test));
        match known {
            _ if self.without > 0 => Kind::Unsteady,
            Some([_, why]) => Kind::Explained(why),
            None => Kind::Unexplained,
        }
    }
}

impl Row {
    pub(super) fn new(suite: &Suite, quick: bool) -> Self {
        let date = Command::new("date").arg("+%F").output().map(|it| it.stdout).unwrap_or_default();
        Self {
            suite: suite.name.clone(),
            what: suite.what.clone(),
            quick,
            date: String::from_utf8_lossy(&date).trim().to_owned(),
            ..Self::default()
        }
    }

    fn file(suite: &str, scratch: &Path) -> PathBuf {
        scratch.join("results").join(format!("{suite}.json"))
    }

    pub(super) fn save(&self, scratch: &Path) -> Result<()> {
        let file = Self::file(&self.suite, scratch);
        fs::write(&file, serde_json::to_string_pretty(self)?)
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// The result that is kept; without one a row that says so.
    fn load(suite: &Suite, scratch: &Path) -> Result<Self> {
        let file = Self::file(&suite.name, scratch);
        if !file.exists() {
            let problem = Some("there is no result yet".to_owned());
            return Ok(Self { problem, date: String::new(), ..Self::new(suite, false) });
        }
        serde_json::from_str(&fs::read_to_string(&file)?)
            .with_context(|| format!("{} is of another version", file.display()))
    }

    /// Something is here that nobody has explained.
    pub(super) fn fails(&self, explained: &[[String; 2]]) -> bool {
        let bad = |suspect: &Suspect| matches!(suspect.kind(explained), Kind::Unexplained);
        self.problem.is_some() || self.suspects.iter().any(bad)
    }

    /// The lines for whoever watches.
    pub(super) fn detail(&self, explained: &[[String; 2]]) -> String {
        if let Some(problem) = &self.problem {
            return format!("  NOT RUN: {problem}\n");
        }
        let (without, with) = (&self.without, &self.with);
        let mut text = format!(
            "  {} units; {} and {} tests, {} and {} failures, {:.0} s and {:.0} s; library in {:?}\n",
            self.units,
            without.tests,
            with.tests,
            without.failed.len(),
            with.failed.len(),
            without.seconds,
            with.seconds,
            self.loaded
        );
        for suspect in &self.suspects {
            let kind = match suspect.kind(explained) {
                Kind::Unsteady => "unsteady",
                Kind::Explained(_) => "explained",
                Kind::Unexplained => "ONLY WITH THE LIBRARY",
            };
            let Suspect { test, without, with, message } = suspect;
            let runs = format!("{without} of 3 runs without, {with} of 3 with");
            let _ = writeln!(text, "  {kind}: {test} ({runs}): {message}");
        }
        for line in &self.said {
            let _ = writeln!(text, "  it said: {line}");
        }
        text
    }

    fn cells(&self, explained: &[[String; 2]]) -> [String; 9] {
        let mut cells: [String; 9] = Default::default();
        cells[0].clone_from(&self.suite);
        cells[8].clone_from(&self.date);
        if let Some(problem) = &self.problem {
            cells[2].clone_from(&self.what);
            cells[6] = format!("not run: {}", problem.lines().next().unwrap_or_default());
            return cells;
        }
        let (without, with) = (&self.without, &self.with);
        let (mut only, mut unsteady) = (Vec::new(), 0);
        for suspect in &self.suspects {
            match suspect.kind(explained) {
                Kind::Unsteady => unsteady += 1,
                Kind::Explained(_) => only.push(suspect.test.clone()),
                Kind::Unexplained => only.push(format!("**{}**", suspect.test)),
            }
        }
        if only.is_empty() {
            only.push("none".to_owned());
        }
        if unsteady > 0 {
            only.push(format!("({unsteady} unsteady)"));
        }
        cells[1].clone_from(&self.version);
        cells[2] = format!("{}{}", self.what, if self.quick { " (a part)" } else { "" });
        cells[3] = match without.tests == with.tests {
            true => with.tests.to_string(),
            false => format!("{} / {}", without.tests, with.tests),
        };
        cells[4] = without.failed.len().to_string();
        cells[5] = with.failed.len().to_string();
        cells[6] = only.join(", ");
        cells[7] = format!("{:.1} + {:.1}", without.seconds / 60.0, with.seconds / 60.0);
        cells
    }

    /// What the table has no room for.
    fn remarks(&self, explained: &[[String; 2]]) -> Vec<String> {
        let remark = |suspect: &Suspect| {
            let Suspect { test, without, with, message } = suspect;
            match suspect.kind(explained) {
                Kind::Unsteady => format!(
                    "`{test}` is unsteady: it failed in {without} of 3 runs without and {with} of 3 with"
                ),
                Kind::Explained(why) => format!("`{test}`: {why}"),
                Kind::Unexplained => format!("`{test}` ({with} of 3 runs): {message}"),
            }
        };
        let mut remarks: Vec<String> = self.suspects.iter().map(remark).collect();
        if !self.counts.is_empty() {
            let counts = self.counts.join("; ");
            remarks.push(format!("numbers of tests that differ, without and with: {counts}"));
        }
        remarks.extend(self.notes.iter().cloned());
        remarks
    }
}

/// The whole table, with the machine it comes from, and the remarks below it.
pub(super) fn table(suites: &[Suite], scratch: &Path) -> Result<String> {
    let rows: Vec<Row> =
        suites.iter().map(|suite| Row::load(suite, scratch)).collect::<Result<_>>()?;
    let minutes = rows.iter().map(|row| row.without.seconds + row.with.seconds).sum::<f64>() / 60.0;
    let count = rows.iter().filter(|row| row.problem.is_none()).count();
    let columns = [
        "suite",
        "version",
        "what was run",
        "tests",
        "failures without cairn",
        "with cairn",
        "only with cairn",
        "minutes without + with",
        "date",
    ];
    let machine = tables::machine();
    let all = || rows.iter().zip(suites.iter().map(|suite| &suite.explained));
    let cells = all().map(|(row, explained)| row.cells(explained));
    let mut text = format!("On {machine}; {count} suites in {minutes:.0} minutes.\n\n")
        + &tables::markdown(columns, &[3, 4, 5, 7], cells);
    for (row, explained) in all() {
        let remarks = row.remarks(explained);
        if !remarks.is_empty() {
            let _ = writeln!(text, "\n**{}**\n", row.suite);
        }
        for remark in remarks {
            let _ = writeln!(text, "- {remark}");
        }
    }
    Ok(text)
}

/// Whether a name is as the pattern says, in which `*` stands for anything.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            let mut ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
            ends.any(|at| fits(rest, &name[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        assert!(fits("tst-a", "tst-a") && !fits("tst-a", "tst-ab"));
        assert!(fits("tst-a*", "tst-ab: x") && !fits("tst-a*", "tst-b"));
        assert!(fits("*fork*", "a/tst-fork2") && fits("s*8", "stress 8") && !fits("s*8", "s 88x"));
    }
}
