//! How many tests ran and which failed, read from what test programs write.
//!
//! Every reader is a function from an [`Ended`] to a [`Tally`]. What ends badly without naming a
//! test counts as a failure of its own; the runner sees to that.

use super::Ended;
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

impl Tally {
    pub(super) fn fail(&mut self, test: &str, message: impl Into<String>) {
        self.failed.insert(test.to_owned(), message.into());
    }

    fn skipped() -> Self {
        Self { skipped: true, ..Self::default() }
    }
}

/// A program that is one test: its status says all. 77 is the custom for "does not apply".
pub(super) fn exit(ended: &Ended) -> Tally {
    if ended.code == Some(77) {
        return Tally::skipped();
    }
    let mut tally = Tally { tests: 1, ..Tally::default() };
    if ended.code != Some(0) {
        let last = ended.output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        tally.fail("", format!("{}: {last}", ended.how));
    }
    tally
}

/// Rust's own harness: `test a::b ... ok`.
pub(super) fn libtest(ended: &Ended) -> Tally {
    let mut tally = Tally::default();
    for line in ended.output.lines() {
        let Some((name, verdict)) =
            line.strip_prefix("test ").and_then(|it| it.split_once(" ... "))
        else {
            continue;
        };
        let name = name.split(" - should panic").next().unwrap_or(name);
        tally.tests += usize::from(!verdict.starts_with("ignored"));
        if verdict.contains("FAILED") {
            tally.fail(name, "FAILED");
        }
    }
    tally
}

/// `go test -v`: `--- PASS: TestX (0.00s)`, subtests indented.
pub(super) fn go(ended: &Ended) -> Tally {
    let mut tally = Tally::default();
    for line in ended.output.lines().filter_map(|line| line.trim_start().strip_prefix("--- ")) {
        let Some((verdict, rest)) = line.split_once(": ") else { continue };
        let name = rest.split_whitespace().next().unwrap_or(rest);
        match verdict {
            "PASS" => tally.tests += 1,
            "FAIL" => {
                tally.tests += 1;
                tally.fail(name, rest);
            }
            _ => {}
        }
    }
    tally
}

/// The Test Anything Protocol: `ok 1 - name`, `not ok 2 - name`, `1..2`.
pub(super) fn tap(ended: &Ended) -> Tally {
    let mut tally = Tally::default();
    let mut planned = None;
    for line in ended.output.lines() {
        if let Some(plan) = line.strip_prefix("1..") {
            let mut words = plan.split_whitespace();
            planned = words.next().and_then(|count| count.parse::<usize>().ok());
            if planned == Some(0) {
                return Tally::skipped();
            }
            continue;
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
            tally.fail(rest.trim(), "not ok");
        }
    }
    match planned {
        Some(planned) if planned != tally.tests => {
            let message = format!("{} tests of {planned}; {}", tally.tests, ended.how);
            tally.fail("plan", message);
        }
        None if tally.tests == 0 && ended.code == Some(0) => {
            tally.fail("plan", "no test was seen");
        }
        _ => {}
    }
    tally
}

/// Python's unittest in verbose mode, one module: `Ran 12 tests in 0.1s`, `FAIL: test_x (...)`.
pub(super) fn unittest(ended: &Ended) -> Tally {
    let mut tally = Tally::default();
    let counts = ended.output.lines().filter_map(|line| line.strip_prefix("Ran "));
    tally.tests =
        counts.filter_map(|line| line.split_whitespace().next()?.parse::<usize>().ok()).sum();
    for (kind, line) in ended.output.lines().filter_map(|line| line.split_once(": ")) {
        if (kind == "FAIL" || kind == "ERROR") && line.contains('(') {
            tally.fail(line, kind);
        }
    }
    tally
}

/// redis: `[ok]: name (3 ms)`, `[err]: name in tests/unit/x.tcl`, `[exception]`, `[TIMEOUT]`.
pub(super) fn redis(ended: &Ended) -> Tally {
    let mut tally = Tally::default();
    for line in ended.output.lines() {
        let Some((kind, name)) = line.strip_prefix('[').and_then(|it| it.split_once("]: ")) else {
            continue;
        };
        match kind {
            "ok" => tally.tests += 1,
            "err" | "exception" | "TIMEOUT" => {
                tally.tests += 1;
                tally.fail(name, kind);
            }
            _ => {}
        }
    }
    tally
}

