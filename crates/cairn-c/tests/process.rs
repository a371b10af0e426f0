//! Threads, forks, new programs; ways out of code, and the ends of threads and processes.
//!
//! What takes long is ignored: `cargo test --release -p cairn-c --test process -- --ignored`.

mod common;

use common::{
    EVERYWHERE, Loading, Program, lacks, library, passes, passes_in, run, scratch_dir,
    skip_for_stand_in, skipped,
};
use std::process::Command;

#[test]
fn children_of_a_busy_parent_work() {
    passes_in(&[Loading::Preloaded], "process.c", &["fork_from_busy", "100"]);
    passes_in(&[Loading::Linked, Loading::Static], "process.c", &["fork_from_busy", "30"]);
}

#[test]
fn children_fork_in_turn() {
    passes_in(&EVERYWHERE, "process.c", &["fork_in_children", "6"]);
}

#[test]
fn several_threads_fork() {
    passes_in(&EVERYWHERE, "process.c", &["fork_from_threads", "30"]);
}

#[test]
fn fork_handlers_may_allocate() {
    passes_in(&EVERYWHERE, "process.c", &["fork_handlers_may_allocate", "20"]);
}

#[test]
fn spawn_and_vfork_work() {
    passes_in(&EVERYWHERE, "process.c", &["spawn_and_vfork", "10"]);
}

/// The five above, as often as the programs do it of their own accord, and more.
#[test]
#[ignore = "takes minutes"]
fn a_busy_process_starts_others_for_long() {
    passes_in(&[Loading::Preloaded], "process.c", &["fork_from_busy", "2000"]);
    passes_in(&[Loading::Linked, Loading::Static], "process.c", &["fork_from_busy", "300"]);
    for case in
        ["fork_in_children", "fork_from_threads", "fork_handlers_may_allocate", "spawn_and_vfork"]
    {
        passes("process.c", case);
    }
}

#[test]
fn the_program_may_be_replaced_while_threads_allocate() {
    passes("process.c", "exec_while_busy");
}

#[test]
fn twenty_thousand_short_threads_leave_nothing() {
    passes("process.c", "short_threads");
}

#[test]
fn one_thread_allocates_and_another_frees() {
    passes("process.c", "one_allocates_one_frees");
}

#[test]
fn blocks_go_down_a_chain_of_threads() {
    passes("process.c", "chain");
}

/// A heap that a thread gets when its destructors have run would be lost.
#[test]
fn detached_threads_leave_no_heaps() {
    for loading in EVERYWHERE {
        let Some(program) = Program::build("process.c", loading) else { continue };
        let mut command = program.command(&["detached_threads"]);
        command.env("CAIRN_STATS", "1");
        let outcome = run(command);
        outcome.assert_success("detached_threads");
        assert!(
            skip_for_stand_in() || outcome.stderr.contains("threads' heaps: 1 in use of"),
            "{loading:?}: {}",
            outcome.stderr
        );
    }
}

#[test]
fn threads_exchange_blocks() {
    passes("process.c", "exchange_blocks");
}

#[test]
fn blocks_outlive_their_thread() {
    passes("process.c", "free_after_death");
    passes("process.c", "free_in_parts_after_death");
}

#[test]
fn threads_may_be_cancelled_while_allocating() {
    passes("process.c", "cancel");
}

#[test]
fn a_storm_of_forks() {
    passes_in(&[Loading::Preloaded], "storms.c", &["fork_storm", "100"]);
    passes_in(&[Loading::Linked, Loading::Static], "storms.c", &["fork_storm", "30"]);
}

#[test]
#[ignore = "takes minutes"]
fn a_storm_of_ten_thousand_forks() {
    passes_in(&[Loading::Preloaded], "storms.c", &["fork_storm", "10000"]);
    passes_in(&[Loading::Linked, Loading::Static], "storms.c", &["fork_storm", "100"]);
}

/// The C library's own allocator locks last, whoever registered first.
#[test]
fn fork_handlers_may_be_older_than_the_first_allocation() {
    passes("storms.c", "early_fork_handlers");
    passes("storms.c", "many_fork_handlers");
}

#[test]
fn destructors_of_threads_may_fork() {
    passes("storms.c", "fork_in_destructors");
    passes("storms.c", "values_of_ending_threads");
}

