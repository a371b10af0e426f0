//! Settings from the environment: heard, named when wrong, ignored where they must be.

mod common;

use common::{
    EVERYWHERE, Loading, Outcome, Program, empty_library, is_root, library, passes, passes_in, run,
    scratch_dir, skip_for_stand_in, skipped,
};
use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::os::unix::process::CommandExt;

/// Runs a case with these settings, in each loading.
fn with_settings(settings: &[(&str, &str)], case: &str, check: impl Fn(&str, &Outcome)) {
    if skip_for_stand_in() {
        return;
    }
    for loading in EVERYWHERE {
        let Some(program) = Program::build("environment.c", loading) else { continue };
        let mut command = program.command(&[case]);
        command.envs(settings.iter().copied());
        let outcome = run(command);
        let what = format!("{case} with {settings:?}, {loading:?}");
        outcome.assert_success(&what);
        check(&format!("{what}:\n{}", outcome.stderr), &outcome);
    }
}

#[test]
fn without_settings_nothing_is_said() {
    passes("environment.c", "work");
}

#[test]
fn stats_prints_the_account_at_exit() {
    with_settings(&[("CAIRN_STATS", "1")], "work", |what, outcome| {
        assert!(outcome.stderr.starts_with("cairn: the memory of "), "{what}");
        assert!(outcome.stderr.lines().count() > 1, "{what}");
        assert!(outcome.stdout.is_empty(), "{what}");
    });
}

#[test]
fn stats_off_prints_nothing() {
    with_settings(&[("CAIRN_STATS", "0")], "work", |what, outcome| {
        assert!(outcome.stderr.is_empty(), "{what}");
    });
}

#[test]
fn show_config_prints_the_settings() {
    with_settings(&[("CAIRN_SHOW_CONFIG", "1")], "work", |what, outcome| {
        let said = outcome.stderr.to_lowercase();
        assert!(said.contains("cairn") && said.contains("stats"), "{what}");
        assert!(outcome.stdout.is_empty(), "{what}");
    });
}

/// A power of two and an eighth, with what else a process has; less than 256 MiB is not reserved, and serves.
#[test]
fn the_address_space_is_what_is_asked_for() {
    const GIB: usize = 1 << 20;
    let usual = 1024 * GIB;
    for (value, reserved, is_ample) in [
        ("64GiB", 64 * GIB, true),
        ("100GiB", 64 * GIB, true),
        ("2GiB", 2 * GIB, true),
        ("256MiB", GIB / 4, false),
        ("255MiB", 0, false),
        ("1MiB", 0, false),
        ("4096GiB", usual, true),
        ("0", usual, true),
        ("18446744073709551615", usual, true),
    ] {
        with_settings(&[("CAIRN_ADDRESS_SPACE", value)], "address_space", |what, outcome| {
            let mut words = outcome.stdout.split_whitespace().map(|word| word.parse::<usize>());
            let (Some(Ok(kib)), Some(Ok(beyond))) = (words.next(), words.next()) else {
                panic!("{what}: {}", outcome.stdout)
            };
            let least = reserved + reserved / 8;
            assert!((least..least + GIB / 2).contains(&kib), "{what}: {kib}");
            assert_eq!(beyond == 0, is_ample, "{what}: {beyond}");
        });
    }
}

/// The constructors of libraries run before cairn's, and may allocate: those of C++ do.
#[test]
fn the_address_space_of_a_program_in_cxx_is_what_is_asked_for() {
    const GIB: usize = 1 << 20;
    for loading in [Loading::Preloaded, Loading::Linked] {
        let program = Program::build("early.cpp", loading).expect("no archive is needed");
        let mut command = program.command::<&str>(&[]);
        command.env("CAIRN_ADDRESS_SPACE", "2GiB");
        let outcome = run(command);
        let kib: usize = outcome.stdout.trim().parse().expect("a number");
        assert!((2 * GIB..3 * GIB).contains(&kib), "{loading:?}: {kib}");
    }
}

/// Somebody asks for the configuration: then what is wrong with it is said, too.
fn with_settings_shown(settings: &[(&str, &str)], check: impl Fn(&str, Vec<&str>)) {
    let settings = [settings, &[("CAIRN_SHOW_CONFIG", "1")]].concat();
    with_settings(&settings, "work", |what, outcome| {
        let warnings = outcome.stderr.lines().filter(|line| line.starts_with("cairn: "));
        check(what, warnings.collect());
    });
}

