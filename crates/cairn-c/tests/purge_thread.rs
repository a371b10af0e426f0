//! Processes with `CAIRN_PURGE_THREAD=1`: what they give back while they are idle, and that the
//! library's thread changes nothing else for them.

mod common;

use common::group::Group;
use common::{EVERYWHERE, Loading, Outcome, Program, is_root, run, skip_for_stand_in, skipped};
use std::os::unix::process::CommandExt;

/// Runs a case of a program with the thread, in each of these loadings.
fn in_loadings(loadings: &[Loading], source: &str, case: &[&str], check: impl Fn(&str, &Outcome)) {
    if skip_for_stand_in() {
        return;
    }
    for &loading in loadings {
        let Some(program) = Program::build(source, loading) else { continue };
        let mut command = program.command(case);
        command.env("CAIRN_PURGE_THREAD", "1");
        // Nothing but the end of the program wakes the thread early: what waits for it hangs.
        if case.iter().any(|case| case.contains("leaves")) {
            command.env("CAIRN_PURGE_DELAY", "3600s");
        }
        check(&format!("{case:?}, {loading:?}"), &run(command));
    }
}

fn passes(case: &str) {
    let check = |what: &str, outcome: &Outcome| outcome.assert_quiet_success(what);
    in_loadings(&EVERYWHERE, "purge_thread.c", &[case], check);
}

#[test]
fn an_idle_process_gives_back_blocks() {
    passes("blocks_of_one_size");
    passes("small_blocks");
    passes("medium_blocks");
    passes("large_blocks");
    passes("largest_runs");
    passes("blocks_of_another_thread");
}

#[test]
fn an_idle_process_gives_back_mappings() {
    passes("mappings");
}

#[test]
fn idle_children_give_back() {
    passes("children");
}

#[test]
fn the_thread_has_a_name_and_no_signals() {
    passes("there_is_one");
    passes("signals_are_the_programs");
}

#[test]
fn without_the_setting_there_is_none() {
    if skip_for_stand_in() {
        return;
    }
    for loading in EVERYWHERE {
        let Some(program) = Program::build("purge_thread.c", loading) else { continue };
        for value in [None, Some("0"), Some("")] {
            let mut command = program.command(&["there_is_none"]);
            command.envs(value.map(|value| ("CAIRN_PURGE_THREAD", value)));
            run(command).assert_quiet_success(&format!("{value:?}, {loading:?}"));
        }
    }
}

#[test]
fn thread_storage_may_be_large() {
    let check = |what: &str, outcome: &Outcome| outcome.assert_quiet_success(what);
    for case in ["there_is_one", "children"] {
        in_loadings(&EVERYWHERE, "purge_thread_large_storage.c", &[case], check);
    }
}

/// glibc takes thread storage out of each stack, and refuses a stack only if next to nothing is left of it.
#[test]
fn thread_storage_leaves_a_stack() {
    if skip_for_stand_in() {
        return;
    }
    let Some(program) = Program::build("purge_thread.c", Loading::Preloaded) else { return };
    for bytes in (58_000..62_000).step_by(250) {
        let mut command = program.command(&["largest_runs"]);
        let tunable = format!("glibc.rtld.optional_static_tls={bytes}");
        command.env("CAIRN_PURGE_THREAD", "1").env("GLIBC_TUNABLES", tunable);
        run(command).assert_quiet_success(&format!("{bytes} bytes"));
    }
}

/// Without memory for a thread's stack, or under a limit on their number. The limit does not
/// count for root, and so the program runs as another user.
#[test]
fn the_program_runs_if_no_thread_can_be_started() {
    const NOBODY: u32 = 65534;
    if skip_for_stand_in() || (!is_root() && skipped("only root can run it as another user")) {
        return;
    }
    let Some(program) = Program::build("purge_thread.c", Loading::Static) else { return };
    let mut command = program.command(&["there_is_none"]);
    command.env("CAIRN_PURGE_THREAD", "1");
    common::limit(&mut command, libc::RLIMIT_NPROC, 0);
    command.uid(NOBODY).gid(NOBODY);
    let outcome = run(command);
    outcome.assert_success("without a thread");
    assert_eq!(outcome.stderr, "cairn: CAIRN_PURGE_THREAD: no thread can be started\n");
}

