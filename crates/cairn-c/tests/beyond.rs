//! The calls beyond the malloc family.

mod common;

use common::{Loading, Program, passes, passes_in, skip_for_stand_in};

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
fn counts_are_exact() {
    passes_linked("counts");
}

/// A real parser takes it, and the figures add up.
#[test]
fn statistics_are_json() {
    if skip_for_stand_in() {
        return;
    }
    for loading in [Loading::Linked, Loading::Static] {
        let Some(program) = Program::build("beyond.c", loading) else { continue };
        let outcome = program.run(&["json"]);
        outcome.assert_quiet_success("json");
        let stats: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        let number = |path: &str| stats.pointer(path).and_then(|value| value.as_u64()).expect(path);
        let classes = stats["classes"].as_array().expect("classes");
        let small: u64 = (0..classes.len())
            .map(|at| {
                number(&format!("/classes/{at}/in_use")) * number(&format!("/classes/{at}/size"))
            })
            .sum();
        let cut: u64 = ["in_use", "cached", "free", "untouched"]
            .iter()
            .flat_map(|what| (0..classes.len()).map(move |at| (what, at)))
            .map(|(what, at)| {
                number(&format!("/classes/{at}/{what}")) * number(&format!("/classes/{at}/size"))
            })
            .sum();
        assert!(cut <= number("/spans/bytes") && number("/spans/bytes") < cut + cut / 8 + 65536);
        assert_eq!(number("/nursery_blocks"), 1);
        assert_eq!(number("/nursery_used"), 112);
        let large = number("/large/bytes") + number("/nursery_used") + number("/mappings/bytes");
        assert_eq!(number("/allocated"), small + large);
        assert!(number("/large_blocks") >= 1 && number("/mapping_blocks") == 1);
        for what in ["bytes", "resident"] {
            let parts = ["spans", "large", "nurseries", "mappings", "dirty", "metadata"];
            let sum: u64 = parts.iter().map(|part| number(&format!("/{part}/{what}"))).sum();
            assert_eq!(number(&format!("/total/{what}")), sum);
        }
        assert!(number("/heaps/in_use") <= number("/heaps/made"));
        number("/clean");
        number("/given_back");
        assert_eq!(stats["version"], env!("CARGO_PKG_VERSION"));
    }
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
