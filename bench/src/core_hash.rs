//! Which core a tree has, and which one a result measured: a hash over the sources.

use crate::result::LabResult;
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The core, and the C layer that a preloaded library goes through.
const SOURCES: [&str; 2] = ["crates/cairn/src", "crates/cairn-c/src"];

/// What a page says of figures that another core than the tree's has given.
pub const EARLIER: &str = "the core an earlier one than this";

/// The hash of the core in this project: SHA-256 over the names and contents of its source files,
/// in the order of their names. Tests are left out.
pub fn of_tree(project: &Path) -> Result<String> {
    let mut files = BTreeMap::new();
    for folder in SOURCES {
        add(project, &project.join(folder), &mut files)?;
    }
    let mut hash = Sha256::new();
    for (name, path) in files {
        let contents = std::fs::read(&path).with_context(|| path.display().to_string())?;
        hash.update(format!("{name}\n{}\n", contents.len()));
        hash.update(contents);
    }
    Ok(hex::encode(hash.finalize()))
}

/// Adds the files below a folder, by their names as seen from the project.
fn add(project: &Path, folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in folder.read_dir().with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.file_stem().is_some_and(|name| name == "tests") {
            continue;
        }
        if path.is_dir() {
            add(project, &path, files)?;
            continue;
        }
        let name = path.strip_prefix(project)?.to_str().context("a name that is not text")?;
        files.insert(name.to_owned(), path);
    }
    Ok(())
}

/// Whether a result is of another core than this one. One that does not say counts as such.
pub fn is_earlier(result: &LabResult, core: &str) -> bool {
    result.core.as_deref() != Some(core)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, rename, write};

    #[test]
    fn names_and_contents_count_and_tests_do_not() {
        let project = tempfile::tempdir().unwrap();
        let path = |name: &str| project.path().join(name);
        for folder in ["crates/cairn/src/heap", "crates/cairn/src/tests", "crates/cairn-c/src"] {
            create_dir_all(path(folder)).unwrap();
        }
        let hash = || of_tree(project.path()).unwrap();
        let empty = hash();
        write(path("crates/cairn/src/heap/mod.rs"), "heap").unwrap();
        let one = hash();
        assert_eq!((one.len(), one == empty), (64, false));
        write(path("crates/cairn/src/tests.rs"), "test").unwrap();
        write(path("crates/cairn/src/tests/fork.rs"), "test").unwrap();
        write(path("crates/cairn/Cargo.toml"), "").unwrap();
        assert_eq!(hash(), one);
        write(path("crates/cairn-c/src/lib.rs"), "C").unwrap();
        let two = hash();
        assert_ne!(two, one);
        rename(path("crates/cairn-c/src/lib.rs"), path("crates/cairn-c/src/c.rs")).unwrap();
        assert!(![one, two].contains(&hash()));
    }
}
