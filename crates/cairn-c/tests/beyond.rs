//! The calls beyond the malloc family.

mod common;

use common::{Loading, passes, passes_in, skip_for_stand_in};

/// They need the header and the library at link time.
fn passes_linked(case: &str) {
    if !skip_for_stand_in() {
        passes_in(&[Loading::Linked, Loading::Static], "beyond.c", &[case]);
    }
}

#[test]
fn good_sizes_and_classes() {
    passes_linked("sizes");
}

#[test]
fn blocks_expand_in_place() {
    passes_linked("expand");
}

#[test]
fn allocations_tell_what_they_have_given() {
    passes_linked("at_least");
}

#[test]
fn any_byte_can_be_aligned() {
    passes_linked("aligned_at");
}

#[test]
fn batches_are_as_good_as_one_by_one() {
    passes_linked("batches");
}

#[test]
fn arrays_leave_nothing_behind() {
    passes_linked("recallocarray");
}

#[test]
fn a_pool_of_idle_threads_holds_nothing() {
    passes_linked("idle_pool");
}

#[test]
fn size_feedback_reaches_cxx() {
    if !skip_for_stand_in() {
        passes("cxx_sized.cpp", "tells_the_size");
        passes("cxx_sized.cpp", "handler_is_called");
        passes_in(&[Loading::Preloaded, Loading::Linked], "cxx_sized.cpp", &["throws"]);
        passes_in(
            &[Loading::Preloaded, Loading::Linked],
            "replaced_new.cpp",
            &["size_feedback_follows"],
        );
    }
}