#[test]
fn unknown_settings_are_named_with_what_is_near_or_all() {
    with_settings_shown(&[("CAIRN_NO_SUCH_SETTING", "1")], |what, warnings| {
        assert_eq!(warnings.len(), 1, "{what}");
        assert!(warnings[0].contains("CAIRN_NO_SUCH_SETTING is not a setting"), "{what}");
        for known in ["CAIRN_STATS,", "CAIRN_PURGE_DELAY,", "CAIRN_PURGE_THREAD"] {
            assert!(warnings[0].contains(known), "{what}");
        }
    });
    for near in ["CAIRN_PURGE_DELY", "CAIRN_PURGE_DELAYS", "CAIRN_PURGEDELAI"] {
        with_settings_shown(&[(near, "1s")], |what, warnings| {
            let expected = format!("cairn: {near} is not a setting; CAIRN_PURGE_DELAY is");
            assert_eq!(warnings, [expected], "{what}");
        });
    }
}

#[test]
fn bad_values_are_named_with_what_can_be_read() {
    for (name, value, readable) in [
        ("CAIRN_STATS", "perhaps", "0, 1 or all"),
        ("CAIRN_STATS", "1:x", "0, 1 or all"),
        ("CAIRN_STATS_AT_SIGNAL", "KILL", "TERM"),
        ("CAIRN_PURGE_DELAY", "5", "250ms"),
        ("CAIRN_PURGE_DELAY", "1min", "250ms"),
        ("CAIRN_HUGE_PAGES", "yes", "0 or 1"),
        ("CAIRN_HUGE_PAGES", "\x1b[2J", "0 or 1"),
    ] {
        with_settings_shown(&[(name, value)], |what, warnings| {
            let shown = value.replace('\x1b', "?");
            let expected = format!("cairn: {name}: cannot read `{shown}`; it is ");
            assert_eq!(warnings.len(), 1, "{what}");
            assert!(warnings[0].starts_with(&expected), "{what}");
            assert!(warnings[0].contains(readable), "{what}");
        });
    }
}

/// Programs compare what others say on standard error.
#[test]
fn into_files_and_pipes_nothing_is_said_unasked() {
    let settings = [("CAIRN_NO_SUCH_SETTING", "1"), ("CAIRN_PURGE_DELAY", "5")];
    with_settings(&settings, "work", |what, outcome| assert!(outcome.stderr.is_empty(), "{what}"));
}

/// A person looks on: it is said, by one process of all.
#[test]
fn on_a_terminal_wrong_settings_are_named_once() {
    if skip_for_stand_in() {
        return;
    }
    for loading in EVERYWHERE {
        let Some(program) = Program::build("environment.c", loading) else { continue };
        let mut command = program.command(&["child_works"]);
        command.env("CAIRN_NO_SUCH_SETTING", "1").env("CAIRN_PURGE_DELAY", "5");
        let said = on_a_terminal(command);
        let lines: Vec<_> = said.lines().collect();
        assert_eq!(lines.len(), 2, "{loading:?}: {said}");
        assert!(said.contains("CAIRN_NO_SUCH_SETTING") && said.contains("`5`"), "{said}");
    }
}

/// Runs the command to its end with a terminal as its standard error; what it says there.
fn on_a_terminal(mut command: std::process::Command) -> String {
    let (mut ours, mut theirs) = (0, 0);
    // SAFETY: two numbers to write to; no name, settings or size are wanted.
    let made = unsafe {
        let none = std::ptr::null_mut();
        libc::openpty(&mut ours, &mut theirs, none, none.cast(), none.cast())
    };
    assert_eq!(made, 0, "a terminal");
    // SAFETY: both are open and nobody else's.
    let (mut ours, theirs) = unsafe { (File::from_raw_fd(ours), File::from_raw_fd(theirs)) };
    let status = command.stderr(theirs).status().expect("it starts");
    assert!(status.success(), "{status}");
    // The last descriptor of the other side: reading ends with an error after what was said.
    drop(command);
    let mut said = Vec::new();
    let _ = ours.read_to_end(&mut said);
    String::from_utf8(said).expect("text")
}

/// Names that only resemble ours, and values of any length and content.
#[test]
fn other_variables_are_not_looked_at() {
    let long = "x".repeat(100_000);
    let settings = [("MY_CAIRN_STATS", "1"), ("CAIRNSTATS", "1"), ("cairn_stats", "1")];
    with_settings(&settings, "work", |what, outcome| assert!(outcome.stderr.is_empty(), "{what}"));
    with_settings(&[("LONG", &long), ("EMPTY", "")], "work", |what, outcome| {
        assert!(outcome.stderr.is_empty(), "{what}");
    });
    with_settings_shown(&[("CAIRN_LONG", &long)], |_, warnings| {
        assert_eq!(warnings.len(), 1, "one warning");
        assert!(warnings[0].contains("CAIRN_LONG"), "the name is in it");
    });
    with_settings_shown(&[("CAIRN_STATS_FILE", &long)], |_, warnings| {
        assert_eq!(warnings.len(), 1, "one warning");
        assert!(warnings[0].len() < 500, "not the whole value");
    });
}

