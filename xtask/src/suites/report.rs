//! What became of the suites: kept as JSON from run to run, so that hours of tests can be run in
//! parts, and made into one table.

use super::Suite;
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
    /// Why, if that is known; found anew whenever a result is read.
    #[serde(skip)]
    pub(super) explained: Option<&'static str>,
}

impl Suspect {
    /// It failed without the library as well when it ran again.
    fn unsteady(&self) -> bool {
        self.without > 0
    }
}

/// One line of the table.
#[derive(Serialize, Deserialize)]
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

impl Row {
    pub(super) fn new(suite: &Suite, quick: bool) -> Self {
        let date = Command::new("date").arg("+%F").output().map(|it| it.stdout).unwrap_or_default();
        Self {
            suite: suite.name.to_owned(),
            what: suite.what.to_owned(),
            version: String::new(),
            quick,
            date: String::from_utf8_lossy(&date).trim().to_owned(),
            problem: None,
            units: 0,
            without: Outcome::default(),
            with: Outcome::default(),
            suspects: Vec::new(),
            counts: Vec::new(),
            notes: Vec::new(),
            said: Vec::new(),
            loaded: BTreeMap::new(),
        }
    }

    /// A suite without a result: a reader shall see that it is missing.
    pub(super) fn absent(suite: &Suite) -> Self {
        let problem = Some("there is no result yet".to_owned());
        Self { problem, date: String::new(), ..Self::new(suite, false) }
    }

    fn file(suite: &str, scratch: &Path) -> PathBuf {
        scratch.join("results").join(format!("{suite}.json"))
    }

    pub(super) fn save(&self, scratch: &Path) -> Result<()> {
        let file = Self::file(&self.suite, scratch);
        fs::write(&file, serde_json::to_string_pretty(self)?)
            .with_context(|| format!("cannot write {}", file.display()))
    }

    pub(super) fn load(suite: &str, scratch: &Path) -> Result<Option<Self>> {
        let file = Self::file(suite, scratch);
        if !file.exists() {
            return Ok(None);
        }
        let row = serde_json::from_str(&fs::read_to_string(&file)?)
            .with_context(|| format!("{} is of another version", file.display()))?;
        Ok(Some(row))
    }

    /// Finds the reason of each failure: a test's name, or its beginning and `*`, and why.
    pub(super) fn explain(&mut self, known: &[(&'static str, &'static str)]) {
        for suspect in &mut self.suspects {
            let found = known.iter().find(|(pattern, _)| fits(pattern, &suspect.test));
            suspect.explained = found.map(|(_, why)| *why);
        }
    }

    /// The failures that only the library has.
    fn only_with(&self) -> impl Iterator<Item = &Suspect> {
        self.suspects.iter().filter(|suspect| !suspect.unsteady())
    }

    /// Something is here that nobody has explained.
    pub(super) fn fails(&self) -> bool {
        self.problem.is_some() || self.only_with().any(|suspect| suspect.explained.is_none())
    }

    /// The lines for whoever watches.
    pub(super) fn detail(&self) -> String {
        let mut text = String::new();
        if let Some(problem) = &self.problem {
            let _ = writeln!(text, "  NOT RUN: {problem}");
            return text;
        }
        let _ = writeln!(
            text,
            "  {} units; {} and {} tests, {} and {} failures, {:.0} s and {:.0} s; library in {:?}",
            self.units,
            self.without.tests,
            self.with.tests,
            self.without.failed.len(),
            self.with.failed.len(),
            self.without.seconds,
            self.with.seconds,
            self.loaded
        );
        for suspect in &self.suspects {
            let kind = match &suspect.explained {
                _ if suspect.unsteady() => "unsteady",
                Some(_) => "explained",
                None => "ONLY WITH THE LIBRARY",
            };
            let _ = writeln!(
                text,
                "  {kind}: {} ({} of 3 runs without, {} of 3 with): {}",
                suspect.test, suspect.without, suspect.with, suspect.message
            );
        }
        for line in &self.said {
            let _ = writeln!(text, "  it said: {line}");
        }
        text
    }

    fn cells(&self) -> [String; 9] {
        let part = if self.quick { " (a part)" } else { "" };
        if let Some(problem) = &self.problem {
            let first = problem.lines().next().unwrap_or_default();
            let missing = format!("not run: {first}");
            let empty = String::new;
            let what = self.what.clone();
            return [
                self.suite.clone(),
                empty(),
                what,
                empty(),
                empty(),
                empty(),
                missing,
                empty(),
                self.date.clone(),
            ];
        }
        let tests = if self.without.tests == self.with.tests {
            self.with.tests.to_string()
        } else {
            format!("{} / {}", self.without.tests, self.with.tests)
        };
        let (mut only, mut unsteady) = (Vec::new(), 0);
        for suspect in &self.suspects {
            match &suspect.explained {
                _ if suspect.unsteady() => unsteady += 1,
                Some(_) => only.push(suspect.test.clone()),
                None => only.push(format!("**{}**", suspect.test)),
            }
        }
        if only.is_empty() {
            only.push("none".to_owned());
        }
        if unsteady > 0 {
            only.push(format!("({unsteady} unsteady)"));
        }
        [
            self.suite.clone(),
            self.version.clone(),
            format!("{}{part}", self.what),
            tests,
            self.without.failed.len().to_string(),
            self.with.failed.len().to_string(),
            only.join(", "),
            format!("{:.1} + {:.1}", self.without.seconds / 60.0, self.with.seconds / 60.0),
            self.date.clone(),
        ]
    }

    /// What the table has no room for.
    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        for suspect in &self.suspects {
            let (before, after) = (suspect.without, suspect.with);
            remarks.push(match &suspect.explained {
                _ if suspect.unsteady() => format!(
                    "`{}` is unsteady: it failed in {before} of 3 runs without and {after} of 3 with",
                    suspect.test
                ),
                Some(why) => format!("`{}`: {why}", suspect.test),
                None => format!("`{}` ({after} of 3 runs): {}", suspect.test, suspect.message),
            });
        }
        if !self.counts.is_empty() {
            let counts = self.counts.join("; ");
            remarks.push(format!("numbers of tests that differ, without and with: {counts}"));
        }
        remarks.extend(self.notes.iter().cloned());
        remarks
    }
}

/// The whole table, with the machine it comes from, and the remarks below it.
pub(super) fn table(rows: &[Row], machine: &str) -> String {
    let minutes = rows.iter().map(|row| row.without.seconds + row.with.seconds).sum::<f64>() / 60.0;
    let mut text = format!(
        "On {machine}; {} suites in {minutes:.0} minutes.\n\n\
         | suite | version | what was run | tests | failures without cairn | with cairn | \
         only with cairn | minutes without + with | date |\n\
         | --- | --- | --- | ---: | ---: | ---: | --- | ---: | --- |\n",
        rows.iter().filter(|row| row.problem.is_none()).count()
    );
    for row in rows {
        let cells = row.cells().map(|cell| cell.replace('|', "/"));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    for row in rows {
        let remarks = row.remarks();
        if !remarks.is_empty() {
            let _ = writeln!(text, "\n**{}**\n", row.suite);
        }
        for remark in remarks {
            let _ = writeln!(text, "- {remark}");
        }
    }
    text
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        assert!(fits("tst-a", "tst-a") && !fits("tst-a", "tst-ab"));
        assert!(fits("tst-a*", "tst-ab: x") && !fits("tst-a*", "tst-b"));
    }
}