/// SQLite's testfixture: `0 errors out of 512 tests`, `!Failures on these tests: a b`.
pub(super) fn sqlite(ended: &Ended) -> Tally {
    let mut tally = Tally::default();
    let mut errors_seen = 0_usize;
    for line in ended.output.lines() {
        if let Some((_, names)) = line.split_once("Failures on these tests:") {
            for name in names.split_whitespace() {
                tally.fail(name, "failed");
            }
        }
        let mut words = line.split_whitespace();
        if let (Some(errors), Some("errors"), Some("out"), Some("of"), Some(tests)) =
            (words.next(), words.next(), words.next(), words.next(), words.next())
        {
            tally.tests += tests.parse().unwrap_or(0);
            errors_seen += errors.parse().unwrap_or(0);
        }
    }
    if errors_seen > 0 && tally.failed.is_empty() {
        tally.fail("", format!("{errors_seen} errors"));
    }
    if tally.tests == 0 {
        tally.fail("", format!("no summary; {}", ended.how));
    }
    tally
}

/// PostgreSQL's pg_regress: `test tablespace ... ok 12 ms`, indented names in parallel groups.
pub(super) fn pg_regress(ended: &Ended) -> Tally {
    let mut tally = Tally::default();
    for line in ended.output.lines() {
        let Some((name, verdict)) = line.split_once(" ... ") else { continue };
        let name = name.trim().trim_start_matches("test ").trim();
        if name.contains(' ') || name.is_empty() {
            continue;
        }
        let verdict = verdict.trim();
        if verdict.starts_with("ok") {
            tally.tests += 1;
        } else if verdict.contains("FAILED") || verdict.starts_with("failed") {
            tally.tests += 1;
            tally.fail(name, verdict);
        }
    }
    tally
}

/// Ruby's test-unit: `12 tests, 30 assertions, 0 failures, ...` and, for each failure, its
/// number, its kind and a line that begins with the test's name.
pub(super) fn ruby(ended: &Ended) -> Tally {
    let mut tally = Tally::default();
    let mut lines = ended.output.lines();
    while let Some(line) = lines.next() {
        let numbered = line.trim_start().split_once(") ");
        if let Some((number, "Failure:" | "Error:")) = numbered
            && number.parse::<usize>().is_ok()
        {
            let test = lines.next().unwrap_or_default();
            let name = test.split([' ', ':', '[']).next().unwrap_or(test);
            tally.fail(name, test);
        }
        if let Some((tests, _)) = line.split_once(" tests, ") {
            tally.tests += tests.trim().parse().unwrap_or(0);
        }
    }
    tally
}

/// Ruby's bootstrap tests: `PASS all 12 tests`, `FAIL 1/12 tests failed`, `#3 test_x.rb:12:...`.
pub(super) fn ruby_bootstrap(ended: &Ended) -> Tally {
    let mut tally = Tally::default();
    for line in ended.output.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["PASS", "all", count, "tests", ..] => tally.tests = count.parse().unwrap_or(0),
            ["FAIL", share, "tests", "failed", ..] => {
                tally.tests = share.split('/').nth(1).and_then(|it| it.parse().ok()).unwrap_or(0);
            }
            [number, place, ..] if number.starts_with('#') && place.contains(".rb:") => {
                tally.fail(&place.split(':').take(2).collect::<Vec<_>>().join(":"), line);
            }
            _ => {}
        }
    }
    tally
}

/// GoogleTest: `[       OK ] Suite.Test (0 ms)`, `[  FAILED  ] Suite.Test (0 ms)`.
pub(super) fn googletest(ended: &Ended) -> Tally {
    let mut tally = Tally::default();
    for line in ended.output.lines() {
        if line.starts_with("[       OK ]") {
            tally.tests += 1;
        } else if let Some(test) = line.strip_prefix("[  FAILED  ] ")
            && test.ends_with(" ms)")
            && test.contains('.')
        {
            tally.tests += 1;
            tally.fail(test.split_whitespace().next().unwrap_or(test), "FAILED");
        }
    }
    tally.tests = tally.tests.max(1);
    tally
}

