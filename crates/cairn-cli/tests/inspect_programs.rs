//! `cairn inspect` of real programs, and of some that are hard to account for: each sum is the kernel's within 2 %.

mod common;

use common::inspected::{Running, account, compiled, number, start, start_with, steps};
use common::{Home, skipped, text};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Programs with arguments, what is written to them, and that they are at rest when they have written a line.
const PROGRAMS: [(&str, &[&str], &str); 18] = [
    (
        "python3",
        &["-c", "d = {i: str(i) * 3 for i in range(200000)}; print(1, flush=True); input()"],
        "",
    ),
    ("perl", &["-e", "$| = 1; $d{$_} = 'x' x 50 for 1..100000; print \"1\\n\"; <STDIN>"], ""),
    ("bash", &["-c", "for i in {1..20000}; do a[i]=$i; done; echo 1; read"], ""),
    ("sh", &["-c", "echo 1; read line"], ""),
    ("ruby", &["-e", "d = (1..200000).map(&:to_s); $stdout.sync = true; puts 1; gets"], ""),
    (
        "node",
        &[
            "-e",
            "d = [...Array(1e6).keys()].map(String); console.log(1); setInterval(() => d, 1e6)",
        ],
        "",
    ),
    (
        "lua5.4",
        &["-e", "d = {} for i = 1, 200000 do d[i] = tostring(i) end print(1) io.flush() io.read()"],
        "",
    ),
    (
        "sqlite3",
        &[":memory:"],
        "create table t(a, b); with recursive n(x) as (select 1 union all select x + 1 from n where x < 100000) \
         insert into t select x, hex(randomblob(20)) from n; select 1;\n",
    ),
    (
        "mawk",
        &["BEGIN { for (i = 0; i < 200000; i++) a[i] = i \"x\"; print 1; fflush(); getline }"],
        "",
    ),
    ("tclsh", &[], "for {set i 0} {$i < 100000} {incr i} {set a($i) $i}; puts 1; flush stdout\n"),
    ("php", &["-r", "$d = range(1, 200000); echo \"1\\n\"; fgets(STDIN);"], ""),
    ("git", &["cat-file", "--batch-check"], "HEAD\n"),
    ("z3", &["-in"], "(declare-const x Int)(assert (> x 3))(check-sat)\n"),
    ("jq", &["--unbuffered", "."], "[1]\n"),
    ("bc", &["-l"], "scale = 500\n4 * a(1)\n"),
    ("ed", &[], "a\nx\n.\n,p\n"),
    ("gdb", &["-q", "-nx"], "print 1\n"),
    ("gs", &["-q", "-dNODISPLAY"], "1 = flush\n"),
];

#[track_caller]
fn assert_adds_up(home: &Home, process: &Running, program: &str) {
    let account = account(home, &process.0.id().to_string());
    let resident = &account["resident"];
    let (sum, kernel) = (number(&resident["sum"]), number(&resident["kernel"]));
    assert!(sum.abs_diff(kernel) * 50 <= kernel, "{program}: {sum} is not {kernel}");
    assert_eq!(steps(&account), sum as i64, "{program}");
}

#[test]
fn real_programs_add_up() {
    let home = Home::new();
    let mut tested = 0;
    for (program, arguments, input) in PROGRAMS {
        let there = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        if !there.unwrap().status.success() {
            continue;
        }
        for build in [&[][..], &["--hardened"]] {
            let mut command = home.cairn();
            command.arg("run").args(build).arg(program).args(arguments);
            let process = start_with(command.current_dir(env!("CARGO_MANIFEST_DIR")), input);
            assert_adds_up(&home, &process, program);
            tested += 1;
        }
    }
    if tested == 0 {
        skipped("no python3, perl, or other program to look at");
    }
}

