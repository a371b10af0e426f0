//! The account that `CAIRN_STATS` asks for: what it says, whose it is, where it goes, and that a
//! signal brings it without a deadlock.

mod common;

use common::{
    EVERYWHERE, Loading, Outcome, Program, is_root, limit, run, scratch_dir, skip_for_stand_in,
    skipped,
};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const HEAD: &str = "cairn: the memory of ";

/// A command for a case, in each loading; none for a stand-in.
fn commands(case: &str, settings: &[(&str, &str)]) -> Vec<(String, Command)> {
    commands_in(&EVERYWHERE, case, settings)
}

fn commands_in(
    loadings: &[Loading],
    case: &str,
    settings: &[(&str, &str)],
) -> Vec<(String, Command)> {
    if skip_for_stand_in() {
        return Vec::new();
    }
    let command = |&loading| {
        let mut command = Program::build("account.c", loading)?.command(&[case]);
        command.envs(settings.iter().copied());
        Some((format!("{case} with {settings:?}, {loading:?}"), command))
    };
    loadings.iter().filter_map(command).collect()
}

fn outcomes(case: &str, settings: &[(&str, &str)]) -> Vec<(String, Outcome)> {
    let outcome = |(what, command): (String, Command)| {
        let outcome = run(command);
        outcome.assert_success(&what);
        (format!("{what}:\n{}", outcome.stderr), outcome)
    };
    commands(case, settings).into_iter().map(outcome).collect()
}

fn accounts(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with(HEAD)).count()
}

/// A number with a unit, in bytes.
fn bytes(size: &str) -> f64 {
    let (number, unit) = size.trim().split_once(' ').expect("a unit");
    let units = ["B", "KiB", "MiB", "GiB"];
    let power = units.iter().position(|&known| known == unit).expect("a known unit");
    number.parse::<f64>().expect("a number") * 1024_f64.powi(power.try_into().expect("small"))
}

/// What follows these words in their line, up to two spaces.
fn after<'a>(text: &'a str, words: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(words));
    let line = line.unwrap_or_else(|| panic!("no {words} in {text}"));
    line.trim_start().split("  ").next().expect("a first part")
}

const STATS: (&str, &str) = ("CAIRN_STATS", "1");

// What it says.

#[test]
fn it_names_the_program_and_begins_with_what_matters() {
    for (what, command) in commands("hold_much", &[STATS]) {
        let program = PathBuf::from(command.get_program());
        let outcome = run(command);
        outcome.assert_success(&what);
        let mut lines = outcome.stderr.lines();
        let first = lines.next().expect("a first line");
        // As far as the kernel keeps names.
        let name = program.file_name().expect("a name").to_string_lossy();
        let name = name.get(..15).unwrap_or(&name);
        assert!(first.starts_with(&format!("{HEAD}{name}, process ")), "{what}: {first}");
        let (held, added) =
            (after(&outcome.stderr, "the program holds"), after(&outcome.stderr, "cairn adds"));
        let resident = bytes(after(&outcome.stderr, "resident"));
        assert!((64..70).contains(&((bytes(held) / 1048576.0) as u32)), "{what}: {held}");
        assert!(bytes(added) < 6.0 * 1048576.0, "{what}: {added}");
        assert!(resident >= 64.0 * 1048576.0, "{what}: {resident}");
        let verdict = after(&outcome.stderr, "In short:");
        assert!(verdict.starts_with("cairn adds ") && verdict.contains(" % to what"), "{verdict}");
        assert!(
            outcome.stderr.contains("docs/guide/statistics.md"),
            "{what}: the page that explains it"
        );
        assert!(outcome.stdout.is_empty(), "{what}");
    }
}

/// It comes after all destructors of the program's.
#[test]
fn it_does_not_hold_what_destructors_free() {
    let loadings = [&EVERYWHERE[..], &[Loading::Archive]].concat();
    for (what, command) in commands_in(&loadings, "hold_until_the_end", &[STATS]) {
        let outcome = run(command);
        outcome.assert_success(&what);
        let held = after(&outcome.stderr, "the program holds");
        assert!(bytes(held) < 16.0 * 1048576.0, "{what}: {held}");
    }
}

#[test]
fn its_verdict_fits_the_program() {
    for (case, verdict) in
        [("hold_untouched", "most resident memory"), ("leave_holes", "are holes")]
    {
        for (what, outcome) in outcomes(case, &[STATS, ("CAIRN_PURGE_DELAY", "1000s")]) {
            assert!(after(&outcome.stderr, "In short:").contains(verdict), "{what}");
        }
    }
}

