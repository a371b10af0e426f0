//! Puts the allocator's own source files where the models can compile them as their own modules:
//! once against loom, once against shuttle and a simulated system. What differs stands in
//! `facades`, where a file takes the place of the core's file of the same name: `sync`, the system,
//! and where a thread's heap is found.
//!
//! With `CAIRN_SEED=name` a bug out of seeds.toml is put in on the way. The models must find it.

mod seed;

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

const CORE: &str = "../crates/cairn/src";

/// A bug.
#[derive(Deserialize)]
struct Seed {
    edit: String,
}

fn main() {
    for watched in ["build.rs", "seed.rs", "seeds.toml", "facades", CORE] {
        println!("cargo:rerun-if-changed={watched}");
    }
    println!("cargo:rerun-if-env-changed=CAIRN_SEED");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let seeded = env::var("CAIRN_SEED")
        .ok()
        .filter(|name| !name.is_empty())
        .map(|name| seed_called(&name).unwrap_or_else(|| panic!("no seeded bug is called {name}")));
    for model in ["loom", "shuttle"] {
        let copy = out.join(model);
        let _ = fs::remove_dir_all(&copy);
        copy_tree(Path::new(CORE), &copy);
        if let Some((file, seed)) = &seeded {
            apply(&seed.edit, &copy.join(file));
        }
        for facades in ["common", model] {
            copy_tree(&Path::new("facades").join(facades), &copy);
        }
    }
}

/// A bug by its name, and the file it is for.
fn seed_called(name: &str) -> Option<(String, Seed)> {
    type Bugs = BTreeMap<String, Seed>;
    let text = fs::read_to_string("seeds.toml").expect("it is there");
    let files: BTreeMap<String, BTreeMap<String, Bugs>> =
        toml::from_str(&text).unwrap_or_else(|e| panic!("seeds.toml: {e}"));
    files.into_iter().find_map(|(file, models)| {
        models.into_values().find_map(|mut bugs| bugs.remove(name)).map(|seed| (file, seed))
    })
}

/// Copies a folder of sources as they ship: without the core's own unit tests.
fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the build directory is writable");
    for entry in fs::read_dir(from).into_iter().flatten() {
        let entry = entry.expect("sources are readable");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            let text = fs::read_to_string(entry.path()).expect("sources are readable");
            let mut text = text
                .replace("cfg(not(test))", "cfg(not(any()))")
                .replace("cfg(test)", "cfg(any())");
            if target.ends_with("lib.rs") {
                // As `include!` takes it: without inner attributes.
                let inner = |line: &&str| line.starts_with("//!") || line.starts_with("#![");
                text = text.lines().filter(|line| !inner(line)).collect::<Vec<_>>().join("\n");
            }
            fs::write(&target, text).expect("the build directory is writable");
        }
    }
}

fn apply(edit: &str, file: &Path) {
    let find = &seed::found(edit);
    let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    assert_eq!(text.matches(find).count(), 1, "{}: not there once:\n{find}", file.display());
    fs::write(file, text.replace(find, &seed::replacement(edit))).expect("it was copied");
}
