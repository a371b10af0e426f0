//! How much memory threads make a program hold.

mod common;

use common::{Loading, passes_in, skip_for_stand_in};

/// The loadings differ in how the library is reached, not in what it keeps: one is enough.
fn is_bounded(case: &str) {
    if !skip_for_stand_in() {
        passes_in(&[Loading::Preloaded], "memory.c", &[case]);
    }
}

#[test]
fn who_has_many_classes_and_few_blocks_holds_little() {
    is_bounded("thin_spans");
    is_bounded("thin_small_spans");
}

#[test]
fn a_thread_may_only_free() {
    is_bounded("one_only_frees");
}

#[test]
fn threads_may_only_allocate() {
    is_bounded("some_only_allocate");
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "a heap holds more full spans")]
fn a_chain_of_parked_threads_keeps_little() {
    is_bounded("chain_of_small");
    is_bounded("chain_by_turns");
    is_bounded("chain_of_one_size");
    is_bounded("chain_of_one_medium_size");
}

/// The same with sizes up to 4 KiB, 64 KiB and 1 MiB: 2.7, 6 and 6 times the live set (glibc 17, snmalloc 56; tcmalloc 2 to 2.6).
#[test]
#[ignore = "a parked thread keeps a span of each class it has used, all of it freed by others"]
fn a_chain_of_parked_threads_keeps_little_of_many_classes() {
    is_bounded("chain_of_mixed");
    is_bounded("chain_of_medium");
    is_bounded("chain_of_large");
}

#[test]
fn short_lived_threads_leave_little() {
    is_bounded("short_lived_threads");
}

/// Of all other allocators tried, none gives back more than a sixth.
#[test]
fn survivors_keep_their_own_pages_alone() {
    if !skip_for_stand_in() {
        let cases = ["one_in_order", "one_in_any_order", "four_in_order", "eight_in_any_order"];
        for case in cases {
            passes_in(&[Loading::Preloaded], "survivors.c", &[case]);
        }
    }
}

#[test]
fn blocks_freed_by_a_thread_that_never_allocates_are_used_again() {
    is_bounded("half_of_64");
    is_bounded("half_of_1024");
    is_bounded("half_of_3000");
    is_bounded("half_of_16384");
}