/// Compilers, stopped in the midst of their work.
#[test]
fn compilers_add_up() {
    let home = Home::new();
    let function = |nth| format!("int f{nth}(int x) {{ return x * {nth} + f0(x / 3); }}\n");
    let source = "int f0(int);\n".to_owned() + &(1..100_000).map(function).collect::<String>();
    let source = home.file("many.c", 0o644, source.as_bytes());
    let compiler = Command::new("gcc").arg("-print-prog-name=cc1").output();
    let compiler = compiler.map_or(String::new(), |output| text(output.stdout.trim_ascii_end()));
    let mut tested = 0;
    for (program, arguments) in [(&*compiler, &["-quiet"][..]), ("clang", &["-S"])] {
        if program.is_empty() || Command::new(program).arg("--version").output().is_err() {
            continue;
        }
        let mut command = home.cairn();
        command.args(["run", program]).args(arguments).args(["-O2", "-o", "/dev/null"]);
        let process = Running(command.arg(&source).stderr(Stdio::null()).spawn().unwrap());
        let pid = rustix::process::Pid::from_child(&process.0);
        let is_large = || {
            let status = std::fs::read_to_string(format!("/proc/{}/statm", process.0.id()));
            let pages = status.unwrap_or_default();
            pages.split(' ').nth(1).is_some_and(|pages| pages.parse::<u64>().unwrap() > 20_000)
        };
        let begin = Instant::now();
        while !is_large() && begin.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        assert_adds_up(&home, &process, program);
        tested += 1;
    }
    if tested == 0 {
        skipped("no gcc or clang");
    }
}

/// While threads work, the account adds up.
#[test]
fn a_busy_program_is_read() {
    let home = Home::new();
    let Some(program) = compiled(&home, BUSY, &[]) else { return };
    let process = start(home.cairn().arg("run").arg(program));
    for _ in 0..10 {
        let account = account(&home, &process.0.id().to_string());
        assert_eq!(steps(&account), number(&account["resident"]["sum"]) as i64);
    }
}

/// Threads that allocate and free each other's blocks.
const BUSY: &[u8] = b"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
static _Atomic(void *) slots[4096];
static void *work(void *seed)
{
    unsigned long x = (unsigned long)seed * 2 + 1;
    for (;;) {
        x = x * 6364136223846793005 + 1442695040888963407;
        free(atomic_exchange(&slots[x >> 40 & 4095], malloc(x >> 52 == 1 ? 100000 : x >> 54)));
    }
}
int main(void)
{
    pthread_t thread;
    for (long i = 1; i < 4; i++) pthread_create(&thread, 0, work, (void *)i);
    puts(\"ready\");
    fflush(stdout);
    work(0);
}
";

/// Memory that a forked process shares, and pages that were read and never written, which are nowhere.
#[test]
fn shared_pages_and_pages_of_zeros_add_up() {
    let home = Home::new();
    let Some(program) = compiled(&home, SHARES, &[]) else { return };
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let numbers: Vec<u32> = release.split(['.', '-']).map_while(|part| part.parse().ok()).collect();
    if numbers < vec![6, 7] {
        return skipped("the kernel does not tell pages of zeros, as 6.7 does");
    }
    for build in [&[][..], &["--hardened"]] {
        let process = start(home.cairn().arg("run").args(build).arg(&program));
        assert_adds_up(&home, &process, "shares");
        let account = account(&home, &process.0.id().to_string());
        let biggest = &account["biggest"][0];
        assert_eq!(number(&biggest["bytes"]) >> 20, 80);
        assert!(number(&biggest["resident"]) < 8 << 20, "{biggest}");
    }
}

const SHARES: &[u8] = b"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char *blocks[100000];
int main(void)
{
    int ends[2];
    char byte;
    long sum = 0;
    for (int i = 0; i < 100000; i++) memset(blocks[i] = malloc(500), 1, 500);
    volatile char *run = calloc(20 << 20, 1), *mapping = calloc(80 << 20, 1);
    for (long i = 0; i < 20 << 20; i += 4096) sum += run[i];
    for (long i = 0; i < 80 << 20; i += 4096) sum += mapping[i];
    memset((char *)mapping, 1, 5 << 20);
    if (pipe(ends)) return 1;
    if (fork() == 0) {
        close(ends[1]);
        for (int i = 0; i < 20000; i++) memset(blocks[i], 2, 500);
        puts(\"ready\");
        fflush(stdout);
        return read(ends[0], &byte, 1) + sum;
    }
    pause();
}
";
