//! The allocator as a whole, its own files but for those in `facades/shuttle`, in a simulated
//! system: threads run in an order that a seed decides, pages know what may be done to them.
//! `whole` has the map. Here are the tests.
#![allow(dead_code, unused_imports)] // Not everything that the core offers is used here.
#![allow(unreachable_pub, private_interfaces)] // What is public in the core is not in a test.

include!(concat!(env!("OUT_DIR"), "/shuttle.rs"));

#[path = "whole/mod.rs"]
mod whole;

use whole::models;
use whole::runs::{alone, alone_and_decommitting, explore};

#[test]
fn blocks_go_round() {
    explore("blocks_go_round", models::blocks_go_round);
}

#[test]
fn one_allocates_others_free() {
    explore("one_allocates_others_free", models::one_allocates_others_free);
}

#[test]
fn threads_come_and_go() {
    explore("threads_come_and_go", models::threads_come_and_go);
}

#[test]
fn the_reservation_grows() {
    explore("the_reservation_grows", models::the_reservation_grows);
}

#[test]
fn free_memory_is_purged() {
    explore("free_memory_is_purged", models::free_memory_is_purged);
}

#[test]
fn runs_grow_and_shrink() {
    explore("runs_grow_and_shrink", models::runs_grow_and_shrink);
}

#[test]
fn mappings_grow_and_shrink() {
    explore("mappings_grow_and_shrink", models::mappings_grow_and_shrink);
}

#[test]
fn few_blocks_of_many_classes() {
    explore("few_blocks_of_many_classes", models::few_blocks_of_many_classes);
}

#[cfg(not(miri))] // Miri has no forks.
#[test]
fn forks_of_busy_threads() {
    explore("forks_of_busy_threads", models::forks_of_busy_threads);
}

#[test]
fn closed_heaps() {
    explore("closed_heaps", models::closed_heaps);
}

#[test]
fn calls_fail() {
    explore("calls_fail", models::calls_fail);
}

#[test]
fn mappings_cannot_grow() {
    explore("mappings_cannot_grow", models::mappings_cannot_grow);
}

#[test]
fn large_blocks_freed_twice() {
    explore("large_blocks_freed_twice", models::large_blocks_freed_twice);
}

// Systems in which what is purged is no memory any more until it is committed again.

#[cfg(not(miri))]
#[test]
fn purged_memory_is_committed_again_among_threads() {
    explore("purged_memory_is_committed_again_among_threads", models::free_memory_is_purged);
}

#[cfg(not(miri))]
#[test]
fn purged_memory_is_committed_again() {
    alone_and_decommitting("purged_memory_is_committed_again", 0);
}

#[cfg(not(miri))]
#[test]
fn calls_fail_where_purged_memory_is_committed_again() {
    alone_and_decommitting("calls_fail_where_purged_memory_is_committed_again", 6);
}

#[test]
fn pages_of_4_kib() {
    alone("pages_of_4_kib", 4 << 10, usize::MAX, 0);
}

// Under Miri all tests share one reservation, and that has pages of one size.

#[cfg(not(miri))]
#[test]
fn pages_of_16_kib() {
    alone("pages_of_16_kib", 16 << 10, usize::MAX, 0);
}

#[cfg(not(miri))]
#[test]
fn pages_of_64_kib() {
    alone("pages_of_64_kib", 64 << 10, usize::MAX, 0);
}

#[cfg(not(miri))]
#[test]
fn calls_fail_with_pages_of_64_kib() {
    alone("calls_fail_with_pages_of_64_kib", 64 << 10, usize::MAX, 6);
}

/// The reservation is made at a fixed place and mapped as it grows.
#[cfg(not(miri))]
#[test]
fn little_address_space() {
    alone("little_address_space", 4 << 10, 200 << 20, 0);
}
