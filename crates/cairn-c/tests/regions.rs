//! Memory that the program supplies, from C.
#![cfg(not(feature = "hardened"))]

mod common;

use common::{Loading, Program, passes_in, skip_for_stand_in};

const LINKED: [Loading; 2] = [Loading::Linked, Loading::Static];

fn regions_pass(case: &str) {
    if !skip_for_stand_in() {
        passes_in(&LINKED, "regions.c", &[case]);
    }
}

#[test]
fn heaps_stay_between_the_fences() {
    regions_pass("fences");
}

#[test]
fn a_file_serves() {
    regions_pass("file");
}

#[test]
fn processes_share_what_is_there() {
    regions_pass("shared_memory");
}

#[test]
fn the_programs_functions_are_called() {
    regions_pass("functions");
}

#[test]
fn what_cannot_be_is_refused() {
    regions_pass("failures");
}

#[test]
fn threads_share_a_region() {
    regions_pass("threads");
}

/// A static program of C cannot end a thread.
#[test]
fn a_thread_may_end_in_reserve() {
    if !skip_for_stand_in() {
        passes_in(&LINKED[..1], "regions.c", &["ends_inside"]);
    }
}

/// Bad use ends the process with a line that says what is wrong.
#[test]
fn a_region_that_is_none_ends_the_process() {
    if skip_for_stand_in() {
        return;
    }
    for (case, loading) in
        ["ended", "foreign", "null"].iter().flat_map(|case| LINKED.map(|loading| (case, loading)))
    {
        let Some(program) = Program::build("regions.c", loading) else { continue };
        let outcome = program.run(&[case]);
        assert_eq!(outcome.signal(), Some(libc::SIGABRT), "{case}, {loading:?}");
        let reason = "no region is here: ended already, or never made";
        assert!(outcome.stderr.contains(reason), "{case}: {}", outcome.stderr);
    }
}