#[test]
fn the_process_ends_in_every_way() {
    passes("leaves_by_exit");
    passes("leaves_by_quick_exit");
    passes("leaves_by_underscore_exit");
    passes("is_replaced");
    in_loadings(&EVERYWHERE, "purge_thread.c", &["aborts"], |what, outcome| {
        assert_eq!(outcome.signal(), Some(libc::SIGABRT), "{what}: {}", outcome.stderr);
        assert!(outcome.stderr.is_empty(), "{what}: {}", outcome.stderr);
    });
}

/// The C library ends the process with its last thread: ours must not be that.
#[test]
fn the_process_ends_with_its_last_thread() {
    passes("the_last_thread_leaves");
    passes("main_leaves_first");
    passes("the_last_thread_of_a_child_leaves");
}

#[test]
fn the_user_may_change() {
    if !is_root() && skipped("only root may become another") {
        return;
    }
    passes("the_user_changes");
}

#[test]
fn children_of_a_busy_parent_have_one_too() {
    let check = |what: &str, outcome: &Outcome| outcome.assert_quiet_success(what);
    in_loadings(&[Loading::Preloaded], "purge_thread.c", &["forks_from_busy", "100"], check);
    in_loadings(&EVERYWHERE[1..], "purge_thread.c", &["forks_from_busy", "30"], check);
}

#[test]
fn it_is_shown() {
    if skip_for_stand_in() {
        return;
    }
    let said = |loading, settings: &[(&str, &str)]| {
        let program = Program::build("nothing.c", loading)?;
        let mut command = program.command::<&str>(&[]);
        command.envs(settings.iter().copied());
        let outcome = run(command);
        outcome.assert_success(&format!("{settings:?}, {loading:?}"));
        Some(outcome.stderr)
    };
    for loading in EVERYWHERE {
        for (value, shown) in [("1", "1"), ("0", "0"), ("", "0")] {
            let settings = [("CAIRN_PURGE_THREAD", value), ("CAIRN_SHOW_CONFIG", "1")];
            let Some(said) = said(loading, &settings) else { continue };
            let line = format!("CAIRN_PURGE_THREAD={shown}");
            assert!(said.lines().any(|said| said == line), "{loading:?}: {said}");
        }
    }
}

/// Its own limit, or one of the group around it; none that is near.
#[test]
fn a_process_gives_back_near_its_groups_limit() {
    // Hardened, what is in use takes 4 MiB more.
    const NEAR: usize = if cfg!(feature = "hardened") { 84 << 20 } else { 80 << 20 };
    const FAR: usize = 1 << 30;
    if skip_for_stand_in() {
        return;
    }
    let cases = [
        (NEAR, FAR, "near_the_limit"),
        (FAR, NEAR, "near_the_limit"),
        (FAR, FAR, "far_from_the_limit"),
    ];
    for (nth, (outer, inner, case)) in cases.into_iter().enumerate() {
        for loading in EVERYWHERE {
            let Some(group) = Group::new(&format!("{nth}-{loading:?}")) else {
                assert!(skipped("no memory cgroup can be made"));
                return;
            };
            group.limit(&group.outer, outer);
            group.limit(&group.inner, inner.min(outer));
            let Some(program) = Program::build("purge_thread.c", loading) else { continue };
            let mut command = program.command(&[case]);
            command.env("CAIRN_PURGE_THREAD", "1").env("CAIRN_PURGE_DELAY", "3600s");
            group.put(&mut command);
            run(command).assert_quiet_success(&format!("{case} {nth}, {loading:?}"));
        }
    }
}
