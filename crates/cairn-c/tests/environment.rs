//! Settings from the environment: heard, named when wrong, ignored where they must be.

mod common;

use common::{
    EVERYWHERE, Loading, Outcome, Program, empty_library, is_root, library, passes, passes_in, run,
    scratch_dir, skip_for_stand_in, skipped,
};
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
fn stats_prints_the_ledger_at_exit() {
    with_settings(&[("CAIRN_STATS", "1")], "work", |what, outcome| {
        assert!(outcome.stderr.starts_with("cairn ledger"), "{what}");
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

#[test]
fn unknown_settings_are_named_once() {
    with_settings(&[("CAIRN_NO_SUCH_SETTING", "1")], "work", |what, outcome| {
        assert_eq!(outcome.stderr.lines().count(), 1, "{what}");
        assert!(outcome.stderr.starts_with("cairn: "), "{what}");
        assert!(outcome.stderr.contains("CAIRN_NO_SUCH_SETTING"), "{what}");
    });
}

#[test]
fn bad_values_are_named() {
    with_settings(&[("CAIRN_STATS", "perhaps")], "work", |what, outcome| {
        assert_eq!(outcome.stderr.lines().count(), 1, "{what}");
        assert!(outcome.stderr.starts_with("cairn: "), "{what}");
        assert!(outcome.stderr.contains("CAIRN_STATS"), "{what}");
        assert!(outcome.stderr.contains("perhaps"), "{what}");
    });
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
    with_settings(&[("CAIRN_LONG", &long)], "work", |_, outcome| {
        assert_eq!(outcome.stderr.lines().count(), 1, "one warning");
        assert!(outcome.stderr.contains("CAIRN_LONG"), "the name is in it");
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
    let kept = preload_of_child(library, &[("CAIRN_NO_INHERIT", "0")]);
    assert_eq!(kept.as_deref(), Some(library));
}
