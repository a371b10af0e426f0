//! What the C standard, POSIX and glibc say of the malloc family, and our own interface.

mod common;

use common::{EVERYWHERE, Loading, Program, passes, passes_in, skip_for_stand_in};

#[test]
fn zero_size_blocks_are_unique_and_freeable() {
    passes("semantics.c", "zero_size");
}

/// All calls that free or resize, with null and with what else may be said of it.
#[test]
fn freeing_no_block_is_nothing() {
    passes("edges.c", "none_is_nothing");
}

/// All calls that allocate, with odd sizes and alignments.
#[test]
fn any_size_and_alignment_gives_a_block_or_fails_cleanly() {
    passes("edges.c", "any_size_and_alignment");
    passes("edges.c", "own_calls");
}

#[test]
fn sizes_beyond_any_memory_fail_with_enomem() {
    passes("semantics.c", "too_large");
}

#[test]
fn alignments_beyond_any_memory_fail() {
    passes("semantics.c", "too_aligned");
}

#[test]
fn products_that_overflow_fail_with_enomem() {
    passes("semantics.c", "overflow");
}

#[test]
fn posix_memalign_refuses_bad_alignment_and_touches_nothing() {
    passes("semantics.c", "posix_memalign_alignment");
}

#[test]
fn memalign_rounds_odd_alignment_up_and_aligned_alloc_refuses_it() {
    passes("semantics.c", "odd_alignment_is_rounded_up");
}

#[test]
fn realloc_to_zero_frees() {
    passes("semantics.c", "realloc_to_zero_frees");
}

#[test]
fn success_leaves_errno_alone() {
    passes("semantics.c", "errno_is_kept");
}

#[test]
fn usable_size_is_enough_and_writable() {
    passes("semantics.c", "usable_size");
}

#[test]
fn every_small_size_is_served() {
    passes("semantics.c", "every_small_size");
}

#[test]
fn realloc_keeps_contents_over_size_jumps() {
    passes("semantics.c", "realloc_keeps_contents");
}

#[test]
fn realloc_keeps_contents_in_small_steps() {
    passes("semantics.c", "realloc_in_steps");
}

#[test]
fn calloc_is_zero_after_dirty_frees() {
    passes("semantics.c", "calloc_is_zero");
}

#[test]
fn calloc_is_zero_when_memory_changes_its_size_class() {
    passes("semantics.c", "calloc_is_zero_across_sizes");
}

#[test]
fn a_random_mix_keeps_its_contents() {
    passes("semantics.c", "random_mix");
}

#[test]
fn valloc_and_pvalloc_serve_pages() {
    passes("semantics.c", "pages");
}

#[test]
fn internal_names_lead_to_the_same_heap() {
    passes("semantics.c", "internal_names");
}

#[test]
fn sized_frees_free() {
    passes("semantics.c", "sized_frees");
}

#[test]
fn blocks_of_the_c_library_are_ours() {
    passes("semantics.c", "blocks_of_the_c_library");
}

#[test]
fn malloc_info_writes_well_formed_xml() {
    for loading in EVERYWHERE {
        let Some(program) = Program::build("semantics.c", loading) else { continue };
        let outcome = program.run(&["print_malloc_info"]);
        outcome.assert_quiet_success("print_malloc_info");
        let document = roxmltree::Document::parse(&outcome.stdout)
            .unwrap_or_else(|error| panic!("{error}, {loading:?}:\n{}", outcome.stdout));
        let root = document.root_element();
        assert_eq!(root.tag_name().name(), "malloc", "{loading:?}");
        assert!(root.attribute("version").is_some(), "{loading:?}: readers look for the version");
    }
}

#[test]
fn mallinfo_counts_what_is_in_use() {
    passes("semantics.c", "mallinfo_counts");
}

#[test]
fn mallopt_accepts_what_glibc_accepts() {
    passes("semantics.c", "tuning_is_accepted");
}

#[test]
fn malloc_stats_writes_to_standard_error() {
    for loading in EVERYWHERE {
        let Some(program) = Program::build("semantics.c", loading) else { continue };
        let outcome = program.run(&["print_malloc_stats"]);
        outcome.assert_success("print_malloc_stats");
        assert!(!outcome.stderr.is_empty() && outcome.stdout.is_empty(), "{loading:?}");
    }
}

#[test]
fn malloc_trim_gives_back_what_was_freed() {
    passes("semantics.c", "trim_gives_back");
}

/// Our own functions need the header and the library at link time.
fn api_passes(case: &str) {
    if !skip_for_stand_in() {
        passes_in(&[Loading::Linked, Loading::Static], "api.c", &[case]);
    }
}

#[test]
fn version_is_a_number() {
    api_passes("version");
}

#[test]
fn base_is_found_from_inside_a_block() {
    api_passes("base");
}

#[test]
fn base_of_foreign_pointers_is_null() {
    api_passes("base_of_foreign");
}

#[test]
fn cairn_usable_size_agrees_with_malloc_usable_size() {
    api_passes("usable_size");
}

#[test]
fn cairn_purge_gives_back_what_was_freed() {
    api_passes("purge");
}

#[test]
fn cairn_purge_reaches_idle_threads() {
    api_passes("purge_idle_threads");
}

#[test]
fn the_account_is_printed_on_demand() {
    if skip_for_stand_in() {
        return;
    }
    for loading in [Loading::Linked, Loading::Static] {
        let Some(program) = Program::build("api.c", loading) else { continue };
        let outcome = program.run(&["stats_print"]);
        outcome.assert_success("stats_print");
        let said = &outcome.stderr;
        assert!(said.starts_with("cairn: the memory of "), "{loading:?}:\n{said}");
        assert!(outcome.stderr.lines().count() > 1, "{loading:?}:\n{}", outcome.stderr);
        assert!(outcome.stdout.is_empty(), "{loading:?}");
    }
}
