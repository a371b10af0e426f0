//! The calls beyond the malloc family.

mod common;

use common::{Loading, Program, passes, passes_in, run, skip_for_stand_in};
use std::collections::BTreeMap;

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
fn shrunk_blocks_are_freed_by_their_new_size() {
    passes_linked("shrunk");
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
fn arrays_that_grow_are_freed_by_their_new_size() {
    passes_linked("recallocarray_aligned");
}

#[test]
fn arrays_leave_nothing_behind() {
    passes_linked("recallocarray");
}

#[test]
#[cfg_attr(not(feature = "hardened"), ignore = "the hardened build alone notices it")]
fn writes_behind_resized_arrays_are_noticed() {
    passes_linked("recallocarray_overflow");
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
        let mut command = program.command(&["json"]);
        // No limit: a number that signed integers hold, too.
        command.env("CAIRN_MEMORY_SOFT_LIMIT", "never");
        let outcome = run(command);
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
        assert_eq!(number("/memory/soft_limit"), i64::MAX as u64);
    }
}

/// Prometheus's text, line by line: the name and the kind that each figure has, and its value.
fn metrics(text: &[&str]) -> BTreeMap<String, (String, u64)> {
    assert!(!text.is_empty() && text.len().is_multiple_of(3), "{text:?}");
    let metric = |lines: &[&str]| {
        let [help, kind, value] = lines else { panic!("{lines:?}") };
        let (name, value) = value.split_once(' ').expect("a name and a value");
        let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(name.starts_with("cairn_") && name.chars().all(is_part), "{name}");
        assert!(help.starts_with(&format!("# HELP {name} ")), "{help}");
        let kind = kind.strip_prefix(&format!("# TYPE {name} ")).expect("its kind");
        (name.to_owned(), (kind.to_owned(), value.parse().expect("a number")))
    };
    let found: BTreeMap<_, _> = text.chunks(3).map(metric).collect();
    assert_eq!(found.len(), text.len() / 3, "each has one name");
    found
}

/// The figures by name are those of the JSON, and those for Prometheus.
#[test]
fn figures_have_names() {
    if skip_for_stand_in() {
        return;
    }
    for loading in [Loading::Linked, Loading::Static] {
        let Some(program) = Program::build("beyond.c", loading) else { continue };
        let outcome = program.run(&["figures"]);
        outcome.assert_quiet_success("figures");
        let lines: Vec<_> = outcome.stdout.lines().collect();
        let stats: serde_json::Value = serde_json::from_str(lines[0]).expect("JSON");
        let end = lines.iter().position(|line| line.starts_with("get ")).expect("figures");
        let metrics = metrics(&lines[1..end]);
        let number = |path: &str| stats.pointer(path).and_then(|value| value.as_u64()).expect(path);
        let value = |name: &str| {
            let (end, kind) = match name {
                "given_back" => ("_bytes_total", "counter"),
                "blocks" | "heaps" => ("", "gauge"),
                _ => ("_bytes", "gauge"),
            };
            let (found, value) = &metrics[&format!("cairn_{name}{end}")];
            assert_eq!(found, kind, "{name}");
            *value
        };
        for line in &lines[end..] {
            let words: Vec<_> = line.split(' ').collect();
            assert_eq!(words[2], value(words[1]).to_string(), "{line}");
        }
        let active = ["/spans/bytes", "/large/bytes", "/nurseries/bytes", "/mappings/bytes"];
        assert_eq!(value("active"), active.map(number).iter().sum::<u64>());
        for (name, path) in [
            ("allocated", "/allocated"),
            ("dirty", "/dirty/bytes"),
            ("retained", "/clean"),
            ("mapped", "/total/bytes"),
            ("metadata", "/metadata/bytes"),
            ("resident", "/total/resident"),
            ("given_back", "/given_back"),
            ("heaps", "/heaps/in_use"),
            ("counted", "/memory/counted"),
            ("hard_limit", "/memory/hard_limit"),
        ] {
            assert_eq!(value(name), number(path), "{name}");
        }
        assert!(!metrics.contains_key("cairn_soft_limit_bytes"), "there is none");
        assert!(value("allocated") <= value("active") && value("active") <= value("mapped"));
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
