//! Builds the library and the C and C++ programs, and runs them.
//!
//! A program is a file of `tests/c` with several cases; the first argument names the case.
//! Each case runs in every [`Loading`], because users meet the library in all of them.
//!
//! `CAIRN_TEST_LIBRARY` names another shared library to test in place of ours, which shows
//! whether a test asks for common semantics or only for our own; `CAIRN_TEST_ARCHIVE` names the
//! archive for static programs. Cases that need our own interface are skipped then.
//!
//! With `--features hardened` the library is the hardened build.
//!
//! What a test skips it says in a line on standard error, which the harness lets through. With
//! `CAIRN_TEST_ALL=1` a program that is missing fails the test instead.

#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod group;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Seconds after which a program counts as hung. Far beyond what any case needs on a slow
/// machine; it turns a deadlock into a failure.
const HUNG_AFTER_SECONDS: u32 = 600;

/// How a program comes to use the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Loading {
    /// `LD_PRELOAD`, the program knows nothing of it.
    Preloaded,
    /// Linked with the shared library.
    Linked,
    /// With the archive, and the C library shared.
    Archive,
    /// `cc -static` with the archive.
    Static,
    /// `cc -static-pie` with the archive.
    StaticPie,
    /// Not at all: the C library's own allocator, to compare with.
    Absent,
}

impl Loading {
    /// Whether cairn is inside the program.
    fn has_archive(self) -> bool {
        matches!(self, Loading::Archive | Loading::Static | Loading::StaticPie)
    }
}

/// The three that users meet most.
pub(crate) const EVERYWHERE: [Loading; 3] = [Loading::Preloaded, Loading::Linked, Loading::Static];

/// The library under test.
pub(crate) struct Library {
    /// The shared library.
    pub(crate) shared: PathBuf,
    /// The archive; a stand-in may have none.
    pub(crate) archive: Option<PathBuf>,
    /// Not ours: only common semantics can be asked of it.
    pub(crate) is_stand_in: bool,
}

/// Builds the release library once per process, or takes the stand-in.
pub(crate) fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| match std::env::var_os("CAIRN_TEST_LIBRARY") {
        Some(shared) => Library {
            shared: shared.into(),
            archive: std::env::var_os("CAIRN_TEST_ARCHIVE").map(PathBuf::from),
            is_stand_in: true,
        },
        None => built_library(BUILD),
    })
}

/// What can be built of the library.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    /// As most have it.
    Default,
    /// With the feature `hardened`.
    Hardened,
}

/// The one that is under test.
const BUILD: Build = if cfg!(feature = "hardened") { Build::Hardened } else { Build::Default };

/// Builds the library.
pub(crate) fn built_library(build: Build) -> Library {
    let target_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target/tmp");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Cargo gives both builds' files the same names.
    let hardened = target_dir.join("hardened");
    let (target_dir, features) = match build {
        Build::Hardened => (&*hardened, &["--features", "hardened"][..]),
        Build::Default => (target_dir, &[][..]),
    };
    // Same directory as the running tests, whether it came from the environment, a flag or a
    // configuration file. Without the parent's build target the path has no triple in it.
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--profile", "library", "-p", "cairn-c", "--target-dir"])
        .arg(target_dir)
        .args(features)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("CARGO_BUILD_TARGET")
        .output()
        .expect("cargo starts");
    assert!(built.status.success(), "no library:\n{}", String::from_utf8_lossy(&built.stderr));
    let target_dir = nameable(target_dir);
    let name = if build == Build::Hardened { "libcairn-hardened" } else { "libcairn" };
    // What users get.
    let linked = target_dir.join("release/lib");
    let archive = target_dir.join("library/libcairn_archive.a");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("link.sh");
    let mut link = Command::new("sh");
    link.arg(script).args([&archive, &linked]).args([name, env!("CARGO_PKG_VERSION")]);
    let link = link.output().expect("a shell");
    assert!(link.status.success(), "no library:\n{}", String::from_utf8_lossy(&link.stderr));
    let shared = linked.join(name).with_extension("so");
    Library { archive: Some(shared.with_extension("a")), shared, is_stand_in: false }
}

/// True, with a word about it, if this test cannot be asked of a stand-in.
pub(crate) fn skip_for_stand_in() -> bool {
    library().is_stand_in && skipped("it asks for our own behaviour")
}

