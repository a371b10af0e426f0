//! Processes that hang, die, flood their outputs, or grow.

use runner::{End, Ended, Limits, Outputs, PAUSE};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

const LONG: Limits = Limits { timeout: Duration::from_secs(60), memory_mib: f64::INFINITY };

fn run(script: &str, limits: &Limits, look: impl FnMut() -> bool) -> Ended {
    let mut command = Command::new("sh");
    runner::alone(command.args(["-c", script]));
    let file = || tempfile::tempfile().unwrap();
    let outputs = Outputs::apart(file(), file());
    runner::run(&mut command, &outputs, limits, PAUSE, look).unwrap()
}

/// Whether a process runs; one that has ended and is not waited for does not.
fn is_there(id: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn what_hangs_ends_with_all_that_it_started() {
    let limits = Limits::of_time(Duration::from_millis(300));
    // One stays below it, one has lost its parent, one leads a group, one a session.
    let script = "sleep 60 & echo $!
        (sleep 60 & echo $!)
        bash -mc 'sleep 60 & echo $!; exec sleep 60' & echo $!
        setsid sleep 60 & echo $!
        wait";
    let ended = run(script, &limits, || false);
    assert!(matches!(ended.end, End::Late(_)));
    let said = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(said.lines().count(), 5);
    for id in said.lines() {
        assert!(!is_there(id), "{id} of\n{said}");
    }
}

#[test]
fn a_signal_is_told() {
    let ended = run("echo before; kill -SEGV $$", &LONG, || false);
    let status = ended.end.status().unwrap();
    assert_eq!((status.signal(), status.code()), (Some(11), None));
    assert_eq!(ended.stdout, b"before\n");
    assert_eq!(run("exit 3", &LONG, || false).end.status().unwrap().code(), Some(3));
}

#[test]
fn a_flood_blocks_nothing() {
    const MIB: usize = 8;
    let script =
        format!("head -c {MIB}M /dev/zero; head -c {MIB}M /dev/zero >&2; echo last; echo last >&2");
    let ended = run(&script, &LONG, || false);
    assert!(ended.end.status().unwrap().success());
    for output in [ended.stdout, ended.stderr] {
        assert_eq!(output.len(), (MIB << 20) + "last\n".len());
        assert!(output.ends_with(b"last\n"));
    }
    // One that never ends is ended.
    let ended = run("yes", &Limits::of_time(Duration::from_millis(100)), || false);
    assert!(matches!(ended.end, End::Late(_)) && ended.stdout.starts_with(b"y\ny\n"));
}

#[test]
fn what_grows_ends_at_its_limit() {
    let limits = Limits { memory_mib: 64.0, ..LONG };
    // A buffer that never fits.
    let ended = run("(head -c 1G /dev/zero | tail -c 1G | sleep 60)", &limits, || false);
    assert!(matches!(ended.end, End::Large(mib) if mib > 64.0), "{:?}", ended.end);
}

#[test]
fn whoever_looks_may_stop_it() {
    let mut looks = 0;
    let ended = run("sleep 60", &LONG, || {
        looks += 1;
        looks == 3
    });
    assert_eq!((ended.end, looks), (End::Stopped, 3));
}

#[test]
fn outputs_may_go_together() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let outputs = Outputs::together(log.path()).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "echo one; echo two >&2; echo three"]);
    let ended = runner::run(&mut command, &outputs, &LONG, PAUSE, || false).unwrap();
    assert_eq!(ended.stdout, b"one\ntwo\nthree\n");
}
