//! What the tests of packages have in common: scratch folders and other programs.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A folder for one test, without symbolic links in its path.
pub(crate) fn scratch() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    (folder, path)
}

pub(crate) fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A cargo of its own, which knows nothing of the one that runs the tests. Whether something builds
/// is seen without the last optimisations.
pub(crate) fn cargo(folder: &Path, target: &Path) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
        cargo.env_remove(name);
    }
    for (name, value) in
        [("RELEASE_OPT_LEVEL", "1"), ("RELEASE_CODEGEN_UNITS", "16"), ("DEV_DEBUG", "0")]
    {
        cargo.env(format!("CARGO_PROFILE_{name}"), value);
    }
    cargo.current_dir(folder).env("CARGO_TARGET_DIR", target);
    cargo
}

/// What a command writes, which must end well.
#[track_caller]
pub(crate) fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out
}

/// Asserts that a command fails with this status and says so in one line.
#[track_caller]
pub(crate) fn fails_with(command: &mut Command, code: i32, line: &str) {
    let Output { status, stderr, .. } = command.output().unwrap();
    let message = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(code), "{message}");
    assert!(message.lines().count() == 1 && message.contains(line), "{message}");
}

/// All paths below a folder.
pub(crate) fn tree(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .flat_map(|path| tree(&path).into_iter().chain([path]))
        .collect()
}

/// Whether to go on without what has to be installed: this command fails then.
pub(crate) fn lacks(command: &mut Command, wanted: &str) -> bool {
    let lacks = !command.output().is_ok_and(|output| output.status.success());
    if lacks {
        skipped(&format!("{command:?} fails; install {wanted}"));
    }
    lacks
}

/// Says that a test is skipped and why. A panic if `CAIRN_TEST_ALL` demands it.
pub(crate) fn skipped(why: &str) {
    assert!(std::env::var_os("CAIRN_TEST_ALL").is_none(), "CAIRN_TEST_ALL is set, but {why}");
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    // Not `eprintln!`, which the harness keeps to itself if the test passes.
    let _ = std::io::stderr().write_all(format!("skipped {name}: {why}\n").as_bytes());
}
