//! How many tests ran and which failed, read from what test programs write.
//!
//! What ends badly without naming a test counts as a failure of its own; the runner sees to that.

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
    /// It said that it does not apply here.
    pub(super) skipped: bool,
}

/// What a kind of output looks like.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pattern {
    /// One test.
    test: Option<String>,
    /// A number of tests.
    count: Option<String>,
    /// A test that failed: its `name`, and `why`.
    fail: Option<String>,
    /// The names of all that failed.
    fails: Option<String>,
}

/// Reads what a process left behind.
pub(super) fn read(
    name: &str,
    patterns: &BTreeMap<String, Pattern>,
    ended: &Ended,
) -> Result<Tally> {
    let output = ended.text() + &ended.stderr;
    match name {
        "status" => Ok(status(&output, ended.code(), &ended.how(), &[77])),
        // "Unresolved", "unsupported" and "untested".
        "posix" => Ok(status(&output, ended.code(), &ended.how(), &[2, 4, 5, 77])),
        "tap" => Ok(tap(&output, ended.code(), &ended.how())),
        _ => patterns.get(name).context("no such reader")?.read(&output),
    }
}

impl Pattern {
    fn read(&self, output: &str) -> Result<Tally> {
        let regex = |pattern: &Option<String>| {
            let pattern = pattern.as_ref().map(|pattern| Regex::new(&format!("(?m){pattern}")));
            pattern.transpose().context("a pattern")
        };
        let mut tally = Tally::default();
        if let Some(test) = regex(&self.test)? {
            tally.tests += test.find_iter(output).count();
        }
        if let Some(count) = regex(&self.count)? {
            let counts = count.captures_iter(output).map(|found| found[1].parse().unwrap_or(0));
            tally.tests += counts.sum::<usize>();
        }
        if let Some(fail) = regex(&self.fail)? {
            for found in fail.captures_iter(output) {
                tally.failed.insert(found["name"].trim().to_owned(), found["why"].to_owned());
            }
        }
        if let Some(fails) = regex(&self.fails)? {
            for found in fails.captures_iter(output) {
                let names =
                    found[1].split_whitespace().map(|it| (it.to_owned(), "failed".to_owned()));
                tally.failed.extend(names);
            }
            if tally.tests == 0 {
                tally.failed.insert(String::new(), "no summary".to_owned());
            }
        }
        Ok(tally)
    }
}

/// A program that is one test: its status says all, some of them that it does not apply.
fn status(output: &str, code: Option<i32>, how: &str, skips: &[i32]) -> Tally {
    if code.is_some_and(|code| skips.contains(&code)) {
        return Tally { skipped: true, ..Tally::default() };
    }
    let mut tally = Tally { tests: 1, ..Tally::default() };
    if code != Some(0) {
        let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        tally.failed.insert(String::new(), format!("{how}: {last}"));
    }
    tally
}

