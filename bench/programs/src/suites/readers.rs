//! How many tests ran and which failed, read from the status of a process or from what it wrote.
//!
//! What ends badly without naming a test counts as a failure of its own.

use crate::process::Ended;
use anyhow::{Context, Result};
use regex_lite::Regex;
use serde::Deserialize;
use std::collections::BTreeMap;

/// What one process of a suite did.
#[derive(Default, Debug)]
pub(super) struct Tally {
    pub(super) tests: usize,
    /// The tests that failed, and a line about each.
    pub(super) failed: BTreeMap<String, String>,
    /// What it printed.
    pub(super) output: String,
}

/// What a kind of output looks like.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reader {
    /// One test.
    test: Option<String>,
    /// A number of tests.
    count: Option<String>,
    /// A test that failed: its `name`, and `why`.
    fail: Option<String>,
    /// The names of all that failed.
    fails: Option<String>,
}

/// Reads what a process left behind; without a reader it is one test.
pub(super) fn read(reader: Option<&Reader>, skips: &[i32], ended: Ended) -> Result<Tally> {
    let output = ended.text() + &ended.stderr;
    let code = ended.code();
    let mut tally = match reader {
        Some(reader) => reader.read(&output)?,
        None if code.is_some_and(|code| skips.contains(&code)) => return Ok(Tally::default()),
        None => Tally { tests: 1, ..Tally::default() },
    };
    if code != Some(0) && tally.failed.is_empty() {
        let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        tally.failed.insert(String::new(), format!("{}: {last}", ended.how()));
    }
    tally.output = ended.text();
    Ok(tally)
}

impl Reader {
    fn read(&self, output: &str) -> Result<Tally> {
        let found = |pattern: &Option<String>| {
            let pattern = format!("(?m){}", pattern.as_deref().unwrap_or("[^\\s\\S]"));
            let regex = Regex::new(&pattern).context("a pattern")?;
            anyhow::Ok(regex.captures_iter(output).collect::<Vec<_>>())
        };
        let counts = found(&self.count)?.into_iter().map(|it| it[1].parse().unwrap_or(0));
        let mut tally =
            Tally { tests: found(&self.test)?.len() + counts.sum::<usize>(), ..Tally::default() };
        for it in found(&self.fail)? {
            tally.failed.insert(it["name"].trim().to_owned(), it["why"].to_owned());
        }
        for it in found(&self.fails)? {
            let names = it[1].split_whitespace();
            tally.failed.extend(names.map(|name| (name.to_owned(), "failed".to_owned())));
        }
        Ok(tally)
    }
}

#[cfg(test)]
mod tests {
    use super::super::READERS;
    use super::*;

    #[test]
    fn every_reader_reads_its_sample() {
        let samples: BTreeMap<String, (String, usize, Vec<String>)> =
            toml::from_str(include_str!("samples.toml")).unwrap();
        assert!(samples.keys().eq(READERS.keys()));
        for (name, (output, tests, failed)) in samples {
            let tally = READERS[&name].read(&output).unwrap();
            assert_eq!(tally.tests, tests, "{name}");
            assert!(tally.failed.keys().eq(&failed), "{name}: {:?}", tally.failed);
        }
    }
}
