//! Heaps of the program's, from C.

mod common;

use common::{Loading, Program, passes_in, skip_for_stand_in};

const LINKED: [Loading; 2] = [Loading::Linked, Loading::Static];

fn heaps_pass(case: &str) {
    if !skip_for_stand_in() {
        passes_in(&LINKED, "heaps.c", &[case]);
    }
}

#[test]
fn every_call_serves_every_size() {
    heaps_pass("calls");
}

#[test]
fn what_cannot_be_is_refused() {
    heaps_pass("failures");
}

#[test]
fn the_program_is_told_of_the_soft_limit() {
    heaps_pass("soft_limit");
}

#[test]
fn all_threads_use_a_shared_heap() {
    heaps_pass("threads");
}

#[test]
fn a_heap_goes_from_thread_to_thread() {
    heaps_pass("moves");
}

#[test]
fn blocks_in_use_are_visited() {
    heaps_pass("visit");
}

#[test]
fn a_forked_child_has_its_heaps() {
    heaps_pass("forks");
}

/// Bad use ends the process with a line that says what is wrong.
fn ends(case: &str, reason: &str) {
    if skip_for_stand_in() {
        return;
    }
    for loading in LINKED {
        let Some(program) = Program::build("heaps.c", loading) else { continue };
        let outcome = program.run(&[case]);
        let said = &outcome.stderr;
        assert_eq!(outcome.signal(), Some(libc::SIGABRT), "{case}, {loading:?}: {said}");
        assert!(said.starts_with("cairn: ") && said.lines().count() == 1, "{case}: {said}");
        assert!(said.contains(reason), "{case}, {loading:?}: {said}");
    }
}

#[test]
fn a_heap_that_is_gone_is_told() {
    ends("destroyed", "no heap is here");
    ends("no_heap", "no heap is here");
    for case in ["attaches_null", "detaches_null", "purges_null"] {
        ends(case, "no heap is here");
    }
}

#[test]
fn a_heap_in_other_hands_is_told() {
    ends("of_another_thread", "not attached to the thread that uses it");
    ends("attached_twice", "attached to another thread");
}