/// The Test Anything Protocol: `ok 1 - name`, `not ok 2 - name`, `1..2`.
fn tap(output: &str, code: Option<i32>, how: &str) -> Tally {
    let mut tally = Tally::default();
    let mut planned = None;
    for line in output.lines() {
        if let Some(plan) = line.strip_prefix("1..") {
            let mut words = plan.split_whitespace();
            planned = words.next().and_then(|count| count.parse::<usize>().ok());
            if planned == Some(0) {
                return Tally { skipped: true, ..Tally::default() };
            }
        }
        let (ok, rest) = match (line.strip_prefix("ok"), line.strip_prefix("not ok")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => continue,
        };
        if !rest.is_empty() && !rest.starts_with(' ') {
            continue;
        }
        tally.tests += 1;
        if !ok && !rest.contains("# TODO") && !rest.contains("# skip") {
            tally.failed.insert(rest.trim().to_owned(), "not ok".to_owned());
        }
    }
    let wrong = match planned {
        Some(planned) if planned != tally.tests => {
            Some(format!("{} tests of {planned}; {how}", tally.tests))
        }
        None if tally.tests == 0 && code == Some(0) => Some("no test was seen".to_owned()),
        _ => None,
    };
    tally.failed.extend(wrong.map(|why| ("plan".to_owned(), why)));
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(reader: &str, output: &str) -> (usize, Vec<String>) {
        let tally = super::super::TABLE.reader[reader].read(output).unwrap();
        (tally.tests, tally.failed.into_keys().collect())
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn statuses() {
        let of = |code, output| status(output, Some(code), &format!("status {code}"), &[77]);
        assert!(of(77, "").skipped);
        assert!(of(0, "").failed.is_empty());
        assert_eq!(of(1, "a\nb\n\n").failed[""], "status 1: b");
    }

    #[test]
    fn test_anything() {
        let of = |output| {
            let tally = tap(output, Some(0), "status 0");
            (tally.tests, tally.failed.into_keys().collect::<Vec<_>>())
        };
        let output = "1..4\nok 1 - a\nnot ok 2 - b\nnot ok 3 - c # TODO later\nokay\nok 4\n";
        assert_eq!(of(output), (4, names(&["2 - b"])));
        assert_eq!(of("1..3\nok 1\n"), (1, names(&["plan"])));
        assert!(tap("1..0 # SKIP no threads\n", Some(0), "").skipped);
    }

    #[test]
    fn rust_and_go() {
        let output = "running 3 tests\ntest a::b ... ok\ntest c - should panic ... FAILED\n\
            test d ... ignored, slow\ntest result: FAILED. 1 passed\n";
        assert_eq!(read("libtest", output), (2, names(&["c"])));
        let output = "=== RUN TestA\n--- PASS: TestA (0.1s)\n--- FAIL: TestB (0.0s)\n    \
            --- FAIL: TestB/sub (0.0s)\n--- SKIP: TestC (0.0s)\nFAIL\n";
        assert_eq!(read("go", output), (3, names(&["TestB", "TestB/sub"])));
    }

    #[test]
    fn languages() {
        let output = "test_a (test.X) ... ok\nFAIL: test_b (test.test_x.Y)\nRan 7 tests in 0.1s\n";
        assert_eq!(read("unittest", output), (7, names(&["test_b (test.test_x.Y)"])));
        let output = "  1) Failure:\nTestArray#test_x [/a/b.rb:12]:\n<1> expected\n\n\
            Finished tests\n41 tests, 99 assertions, 1 failures, 0 errors, 0 skips\n";
        assert_eq!(read("ruby", output), (41, names(&["TestArray#test_x"])));
        let output = "#12 test_gc.rb:8:in `<top (required)>': \nFAIL 1/20 tests failed\n";
        assert_eq!(read("ruby bootstrap", output), (20, names(&["test_gc.rb:8"])));
    }

    #[test]
    fn databases() {
        let output = "[ok]: SET (3 ms)\n[err]: GET in tests/unit/x.tcl\n[ignore]: slow\n";
        assert_eq!(read("redis", output), (2, names(&["GET in tests/unit/x.tcl"])));
        let output = "a-1... Ok\n2 errors out of 30 tests on host\n!Failures on these tests: b c\n";
        assert_eq!(read("sqlite", output), (30, names(&["b", "c"])));
        let output = "test tablespace                   ... ok         500 ms\n\
            parallel group (2 tests):  a b\n     boolean                      ... FAILED  9 ms\n";
        assert_eq!(read("pg_regress", output), (2, names(&["boolean"])));
    }

    #[test]
    fn allocators() {
        let output = "[ RUN      ] A.B\n[       OK ] A.B (0 ms)\n[  FAILED  ] A.C (1 ms)\n\
            [  FAILED  ] 1 test, listed below:\n[  FAILED  ] A.C\n";
        assert_eq!(read("googletest", output), (2, names(&["A.C"])));
        let output = "x.c:1: Failed assertion\ntest_a (non-reentrant): fail\n\
            test_b (non-reentrant): pass\n--- pass: 1/2, skip: 0/2, fail: 1/2 ---\n";
        assert_eq!(read("jemalloc", output), (2, names(&["test_a"])));
    }
}
