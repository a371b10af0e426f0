//! Alignment over all entry points.

mod common;

use common::passes;

#[test]
fn every_power_of_two_up_to_a_gibibyte() {
    passes("alignment.c", "every_power_of_two");
}

#[test]
fn blocks_fit_any_type_without_being_asked() {
    passes("alignment.c", "natural");
}

#[test]
fn aligned_blocks_do_not_overlap() {
    passes("alignment.c", "many_at_once");
}

#[test]
fn realloc_of_aligned_blocks_keeps_contents() {
    passes("alignment.c", "realloc_of_aligned");
}

#[test]
fn strict_alignment_costs_no_resident_memory() {
    passes("alignment.c", "strict_alignment_is_cheap");
}