#[test]
fn a_program_may_take_its_environment_away() {
    passes("environment.c", "environment_is_taken_away");
    passes_in(&[Loading::Linked, Loading::Static], "environment.c", &["start_without_environment"]);
}

#[test]
fn a_closed_standard_error_is_no_crash() {
    with_settings(&[("CAIRN_STATS", "1")], "standard_error_is_a_file", |what, outcome| {
        assert!(outcome.stdout.is_empty(), "{what}");
    });
}

/// A program that runs with another user's rights must not be steered by who starts it.
#[test]
fn settings_are_ignored_in_setuid_programs() {
    if skip_for_stand_in() || (!is_root() && skipped("only root can give a program away")) {
        return;
    }
    const NOBODY: u32 = 65534;
    let Some(program) = Program::build("environment.c", Loading::Static) else { return };
    let given_away = scratch_dir().join(format!("environment-setuid-{}", std::process::id()));
    // Another process writes the copy: in this one the other tests fork, and a child that still
    // holds the file open for writing makes its start fail with ETXTBSY.
    let copied = std::process::Command::new("install")
        .args(["--mode=4755", &format!("--owner={NOBODY}"), &format!("--group={NOBODY}")])
        .args([&program.path, &given_away])
        .status();
    assert!(copied.expect("install (coreutils) runs").success(), "the copy is made");

    let settings =
        [("CAIRN_STATS", "1"), ("CAIRN_SHOW_CONFIG", "1"), ("CAIRN_NO_SUCH_SETTING", "1")];
    let mut command = program.command(&["secure"]);
    let environment: Vec<_> = command
        .get_envs()
        .map(|(key, value)| (key.to_owned(), value.map(ToOwned::to_owned)))
        .collect();
    command = std::process::Command::new(&given_away);
    command.arg0("environment").arg("secure").envs(settings);
    for (key, value) in environment {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    let outcome = run(command);
    std::fs::remove_file(&given_away).expect("no such program is left lying about");
    if outcome.status.code() == Some(7) {
        skipped("this file system has no setuid programs");
        return;
    }
    outcome.assert_quiet_success("setuid program with settings");
}

/// What a child sees in `LD_PRELOAD` when its parent ran with this.
fn preload_of_child(preload: &str, settings: &[(&str, &str)]) -> Option<String> {
    let program = Program::build("environment.c", Loading::Preloaded)?;
    let mut command = program.command(&["child_of_preload"]);
    command.env("LD_PRELOAD", preload).envs(settings.iter().copied());
    let outcome = run(command);
    outcome.assert_quiet_success(&format!("LD_PRELOAD={preload} with {settings:?}"));
    Some(outcome.stdout.trim_end().to_owned())
}

#[test]
fn children_inherit_the_preload() {
    let library = library().shared.to_str().expect("a plain path");
    let seen = preload_of_child(library, &[]);
    assert_eq!(seen.as_deref(), Some(library));
}

#[test]
fn children_do_not_inherit_it_when_asked() {
    if skip_for_stand_in() {
        return;
    }
    let library = library().shared.to_str().expect("a plain path");
    let other = empty_library();
    let other = other.to_str().expect("a plain path");
    let alone = preload_of_child(library, &[("CAIRN_NO_INHERIT", "1")]);
    assert!(matches!(alone.as_deref(), Some("(not set)" | "")), "{alone:?}");
    // What else was preloaded stays, whichever side it was on and however it was separated.
    for preload in [
        format!("{library}:{other}"),
        format!("{other}:{library}"),
        format!("{library} {other}"),
        format!("{other} {library}"),
    ] {
        let seen = preload_of_child(&preload, &[("CAIRN_NO_INHERIT", "1")]).expect("a program");
        assert!(seen.contains(other), "{preload} becomes {seen}");
        assert!(!seen.contains(library), "{preload} becomes {seen}");
    }
    // Names that the loader has searched for or filled in.
    let folder = std::path::Path::new(library).parent().expect("a folder").to_str().expect("plain");
    let file = std::path::Path::new(library).file_name().expect("a name").to_str().expect("plain");
    let settings = [("CAIRN_NO_INHERIT", "1"), ("LD_LIBRARY_PATH", folder)];
    let sought = preload_of_child(file, &settings);
    assert!(matches!(sought.as_deref(), Some("(not set)" | "")), "{sought:?}");
    let kept = preload_of_child(library, &[("CAIRN_NO_INHERIT", "0")]);
    assert_eq!(kept.as_deref(), Some(library));
}
