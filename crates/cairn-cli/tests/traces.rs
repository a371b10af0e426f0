//! `cairn record` and `cairn replay`: a trace has what the program did, to the call; replays do it again under any
//! allocator; files that no recorder has made are refused in one line.

mod common;

use common::{Home, assert_refused, assert_succeeded, display, lacks, text};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A program that makes as many calls as it is told.
const CALLS: &str = "
    #include <malloc.h>
    #include <pthread.h>
    #include <stdlib.h>
    #include <string.h>

    static long count;
    static void *passed[1000];

    static void *makes(void *arg)
    {
        for (int i = 0; i < 1000; i++) passed[i] = malloc(100 + i);
        return arg;
    }

    static void *works(void *arg)
    {
        void *kept[16] = {0};
        unsigned random = 1;
        for (long i = 0; i < count; i++) {
            void **one = &kept[i % 16];
            free(*one);
            random = random * 1103515245 + 12345;
            *one = malloc(1 + random / 65536 % 5000);
            if (i % 4 == 0) *one = realloc(*one, 10000);
            if (i % 8 == 0) free(calloc(3, 100));
            if (i % 8 == 4) free(memalign(256, 1000));
        }
        for (int i = 0; i < 16; i++) free(kept[i]);
        return arg;
    }

    int main(int argc, char **argv)
    {
        count = atol(argv[1]);
        int threads = atoi(argv[2]);
        pthread_t ids[64];
        pthread_create(&ids[0], NULL, makes, NULL);
        pthread_join(ids[0], NULL);
        for (int i = 0; i < threads; i++) pthread_create(&ids[i], NULL, works, NULL);
        for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
        if (count) for (int i = 0; i < 1000; i++) free(passed[i]);
        free(NULL);
        return argc > 3 ? abort(), 1 : 7;
    }
";

/// Compiles a program; none if there is no compiler.
fn compiled(home: &Home, compiler: &str, name: &str, source: &str) -> Option<PathBuf> {
    if lacks(compiler, compiler) {
        return None;
    }
    let (file, program) = (home.path().join(format!("{name}.cc")), home.path().join(name));
    fs::write(&file, source).unwrap();
    let language = if compiler == "g++" { "c++" } else { "c" };
    let mut command = Command::new(compiler);
    command.args(["-O0", "-fno-builtin", "-pthread", "-x", language, "-o"]).arg(&program);
    assert_succeeded(&command.arg(&file).output().unwrap());
    Some(program)
}

fn record(home: &Home, trace: &str, command: &[&str]) -> Output {
    recorder(home, trace, command).output().unwrap()
}

fn recorder(home: &Home, trace: &str, command: &[&str]) -> Command {
    let mut cairn = home.cairn();
    cairn.current_dir(home.path()).args(["record", "-o", trace, "--"]).args(command);
    cairn
}

fn replay(home: &Home, arguments: &[&str]) -> Output {
    home.cairn().current_dir(home.path()).arg("replay").args(arguments).output().unwrap()
}

