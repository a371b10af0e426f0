//! The accounts: cairn's own against the kernel's, and the heap as tools read it from outside.
//!
//! The programs look for `cairn_header` and so ask for our own library.

mod common;

use common::{EVERYWHERE, Program, passes, run, skip_for_stand_in};

/// One pattern of use, each in a process of its own.
fn reconciles(case: &str) {
    if skip_for_stand_in() {
        return;
    }
    for loading in EVERYWHERE {
        let Some(program) = Program::build("reconcile.c", loading) else { continue };
        run(program.command(&[case])).assert_quiet_success(&format!("{case}, {loading:?}"));
    }
}

#[test]
fn small_blocks_reconcile() {
    reconciles("small_half_freed");
}

#[test]
fn medium_blocks_reconcile() {
    reconciles("medium_half_freed");
}

#[test]
fn large_blocks_reconcile() {
    reconciles("large_partly_touched");
}

#[test]
fn mappings_reconcile() {
    reconciles("huge_mappings");
}

#[test]
fn zeroed_blocks_reconcile() {
    reconciles("zeroed_and_written");
}

#[test]
fn caches_of_threads_reconcile() {
    reconciles("threads_with_caches");
}

#[test]
fn one_after_the_other_they_reconcile() {
    reconciles("all");
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "its caches are not told outside")]
fn blocks_are_counted_from_outside() {
    if !skip_for_stand_in() {
        passes("outside.c", "blocks_are_counted");
    }
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "its caches are not told outside")]
fn blocks_freed_elsewhere_are_counted_from_outside() {
    if !skip_for_stand_in() {
        passes("outside.c", "blocks_freed_elsewhere_are_counted");
    }
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "its caches are not told outside")]
fn another_process_is_counted_from_outside() {
    if !skip_for_stand_in() {
        passes("outside.c", "another_process_is_counted");
    }
}
