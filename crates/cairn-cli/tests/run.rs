//! `cairn run`, `cairn path` and `cairn --version`, as their users see them: nothing stands between a
//! program and its user, what is in its environment, and where the library lies. What cannot be run,
//! and scripts, are in programs.rs.

mod common;

use common::{Home, NOBODY, assert_refused, assert_succeeded, display, is_root, lacks, text};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// Larger than any libcairn.so may become without someone deciding so, and libcairn-hardened.so.
const LIBRARY_LIMIT_BYTES: u64 = 372 << 10;
const HARDENED_LIMIT_BYTES: u64 = 407 << 10;

const SIGTERM: i32 = 15;

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
        let with_cairn = outcome(&format!("'{}' run --", env!("CARGO_BIN_EXE_cairn")));
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
    assert_eq!(stdout.lines().next(), Some(&*home.preloaded(&library)));
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
    let expected = format!("{}:{other}\n", home.preloaded(&library));
    assert_eq!(preload(other, &show), expected);
    assert_eq!(preload(other, &[&[cairn, "run"], &show[..]].concat()), expected);
    assert_eq!(preload("", &show), format!("{}\n", home.preloaded(&library)));
}

/// The hardened build, alone, whatever cairn was there before; and it says what it is.
#[test]
fn the_newer_choice_of_a_build_wins() {
    let home = Home::new();
    let (library, cairn) = (home.library(), env!("CARGO_BIN_EXE_cairn"));
    let path = text(&home.cairn().args(["path", "--hardened"]).output().unwrap().stdout);
    let hardened = PathBuf::from(path.trim_end());
    assert_eq!(hardened.parent(), library.parent());
    assert!(display(&hardened).contains("/libcairn-hardened-"), "{path}");
    let size_bytes = hardened.metadata().unwrap().len();
    assert!(size_bytes <= HARDENED_LIMIT_BYTES, "{size_bytes} bytes");

    let show =
        ["sh", "-c", "echo $LD_PRELOAD; grep -o '/libcairn[^/]*$' /proc/self/maps | sort -u"];
    for (outer, inner, expected) in [
        (None, true, &hardened),
        (Some(false), true, &hardened),
        (Some(true), true, &hardened),
        (Some(true), false, &library),
    ] {
        let mut arguments = Vec::new();
        for is_hardened in outer.into_iter().chain([inner]) {
            arguments.extend([cairn, "run"]);
            arguments.extend(is_hardened.then_some("--hardened"));
        }
        let mut command = home.cairn();
        // By the user: other builds of cairn by each of their names, and something else.
        let names = ["libcairn.so", "libcairn.so.0", "libcairn-hardened.so.0.1.0"];
        command.env(
            "LD_PRELOAD",
            names.map(|name| format!("/nowhere/{name}:")).concat() + "libm.so.6",
        );
        let output = command.args(&arguments[1..]).args(show).output().unwrap();
        let name = expected.file_name().unwrap().to_str().unwrap();
        let preloaded = home.preloaded(expected);
        let beside = preloaded.rsplit('/').next().unwrap();
        let mut mapped = [name, beside];
        mapped.sort_unstable();
        let [first, last] = mapped;
        let seen = format!("{preloaded}:libm.so.6\n/{first}\n/{last}\n");
        assert_eq!(text(&output.stdout), seen, "{arguments:?}");
    }

    let said = |options: &[&str]| {
        let mut command = home.cairn();
        command.env("CAIRN_SHOW_CONFIG", "1").arg("run").args(options).args(["--stats", "true"]);
        text(&command.output().unwrap().stderr)
    };
    let version = env!("CARGO_PKG_VERSION");
    assert!(
        said(&["--hardened"]).starts_with(&format!("cairn {version} hardened configuration\n"))
    );
    assert!(said(&["--hardened"]).contains("cairn: the memory of true, process "));
    assert!(said(&[]).starts_with(&format!("cairn {version} configuration\n")));
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
    assert_eq!(seen(&["--memory", "2G"]), "CAIRN_MEMORY_LIMIT=2147483648\n");
    assert_eq!(seen(&["--stats=all"]), "CAIRN_STATS=all\n");
    assert_eq!(seen(&["--stats-at-signal=TERM"]), "CAIRN_STATS=1\nCAIRN_STATS_AT_SIGNAL=TERM\n");
    assert_eq!(
        seen(&["--stats-at-signal", "--stats=all", "--stats-file", "a-%p"]),
        format!(
            "CAIRN_STATS=all\nCAIRN_STATS_AT_SIGNAL=1\nCAIRN_STATS_FILE={}\n",
            display(&home.path().join("a-%p"))
        )
    );
    for wrong in
        ["--stats=some", "--stats-at-signal=KILL", "--memory=much", "--memory=0", "--stats-file"]
    {
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
    for (name, begin) in [("account.json", "{\"version\":"), ("account.prom", "# HELP cairn_")] {
        let file = home.path().join(name);
        assert_succeeded(&home.run(&["--report", display(&file), "ls", "-d", "/"]));
        assert!(fs::read_to_string(file).unwrap().starts_with(begin), "{name}");
    }
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
        "cairn: CAIRN_PURGE_DELAY: cannot read `5`; it is a time such as 250ms or 1s, or 0, or never\n"
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

/// Nobody can be told, and the program runs as it would.
#[test]
fn a_full_standard_error_ends_nothing() {
    let home = Home::new();
    let status = |program: &str| {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = home.cairn();
        command.env("MALLOC_ARENA_MAX", "2").args(["run", program]).stderr(full);
        command.status().unwrap().code()
    };
    assert_eq!(status("true"), Some(0));
    assert_eq!(status("false"), Some(1));
    assert_eq!(status("no-such-program"), Some(127));
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
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = home.cairn().args(arguments).stdout(full).output().unwrap();
        assert_refused(&output, 125, &["No space left"]);
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
    assert_eq!(directory.mode() & 0o777, if is_root() { 0o755 } else { 0o700 });
    let size_bytes = library.metadata().unwrap().len();
    assert!(size_bytes <= LIBRARY_LIMIT_BYTES, "{size_bytes} bytes");

    let elsewhere = home.path().join("elsewhere");
    let output = home.cairn().env("XDG_CACHE_HOME", &elsewhere).arg("path").output().unwrap();
    assert!(text(&output.stdout).starts_with(display(&elsewhere.join("cairn/libcairn-"))));
}

/// Root has one that all use: a test leaves nothing there.
fn has_another_place() -> bool {
    if is_root() {
        println!("skipped as root");
    }
    is_root()
}

/// A service that root starts becomes another user, who finds the library.
#[test]
fn what_root_starts_runs_on_cairn_as_another_user() {
    let home = Home::new();
    if !is_root() || lacks("setpriv", "util-linux") {
        println!("skipped without root");
        return;
    }
    let output =
        home.run(&["setpriv", "--reuid=65534", "--clear-groups", "cat", "/proc/self/maps"]);
    assert_succeeded(&output);
    assert!(text(&output.stdout).contains("/libcairn-") && output.stderr.is_empty(), "{output:?}");
}

/// Also where root's new files are nobody else's, and where the library has been one of those.
#[test]
fn all_users_find_what_root_writes_under_any_umask() {
    let home = Home::new();
    if !is_root() || lacks("setpriv", "util-linux") {
        println!("skipped without root");
        return;
    }
    let cache = home.path().join(".cache");
    let script =
        "umask 077; exec \"$0\" run setpriv --reuid=65534 --clear-groups cat /proc/self/maps";
    let assert_found = || {
        let mut shell = Command::new("sh");
        let shell = shell.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_cairn"));
        // By name: there is no other place then. Of other variables of ours nobody shall speak.
        let shell = shell.env("XDG_CACHE_HOME", &cache).env("CAIRN_WARNED", "1");
        let output = shell.output().unwrap();
        assert_succeeded(&output);
        let is_found = text(&output.stdout).contains("/libcairn-") && output.stderr.is_empty();
        assert!(is_found, "{output:?}");
    };
    assert_found();
    let library = home.library();
    fs::set_permissions(&library, Permissions::from_mode(0o600)).unwrap();
    assert_found();
    // What was there before keeps its rights.
    fs::remove_dir_all(cache.join("cairn")).unwrap();
    fs::set_permissions(&cache, Permissions::from_mode(0o711)).unwrap();
    assert_found();
    assert_eq!(cache.metadata().unwrap().mode() & 0o777, 0o711);
}

#[test]
fn without_a_home_the_library_lies_in_the_temporary_directory() {
    let home = Home::new();
    if has_another_place() {
        return;
    }
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
    if has_another_place() {
        return;
    }
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
    if has_another_place() {
        return;
    }
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

/// The manual's page has each command and each option that the help has.
#[test]
fn the_manual_has_each_option() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/man/cairn.1");
    let page = std::fs::read_to_string(page).unwrap().replace("\\-", "-");
    let commands =
        ["run", "inspect", "profile", "diff", "leaks", "top", "guards", "record", "replay"];
    for command in commands.into_iter().chain(["path", "completions"]) {
        assert!(page.contains(&format!("cairn {command}")), "{command}");
        let output = Home::new().cairn().args([command, "--help"]).output().unwrap();
        let help = text(&output.stdout).to_string();
        let words = help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        for option in words.filter(|word| word.starts_with("--") && word.len() > 2) {
            assert!(page.contains(option), "cairn {command} {option}");
        }
    }
}
