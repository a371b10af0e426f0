//! What a run does that is stopped, fails, or lacks something: with steps of a line.

use super::*;
use std::cell::Cell;
use std::fs;
use std::rc::Rc;
use table::Need;
use tempfile::TempDir;

const NOTHING: Args = Args { fresh: false, only: Vec::new(), list: false };

/// Steps that note in a file of the folder that they run.
fn night(folder: &TempDir, steps: &[(&str, &str, &'static [Need])]) -> Night {
    let at = folder.path().display();
    let step = |&(name, line, needs): &(&str, &str, &'static [Need])| Step {
        name: name.to_owned(),
        line: format!("echo {name} >> {at}/ran; cd {at}; {line}"),
        minutes: 1,
        needs,
    };
    Night {
        folder: folder.path().join("nightly"),
        steps: steps.iter().map(step).collect(),
        sources: Box::new(|| Ok("1234".to_owned())),
        is_stopped: Box::new(|| false),
    }
}

/// Which steps have run since the last look.
fn ran(folder: &TempDir) -> String {
    let path = folder.path().join("ran");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(path);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn page(folder: &TempDir) -> String {
    fs::read_to_string(folder.path().join("nightly/1234/page.md")).unwrap()
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn what_has_failed_is_run_again_and_what_has_passed_is_not() {
    let folder = folder();
    let night = night(
        &folder,
        &[
            ("a", "echo fine", &[]),
            ("b", "test -e mended || { echo error: bad; exit 3; }", &[]),
            ("c", "true", &[]),
        ],
    );
    let error = night.run(&NOTHING).unwrap_err();
    assert_eq!(error.to_string(), "failed: b");
    assert_eq!(ran(&folder), "a b c", "it goes on behind a failure");
    assert!(page(&folder).contains("\n2 passed, 1 failed, 0 not run.\n"));
    assert!(page(&folder).contains("| b | FAILED | 0 |"));
    assert!(page(&folder).contains("exit status: 3: error: bad |"));
    fs::write(folder.path().join("mended"), "").unwrap();
    night.run(&NOTHING).unwrap();
    assert_eq!(ran(&folder), "b");
    assert!(page(&folder).contains("| a | passed | 0 |"));
    night.run(&NOTHING).unwrap();
    assert_eq!(ran(&folder), "");
    night.run(&Args { fresh: true, ..NOTHING }).unwrap();
    assert_eq!(ran(&folder), "a b c");
}

#[test]
fn a_failure_counts_until_the_step_passes() {
    let folder = folder();
    let night = night(&folder, &[("a", "false", &[]), ("b", "true", &[])]);
    let only = |name: &str| Args { only: vec![name.to_owned()], ..NOTHING };
    assert!(night.run(&only("a")).is_err());
    assert!(night.run(&only("b")).is_err(), "a has failed");
    assert_eq!(ran(&folder), "a b");
    assert!(night.run(&only("c")).unwrap_err().to_string().contains("no step is called c"));
}

#[test]
fn only_what_is_named_is_run() {
    let folder = folder();
    let steps = ["a", "a-hardened", "b", "ab"].map(|name| (name, "true", &[][..]));
    let night = night(&folder, &steps);
    let only = |names: &[&str]| {
        let only = names.iter().map(|&name| name.to_owned()).collect();
        night.run(&Args { only, ..NOTHING }).unwrap();
        ran(&folder)
    };
    assert_eq!(only(&["a"]), "a");
    assert!(page(&folder).contains("| b | not run | 0 |  | not yet |"));
    assert_eq!(only(&["a*", "b"]), "a-hardened b ab");
    night.run(&Args { list: true, fresh: true, ..NOTHING }).unwrap();
    night.run(&NOTHING).unwrap();
    assert_eq!(ran(&folder), "", "a list changes nothing");
}

#[test]
fn what_lacks_something_has_not_passed() {
    const NEED: &[Need] = &[Need::new("true", "air"), Need::new("false", "a miracle")];
    let folder = folder();
    let night = night(&folder, &[("a", "true", NEED), ("b", "true", &[])]);
    night.run(&NOTHING).unwrap();
    assert_eq!(ran(&folder), "b");
    assert!(page(&folder).contains("\n1 passed, 0 failed, 1 not run.\n"));
    assert!(page(&folder).contains("| a | not run | 0 |  | needs a miracle |"));
}

#[test]
fn a_run_that_is_stopped_goes_on() {
    let folder = folder();
    let mut night = night(
        &folder,
        &[
            ("a", "true", &[]),
            ("b", "test -e goes_on || { touch begun; sleep 61; }", &[]),
            ("c", "true", &[]),
        ],
    );
    let begun = folder.path().join("begun");
    night.is_stopped = Box::new(move || begun.exists());
    let error = night.run(&NOTHING).unwrap_err();
    assert_eq!(error.to_string(), "stopped at b; the same command goes on there");
    assert_eq!(ran(&folder), "a b");
    assert!(page(&folder).contains("| a | passed |") && page(&folder).contains("| b | not run |"));
    fs::write(folder.path().join("goes_on"), "").unwrap();
    night.is_stopped = Box::new(|| false);
    night.run(&NOTHING).unwrap();
    assert_eq!(ran(&folder), "b c");
}

#[test]
fn what_is_stopped_leaves_no_process() {
    let folder = folder();
    let at = folder.path().display();
    // An interactive shell gives each job a process group.
    let line = format!("set -m; sleep 61 & echo $! > {at}/job; sleep 61");
    let is_begun = || fs::read_to_string(format!("{at}/job")).is_ok_and(|job| !job.is_empty());
    let log = folder.path().join("log");
    let ended = run_line(&line, &log, Duration::from_secs(60), &is_begun).unwrap();
    assert!(matches!(ended, Ended::Stopped));
    let job = fs::read_to_string(format!("{at}/job")).unwrap();
    let state = fs::read_to_string(format!("/proc/{}/stat", job.trim()));
    assert!(state.is_err() || state.unwrap().contains(") Z "), "it has gone");
}

#[test]
fn what_takes_too_long_has_failed() {
    let folder = folder();
    let log = folder.path().join("log");
    // Time enough to say it.
    let limit = Duration::from_secs(3);
    let ended = run_line("echo well; sleep 61", &log, limit, &|| false).unwrap();
    let Ended::Judged { is_good: false, evidence } = ended else { panic!("it has not failed") };
    assert_eq!(evidence, "no end within 0 minutes: well");
}

#[test]
fn other_sources_are_another_run() {
    let folder = folder();
    let mut night = night(&folder, &[("a", "true", &[]), ("b", "true", &[])]);
    let (asked, counted) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    counted.set(1);
    let (asks, counts) = (asked.clone(), counted.clone());
    // They change while b runs.
    night.sources = Box::new(move || {
        asks.set(asks.get() + counts.get());
        Ok(if asks.get() < 3 { "1234" } else { "5678" }.to_owned())
    });
    let error = night.run(&NOTHING).unwrap_err();
    assert_eq!(error.to_string(), "the sources have changed: b does not count");
    assert!(page(&folder).contains("| a | passed |") && page(&folder).contains("| b | not run |"));
    assert_eq!(ran(&folder), "a b");
    night.run(&NOTHING).unwrap();
    assert_eq!(ran(&folder), "a b");
}

#[test]
fn one_run_at_a_time() {
    let folder = folder();
    let held = State::open(folder.path(), false).unwrap();
    let error = State::open(folder.path(), false).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("another run is at work"));
    drop(held);
    let mut state = State::open(folder.path(), false).unwrap();
    state.keep("a", Done::not_run(String::new())).unwrap();
    drop(state);
    assert!(State::open(folder.path(), false).unwrap().get("a").is_some());
    assert!(State::open(folder.path(), true).unwrap().get("a").is_none());
    assert!(State::open(folder.path(), false).unwrap().get("a").is_none());
}

#[test]
fn what_was_said_is_found() {
    let folder = folder();
    let said = |line: &str| {
        let log = folder.path().join("log");
        match run_line(line, &log, Duration::from_secs(60), &|| false).unwrap() {
            Ended::Judged { evidence, .. } => evidence,
            Ended::Stopped => panic!("nobody stops it"),
        }
    };
    let tests = "echo 'test result: ok. 12 passed; 0 failed; 2 ignored; 0 measured'";
    assert_eq!(
        said(&format!("{tests}; echo skipped x: no y; {tests}")),
        "24 tests passed, 4 ignored, 1 skipped"
    );
    let table = "echo '| what | n |'; echo '| --- | --- |'; echo '| a | 7 |'; echo '| b | 8 |'";
    assert_eq!(said(&format!("{table}; echo 'not run here: c'; echo")), "2 rows in the table");
    assert_eq!(said("echo all | tr l m; echo 'not run here: c'; echo"), "amm");
    assert_eq!(said("true"), "nothing was said");
    let failing =
        "echo 'test a ... ok'; echo 'test b ... FAILED'; echo 'test result: FAILED.'; exit 1";
    assert_eq!(said(failing), "exit status: 1: test b ... FAILED");
}

#[test]
fn steps_have_names_of_their_own() {
    let steps = table::all();
    let names: std::collections::BTreeSet<&str> = steps.iter().map(|step| &*step.name).collect();
    assert_eq!(names.len(), steps.len());
    for step in &steps {
        assert!(!step.line.contains(['[', ']', '|']) && step.minutes > 0, "{}", step.name);
        assert_eq!(step.name.ends_with("-hardened"), step.line.contains("hardened"));
    }
}
