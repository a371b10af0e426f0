//! Calls no program may make: one line that names the call and the pointer, then an abort.

mod common;

use common::{EVERYWHERE, Loading, Outcome, Program, skip_for_stand_in};

/// Runs the case and asserts the message; returns what there is more to look at.
fn misused(case: &str, call: &str, mut more: impl FnMut(Loading, &Outcome)) {
    if skip_for_stand_in() {
        return;
    }
    for loading in EVERYWHERE {
        let Some(program) = Program::build("misuse.c", loading) else { continue };
        let outcome = program.run(&[case]);
        let what = format!("{case}, {loading:?}: {}\n{}", outcome.status, outcome.stderr);
        assert!(outcome.stdout.starts_with("0x"), "it ended before the misuse: {what}");
        assert_eq!(outcome.stderr.lines().count(), 1, "one line is promised: {what}");
        assert!(outcome.stderr.ends_with('\n'), "the line is whole: {what}");
        assert!(outcome.stderr.starts_with("cairn: "), "the line says whose it is: {what}");
        let mut words = outcome.stderr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        assert!(words.any(|word| word == call), "the line names {call}: {what}");
        let mut words = outcome.stderr.split(|c: char| !c.is_ascii_alphanumeric());
        let pointer = outcome.stdout.trim();
        assert!(words.any(|word| word == pointer), "the line names {pointer}: {what}");
        more(loading, &outcome);
    }
}

/// The usual end.
fn aborts(case: &str, call: &str) {
    misused(case, call, |loading, outcome| {
        assert_eq!(outcome.signal(), Some(libc::SIGABRT), "{case}, {loading:?}");
    });
}

#[test]
fn free_of_the_stack() {
    aborts("free_stack", "free");
}

#[test]
fn free_of_a_static() {
    aborts("free_static", "free");
}

#[test]
fn free_of_a_foreign_mapping() {
    aborts("free_mapping", "free");
    aborts("free_mapping_page", "free");
}

#[test]
fn free_of_addresses_that_cannot_be() {
    aborts("free_low", "free");
    aborts("free_not_canonical", "free");
    aborts("free_last", "free");
    aborts("free_beyond_user", "free");
}

#[test]
fn free_of_a_misaligned_pointer() {
    aborts("free_by_1", "free");
    aborts("free_by_8", "free");
    aborts("free_by_1_huge", "free");
}

#[test]
fn free_inside_a_small_block() {
    aborts("free_inside_small", "free");
    aborts("free_inside_medium", "free");
}

#[test]
fn free_inside_a_large_block() {
    aborts("free_inside_large", "free");
    aborts("free_inside_large_aligned", "free");
}

#[test]
fn free_inside_a_huge_block() {
    aborts("free_inside_huge", "free");
    aborts("free_deep_inside_huge", "free");
}

#[test]
fn second_free_of_a_large_block() {
    aborts("double_free_large", "free");
    aborts("double_free_large_in_threads", "free");
}

#[test]
fn second_free_of_a_small_block() {
    aborts("double_free_small", "free");
    aborts("double_free_medium", "free");
    aborts("double_free_late", "free");
    aborts("double_free_small_in_threads", "free");
    aborts("double_free_by_realloc", "realloc");
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "where a block lies is chance")]
fn free_of_a_block_that_was_never_allocated() {
    aborts("free_of_a_neighbour", "free");
}

#[test]
fn write_to_a_freed_block() {
    aborts("write_after_free", "malloc");
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "where a block lies is chance")]
fn sized_frees_that_lie() {
    aborts("free_sized_too_large", "free");
    aborts("free_sized_too_small", "free");
    aborts("free_sized_large", "free");
    aborts("free_aligned_sized_wrong", "free");
}

#[test]
fn sized_deletes_that_lie() {
    aborts("delete_of_another_size", "delete");
    aborts("delete_of_another_alignment", "delete");
}

#[test]
fn a_block_of_no_class_is_not_taken_for_one_of_the_smallest() {
    aborts("free_sized_large_as_small", "free");
    aborts("free_sized_huge_as_small", "free");
    aborts("free_sized_guarded_as_small", "free");
    // By default a sized delete may name less than the block has.
    if cfg!(feature = "hardened") {
        aborts("delete_of_large_as_small", "delete");
        aborts("delete_of_huge_as_small", "delete");
    }
}

#[test]
fn second_free_of_a_huge_block() {
    aborts("double_free_huge", "free");
}

#[test]
fn second_free_of_a_small_block_whose_span_is_gone() {
    aborts("free_after_the_span", "free");
}

#[test]
fn realloc_of_a_foreign_pointer() {
    aborts("realloc_stack", "realloc");
    aborts("realloc_to_zero_static", "realloc");
}

#[test]
fn realloc_inside_a_block() {
    aborts("realloc_inside", "realloc");
    aborts("realloc_inside_huge", "realloc");
}

#[test]
fn realloc_of_a_freed_block() {
    aborts("realloc_freed", "realloc");
}

#[test]
fn usable_size_of_a_foreign_pointer() {
    aborts("usable_size_stack", "malloc_usable_size");
    aborts("usable_size_inside", "malloc_usable_size");
}

#[test]
#[cfg_attr(not(feature = "hardened"), ignore = "the hardened build alone notices it")]
fn usable_size_of_a_freed_block() {
    aborts("usable_size_freed", "malloc_usable_size");
}

/// No lock is held at the abort: crash reporters allocate there.
#[test]
fn the_handler_of_the_abort_may_allocate() {
    misused("handler_allocates", "free", |loading, outcome| {
        assert_eq!(outcome.signal(), Some(libc::SIGKILL), "{loading:?}: the handler did not end");
    });
}

/// A message that nobody reads does not end the process in its own way.
#[test]
fn the_abort_comes_without_a_reader_too() {
    if skip_for_stand_in() {
        return;
    }
    for loading in EVERYWHERE {
        let Some(program) = Program::build("misuse.c", loading) else { continue };
        let outcome = program.run(&["nobody_reads"]);
        assert_eq!(outcome.signal(), Some(libc::SIGABRT), "{loading:?}: {}", outcome.status);
    }
}