// Whose it is.

#[test]
fn only_the_first_process_writes_it() {
    for (what, outcome) in outcomes("children", &[STATS]) {
        assert_eq!(accounts(&outcome.stderr), 1, "{what}");
    }
}

#[test]
fn all_processes_write_theirs_when_asked() {
    for (what, outcome) in outcomes("children", &[("CAIRN_STATS", "all")]) {
        assert_eq!(accounts(&outcome.stderr), 3, "{what}");
    }
}

/// A wrapper that ends in `exec program`: the process is the same.
#[test]
fn the_first_process_may_become_another_program() {
    for (what, outcome) in outcomes("becomes_another", &[STATS]) {
        assert_eq!(accounts(&outcome.stderr), 1, "{what}");
    }
}

// Where it goes.

/// A path of this test's own, in a folder without other files.
fn empty_folder(name: &str) -> PathBuf {
    let folder = scratch_dir().join(format!("account-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn file_names(folder: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    let names = fs::read_dir(folder).expect("the folder").map(name);
    let mut names: Vec<_> = names.map(|name| name.into_string().expect("plain")).collect();
    names.sort();
    names
}

#[test]
fn it_goes_into_the_file_that_is_named() {
    let folder = empty_folder("named");
    let path = folder.join("account");
    let file = ("CAIRN_STATS_FILE", path.to_str().expect("plain"));
    for (what, outcome) in outcomes("children", &[STATS, file]) {
        assert!(outcome.stderr.is_empty(), "{what}");
        assert_eq!(accounts(&fs::read_to_string(&path).expect("an account")), 1, "{what}");
        assert_eq!(file_names(&folder), ["account"], "{what}");
    }
    fs::remove_dir_all(folder).expect("it is there");
}

/// JSON and Prometheus's text in files whose names end so, of children, too; and in words where the file cannot be made.
#[test]
fn the_name_of_the_file_says_the_form() {
    let folder = empty_folder("forms");
    for (pattern, begin) in
        [("%p.json", "{\"version\":"), ("a.prom", "# HELP cairn_allocated_bytes ")]
    {
        let path = folder.join(pattern);
        let file = ("CAIRN_STATS_FILE", path.to_str().expect("plain"));
        for (what, command) in commands("children", &[("CAIRN_STATS", "all"), file]) {
            let (outcome, _) = run_with_id(command);
            outcome.assert_success(&what);
            assert!(outcome.stderr.is_empty(), "{what}:\n{}", outcome.stderr);
            let names = file_names(&folder);
            assert_eq!(names.len(), 3, "{what}: {names:?}");
            for name in names {
                let text = fs::read_to_string(folder.join(&name)).expect("text");
                assert!(text.starts_with(begin) && text.ends_with('\n'), "{what}: {text}");
                if pattern.ends_with("json") {
                    serde_json::from_str::<serde_json::Value>(&text).expect("JSON");
                }
                fs::remove_file(folder.join(name)).expect("it is there");
            }
        }
    }
    let file = ("CAIRN_STATS_FILE", "/absent/account.json");
    for (what, outcome) in outcomes("hold", &[STATS, file]) {
        assert_eq!(accounts(&outcome.stderr), 1, "{what}");
    }
    fs::remove_dir(folder).expect("it is empty");
}

#[test]
fn no_two_processes_write_the_same_file() {
    for pattern in ["%p", "a%pb%p", "account"] {
        let folder = empty_folder("each");
        let path = folder.join(pattern);
        let file = ("CAIRN_STATS_FILE", path.to_str().expect("plain"));
        for (what, command) in commands("children", &[("CAIRN_STATS", "all"), file]) {
            let (outcome, id) = run_with_id(command);
            outcome.assert_success(&what);
            assert!(outcome.stderr.is_empty(), "{what}:\n{}", outcome.stderr);
            let names = file_names(&folder);
            assert_eq!(names.len(), 3, "{what}: {names:?}");
            let top =
                if pattern == "account" { pattern.into() } else { pattern.replace("%p", &id) };
            assert!(names.contains(&top), "{what}: {names:?} without {top}");
            for name in names {
                assert!(name.starts_with(&pattern[..1]) || pattern == "%p", "{name}");
                let account = folder.join(name);
                assert_eq!(accounts(&fs::read_to_string(&account).expect("text")), 1, "{what}");
                fs::remove_file(account).expect("it is there");
            }
        }
        fs::remove_dir_all(folder).expect("it is there");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_named_and_standard_error_has_it() {
    let file = ("CAIRN_STATS_FILE", "/absent/account");
    for (what, outcome) in outcomes("hold", &[STATS, file]) {
        let first = outcome.stderr.lines().next().expect("a first line");
        assert!(first.contains("CAIRN_STATS_FILE") && first.contains("/absent/account"), "{what}");
        assert_eq!(accounts(&outcome.stderr), 1, "{what}");
    }
}

#[test]
fn a_program_that_closes_standard_error_has_one_too() {
    for (what, outcome) in outcomes("closes_standard_error", &[STATS]) {
        assert_eq!(accounts(&outcome.stderr), 1, "{what}");
    }
    // Nor does it miss that a file could not be made, where few descriptors are allowed.
    let absent = [("CAIRN_STATS_FILE", "/absent/account"), ("CAIRN_PROFILE", "/absent/profile")];
    for (what, mut command) in commands("closes_standard_error", &[STATS, absent[0], absent[1]]) {
        limit(&mut command, libc::RLIMIT_NOFILE, 20);
        let outcome = run(command);
        assert_eq!(accounts(&outcome.stderr), 1, "{what}");
        for (_, path) in absent {
            assert!(outcome.stderr.contains(path), "{what}: {}", outcome.stderr);
        }
    }
}

#[test]
fn a_full_disk_is_told() {
    for name in ["CAIRN_STATS_FILE", "CAIRN_PROFILE"] {
        for (what, outcome) in outcomes("hold", &[STATS, (name, "/dev/full")]) {
            assert!(outcome.stderr.contains("is the disk full?"), "{what}: {}", outcome.stderr);
        }
    }
}

/// Neither a reader that has gone nor a limit on files, each of which has its signal, changes how the process ends.
#[test]
fn a_program_whose_account_nobody_reads_ends_as_it_means_to() {
    let path = scratch_dir().join(format!("account-full-{}", std::process::id()));
    let file = ("CAIRN_STATS_FILE", path.to_str().expect("plain"));
    for (case, settings, code) in
        [("loses_its_reader", &[STATS][..], 7), ("hold", &[STATS, file][..], 0)]
    {
        for (what, mut command) in commands(case, settings) {
            limit(&mut command, libc::RLIMIT_FSIZE, 100);
            let outcome = run(command);
            assert_eq!(outcome.status.code(), Some(code), "{what}: {}", outcome.status);
            assert_eq!(outcome.stdout, if code == 7 { "kept" } else { "" }, "{what}");
        }
    }
    let _ = fs::remove_file(path);
}

/// A file that is written at the end does not come in its place.
#[test]
fn a_profile_is_not_taken_for_standard_error() {
    let file = scratch_dir().join("profile-beside-closed");
    let path = file.to_str().expect("plain");
    for (what, outcome) in outcomes("closes_standard_error", &[STATS, ("CAIRN_PROFILE", path)]) {
        assert_eq!(accounts(&outcome.stderr), 1, "{what}");
        let profile = std::fs::read_to_string(&file).expect("a profile");
        assert_eq!(profile.lines().last(), Some("end"), "{what}");
    }
}

/// Data of the program's may have got its number. A log that has is what the program means by standard error.
#[test]
fn no_data_is_taken_for_standard_error() {
    let path = scratch_dir().join(format!("account-data-{}", std::process::id()));
    let absent = ("CAIRN_STATS_FILE", "/absent/account");
    for (case, settings, in_file, in_stderr) in [
        ("puts_data_in_its_place", &[STATS][..], 0, 1),
        ("puts_data_in_its_place", &[STATS, absent], 0, 1),
        ("puts_data_in_the_place_of_both", &[STATS], 0, 0),
        ("puts_a_log_in_its_place", &[STATS], 1, 0),
        ("puts_a_socket_in_its_place", &[STATS], 0, 1),
    ] {
        for (what, mut command) in commands(case, settings) {
            fs::write(&path, "").expect("an empty file");
            let outcome = run({
                command.arg(&path);
                command
            });
            outcome.assert_success(&what);
            let file = fs::read_to_string(&path).expect("text");
            let both = format!("{what}, in the file:\n{file}and beside it:\n{}", outcome.stderr);
            assert_eq!(
                (accounts(&file), accounts(&outcome.stderr)),
                (in_file, in_stderr),
                "{both}"
            );
            assert_eq!(file.is_empty(), in_file == 0, "{both}");
        }
    }
    let _ = fs::remove_file(path);
}

#[test]
fn it_needs_no_second_descriptor() {
    for (what, mut command) in commands("hold", &[STATS]) {
        limit(&mut command, libc::RLIMIT_NOFILE, 50);
        let outcome = run(command);
        outcome.assert_success(&what);
        assert_eq!(accounts(&outcome.stderr), 1, "{what}");
    }
}

/// Whoever reads standard error to its end does not wait for a daemon.
#[test]
fn a_child_left_behind_does_not_keep_standard_error() {
    for (what, mut command) in commands("leaves_a_child", &[STATS]) {
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut said = String::new();
        child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
        assert_eq!(accounts(&said), 1, "{what}");
        // Only now may the child's child end.
        drop(child.stdin.take());
        assert!(child.wait().expect("it ended").success(), "{what}");
    }
}

/// Nor does it wait for a server that has closed it, and whose account or profile goes into a file.
#[test]
fn a_server_with_a_file_does_not_keep_standard_error() {
    let directory = scratch_dir();
    let file = |name: &str| directory.join(name).to_str().expect("text").to_owned();
    let (account, profile) = (file("server-account"), file("server-profile"));
    let settings = [STATS, ("CAIRN_STATS_FILE", &account), ("CAIRN_PROFILE", &profile)];
    for (what, mut command) in commands("closes_all_and_waits", &settings) {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let mut said = String::new();
        child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
        assert_eq!(said, "", "{what}");
        child.kill().expect("it is there");
        // Not by its alarm.
        let signal = child.wait().expect("it ends").signal();
        assert_eq!(signal, Some(libc::SIGKILL), "{what}");
    }
}

// At a signal.

const AT_SIGNAL: [(&str, &str); 2] = [STATS, ("CAIRN_STATS_AT_SIGNAL", "1")];

/// Starts the command and waits until it says that it is ready, if it is one that does.
fn started(mut command: Command, says: bool) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: between fork and exec only the async-signal-safe `alarm` and `signal` are called.
    unsafe {
        command.pre_exec(|| {
            libc::alarm(300);
            // A shell's background commands ignore it.
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        });
    }
    let mut child = command.spawn().expect("it starts");
    if says {
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
    }
    child
}

fn outcome_of(child: Child) -> Outcome {
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Outcome { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn run_with_id(command: Command) -> (Outcome, String) {
    let child = started(command, false);
    let id = child.id().to_string();
    (outcome_of(child), id)
}

fn send(child: &Child, signal: i32) {
    // SAFETY: the child has not been waited for, so the number is still its.
    unsafe { libc::kill(child.id().cast_signed(), signal) };
}

fn dies_with_an_account(case: &str, settings: &[(&str, &str)], signal: i32) {
    for (what, command) in commands(case, settings) {
        let child = started(command, true);
        send(&child, signal);
        // Some supervisors send it twice, to the process and to its group.
        send(&child, signal);
        let outcome = outcome_of(child);
        let what = format!("{what}, {}:\n{}", outcome.status, outcome.stderr);
        assert_eq!(outcome.status.signal(), Some(signal), "{what}");
        assert_eq!(accounts(&outcome.stderr), 1, "{what}");
        assert!(outcome.stderr.ends_with("docs/guide/statistics.md.\n"), "whole: {what}");
    }
}

#[test]
fn a_signal_brings_it_and_ends_the_process() {
    dies_with_an_account("waits", &AT_SIGNAL, libc::SIGTERM);
    dies_with_an_account("waits", &AT_SIGNAL, libc::SIGINT);
}

/// What is interrupted does not go on and end in another way.
#[test]
fn an_interrupted_call_does_not_outrun_the_signal() {
    for _ in 0..10 {
        dies_with_an_account("ends_when_interrupted", &AT_SIGNAL, libc::SIGTERM);
    }
}

/// The account at the end is being written, and its reader is slow.
#[test]
fn a_signal_at_the_end_ends_the_process() {
    for (what, mut command) in commands("hold", &AT_SIGNAL) {
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        // SAFETY: the descriptor is the test's.
        let room = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
        let room = usize::try_from(room).expect("a size");
        // The account's first piece fills the pipe.
        writer.write_all(&vec![b' '; room - 512]).expect("room");
        let mut child = command.stdout(Stdio::null()).stderr(writer).spawn().expect("it starts");
        drop(command);
        let in_pipe = || {
            let mut bytes: libc::c_int = 0;
            // SAFETY: the descriptor is the test's, and the number may be written.
            let asked = unsafe { libc::ioctl(reader.as_raw_fd(), libc::FIONREAD, &mut bytes) };
            assert_eq!(asked, 0);
            bytes.unsigned_abs() as usize
        };
        while in_pipe() < room {
            std::thread::sleep(Duration::from_millis(1));
            assert!(child.try_wait().expect("a child").is_none(), "{what}: it has ended");
        }
        send(&child, libc::SIGTERM);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("text");
        let status = child.wait().expect("it ends");
        assert_eq!(status.signal(), Some(libc::SIGTERM), "{what}, {status}:\n{text}");
        assert!(text.ends_with("docs/guide/statistics.md.\n"), "whole: {what}:\n{text}");
    }
}

/// The signal interrupts threads that hold the allocator's locks.
#[test]
fn a_signal_inside_the_allocator_is_no_deadlock() {
    for _ in 0..30 {
        dies_with_an_account("waits_busily", &AT_SIGNAL, libc::SIGTERM);
    }
}

#[test]
fn signals_end_the_process_without_one_if_nobody_asks() {
    let asked_for = ("CAIRN_STATS_AT_SIGNAL", "1");
    let other = ("CAIRN_STATS_AT_SIGNAL", "INT");
    for settings in [&[STATS][..], &[asked_for], &[STATS, other]] {
        for (what, command) in commands("waits", settings) {
            let child = started(command, true);
            send(&child, libc::SIGTERM);
            let outcome = outcome_of(child);
            assert_eq!(outcome.status.signal(), Some(libc::SIGTERM), "{what}");
            assert!(outcome.stderr.is_empty(), "{what}:\n{}", outcome.stderr);
        }
    }
}

#[test]
fn the_programs_own_handlers_are_left_alone() {
    for (what, outcome) in outcomes("handles_it_itself", &AT_SIGNAL) {
        assert_eq!(accounts(&outcome.stderr), 1, "at the exit, {what}");
    }
    for (what, mut command) in commands("ignores_it", &AT_SIGNAL) {
        // SAFETY: between fork and exec only the async-signal-safe `signal` is called.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGTERM, libc::SIG_IGN);
                Ok(())
            });
        }
        let outcome = run(command);
        outcome.assert_success(&what);
        assert_eq!(accounts(&outcome.stderr), 1, "at the exit, {what}");
    }
}

#[test]
fn forked_children_die_of_it_as_without_us() {
    for stats in ["1", "all"] {
        let settings = [("CAIRN_STATS", stats), ("CAIRN_STATS_AT_SIGNAL", "1")];
        for (what, outcome) in outcomes("child_gets_it", &settings) {
            assert_eq!(accounts(&outcome.stderr), 1, "{what}");
        }
    }
}

/// The limit does not count for root, and so the program runs as another user.
#[test]
fn without_a_thread_the_signal_is_as_without_us() {
    const NOBODY: u32 = 65534;
    if !is_root() && skipped("only root can run it as another user") {
        return;
    }
    // A static program: the other user may not read where the library lies.
    for (what, mut command) in commands("waits", &AT_SIGNAL).into_iter().skip(2) {
        limit(&mut command, libc::RLIMIT_NPROC, 0);
        command.uid(NOBODY).gid(NOBODY);
        let child = started(command, true);
        send(&child, libc::SIGTERM);
        let outcome = outcome_of(child);
        assert_eq!(outcome.status.signal(), Some(libc::SIGTERM), "{what}");
        let expected = "cairn: CAIRN_STATS_AT_SIGNAL: no thread can be started\n";
        assert_eq!(outcome.stderr, expected, "{what}");
    }
}

/// The thread that waits for the signal is not what keeps a process alive.
#[test]
fn a_process_ends_with_its_last_thread() {
    for more in [&[][..], &[("CAIRN_PURGE_THREAD", "1")]] {
        for (what, outcome) in outcomes("main_thread_leaves", &[&AT_SIGNAL[..], more].concat()) {
            assert_eq!(accounts(&outcome.stderr), 1, "{what}");
        }
    }
    for (what, command) in commands("main_thread_leaves_and_it_comes", &AT_SIGNAL) {
        let child = started(command, true);
        send(&child, libc::SIGTERM);
        assert_eq!(outcome_of(child).status.signal(), Some(libc::SIGTERM), "{what}");
    }
}