#[test]
fn short_threads_leave_blocks_to_others() {
    passes("storms.c", "short_threads");
}

#[test]
#[ignore = "takes a minute"]
fn a_hundred_thousand_short_threads() {
    passes_in(&[Loading::Preloaded], "storms.c", &["short_threads", "100000"]);
}

/// A thousand times a second, and none of them in the allocator's way.
#[test]
fn a_storm_of_signals() {
    passes("storms.c", "signal_storm");
}

/// With one thread only, as in the C library.
#[test]
fn a_handler_may_fork() {
    passes("storms.c", "forks_in_handlers");
}

#[test]
fn cancelled_threads_leave_nothing() {
    passes("storms.c", "cancel_storm");
    passes("storms.c", "cancel_in_stats");
}

#[test]
#[ignore = "takes a minute"]
fn ten_thousand_cancelled_threads() {
    passes_in(&EVERYWHERE, "storms.c", &["cancel_storm", "10000"]);
}

#[test]
fn code_that_allocated_may_be_left_by_a_jump() {
    passes("endings.cpp", "jumps");
    passes("endings.cpp", "jumps_out_of_handlers");
}

#[test]
fn exceptions_pass_through_code_that_allocated() {
    passes("endings.cpp", "exceptions");
    passes("endings.cpp", "exceptions_outlive_their_thread");
}

#[test]
fn the_process_may_end_in_every_way_while_threads_allocate() {
    ends_in_every_way(4);
}

#[test]
#[ignore = "takes a minute"]
fn the_process_may_end_in_every_way_again_and_again() {
    ends_in_every_way(40);
}

fn ends_in_every_way(times: usize) {
    for _ in 0..times {
        for case in [
            "exit_while_busy",
            "quick_exit_while_busy",
            "underscore_exit_while_busy",
            "exit_in_thread",
        ] {
            passes("endings.cpp", case);
        }
    }
    passes("endings.cpp", "main_ends_while_others_go_on");
}

#[test]
fn a_thread_may_abort_while_others_allocate() {
    for loading in EVERYWHERE {
        let Some(program) = Program::build("endings.cpp", loading) else { continue };
        for _ in 0..10 {
            let outcome = program.run(&["abort_in_thread"]);
            let what = format!("{loading:?}: {}\n{}", outcome.status, outcome.stderr);
            assert_eq!(outcome.signal(), Some(libc::SIGABRT), "{what}");
            assert!(outcome.stderr.is_empty(), "{what}");
            let outcome = program.run(&["abort_in_thread_with_handler"]);
            let what = format!("{loading:?}: {}\n{}", outcome.status, outcome.stderr);
            assert_eq!(outcome.status.code(), Some(42), "{what}");
        }
    }
}

/// Numbers of processes come again in namespaces: the account is still the first process's alone, and the child's profile has a
/// file of its own.
#[test]
fn a_child_with_its_parents_number_is_not_its_parent() {
    if skip_for_stand_in() || lacks("unshare", "util-linux") {
        return;
    }
    let among_others = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork"]);
        command
    };
    let mut probe = among_others();
    probe.arg("true");
    if !run(probe).status.success() && skipped("namespaces are not allowed") {
        return;
    }
    for loading in EVERYWHERE {
        let Some(program) = Program::build("account.c", loading) else { continue };
        let folder = scratch_dir().join(format!("numbers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut command = among_others();
        common::clean_environment(&mut command);
        // For the program alone.
        command.args(["env", "CAIRN_STATS=1", "CAIRN_STATS_AT_SIGNAL=1"]);
        command.arg(format!("CAIRN_PROFILE={}", folder.join("profile").display()));
        if loading == Loading::Preloaded {
            command.arg(format!("LD_PRELOAD={}", library().shared.display()));
        }
        let outcome = run({
            command.arg(&program.path).arg("child_has_its_number");
            command
        });
        let what = format!("{loading:?}: {}", outcome.stderr);
        outcome.assert_success(&what);
        assert_eq!(outcome.stderr.matches("cairn: the memory of").count(), 1, "{what}");
        let files = std::fs::read_dir(&folder).expect("the folder").count();
        assert_eq!(files, 2, "{what}");
        std::fs::remove_dir_all(folder).expect("it is there");
    }
}
