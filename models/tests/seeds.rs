//! The seeded bugs fit the core, and every loom model has one that it must find.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

#[derive(Deserialize)]
struct Seed {
    model: String,
    why: String,
    file: String,
    find: String,
    replace: String,
}

fn seeds() -> BTreeMap<String, Seed> {
    toml::from_str(include_str!("../seeds.toml")).expect("seeds.toml is well-formed")
}

/// The tests of a crate in this folder, under `prefix`.
fn tests_below(folder: &Path, prefix: &str, found: &mut BTreeSet<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.expect("readable").path()) {
        let text = fs::read_to_string(&path).expect("sources are readable");
        let module = path.file_stem().expect("it has a name").to_string_lossy();
        let prefix = match &*module {
            "main" | "mod" => prefix.to_owned(),
            module => format!("{prefix}::{module}"),
        };
        for rest in text.split("#[test]").skip(1) {
            let name = rest.split_once("fn ").and_then(|(_, rest)| rest.split_once('('));
            found.insert(format!("{prefix}::{}", name.expect("a test is a function").0));
        }
    }
}

#[test]
fn each_seed_stands_in_one_place() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/cairn/src");
    for (name, seed) in seeds() {
        let text = fs::read_to_string(core.join(&seed.file)).unwrap_or_default();
        assert_eq!(text.matches(&seed.find).count(), 1, "{name}, in {}", seed.file);
        assert_ne!(seed.find, seed.replace, "{name}");
        assert!(!seed.why.is_empty(), "{name}");
    }
}

#[test]
fn each_loom_model_has_a_seed() {
    let mut models = BTreeSet::new();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    tests_below(&tests.join("protocol"), "protocol", &mut models);
    assert!(models.contains("protocol::locks::two_threads_and_one_lock"), "{models:?}");
    let named: BTreeSet<String> = seeds().into_values().map(|seed| seed.model).collect();
    let loom = |name: &&String| name.starts_with("protocol::");
    let unknown: Vec<_> =
        named.iter().filter(loom).filter(|name| !models.contains(*name)).collect();
    assert!(unknown.is_empty(), "no such models: {unknown:?}");
    let without: Vec<_> = models.difference(&named).collect();
    assert!(without.is_empty(), "models without a seeded bug: {without:?}");
}