/// jemalloc's harness: `test_name (non-reentrant): pass`.
pub(super) fn jemalloc(ended: &Ended) -> Tally {
    let mut tally = Tally::default();
    let mut last = "";
    for line in ended.output.lines() {
        let verdict = line.split_once("reentrant): ").filter(|_| line.starts_with("test_"));
        if let Some((name, verdict)) = verdict {
            tally.tests += usize::from(verdict != "skip");
            if verdict == "fail" {
                tally.fail(name.split_whitespace().next().unwrap_or(name), last);
            }
        }
        last = line;
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(output: &str, code: i32) -> Ended {
        Ended { output: output.to_owned(), code: Some(code), how: format!("status {code}") }
    }

    fn read(reader: fn(&Ended) -> Tally, output: &str) -> (usize, Vec<String>) {
        let tally = reader(&ended(output, 0));
        (tally.tests, tally.failed.into_keys().collect())
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn statuses() {
        assert!(exit(&ended("", 77)).skipped);
        assert!(exit(&ended("", 0)).failed.is_empty());
        assert_eq!(exit(&ended("a\nb\n\n", 1)).failed[""], "status 1: b");
    }

    #[test]
    fn rust_and_go() {
        let output = "running 3 tests\ntest a::b ... ok\ntest c - should panic ... FAILED\n\
            test d ... ignored, slow\ntest result: FAILED. 1 passed\n";
        assert_eq!(read(libtest, output), (2, names(&["c"])));
        let output = "=== RUN TestA\n--- PASS: TestA (0.1s)\n--- FAIL: TestB (0.0s)\n    \
            --- FAIL: TestB/sub (0.0s)\n--- SKIP: TestC (0.0s)\nFAIL\n";
        assert_eq!(read(go, output), (3, names(&["TestB", "TestB/sub"])));
    }

    #[test]
    fn test_anything() {
        let output = "1..4\nok 1 - a\nnot ok 2 - b\nnot ok 3 - c # TODO later\nokay\nok 4\n";
        assert_eq!(read(tap, output), (4, names(&["2 - b"])));
        assert_eq!(read(tap, "1..3\nok 1\n"), (1, names(&["plan"])));
        assert!(tap(&ended("1..0 # SKIP no threads\n", 0)).skipped);
    }

    #[test]
    fn languages() {
        let output = "test_a (test.X) ... ok\nFAIL: test_b (test.test_x.Y)\nRan 7 tests in 0.1s\n";
        assert_eq!(read(unittest, output), (7, names(&["test_b (test.test_x.Y)"])));
        let output = "  1) Failure:\nTestArray#test_x [/a/b.rb:12]:\n<1> expected\n\n\
            Finished tests\n41 tests, 99 assertions, 1 failures, 0 errors, 0 skips\n";
        assert_eq!(read(ruby, output), (41, names(&["TestArray#test_x"])));
        let output = "#12 test_gc.rb:8:in `<top (required)>': \nFAIL 1/20 tests failed\n";
        assert_eq!(read(ruby_bootstrap, output), (20, names(&["test_gc.rb:8"])));
    }

    #[test]
    fn databases() {
        let output = "[ok]: SET (3 ms)\n[err]: GET in tests/unit/x.tcl\n[ignore]: slow\n";
        assert_eq!(read(redis, output), (2, names(&["GET in tests/unit/x.tcl"])));
        let output = "a-1... Ok\n2 errors out of 30 tests on host\n!Failures on these tests: b c\n";
        assert_eq!(read(sqlite, output).0, 30);
        let output = "test tablespace                   ... ok         500 ms\n\
            parallel group (2 tests):  a b\n     boolean                      ... FAILED  9 ms\n";
        assert_eq!(read(pg_regress, output), (2, names(&["boolean"])));
    }

    #[test]
    fn allocators() {
        let output = "[ RUN      ] A.B\n[       OK ] A.B (0 ms)\n[  FAILED  ] A.C (1 ms)\n\
            [  FAILED  ] 1 test, listed below:\n[  FAILED  ] A.C\n";
        assert_eq!(read(googletest, output), (2, names(&["A.C"])));
        let output = "x.c:1: Failed assertion\ntest_a (non-reentrant): fail\n\
            test_b (non-reentrant): pass\n--- pass: 1/2, skip: 0/2, fail: 1/2 ---\n";
        let tally = jemalloc(&ended(output, 0));
        assert_eq!((tally.tests, tally.failed["test_a"].as_str()), (2, "x.c:1: Failed assertion"));
    }
}