/// What `cairn replay --json` says.
fn report(home: &Home, arguments: &[&str]) -> Value {
    let output = replay(home, &[&["--json", "--runs", "1"], arguments].concat());
    assert_succeeded(&output);
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(report: &Value, name: &str) -> u64 {
    report["trace"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {report}"))
}

#[test]
fn counts_are_the_programs() {
    let home = Home::new();
    let Some(program) = compiled(&home, "gcc", "calls", CALLS) else { return };
    let counts = |count: &str| {
        let output = record(&home, "trace", &[display(&program), count, "3"]);
        assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
        let report = report(&home, &["trace"]);
        assert_eq!(report["trace"]["program"], "calls");
        assert_eq!(number(&report, "threads"), if count == "0" { 2 } else { 5 });
        for allocator in report["allocators"].as_array().unwrap() {
            assert_eq!(allocator["failed"], 0);
            assert!(allocator["peak_resident"].as_u64() > report["trace"]["peak_live"].as_u64());
        }
        let names = ["mallocs", "callocs", "aligned", "reallocs", "frees", "peak_live"];
        names.map(|name| number(&report, name) as i64)
    };
    // What the loader and the C library do is in both.
    let (without, with) = (counts("0"), counts("80000"));
    let more: Vec<_> = with.iter().zip(without).map(|(with, without)| with - without).collect();
    assert_eq!(more[..5], [240_000, 30_000, 30_000, 60_000, 240_000 + 60_000 + 1000]);
    assert!(more[5] > 3 * 4 * 10_000 && more[5] < 3 * 17 * 10_000, "{}", more[5]);
}

/// Blocks go from thread to thread, and threads come and go.
#[test]
fn as_many_threads_replay_as_there_were_at_once() {
    let home = Home::new();
    let source = "
        #include <pthread.h>
        #include <stdlib.h>
        static void *works(void *block)
        {
            for (int i = 0; i < 200; i++) block = realloc(block, 1 + i * 37 % 3000);
            return block;
        }
        int main(void)
        {
            void *blocks[4] = {0};
            for (int i = 0; i < 500; i++) {
                pthread_t ids[4];
                for (int at = 0; at < 4; at++) pthread_create(&ids[at], NULL, works, blocks[at]);
                for (int at = 0; at < 4; at++) pthread_join(ids[at], &blocks[(at + i) % 4]);
            }
            for (int at = 0; at < 4; at++) free(blocks[at]);
        }
    ";
    let Some(program) = compiled(&home, "gcc", "team", source) else { return };
    assert_succeeded(&record(&home, "trace", &[display(&program)]));
    let report = report(&home, &["trace"]);
    assert_eq!(number(&report, "threads"), 2001);
    let at_once = number(&report, "threads_at_once");
    assert!((2..=16).contains(&at_once), "{at_once}");
    assert_eq!(number(&report, "reallocs"), 500 * 4 * 200 - 4);
}

#[test]
fn a_program_that_crashes_is_recorded_to_its_end() {
    let home = Home::new();
    let Some(program) = compiled(&home, "gcc", "calls", CALLS) else { return };
    let output = record(&home, "trace", &[display(&program), "4000", "1", "crash"]);
    assert_eq!(output.status.code(), Some(128 + 6));
    assert!(number(&report(&home, &["trace"]), "mallocs") >= 5000);
}

#[test]
fn operators_of_cpp_are_recorded_once() {
    let home = Home::new();
    let source = "
        #include <new>
        #include <cstdlib>
        struct alignas(64) Wide { char bytes[192]; };
        int main(int, char **argv)
        {
            for (int i = 0; i < atoi(argv[1]); i++) {
                delete new int(i);
                delete[] new char[100];
                delete new Wide;
                delete[] new (std::nothrow) long[7];
            }
            try { delete[] new char[size_t(1) << 60]; } catch (std::bad_alloc &) { return 3; }
        }
    ";
    let Some(program) = compiled(&home, "g++", "operators", source) else { return };
    let counts = |count: &str| {
        let output = record(&home, "trace", &[display(&program), count]);
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
        let report = report(&home, &["trace"]);
        ["mallocs", "aligned", "frees"].map(|name| number(&report, name))
    };
    let (one, many) = (counts("1"), counts("1001"));
    assert_eq!([0, 1, 2].map(|at| many[at] - one[at]), [3000, 1000, 4000]);
}

#[test]
fn what_a_program_becomes_is_recorded_and_its_children_are_not() {
    let home = Home::new();
    let Some(program) = compiled(&home, "gcc", "calls", CALLS) else { return };
    let script = format!("{0} 50 1; exec {0} 80 1", display(&program));
    assert_eq!(record(&home, "trace", &["sh", "-c", &script]).status.code(), Some(7));
    let report = report(&home, &["trace"]);
    assert_eq!(report["trace"]["program"], "calls");
    let frees = number(&report, "frees");
    assert!((1100..1200).contains(&frees), "{frees}");
}

#[test]
fn a_real_program_is_replayed() {
    let home = Home::new();
    if lacks("python3", "python3") {
        return;
    }
    let code = "d = {str(i): [i] for i in range(20000)}; print(len(d))";
    let output = record(&home, "trace", &["env", "PYTHONMALLOC=malloc", "python3", "-c", code]);
    assert_succeeded(&output);
    assert_eq!(text(&output.stdout), "20000\n");
    let library = home.library();
    let named = format!("again={}", display(&library));
    let output = replay(&home, &["-a", &named, "--runs", "2", "trace"]);
    assert_succeeded(&output);
    let table = text(&output.stdout);
    let names: Vec<_> =
        table.lines().skip(2).filter_map(|row| row.split_whitespace().next()).collect();
    assert_eq!(names, ["cairn", "system", "again"], "{table}");

    let output = replay(&home, &["--settings", "trace"]);
    assert_succeeded(&output);
    assert!(text(&output.stdout).contains("CAIRN_PURGE_DELAY=never"), "{}", text(&output.stdout));
}

#[test]
fn a_full_file_is_turned_over() {
    let home = Home::new();
    let Some(program) = compiled(&home, "gcc", "calls", CALLS) else { return };
    let mut cairn = home.cairn();
    cairn.current_dir(home.path()).args(["record", "--limit", "1MiB"]);
    let output = cairn.args([display(&program), "300000", "2"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert!(text(&output.stderr).contains("cairn.trace.1"), "{}", text(&output.stderr));
    for name in ["cairn.trace", "cairn.trace.1"] {
        assert!(fs::metadata(home.path().join(name)).unwrap().len() < 600 << 10);
        let report = report(&home, &[name]);
        assert!(number(&report, "alive_before") >= 1000, "{report}");
        // What the threads have passed on is live until the end.
        assert!(number(&report, "peak_live") > 100 * 1000);
    }
}

#[test]
fn signals_are_passed_on() {
    let home = Home::new();
    let mut cairn = home.cairn();
    cairn.current_dir(home.path()).args(["record", "sh", "-c", "echo up; exec sleep 100"]);
    let mut child = cairn.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut said = [0; 3];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
    let number = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(number, rustix::process::Signal::TERM).unwrap();
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(128 + 15), None));
}

/// Where the ends of children are ignored, as some services have it, that is the program's affair alone.
#[test]
fn ignored_ends_of_children_stay_so_for_the_program() {
    let home = Home::new();
    let ignoring = |command: &[&str]| {
        let mut cairn = recorder(&home, "trace", command);
        // SAFETY: the child makes one call to the system, and no handler is set.
        unsafe {
            cairn.pre_exec(|| {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
                Ok(())
            })
        };
        cairn.output().unwrap()
    };
    let output = ignoring(&["sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert!(number(&report(&home, &["trace"]), "mallocs") > 0);
    let output = ignoring(&["sh", "-c", "kill -TERM $$"]);
    assert_eq!(output.status.code(), Some(128 + 15), "{}", text(&output.stderr));
    let ignored = |output: Output| {
        assert_succeeded(&output);
        let signals = text(&output.stdout);
        let (_, signals) = signals.split_once(':').unwrap();
        u64::from_str_radix(signals.trim(), 16).unwrap() >> (libc::SIGCHLD - 1) & 1
    };
    let look = ["grep", "^SigIgn:", "/proc/self/status"];
    assert_eq!(ignored(ignoring(&look)), 1);
    assert_eq!(ignored(record(&home, "trace", &look)), 0);
}

/// As without the recorder: no memory for it.
#[test]
fn an_alignment_that_cannot_be_is_answered() {
    let home = Home::new();
    let source = "
        #include <errno.h>
        #include <malloc.h>
        #include <unistd.h>
        int main(void) { alarm(20); return memalign((size_t)-1, 8) != NULL || errno == 0; }
    ";
    let Some(program) = compiled(&home, "gcc", "aligns", source) else { return };
    assert_succeeded(&record(&home, "trace", &[display(&program)]));
}

/// The last notes come when the program has ended, and its status is known.
#[test]
fn the_status_outlives_notes_that_cannot_be_written() {
    let home = Home::new();
    // A program begins another trace, which has no place any more, and ends before the recorder looks again.
    let script = "rm -r gone
        (while grep -qs '^State:.[^Z]' /proc/$$/status; do sleep 0.01; done; kill -CONT $PPID) &
        kill -STOP $PPID; until grep -q '^State:.T' /proc/$PPID/status; do sleep 0.01; done
        exec sh -c 'exit 7'";
    // Now and then the recorder is stopped in the midst of a look.
    for _ in 0..4 {
        fs::create_dir(home.path().join("gone")).unwrap();
        let output = record(&home, "gone/trace", &["sh", "-c", script]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{said}");
        assert!(said.contains("ended before the program: No such file"), "{said}");
    }
}

#[test]
fn a_full_standard_error_ends_no_recording() {
    let home = Home::new();
    let commands =
        [(&["true"][..], 0), (&["false"], 1), (&["no-such-program"], 127), (&["ls", "/"], 0)];
    for (command, code) in commands {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = recorder(&home, "trace", command).stderr(full).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{command:?}");
    }
    assert!(number(&report(&home, &["trace"]), "mallocs") > 0);
}

#[test]
fn what_cannot_be_recorded_leaves_no_file() {
    let home = Home::new();
    assert_refused(&record(&home, "trace", &["no-such-program"]), 127, &["not found in PATH"]);
    let denied = record(&home, "no/such/trace", &["true"]);
    assert_refused(&denied, 125, &["no/such/trace", "No such file"]);
    assert!(!home.path().join("trace").exists());
    let device = record(&home, "/dev/null", &["true"]);
    assert_refused(&device, 125, &["/dev/null", "no regular file"]);
    let small = home.cairn().args(["record", "--limit", "1K", "true"]).output().unwrap();
    assert!(!small.status.success() && text(&small.stderr).contains("1MiB or more"));
}

#[test]
fn a_library_without_malloc_is_no_allocator() {
    let home = Home::new();
    assert_succeeded(&record(&home, "trace", &["ls", "/"]));
    let output = replay(&home, &["-a", "m=/lib/x86_64-linux-gnu/libm.so.6", "trace"]);
    if Path::new("/lib/x86_64-linux-gnu/libm.so.6").exists() {
        assert_refused(&output, 125, &["m: ", "does not offer malloc"]);
    }
    let output = replay(&home, &["-a", "x=/no/such.so", "trace"]);
    assert_refused(&output, 125, &["/no/such.so", "No such file"]);
}

#[test]
fn a_replay_may_be_of_one_allocator_alone() {
    let home = Home::new();
    assert_succeeded(&record(&home, "trace", &["ls", "/"]));
    let named = format!("mine={}", display(&home.library()));
    let names = |arguments: &[&str]| {
        let report = report(&home, &[&["-a", named.as_str()], arguments, &["trace"]].concat());
        let rows = report["allocators"].as_array().unwrap().iter();
        rows.map(|row| row["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["cairn", "system", "mine"]);
    assert_eq!(names(&["--only", "mine"]), ["mine"]);
    assert_eq!(names(&["--only", "mine", "--only", "cairn"]), ["cairn", "mine"]);
    let output = replay(&home, &["--only", "yours", "trace"]);
    assert_refused(&output, 125, &["--only yours", "what -a names"]);
}

#[test]
fn a_trace_beyond_the_limit_is_refused() {
    let home = Home::new();
    assert_succeeded(&record(&home, "trace", &["ls", "/"]));
    let output = replay(&home, &["--memory", "4K", "trace"]);
    assert_refused(&output, 125, &["trace: ", "more than the 4.0 KiB that --memory allows"]);
}

/// Every cut, and every byte, of a small one.
#[test]
fn damaged_traces_are_refused() {
    let home = Home::new();
    assert_succeeded(&record(&home, "trace", &["true"]));
    let whole = fs::read(home.path().join("trace")).unwrap();
    let check = |bytes: &[u8], what: &str| {
        fs::write(home.path().join("damaged"), bytes).unwrap();
        let output = replay(&home, &["--runs", "1", "damaged"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{what}: {said}");
        assert_eq!(said.lines().count(), 1, "{what}: {said}");
    };
    for length in (0..whole.len()).step_by(3) {
        check(&whole[..length], &format!("{length} bytes"));
    }
    for at in (0..whole.len()).step_by(3) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x11;
        check(&bytes, &format!("another byte {at}"));
    }
    check(&[&whole[..], b"x"].concat(), "one byte more");
    check(b"", "nothing");
    check(b"#!/bin/sh\n", "a script");
}

/// What the checksum does not find: frames that somebody has made.
#[test]
fn hostile_traces_are_refused() {
    let home = Home::new();
    let check = |steps: &[u8], part: &str| {
        let frame = zstd::encode_all(&[&[0, 0], steps].concat()[..], 1).unwrap();
        fs::write(home.path().join("hostile"), [b"cairn trace 1\n", &frame[..]].concat()).unwrap();
        let output = replay(&home, &["--runs", "1", "hostile"]);
        assert_refused(&output, 125, &["hostile: ", part]);
    };
    let (end, first) = ([7, 0], [5, 0]);
    check(&end, "no calls");
    check(&[0, 16], "a step of no thread");
    check(&[5, 1], "a thread's number");
    check(&[5, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255], "a number without an end");
    check(&[&first[..], &[4, 0]].concat(), "a block that is not there");
    check(&[&first[..], &[0, 16, 4, 0, 4, 0]].concat(), "a block that is not there");
    check(&[&first[..], &[0, 16, 3, 1, 16]].concat(), "a block that is not there");
    check(&[&first[..], &[0, 255, 255, 255, 255, 255, 255, 255, 127]].concat(), "a block of");
    check(&[&first[..], &[0, 255, 255, 255, 255, 255, 31]].concat(), "--memory allows");
    check(&[&first[..], &[0, 16, 7, 2]].concat(), "its end tells of 2 calls");
    check(&[&first[..], &[0, 16, 7, 1, 0]].concat(), "something follows");
    check(&[&first[..], &[0, 16]].concat(), "it ends early");
    check(&[6, 6], "a step of no thread");
}

/// A short file whose blocks are as large as blocks can be, where any number of bytes is allowed.
#[test]
fn more_bytes_than_can_be_counted_are_refused() {
    let home = Home::new();
    let largest = [0, 128, 128, 128, 128, 128, 128, 32];
    let frame = zstd::encode_all(&[&[0, 0, 5, 0], &largest.repeat(1 << 17)[..]].concat()[..], 1);
    let file = [b"cairn trace 1\n", &frame.unwrap()[..]].concat();
    fs::write(home.path().join("hostile"), file).unwrap();
    let most = u64::MAX.to_string();
    let output = replay(&home, &["--runs", "1", "--memory", &most, "hostile"]);
    assert_refused(&output, 125, &["hostile: after 32768 calls: its blocks take "]);
}

/// A process that nobody waits for any more becomes a child of the recorder's, if that is the first one of a container: it is not
/// the one that is recorded.
#[test]
fn orphans_are_not_recorded() {
    let home = Home::new();
    let mut command =
        recorder(&home, "trace", &["sh", "-c", "(sh -c 'sleep 0.2; exec ls /' &); sleep 1"]);
    // SAFETY: a system call.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
            Ok(())
        });
    }
    assert_succeeded(&command.output().unwrap());
    let report = report(&home, &["trace"]);
    let program = report["trace"]["program"].as_str().unwrap();
    assert!(["sh", "dash", "bash"].contains(&program), "{program}");
}

/// An allocator whose process ends at once is told of, however long the trace is.
#[test]
fn a_replay_that_ends_at_its_start_is_told() {
    let home = Home::new();
    let Some(program) = compiled(&home, "gcc", "calls", CALLS) else { return };
    record(&home, "trace", &[display(&program), "100000", "2"]);
    let (source, library) = (home.path().join("ends.c"), home.path().join("ends.so"));
    let text = "#include <unistd.h>\n__attribute__((constructor)) void ends(void) { _exit(3); }\n";
    fs::write(&source, text).unwrap();
    let mut command = Command::new("gcc");
    command.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    assert_succeeded(&command.output().unwrap());
    let named = format!("x={}", display(&library));
    let output = replay(&home, &["--only", "x", "-a", &named, "trace"]);
    assert_refused(&output, 125, &["x: ", "ended early"]);
}

/// The system's allocator is none that a file of the system's preloads everywhere.
#[test]
fn what_the_system_preloads_is_not_the_systems() {
    let home = Home::new();
    // SAFETY: it has no preconditions.
    if unsafe { libc::geteuid() } != 0 || lacks("unshare", "util-linux") {
        println!("skipped without root");
        return;
    }
    record(&home, "trace", &["ls", "/"]);
    let library = home.library();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c"]).current_dir(home.path());
    // Another /etc, for these processes alone.
    let script = "cp -a /etc etc && echo $1 >etc/ld.so.preload && mount --bind etc /etc && \
                  exec \"$0\" replay --only system trace";
    let arguments = [script, env!("CARGO_BIN_EXE_cairn"), display(&library)];
    let output = command.env("HOME", home.path()).args(arguments).output();
    let output = output.unwrap();
    assert_refused(&output, 125, &["/libcairn-", "/etc/ld.so.preload"]);
}

/// What comes through a pipe is read once, and is no worse for that.
#[test]
fn a_pipe_has_a_trace() {
    let home = Home::new();
    assert_succeeded(&record(&home, "trace", &["ls", "/"]));
    let cat = |file: &str| {
        let mut cat =
            Command::new("cat").arg(home.path().join(file)).stdout(Stdio::piped()).spawn();
        let output = cat.as_mut().unwrap().stdout.take().unwrap();
        let arguments = ["replay", "--json", "--runs", "2", "/dev/stdin"];
        let output = home.cairn().args(arguments).stdin(output).output().unwrap();
        cat.unwrap().wait().unwrap();
        output
    };
    let output = cat("trace");
    assert_succeeded(&output);
    let through: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(through["trace"], report(&home, &["trace"])["trace"]);
    home.file("none", 0o644, b"hello\n");
    assert_refused(&cat("none"), 125, &["/dev/stdin: no trace"]);
}

/// As `cairn run --stats` does it.
#[test]
fn a_malloc_inside_the_program_is_told() {
    let home = Home::new();
    let source = "
        #include <stddef.h>
        extern \"C\" {
        void *__libc_malloc(size_t);
        void __libc_free(void *);
        void *malloc(size_t size) { return __libc_malloc(size); }
        void free(void *block) { __libc_free(block); }
        }
        int main() { free(malloc(10)); }
    ";
    let Some(program) = compiled(&home, "g++", "own", source) else { return };
    let output = record(&home, "trace", &[display(&program)]);
    assert_succeeded(&output);
    let line = "cairn: own has a malloc of its own: cairn does not serve malloc, free; see";
    assert!(text(&output.stderr).starts_with(line), "{}", text(&output.stderr));
}
