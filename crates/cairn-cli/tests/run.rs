//! `cairn run`, `cairn path` and `cairn --version`, as their users see them.
//!
//! Each test has its own home directory, so that none sees the library that another one keeps.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// Larger than any libcairn.so may become without someone deciding so.
const LIBRARY_LIMIT_BYTES: u64 = 200 * 1024;

const NOBODY: u32 = 65534;
const SIGTERM: i32 = 15;
/// Offset and width of `e_machine` in an ELF header.
const E_MACHINE: std::ops::Range<usize> = 18..20;

/// A home directory with files to run in it.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().canonicalize().unwrap()
    }

    fn cairn(&self) -> Command {
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

    fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Output {
        // Here: what a program writes shall not lie in the source.
        self.cairn().current_dir(self.path()).arg("run").args(arguments).output().unwrap()
    }

    /// Runs `cairn run PROGRAM` as another user, from where that user can read it.
    fn run_as_nobody(&self, program: &Path) -> Output {
        fs::set_permissions(self.path(), Permissions::from_mode(0o755)).unwrap();
        let cairn = self.file("cairn", 0o755, &fs::read(env!("CARGO_BIN_EXE_cairn")).unwrap());
        Command::new(cairn).uid(NOBODY).gid(NOBODY).arg("run").arg(program).output().unwrap()
    }

    /// What `cairn path` prints, which must be a file.
    fn library(&self) -> PathBuf {
        let output = self.cairn().arg("path").output().unwrap();
        assert_succeeded(&output);
        let path = Path::new(OsStr::from_bytes(output.stdout.trim_ascii_end())).to_owned();
        assert!(path.is_file());
        path
    }

    /// Has `install` write the file: a child that another test forks meanwhile would inherit
    /// this process's descriptor, and a file open for writing cannot be executed.
    fn file(&self, name: &str, mode: u32, contents: &[u8]) -> PathBuf {
        let (path, source) = (self.path().join(name), self.path().join("source"));
        fs::write(&source, contents).unwrap();
        let mut install = Command::new("install");
        let status = install.arg("-m").arg(format!("{mode:o}")).args([&source, &path]).status();
        assert!(status.unwrap().success());
        path
    }

    fn copy_of(&self, program: &str) -> PathBuf {
        self.file("copy", 0o755, &fs::read(program).unwrap())
    }

    /// Compiles an empty C program; none if there is no C compiler that can.
    fn c_program(&self, flags: &[&str]) -> Option<PathBuf> {
        let source = self.file("empty.c", 0o644, b"int main(void) { return 0; }\n");
        let program = self.path().join("empty");
        let compiled = Command::new("cc").args(flags).arg("-o").arg(&program).arg(source).output();
        compiled.is_ok_and(|output| output.status.success()).then_some(program)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn assert_succeeded(output: &Output) {
    assert!(output.status.success(), "{}: {}", output.status, text(&output.stderr));
}

/// Checks for an exit status and for one line on standard error that holds all of `parts`.
#[track_caller]
fn assert_refused(output: &Output, code: i32, parts: &[&str]) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.starts_with("cairn: "), "{message}");
    for part in parts {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
}

fn display(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// Says that a test is skipped and why.
fn skipped(why: &str) {
    let name = thread::current().name().unwrap_or("a test").to_owned();
    // Not `eprintln!`, which the harness keeps to itself if the test passes.
    let _ = std::io::stderr().write_all(format!("skipped {name}: {why}\n").as_bytes());
}

/// Whether to go on without this program of a package of Debian. A panic if `CAIRN_TEST_ALL`
/// demands it.
fn lacks(program: &str, package: &str) -> bool {
    let is_missing = Command::new(program).arg("--version").output().is_err();
    if is_missing {
        let why = format!("no {program}; install the package `{package}`");
        assert!(std::env::var_os("CAIRN_TEST_ALL").is_none(), "CAIRN_TEST_ALL is set, but {why}");
        skipped(&why);
    }
    is_missing
}

// Nothing stands between the program and its user.

#[test]
fn the_exit_status_is_the_programs() {
    let home = Home::new();
    for code in [0, 3, 125, 255] {
        let output = home.run(&["--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(output.status.code(), Some(code));
    }
}

#[test]
fn death_by_a_signal_is_the_programs() {
    let output = Home::new().run(&["--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(output.status.signal(), Some(SIGTERM));
}

#[test]
fn the_process_id_is_the_programs() {
    let mut command = Home::new().cairn();
    let child = command.args(["run", "sh", "-c", "echo $$"]).stdout(Stdio::piped()).spawn();
    let child = child.unwrap();
    let id = child.id();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), format!("{id}\n"));
}

#[test]
fn arguments_and_argument_zero_pass_through() {
    let home = Home::new();
    let script = "printf '%s|' \"$0\" \"$@\"";
    let output = home.run(&["--", "sh", "-c", script, "zero", "a b", "", "--stats", "--", "-x"]);
    assert_eq!(text(&output.stdout), "zero|a b||--stats|--|-x|");

    let output = home.run(&["sh", "-c", "tr '\\0' ' ' </proc/$$/cmdline"]);
    assert!(text(&output.stdout).starts_with("sh -c "));

    let not_utf8 = OsStr::from_bytes(b"\xff\xfe");
    assert_eq!(home.run(&[OsStr::new("printf"), not_utf8]).stdout, b"\xff\xfe");
}

#[test]
fn options_of_the_program_need_no_dashes_in_front() {
    let home = Home::new();
    assert_eq!(text(&home.run(&["sh", "-c", "echo hi"]).stdout), "hi\n");
    assert_eq!(
        text(&home.run(&["printf", "%s ", "--stats", "--help", "-h"]).stdout),
        "--stats --help -h "
    );
    assert_eq!(text(&home.run(&["echo", "--", "x"]).stdout), "-- x\n");
}

#[test]
fn standard_input_passes_through() {
    let mut command = Home::new().cairn();
    command.args(["run", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"over\nto you").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"over\nto you");
}

#[test]
fn signal_dispositions_and_closed_streams_pass_through() {
    let home = Home::new();
    let look =
        "grep -E '^Sig(Ign|Blk)' /proc/self/status; ls -l /proc/self/fd/0 2>&1 | grep -c null";
    for setting in ["true", "trap '' PIPE", "trap '' HUP INT", "exec 0<&-"] {
        let outcome = |wrapper: &str| {
            let script = format!("{setting}; exec {wrapper} sh -c \"{look}\"");
            let mut shell = Command::new("sh");
            text(&shell.args(["-c", &script]).env("HOME", home.path()).output().unwrap().stdout)
        };
        let with_cairn = outcome(&format!("{} run --", env!("CARGO_BIN_EXE_cairn")));
        assert_eq!(with_cairn, outcome(""), "after {setting}");
    }
}

// The environment of the program.

#[test]
fn the_library_is_preloaded_and_mapped() {
    let home = Home::new();
    let library = home.library();
    let output = home.run(&["--", "sh", "-c", "echo $LD_PRELOAD; cat /proc/$$/maps"]);
    let stdout = text(&output.stdout);
    assert_eq!(stdout.lines().next(), Some(display(&library)));
    assert!(stdout.lines().skip(1).any(|line| line.ends_with(display(&library))), "{stdout}");
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn the_library_goes_in_front_of_others_and_only_once() {
    let home = Home::new();
    let (library, cairn) = (home.library(), env!("CARGO_BIN_EXE_cairn"));
    let other = "libm.so.6";
    let show = ["sh", "-c", "echo $LD_PRELOAD"];
    let preload = |value: &str, arguments: &[&str]| {
        let mut command = home.cairn();
        text(&command.env("LD_PRELOAD", value).arg("run").args(arguments).output().unwrap().stdout)
    };
    let expected = format!("{}:{other}\n", display(&library));
    assert_eq!(preload(other, &show), expected);
    assert_eq!(preload(other, &[&[cairn, "run"], &show[..]].concat()), expected);
    assert_eq!(preload("", &show), format!("{}\n", display(&library)));
}

#[test]
fn options_reach_the_library_as_variables() {
    let home = Home::new();
    // Printed by `set`, which the shell has from the environment as it was at exec.
    let show = ["sh", "-c", "tr '\\0' '\\n' </proc/$$/environ | grep ^CAIRN_ | sort"];
    let seen = |options: &[&str]| text(&home.run(&[options, &show].concat()).stdout);
    assert_eq!(seen(&[]), "");
    assert_eq!(seen(&["--stats"]), "CAIRN_STATS=1\n");
    assert_eq!(seen(&["--stats", "--no-inherit"]), "CAIRN_NO_INHERIT=1\nCAIRN_STATS=1\n");
    assert_eq!(seen(&["--purge-thread"]), "CAIRN_PURGE_THREAD=1\n");
    assert_eq!(seen(&["--stats=all"]), "CAIRN_STATS=all\n");
    assert_eq!(seen(&["--stats-at-signal=TERM"]), "CAIRN_STATS=1\nCAIRN_STATS_AT_SIGNAL=TERM\n");
    assert_eq!(
        seen(&["--stats-at-signal", "--stats=all", "--stats-file", "a-%p"]),
        format!(
            "CAIRN_STATS=all\nCAIRN_STATS_AT_SIGNAL=1\nCAIRN_STATS_FILE={}\n",
            display(&home.path().join("a-%p"))
        )
    );
    for wrong in ["--stats=some", "--stats-at-signal=KILL", "--stats-file"] {
        let output = home.run(&[wrong]);
        assert_eq!(output.status.code(), Some(125), "{wrong}");
        assert_eq!(text(&output.stdout), "", "{wrong}");
    }
}

#[test]
fn the_account_names_the_program_and_goes_where_it_is_sent() {
    let home = Home::new();
    // One that closes standard error before it ends.
    let output = home.run(&["--stats", "ls", "-d", "/"]);
    assert_succeeded(&output);
    assert_eq!(text(&output.stdout), "/\n");
    assert!(text(&output.stderr).starts_with("cairn: the memory of ls, process "));

    let file = home.path().join("account");
    let output = home.run(&["--stats-file", display(&file), "ls", "-d", "/"]);
    assert_succeeded(&output);
    assert_eq!(text(&output.stderr), "");
    assert!(fs::read_to_string(file).unwrap().starts_with("cairn: the memory of ls, process "));
}

/// What a person has to know about the variables, and once.
#[test]
fn variables_that_do_nothing_are_named() {
    let home = Home::new();
    let said = |variables: &[(&str, &str)], arguments: &[&str]| {
        let mut command = home.cairn();
        command.envs(variables.iter().copied()).arg("run").args(arguments);
        let output = command.output().unwrap();
        assert_succeeded(&output);
        text(&output.stderr)
    };
    assert_eq!(
        said(&[("CAIRN_PURGE_DELY", "1s")], &["true"]),
        "cairn: CAIRN_PURGE_DELY is not a setting; CAIRN_PURGE_DELAY is\n"
    );
    assert_eq!(
        said(&[("CAIRN_PURGE_DELAY", "5")], &["true"]),
        "cairn: CAIRN_PURGE_DELAY: cannot read `5`; it is a time such as 250ms or 1s, or 0\n"
    );
    for (name, value, owner) in [
        ("MALLOC_CONF", "narenas:1", "jemalloc"),
        ("_RJEM_MALLOC_CONF", "narenas:1", "jemalloc"),
        ("MIMALLOC_SHOW_STATS", "1", "mimalloc"),
        ("TCMALLOC_SAMPLE_PARAMETER", "1", "tcmalloc"),
        ("MALLOC_ARENA_MAX", "2", "glibc"),
        ("MALLOC_TRIM_THRESHOLD_", "2", "glibc"),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=1", "glibc"),
    ] {
        assert_eq!(
            said(&[(name, value)], &["true"]),
            format!(
                "cairn: {name} is {owner}'s; cairn does not read it: see docs/guide/coming-from.md\n"
            )
        );
    }
    assert_eq!(said(&[("GLIBC_TUNABLES", "glibc.pthread.rseq=1")], &["true"]), "");
    let two = [("MIMALLOC_A", "1"), ("MIMALLOC_B", "1")];
    assert!(said(&two, &["true"]).contains(" are mimalloc's; cairn does not read them: "));
    // Neither a second cairn nor the library says it again.
    let cairn = env!("CARGO_BIN_EXE_cairn");
    let wrong = [("CAIRN_FOO", "1"), ("MALLOC_CONF", "x")];
    assert_eq!(said(&wrong, &[cairn, "run", "sh", "-c", "ls / >/dev/null"]).lines().count(), 2);
}

#[test]
fn wrong_command_lines_end_with_125() {
    let home = Home::new();
    for arguments in [&["run"][..], &["run", "--nope", "true"], &["nope"], &[], &["path", "more"]] {
        let output = home.cairn().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{arguments:?}");
    }
    for arguments in [&["--help"][..], &["run", "--help"], &["help", "run"], &["--version"]] {
        let output = home.cairn().args(arguments).output().unwrap();
        assert_succeeded(&output);
        assert!(output.stderr.is_empty() && !output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn the_purge_thread_is_there_when_asked_for() {
    let mut command = Home::new().cairn();
    let mut child = command.args(["run", "--purge-thread", "sleep", "60"]).spawn().unwrap();
    let tasks = PathBuf::from(format!("/proc/{}/task", child.id()));
    let names = || -> Vec<_> {
        let tasks = fs::read_dir(&tasks).unwrap().map(|task| task.unwrap().path().join("comm"));
        tasks.filter_map(|name| fs::read_to_string(name).ok()).collect()
    };
    // At first the process is this test's copy, then cairn, then the program.
    for _ in 0..1000 {
        if names() == ["sleep\n", "cairn-purge\n"] {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    let names = names();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(names, ["sleep\n", "cairn-purge\n"]);
}

#[test]
fn the_users_variables_pass_through() {
    let mut command = Home::new().cairn();
    command.env("CAIRN_SOMETHING", "a=b c").args(["run", "sh", "-c", "echo $CAIRN_SOMETHING"]);
    assert_eq!(text(&command.output().unwrap().stdout), "a=b c\n");
}

// The file that holds the library.

#[test]
fn the_library_lies_in_the_users_cache_and_is_small() {
    let home = Home::new();
    let library = home.library();
    assert!(library.starts_with(home.path().join(".cache/cairn")));
    let directory = library.parent().unwrap().metadata().unwrap();
    assert_eq!(directory.mode() & 0o777, 0o700);
    let size_bytes = library.metadata().unwrap().len();
    assert!(size_bytes <= LIBRARY_LIMIT_BYTES, "{size_bytes} bytes");

    let elsewhere = home.path().join("elsewhere");
    let output = home.cairn().env("XDG_CACHE_HOME", &elsewhere).arg("path").output().unwrap();
    assert!(text(&output.stdout).starts_with(display(&elsewhere.join("cairn/libcairn-"))));
}

#[test]
fn without_a_home_the_library_lies_in_the_temporary_directory() {
    let home = Home::new();
    let mut command = home.cairn();
    command.env_remove("HOME").env("TMPDIR", home.path()).args(["run", "sh", "-c"]);
    let output = command.arg("echo $LD_PRELOAD").output().unwrap();
    let expected = home.path().join(format!("cairn-{}", rustix::process::getuid()));
    assert!(text(&output.stdout).starts_with(display(&expected)), "{}", text(&output.stderr));
    assert_eq!(expected.metadata().unwrap().mode() & 0o777, 0o700);
}

#[test]
fn a_home_that_ld_preload_cannot_hold_is_avoided() {
    let home = Home::new();
    for name in ["a b", "a:b", "a$LIB"] {
        let awkward = home.path().join(name);
        let mut command = home.cairn();
        command.env("HOME", &awkward).env("TMPDIR", home.path()).arg("path");
        let expected = home.path().join("cairn-");
        assert!(text(&command.output().unwrap().stdout).starts_with(display(&expected)));

        command.env("TMPDIR", &awkward);
        assert_refused(&command.output().unwrap(), 125, &["no directory", "set XDG_CACHE_HOME"]);
    }
}

#[test]
fn a_directory_that_others_can_write_to_is_avoided() {
    let home = Home::new();
    let shared = home.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o777)).unwrap();
    let mut command = home.cairn();
    command.env("HOME", shared.join("below")).env("TMPDIR", &shared).arg("path");
    assert_refused(&command.output().unwrap(), 125, &["other users can write to", "/shared"]);
    assert_eq!(fs::read_dir(&shared).unwrap().count(), 0);
}

#[test]
fn a_planted_library_is_replaced() {
    let home = Home::new();
    let library = home.library();
    let genuine = fs::read(&library).unwrap();
    let assert_restored = || {
        assert_eq!(home.library(), library);
        assert_eq!(fs::read(&library).unwrap(), genuine);
        assert!(library.symlink_metadata().unwrap().is_file());
        assert_eq!(library.metadata().unwrap().mode() & 0o022, 0);
        assert_eq!(fs::read_dir(library.parent().unwrap()).unwrap().count(), 1);
    };

    let mut tampered = genuine.clone();
    *tampered.last_mut().unwrap() ^= 1;
    fs::write(&library, &tampered).unwrap();
    assert_restored();

    fs::write(&library, &genuine[..genuine.len() / 2]).unwrap();
    assert_restored();

    fs::set_permissions(&library, Permissions::from_mode(0o666)).unwrap();
    assert_restored();

    let target = home.file("planted.so", 0o755, &genuine);
    fs::remove_file(&library).unwrap();
    symlink(target, &library).unwrap();
    assert_restored();

    if is_root() {
        chown(&library, Some(NOBODY), None).unwrap();
        assert_restored();
        assert_eq!(library.metadata().unwrap().uid(), 0);
    }
}

#[test]
fn an_intact_library_is_left_alone() {
    let home = Home::new();
    let inode = || home.library().metadata().unwrap().ino();
    assert_eq!(inode(), inode());
}

#[test]
fn the_version_names_the_library() {
    let home = Home::new();
    let output = home.cairn().arg("--version").output().unwrap();
    let library = home.library();
    let hash = library.file_stem().unwrap().to_str().unwrap().strip_prefix("libcairn-").unwrap();
    let expected = format!("cairn {} (libcairn {})\n", env!("CARGO_PKG_VERSION"), &hash[..8]);
    assert_eq!(text(&output.stdout), expected);
}

// Programs that cannot be found or run.

#[test]
fn missing_programs() {
    let home = Home::new();
    assert_refused(&home.run(&["cairn-test-nope"]), 127, &["cairn-test-nope: not found in PATH"]);
    assert_refused(&home.run(&["./cairn-test-nope"]), 127, &["./cairn-test-nope: no such file"]);
    assert_refused(&home.run(&["/bin/sh/nope"]), 127, &["/bin/sh/nope: no such file"]);
    assert_refused(&home.run(&[""]), 127, &["not found in PATH"]);
}

#[test]
fn files_that_are_not_programs() {
    let home = Home::new();
    let text_file = home.file("text", 0o644, b"hello\n");
    let bytes = home.file("bytes", 0o755, b"\x01\x02\x00\x03");
    let cut_off = home.file("cut-off", 0o755, b"\x7fELF\x02\x01\x01");
    assert_refused(&home.run(&[&home.path()]), 126, &[": is a directory"]);
    assert_refused(&home.run(&[text_file]), 126, &["/text: not executable"]);
    assert_refused(&home.run(&[bytes]), 126, &["neither an ELF program nor a script"]);
    assert_refused(&home.run(&[cut_off]), 126, &["damaged ELF file"]);
}

#[test]
fn the_search_in_path_is_that_of_execvp() {
    let home = Home::new();
    let script = |text: &str| format!("#!/bin/sh\necho {text}\n").into_bytes();
    for directory in ["first", "second"] {
        fs::create_dir(home.path().join(directory)).unwrap();
    }
    home.file("first/tool", 0o644, &script("not executable"));
    home.file("second/tool", 0o755, &script("second"));
    home.file("here", 0o755, &script("here"));
    let run = |path: &str, name: &str| {
        let mut command = home.cairn();
        command.current_dir(home.path()).env("PATH", path).args(["run", name]).output().unwrap()
    };
    assert_eq!(text(&run("absent:first:second", "tool").stdout), "second\n");
    assert_refused(&run("absent:first", "tool"), 126, &["first/tool: not executable"]);
    assert_eq!(text(&run("absent:", "here").stdout), "here\n");
    assert_refused(&run("absent", "here"), 127, &["here: not found in PATH"]);

    let mut command = home.cairn();
    assert_succeeded(&command.env_remove("PATH").args(["run", "sh", "-c", ":"]).output().unwrap());
}

// Programs that the library cannot get into.

#[test]
fn static_programs() {
    let home = Home::new();
    let mut tested = 0;
    for flag in ["-static", "-static-pie"] {
        let Some(program) = home.c_program(&[flag]) else { continue };
        let output = home.run(&[program]);
        assert_refused(&output, 126, &["statically linked", "link libcairn.a"]);
        tested += 1;
    }
    if tested == 0 {
        skipped("no C compiler here links statically");
    }
}

#[test]
fn programs_of_other_architectures() {
    let home = Home::new();
    let native = fs::read("/bin/sh").unwrap();

    let mut other = native.clone();
    let (machine, name) =
        if cfg!(target_arch = "aarch64") { (62_u16, "x86-64") } else { (183, "aarch64") };
    other[E_MACHINE].copy_from_slice(&machine.to_le_bytes());
    let other = home.file("other", 0o755, &other);
    let expected = format!("built for {name}, but this cairn is for ");
    assert_refused(&home.run(&[other]), 126, &[&expected]);

    let mut narrow = native;
    narrow[4] = 1; // ELFCLASS32
    let narrow = home.file("narrow", 0o755, &narrow);
    assert_refused(&home.run(&[narrow]), 126, &["32-bit, but this cairn is for "]);
}

#[test]
fn programs_with_another_loader() {
    let home = Home::new();
    let build = |loader: &str| home.c_program(&[&format!("-Wl,--dynamic-linker={loader}")]);
    let Some(program) = build("/lib/ld-musl-x86_64.so.1") else {
        return skipped("no C compiler here");
    };
    let output = home.run(&[program]);
    assert_refused(&output, 126, &["its loader is /lib/ld-musl-x86_64.so.1", "one of glibc"]);

    let program = build("/absent/ld-linux-x86-64.so.2").unwrap();
    assert_refused(&home.run(&[program]), 126, &["/absent/ld-linux-x86-64.so.2 does not exist"]);
}

#[test]
fn the_loader_itself_is_a_program() {
    let Ok(loader) = fs::canonicalize("/lib64/ld-linux-x86-64.so.2") else {
        return skipped("no loader of x86-64 here");
    };
    let output = Home::new().run(&[&loader, Path::new("/bin/sh"), Path::new("-c")]);
    assert!(!text(&output.stderr).starts_with("cairn: "), "{}", text(&output.stderr));
}

#[test]
fn set_id_programs() {
    let home = Home::new();
    let program = home.copy_of("/bin/true");
    let mount = rustix::fs::statvfs(&program).unwrap();
    if !is_root() || mount.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID) {
        return skipped("only root can give a file to another user, and not on nosuid");
    }
    for (user, group, mode) in [(NOBODY, 0, 0o4755), (0, NOBODY, 0o2755)] {
        chown(&program, Some(user), Some(group)).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        assert_refused(&home.run(&[&program]), 126, &["set-uid or set-gid", "ignores preloaded"]);
    }

    // Of the user's own: nothing is gained, the loader does not mind.
    chown(&program, Some(0), Some(0)).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o6755)).unwrap();
    assert_succeeded(&home.run(&[&program]));

    // For others it is set-uid, whether they may read it or not.
    fs::set_permissions(&program, Permissions::from_mode(0o4711)).unwrap();
    assert_refused(&home.run_as_nobody(&program), 126, &["set-uid or set-gid"]);
}

#[test]
fn programs_with_file_capabilities() {
    let home = Home::new();
    let program = home.copy_of("/bin/true");
    if !is_root() {
        return skipped("only root can give a file capabilities");
    }
    if lacks("setcap", "libcap2-bin") {
        return;
    }
    if !Command::new("setcap").arg("cap_net_raw=ep").arg(&program).status().unwrap().success() {
        return skipped("this file system has no capabilities");
    }
    assert_succeeded(&home.run(&[&program]));

    let output = home.run_as_nobody(&program);
    assert_refused(&output, 126, &["has file capabilities", "ignores preloaded"]);
}

// Scripts.

#[test]
fn scripts_run() {
    let home = Home::new();
    let script = |name: &str, text: &str| home.file(name, 0o755, text.as_bytes());
    let body = "\nprintf '%s|' \"$@\"; echo $LD_PRELOAD\n";
    let library = home.library();
    for (name, first_line) in [
        ("direct", "#!/bin/sh"),
        ("blanks", "#! /bin/sh -e "),
        ("env", "#!/usr/bin/env sh"),
        ("split", "#!/usr/bin/env -S sh -e"),
        ("set", "#!/usr/bin/env -S FOO=bar sh -e"),
        ("bare", ""),
    ] {
        let script = script(name, &format!("{first_line}{body}"));
        let output = home.run(&[script.to_str().unwrap(), "a b", "c"]);
        assert_eq!(text(&output.stdout), format!("a b|c|{}\n", display(&library)), "{name}");
        assert_eq!(text(&output.stderr), "", "{name}");
    }
}

#[test]
fn scripts_know_their_names() {
    let home = Home::new();
    for first_line in ["#!/bin/sh", "#!/usr/bin/env sh", ""] {
        let script = home.file("named", 0o755, format!("{first_line}\necho $0\n").as_bytes());
        assert_eq!(text(&home.run(&[&script]).stdout), format!("{}\n", display(&script)));
    }
}

/// With an env in between, that would be the program, and with `--no-inherit` the only one.
#[test]
fn env_is_not_started() {
    let home = Home::new();
    let env = home.file("env", 0o755, &fs::read("/bin/false").unwrap());
    let inner = format!("#!{} -S sh -e\necho $*\n", display(&env));
    let inner = home.file("inner", 0o755, inner.as_bytes());
    let outer = format!("#!{} {}\n", display(&env), display(&inner));
    let outer = home.file("outer", 0o755, outer.as_bytes());
    let output = home.run(&[display(&outer), "x"]);
    assert_eq!(text(&output.stdout), format!("{} x\n", display(&outer)));
}

#[test]
fn the_interpreters_of_scripts_are_checked() {
    let home = Home::new();
    let bytes = home.file("bytes", 0o755, b"\x01\x02\x00\x03");
    let script = |name: &str, interpreter: &str| {
        home.file(name, 0o755, format!("#!{interpreter}\n").as_bytes())
    };

    let missing = script("missing", "/absent/python");
    let parts = ["/missing: its interpreter /absent/python: no such file"];
    assert_refused(&home.run(&[missing]), 126, &parts);

    let missing = script("missing", "/usr/bin/env cairn-test-nope");
    let parts = ["/missing: its interpreter cairn-test-nope: not found in PATH"];
    assert_refused(&home.run(&[missing]), 126, &parts);

    let windows = script("windows", "/bin/sh\r");
    let parts = [r"/windows: its interpreter /bin/sh\r: no such file"];
    assert_refused(&home.run(&[windows]), 126, &parts);

    let unfit = script("unfit", display(&bytes));
    let unfit = script("nested", display(&unfit));
    let parts = ["/nested: its interpreter ", "/bytes: neither an ELF program nor a script"];
    assert_refused(&home.run(&[unfit]), 126, &parts);

    let endless = home.path().join("endless");
    script("endless", display(&endless));
    assert_refused(&home.run(&[endless]), 126, &["each other's interpreters"]);

    assert_refused(&home.run(&[script("nothing", "")]), 126, &["neither an ELF program nor"]);
}
