//! What the tests of the command have in common: a home directory with files to run in it, and what
//! is expected of an output.
//!
//! Each test has its own home directory, so that none sees the library that another one keeps.

#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod browser;
pub(crate) mod core_file;
pub(crate) mod inspected;
pub(crate) mod page;
pub(crate) mod terminal;

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

pub(crate) const NOBODY: u32 = 65534;

/// A home directory with files to run in it.
pub(crate) struct Home(TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // As the homes of root's are where root keeps a library in one.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().canonicalize().unwrap()
    }

    pub(crate) fn cairn(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cairn"));
        command.env("HOME", self.path());
        for name in ["XDG_CACHE_HOME", "LD_PRELOAD"] {
            command.env_remove(name);
        }
        // Ours and those of other allocators: cairn would speak of them.
        for (name, _) in std::env::vars_os() {
            let name = name.to_str().unwrap_or_default();
            if name.starts_with("CAIRN_") || name.contains("MALLOC") || name == "GLIBC_TUNABLES" {
                command.env_remove(name);
            }
        }
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Output {
        // Here: what a program writes shall not lie in the source.
        self.cairn().current_dir(self.path()).arg("run").args(arguments).output().unwrap()
    }

    /// Runs `cairn run PROGRAM` as another user, from where that user can read it.
    pub(crate) fn run_as_nobody(&self, program: &Path) -> Output {
        let cairn = self.file("cairn", 0o755, &fs::read(env!("CARGO_BIN_EXE_cairn")).unwrap());
        Command::new(cairn).uid(NOBODY).gid(NOBODY).arg("run").arg(program).output().unwrap()
    }

    /// What `cairn path` prints, which must be a file.
    pub(crate) fn library(&self) -> PathBuf {
        let output = self.cairn().arg("path").output().unwrap();
        assert_succeeded(&output);
        let path = Path::new(OsStr::from_bytes(output.stdout.trim_ascii_end())).to_owned();
        assert!(path.is_file());
        path
    }

    /// What `LD_PRELOAD` is for a program that runs on this library.
    pub(crate) fn preloaded(&self, library: &Path) -> String {
        assert_succeeded(&self.run(&["true"]));
        let files = library.parent().unwrap().read_dir().unwrap().flatten();
        let beside: Vec<_> = files
            .map(|file| file.path())
            .filter(|path| display(path).contains("/libcairn-plugins-"))
            .collect();
        assert_eq!(beside.len(), 1, "{beside:?}");
        format!("{}:{}", display(library), display(&beside[0]))
    }

    /// Has `install` write the file: a child that another test forks meanwhile would inherit
    /// this process's descriptor, and a file open for writing cannot be executed.
    pub(crate) fn file(&self, name: &str, mode: u32, contents: &[u8]) -> PathBuf {
        let (path, source) = (self.path().join(name), self.path().join("source"));
        fs::write(&source, contents).unwrap();
        let mut install = Command::new("install");
        let status = install.arg("-m").arg(format!("{mode:o}")).args([&source, &path]).status();
        assert!(status.unwrap().success());
        path
    }

    pub(crate) fn copy_of(&self, program: &str) -> PathBuf {
        self.file("copy", 0o755, &fs::read(program).unwrap())
    }

    /// Compiles an empty C program; none if there is no C compiler that can.
    pub(crate) fn c_program(&self, flags: &[&str]) -> Option<PathBuf> {
        let source = self.file("empty.c", 0o644, b"int main(void) { return 0; }\n");
        let program = self.path().join("empty");
        let compiled = Command::new("cc").args(flags).arg("-o").arg(&program).arg(source).output();
        compiled.is_ok_and(|output| output.status.success()).then_some(program)
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
pub(crate) fn assert_succeeded(output: &Output) {
    assert!(output.status.success(), "{}: {}", output.status, text(&output.stderr));
}

/// Checks for an exit status and for one line on standard error that holds all of `parts`.
#[track_caller]
pub(crate) fn assert_refused(output: &Output, code: i32, parts: &[&str]) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.starts_with("cairn: "), "{message}");
    for part in parts {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
}

pub(crate) fn display(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub(crate) fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// Says that a test is skipped and why.
pub(crate) fn skipped(why: &str) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    // Not `eprintln!`, which the harness keeps to itself if the test passes.
    let _ = std::io::stderr().write_all(format!("skipped {name}: {why}\n").as_bytes());
}

/// Whether to go on without this program of a package of Debian. A panic if `CAIRN_TEST_ALL`
/// demands it.
pub(crate) fn lacks(program: &str, package: &str) -> bool {
    let is_missing = Command::new(program).arg("--version").output().is_err();
    if is_missing {
        let why = format!("no {program}; install the package `{package}`");
        assert!(std::env::var_os("CAIRN_TEST_ALL").is_none(), "CAIRN_TEST_ALL is set, but {why}");
        skipped(&why);
    }
    is_missing
}