/// The same folder by a name that `LD_PRELOAD` can hold. It has no quoting: a space or a colon
/// ends a path. For a folder with such a name that is a link in the temporary directory.
fn nameable(dir: &Path) -> PathBuf {
    if !dir.as_os_str().as_bytes().iter().any(|byte| b" :$,".contains(byte)) {
        return dir.to_owned();
    }
    let mut hasher = DefaultHasher::new();
    dir.hash(&mut hasher);
    let link = std::env::temp_dir().join(format!("cairn-tests-{:x}", hasher.finish()));
    match std::os::unix::fs::symlink(dir, &link) {
        // Made by another test process, or an earlier one.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            assert_eq!(std::fs::read_link(&link).ok().as_deref(), Some(dir), "{}", link.display());
        }
        made => made.unwrap_or_else(|error| panic!("no link {}: {error}", link.display())),
    }
    link
}

/// Says that a test is skipped and why; always true.
pub(crate) fn skipped(why: &str) -> bool {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    // Not `eprintln!`, which the harness keeps to itself if the test passes.
    let _ = std::io::stderr().write_all(format!("skipped {name}: {why}\n").as_bytes());
    true
}

/// Whether to go on without this program of a package of Debian. A panic if it is demanded.
pub(crate) fn lacks(program: &str, package: &str) -> bool {
    // A program that cannot be started is not there; whatever it makes of the option is well.
    if Command::new(program).arg("--version").output().is_ok() {
        return false;
    }
    lacks_package(program, package)
}

/// Says that this package is not here; always true. A panic if it is demanded.
pub(crate) fn lacks_package(what: &str, package: &str) -> bool {
    let why = format!("no {what}; install the package `{package}`");
    assert!(std::env::var_os("CAIRN_TEST_ALL").is_none(), "CAIRN_TEST_ALL is set, but {why}");
    skipped(&why)
}

/// Whether we may do what only root may.
pub(crate) fn is_root() -> bool {
    // SAFETY: no arguments, no failure.
    unsafe { libc::geteuid() == 0 }
}

/// A file of `tests/c`.
pub(crate) fn source_path(source: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source)
}

/// The folder of `cairn.h`.
pub(crate) fn include_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// A folder for what the tests build.
pub(crate) fn scratch_dir() -> PathBuf {
    let dir = nameable(Path::new(env!("CARGO_TARGET_TMPDIR"))).join("drop-in");
    std::fs::create_dir_all(&dir).expect("scratch folder");
    dir
}

/// A compiled program.
pub(crate) struct Program {
    /// The executable.
    pub(crate) path: PathBuf,
    loading: Loading,
}

impl Program {
    /// Compiles `source` of `tests/c`, once per process; `None` if this loading needs an
    /// archive and a stand-in without one is being tested.
    pub(crate) fn build(source: &str, loading: Loading) -> Option<Program> {
        type Built = Arc<OnceLock<PathBuf>>;
        static BUILT: Mutex<Option<HashMap<(String, Loading), Built>>> = Mutex::new(None);

        if loading.has_archive() && library().archive.is_none() {
            skipped("the stand-in has no archive");
            return None;
        }
        let built = BUILT
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_default()
            .entry((source.to_owned(), loading))
            .or_default()
            .clone();
        let path = built.get_or_init(|| compile(source, loading)).clone();
        Some(Program { path, loading })
    }

    /// A command that runs the program with the library loaded, and with none of our settings
    /// but those the caller adds.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(args).stdin(Stdio::null());
        clean_environment(&mut command);
        if self.loading == Loading::Preloaded {
            command.env("LD_PRELOAD", &library().shared);
        }
        if !library().is_stand_in && self.loading != Loading::Absent {
            command.env("TEST_EXPECTS_CAIRN", "1");
        }
        command.envs(cfg!(feature = "hardened").then_some(("TEST_IS_HARDENED", "1")));
        command
    }

    /// Runs the program with these arguments.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Outcome {
        run(self.command(args))
    }
}

/// Removes settings of the allocator under test from what a program will see.
pub(crate) fn clean_environment(command: &mut Command) {
    for (key, _) in std::env::vars_os() {
        let of_ours = key.to_str().is_some_and(|key| key.starts_with("CAIRN_"));
        if of_ours || key == "LD_PRELOAD" {
            command.env_remove(key);
        }
    }
}

