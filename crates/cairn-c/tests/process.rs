//! Threads, forks, new programs.

mod common;

use common::{Loading, passes, passes_in};

#[test]
fn children_of_a_busy_parent_work() {
    passes_in(&[Loading::Preloaded], "process.c", &["fork_from_busy", "2000"]);
    passes_in(&[Loading::Linked, Loading::Static], "process.c", &["fork_from_busy", "300"]);
}

#[test]
fn children_fork_in_turn() {
    passes("process.c", "fork_in_children");
}

#[test]
fn several_threads_fork() {
    passes("process.c", "fork_from_threads");
}

#[test]
fn fork_handlers_may_allocate() {
    passes("process.c", "fork_handlers_may_allocate");
}

#[test]
fn spawn_and_vfork_work() {
    passes("process.c", "spawn_and_vfork");
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
