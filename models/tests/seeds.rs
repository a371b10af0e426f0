//! The seeded bugs fit the core, and every loom model has one that it must find.

#[path = "../seed.rs"]
mod seed;

use seed::{found, replacement};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

#[derive(Deserialize)]
struct Seed {
    why: String,
    edit: String,
}

/// By the core's file, by the model, by name.
type Seeds = BTreeMap<String, BTreeMap<String, BTreeMap<String, Seed>>>;

fn seeds() -> Seeds {
    toml::from_str(include_str!("../seeds.toml")).expect("seeds.toml is well-formed")
}

#[test]
fn each_seed_stands_in_one_place() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/cairn/src");
    let mut names = BTreeSet::new();
    for (file, models) in seeds() {
        let text = fs::read_to_string(core.join(&file)).unwrap_or_default();
        for (name, seed) in models.into_values().flatten() {
            assert_eq!(text.matches(&found(&seed.edit)).count(), 1, "{name}, in {file}");
            assert_ne!(found(&seed.edit), replacement(&seed.edit), "{name}");
            assert!(!seed.why.is_empty(), "{name}");
            assert!(names.insert(name.clone()), "two are called {name}");
        }
    }
}

#[test]
fn each_loom_model_has_a_seed() {
    let mut models = BTreeSet::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/protocol");
    for entry in fs::read_dir(folder).expect("it is there") {
        let path = entry.expect("readable").path();
        let text = fs::read_to_string(&path).expect("sources are readable");
        let module = path.file_stem().expect("it has a name").to_string_lossy();
        let tests = text.split("#[test]\nfn ").skip(1).filter_map(|rest| rest.split('(').next());
        models.extend(tests.map(|name| format!("protocol::{module}::{name}")));
    }
    assert!(models.contains("protocol::locks::two_threads_and_one_lock"), "{models:?}");
    let mut named: BTreeSet<_> = seeds().into_values().flat_map(BTreeMap::into_keys).collect();
    named.retain(|name| name.starts_with("protocol::"));
    let unknown: Vec<_> = named.difference(&models).collect();
    assert!(unknown.is_empty(), "no such models: {unknown:?}");
    let without: Vec<_> = models.difference(&named).collect();
    assert!(without.is_empty(), "models without a seeded bug: {without:?}");
}