fn compile(source: &str, loading: Loading) -> PathBuf {
    let library = library();
    let is_cxx = source.ends_with(".cpp");
    let name = format!("{}-{loading:?}", source.replace('.', "-"));
    let path = scratch_dir().join(&name);
    // Renamed when whole: another test process may be running the same program.
    let unfinished = scratch_dir().join(format!("{name}-{}", std::process::id()));

    let mut compiler = Command::new(if is_cxx { "c++" } else { "cc" });
    compiler.arg(if is_cxx { "-std=c++17" } else { "-std=gnu11" });
    // The compiler must not reason about allocations: it may leave out what we test.
    compiler.args(["-O1", "-g", "-pthread", "-Wall", "-Wextra", "-fno-builtin"]);
    // The stacks of guards' reports are followed by them.
    compiler.arg("-fno-omit-frame-pointer");
    // For the loops that write and read whole blocks.
    compiler.arg("-ftree-vectorize");
    compiler.arg("-I").arg(include_dir()).arg("-I").arg(include_dir().join("cairn/compat"));
    compiler.arg("-o").arg(&unfinished).arg(source_path(source));
    if !library.is_stand_in && (loading == Loading::Linked || loading.has_archive()) {
        compiler.arg("-DCAIRN_IS_LINKED");
    }
    match loading {
        Loading::Preloaded | Loading::Absent => {}
        Loading::Linked => {
            let dir = library.shared.parent().expect("an absolute path");
            // Stand-ins are not always needed by symbol alone.
            compiler.arg("-Wl,--no-as-needed").arg(&library.shared);
            compiler.arg(format!("-Wl,-rpath,{}", dir.display()));
            // Of the old kind, which comes before LD_LIBRARY_PATH: cargo sets that one, and a debug
            // build of the library lies there.
            compiler.arg("-Wl,--disable-new-dtags");
        }
        Loading::Archive => {
            compiler.args(&library.archive);
        }
        Loading::Static => {
            compiler.arg("-static").args(&library.archive);
        }
        Loading::StaticPie => {
            compiler.arg("-static-pie").args(&library.archive);
        }
    }
    let output = compiler.output().expect("a C and a C++ compiler are needed");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{source}, {loading:?} does not compile:\n{messages}");
    std::fs::rename(&unfinished, &path).expect("rename within a folder");
    path
}

/// Builds an empty shared library: what loading any library costs.
pub(crate) fn empty_library() -> PathBuf {
    let path = scratch_dir().join(format!("empty-{}.so", std::process::id()));
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-x", "c", "/dev/null", "-o"])
        .arg(&path)
        .status()
        .expect("a C compiler is needed");
    assert!(status.success(), "the empty library does not link");
    path
}

/// How a program ended and what it said.
pub(crate) struct Outcome {
    /// Exit code or signal.
    pub(crate) status: ExitStatus,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Outcome {
    /// The signal that ended the program.
    pub(crate) fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    /// Asserts that the program ended well; `what` names it.
    pub(crate) fn assert_success(&self, what: &str) {
        assert!(self.signal() != Some(libc::SIGALRM), "{what} hangs:\n{}", self.stderr);
        assert!(self.status.success(), "{what}: {}\n{}", self.status, self.stderr);
    }

    /// Asserts that the program ended well and that nothing was written to standard error.
    pub(crate) fn assert_quiet_success(&self, what: &str) {
        self.assert_success(what);
        assert!(self.stderr.is_empty(), "{what} is not quiet:\n{}", self.stderr);
    }
}

/// Runs a command to its end, killing it when it hangs; no core dumps.
pub(crate) fn run(mut command: Command) -> Outcome {
    limit(&mut command, libc::RLIMIT_CORE, 0);
    // SAFETY: between fork and exec only the async-signal-safe `alarm` is called. The alarm
    // survives the exec.
    unsafe {
        command.pre_exec(|| {
            libc::alarm(HUNG_AFTER_SECONDS);
            Ok(())
        });
    }
    let output = command.output().expect("the program starts");
    Outcome {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Has the command run with a lower resource limit (`setrlimit`), in bytes.
pub(crate) fn limit(command: &mut Command, resource: libc::__rlimit_resource_t, bytes: u64) {
    let limits = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: between fork and exec only the async-signal-safe `setrlimit` is called, with a
    // pointer into the closure.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(resource, &limits) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

/// Runs one case of a program in each of these loadings: exit code 0 and nothing said.
pub(crate) fn passes_in(loadings: &[Loading], source: &str, args: &[&str]) {
    for &loading in loadings {
        let Some(program) = Program::build(source, loading) else { continue };
        program.run(args).assert_quiet_success(&format!("{source} {args:?}, {loading:?}"));
    }
}

/// Runs one case of a program preloaded, linked and static: exit code 0 and nothing said.
pub(crate) fn passes(source: &str, case: &str) {
    passes_in(&EVERYWHERE, source, &[case]);
}
