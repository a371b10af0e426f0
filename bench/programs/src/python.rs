//! CPython's own regression tests, many modules at a time: what fails must be the same.

use crate::generate::Variables;
use crate::packages::find_anywhere;
use crate::proof::Evidence;
use crate::stage::Stage;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;

pub(crate) fn prove(stage: &Stage, variables: &Variables) -> Result<Evidence> {
    // The modules that this version of the suite has.
    let suite = find_anywhere("/usr/lib/python3.*/test/test_list.py").context("no suite")?;
    let folder = suite.parent().context("a file is in a directory")?;
    let names = variables["modules"].split_whitespace();
    let is_there =
        |name: &&str| folder.join(name).is_dir() || folder.join(format!("{name}.py")).is_file();
    let modules: Vec<&str> = names.filter(is_there).collect();
    ensure!(!modules.is_empty(), "the test suite has none of the modules");
    let output = run(stage, "-j2", &modules)?;
    let passed = passed(&output);
    let again: Vec<&&str> = modules.iter().filter(|module| !passed.contains(**module)).collect();
    let mut failing = BTreeSet::new();
    for module in &again {
        // Once more alone: a test that minds a busy machine is not the library's fault.
        failing.extend(failing_tests(module, &run(stage, "-v", &[module])?));
    }
    let mut summary = format!("{} modules, {} tests failing", modules.len(), failing.len());
    if !again.is_empty() {
        summary += &format!(", {} modules run twice", again.len());
    }
    let failing = failing.into_iter().collect::<Vec<_>>().join(" ");
    Ok(Evidence::of(summary, [("modules", modules.join(" ")), ("failing tests", failing)]))
}

fn run(stage: &Stage, option: &str, modules: &[&str]) -> Result<String> {
    let python = stage.process("/usr/bin/python3")?.line("-m test --timeout 240").arg(option);
    let python = python.env("PYTHONMALLOC", "malloc").env("PYTHONHASHSEED", "1").args(modules);
    let ended = python.limit(stage.pick(240, 1200)).run()?;
    ended.end.as_ref().map_err(Clone::clone)?;
    Ok(ended.text() + &ended.stderr)
}

/// The modules that went well, from lines such as
/// `0:00:01 load avg: 0.10 [ 9/132/1] test_list passed`.
fn passed(output: &str) -> BTreeSet<&str> {
    const GOOD: [&str; 4] = ["passed", "skipped", "run no tests", "ran no tests"];
    let good =
        |state: &str| GOOD.iter().any(|it| state.starts_with(it)) || state.contains("env changed");
    let states = output.lines().filter_map(|line| line.split_once("] ")?.1.split_once(' '));
    states.filter(|(_, state)| good(state)).map(|(module, _)| module).collect()
}

/// The tests that failed in a verbose run of one module; the module itself if it went down.
fn failing_tests(module: &str, output: &str) -> BTreeSet<String> {
    let lines = output.lines().filter_map(|line| line.split_once(": "));
    let failed = lines.filter(|(kind, _)| ["FAIL", "ERROR"].contains(kind));
    let tests: BTreeSet<String> = failed
        .filter_map(|(_, line)| Some(format!("{module}.{}", line.split_whitespace().next()?)))
        .collect();
    let came_through = output.lines().any(|line| line.ends_with("Result: SUCCESS"));
    if tests.is_empty() && !came_through { BTreeSet::from([module.to_owned()]) } else { tests }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_progress_of_the_suite() {
        let output = "0:00:01 load avg: 0.10 [  8/132/1] test_int passed\n\
            0:00:39 load avg: 0.58 [ 77/132/2] test_parser failed (uncaught exception)\n\
            0:00:39 load avg: 0.58 [ 78/132/2] test_socket crashed (Exit code -11) -- running: x\n\
            0:00:40 load avg: 0.58 running: test_asyncio (30.0 sec), test_io (31.0 sec)\n";
        assert_eq!(passed(output), BTreeSet::from(["test_int"]));
    }

    #[test]
    fn a_crash_is_a_failure_of_the_module() {
        let of = |output| failing_tests("test_io", output).into_iter().collect::<Vec<_>>();
        assert_eq!(of("ok\nTests result: SUCCESS\nResult: SUCCESS\n"), Vec::<String>::new());
        assert_eq!(of("Fatal Python error: Segmentation fault\n"), ["test_io"]);
        assert_eq!(of("FAIL: test_a (test.test_io.X)\n"), ["test_io.test_a"]);
    }
}
