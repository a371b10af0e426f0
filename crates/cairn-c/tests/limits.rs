//! Under the limits of the system, at start and end, and however the library is loaded.

mod common;

use common::{
    EVERYWHERE, Loading, Program, empty_library, is_root, library, limit, passes, passes_in, run,
    scratch_dir, skip_for_stand_in, skipped,
};
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

#[test]
fn a_shortage_of_address_space_is_survived() {
    passes("limits.c", "address_space_shortage");
}

#[test]
fn a_shortage_of_data_is_survived() {
    passes("limits.c", "data_shortage");
}

#[test]
fn a_shortage_is_survived_by_several_threads() {
    passes("limits.c", "shortage_in_threads");
}

#[test]
fn threads_may_start_in_a_shortage() {
    passes("limits.c", "threads_start_in_a_shortage");
}

#[test]
fn locked_memory_is_only_what_is_used() {
    if !is_root() && skipped("only root may lock this much") {
        return;
    }
    passes("limits.c", "locked");
}

#[test]
fn holes_do_not_use_up_mappings() {
    if !skip_for_stand_in() {
        passes("limits.c", "few_mappings");
    }
}

#[test]
fn it_starts_and_works_under_ulimit_v() {
    for loading in EVERYWHERE {
        let Some(program) = Program::build("limits.c", loading) else { continue };
        let mut command = program.command(&["works"]);
        limit(&mut command, libc::RLIMIT_AS, 200_000 << 10);
        run(command).assert_quiet_success(&format!("ulimit -v 200000, {loading:?}"));
    }
}

#[test]
fn it_starts_and_works_under_ulimit_d() {
    for loading in EVERYWHERE {
        let Some(program) = Program::build("limits.c", loading) else { continue };
        let mut command = program.command(&["data_works"]);
        limit(&mut command, libc::RLIMIT_DATA, 64 * MIB);
        run(command).assert_quiet_success(&format!("RLIMIT_DATA of 64 MiB, {loading:?}"));
    }
}

/// So little that hardly anything works; what fails must fail cleanly.
#[test]
fn hardly_any_address_space_is_no_crash() {
    if skip_for_stand_in() {
        return;
    }
    for mib in [8, 12, 16, 24, 32] {
        for loading in EVERYWHERE {
            let Some(program) = Program::build("limits.c", loading) else { continue };
            let mut command = program.command(&["little_room"]);
            limit(&mut command, libc::RLIMIT_AS, mib * MIB);
            let outcome = run(command);
            let what = format!("{mib} MiB, {loading:?}: {}\n{}", outcome.status, outcome.stderr);
            // 127 is the loader's: the libraries themselves did not fit.
            assert!(matches!(outcome.status.code(), Some(0 | 127)), "{what}");
        }
    }
}

/// A program that is not linked with it loads it, uses it and closes it.
#[test]
fn it_can_be_loaded_at_run_time() {
    let Some(program) = Program::build("loader.c", Loading::Absent) else { return };
    for case in ["use_in_threads", "threads_outlive_it", "load_again_and_again"] {
        let library = library().shared.to_str().expect("a plain path");
        program.run(&[case, library]).assert_quiet_success(case);
    }
}

#[test]
fn a_static_position_independent_program_works() {
    passes_in(&[Loading::StaticPie], "limits.c", &["works"]);
    passes_in(&[Loading::StaticPie], "semantics.c", &["random_mix"]);
    passes_in(&[Loading::StaticPie], "cxx.cpp", &["containers"]);
}

#[test]
fn constructors_may_allocate_before_main() {
    passes("lifetime.cpp", "before_main");
}

#[test]
fn handlers_may_allocate_after_main() {
    passes("lifetime.cpp", "after_main");
    passes("lifetime.cpp", "quickly");
}

#[test]
fn destructors_of_thread_locals_may_allocate_and_free() {
    passes("lifetime.cpp", "thread_locals");
}

#[test]
fn destructors_of_thread_keys_may_allocate_in_every_round() {
    passes("lifetime.cpp", "thread_keys");
    passes("lifetime.cpp", "first_allocation_in_a_destructor");
}

#[test]
fn the_process_may_end_while_threads_allocate() {
    for _ in 0..20 {
        passes("lifetime.cpp", "exit_while_busy");
    }
    passes("lifetime.cpp", "main_ends_first");
}

/// Starting costs a few system calls more than without the library, and no more.
#[test]
fn starting_takes_few_system_calls() {
    const MORE_CALLS_MAX: usize = 10;

    if Command::new("strace").arg("-V").output().is_err() {
        skipped("strace is not installed");
        return;
    }
    if skip_for_stand_in() {
        return;
    }
    let Some(bare) = Program::build("nothing.c", Loading::Absent) else { return };
    let Some(alone) = Program::build("nothing.c", Loading::Static) else { return };
    let bare_alone = scratch_dir().join(format!("nothing-alone-{}", std::process::id()));
    let status = Command::new("cc")
        .args(["-static", "-o"])
        .arg(&bare_alone)
        .arg(common::source_path("nothing.c"))
        .status()
        .expect("a C compiler is needed");
    assert!(status.success());

    // Preloaded: compared with loading a library that has nothing in it.
    let with = system_calls(&bare.path, Some(&library().shared));
    let without = system_calls(&bare.path, Some(&empty_library()));
    assert!(with <= without + MORE_CALLS_MAX, "preloaded: {with} calls, without it {without}");
    let with = system_calls(&alone.path, None);
    let without = system_calls(&bare_alone, None);
    assert!(with <= without + MORE_CALLS_MAX, "static: {with} calls, without it {without}");
}

fn system_calls(program: &Path, preloaded: Option<&Path>) -> usize {
    let mut command = Command::new("strace");
    command.arg("-f").arg("-qq").args(["-e", "signal=none"]);
    common::clean_environment(&mut command);
    if let Some(library) = preloaded {
        // For the program only, not for strace.
        command.arg("-E").arg(format!("LD_PRELOAD={}", library.display()));
    }
    let outcome = run({
        command.arg(program);
        command
    });
    outcome.assert_success("strace");
    outcome.stderr.lines().filter(|line| line.contains('(')).count()
}
