//! `cairn inspect`: the account of a process whose heap is known, alive and as a core file; of real programs, against the
//! kernel's; and what cannot be is said in a line.

mod common;

use common::core_file;
use common::{Home, NOBODY, assert_refused, assert_succeeded, display, is_root, skipped, text};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// 200,000 blocks of which every 40th survives, blocks of their own, and threads that sleep with caches.
const KNOWN: &[u8] = b"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { THREADS = 8, BLOCKS = 200000 };
static char *blocks[BLOCKS];
static void *sleeper(void *arg)
{
    void *some[64];
    for (int i = 0; i < 64; i++) some[i] = malloc(1000);
    for (int i = 0; i < 64; i++) free(some[i]);
    pthread_barrier_wait(arg);
    pause();
    return 0;
}
int main(void)
{
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, 0, THREADS + 1);
    for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(100), 1, 100);
    for (int i = 0; i < BLOCKS; i++) if (i % 40) free(blocks[i]);
    memset(malloc(10 << 20), 1, 10 << 20);
    memset(malloc(64 << 20), 1, 32 << 20);
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        pthread_create(&thread, 0, sleeper, &barrier);
    }
    pthread_barrier_wait(&barrier);
    puts(\"ready\");
    fflush(stdout);
    pause();
}
";

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a command, writes to it, and waits for the first line that it writes.
fn start_with(command: &mut Command, input: &str) -> Running {
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut running = Running(pipes.spawn().unwrap());
    let child = &mut running.0;
    // What stays open keeps it waiting.
    let to = child.stdin.as_mut().unwrap();
    to.write_all(input.as_bytes()).unwrap();
    to.flush().unwrap();
    let mut line = String::new();
    let from = child.stdout.as_mut().unwrap();
    BufReader::new(from).read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "{command:?} has written nothing");
    running
}

fn start(command: &mut Command) -> Running {
    start_with(command, "")
}

/// Compiles a program; none if there is no C compiler.
fn compiled(home: &Home, source: &[u8], flags: &[&str]) -> Option<PathBuf> {
    let source = home.file("program.c", 0o644, source);
    let program = home.path().join("program");
    let mut cc = Command::new("cc");
    let cc = cc.args(["-O1", "-fno-builtin", "-w", "-pthread", "-o"]).arg(&program).arg(source);
    if cc.args(flags).status().is_ok_and(|status| status.success()) {
        return Some(program);
    }
    skipped("no C compiler that can");
    None
}

fn known(home: &Home, build: &[&str]) -> Option<Running> {
    let program = compiled(home, KNOWN, &[])?;
    Some(start(home.cairn().arg("run").args(build).arg(program)))
}

fn account(home: &Home, target: &str) -> Value {
    let output = home.cairn().args(["inspect", "--json", target]).output().unwrap();
    let command = std::fs::read(format!("/proc/{target}/cmdline")).unwrap_or_default();
    println!("{target}: {}", String::from_utf8_lossy(&command));
    assert_succeeded(&output);
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// The row of the size class of so many bytes.
fn class(account: &Value, size: u64) -> &Value {
    let rows = account["classes"].as_array().unwrap();
    rows.iter().find(|row| row["size"] == size).unwrap_or_else(|| panic!("no {size}: {account}"))
}

fn steps(account: &Value) -> i64 {
    let steps = account["steps"].as_array().unwrap();
    steps.iter().map(|step| step["bytes"].as_i64().unwrap()).sum()
}

#[track_caller]
fn assert_near(one: u64, other: u64, percent: u64) {
    assert!(one.abs_diff(other) * 100 <= other * percent, "{one} is not {other}");
}

/// What is known of the heap of `KNOWN`.
#[track_caller]
fn assert_known(account: &Value, size: u64) {
    let row = class(account, size);
    assert_near(number(&row["in_use"]), 5000, 1);
    assert!(number(&row["floor"]) <= number(&row["resident"]), "{row}");
    // Survivors are more than a page apart.
    assert!(number(&row["floor"]) > 4000 * 4096, "{row}");
    let biggest = account["biggest"].as_array().unwrap();
    let rooms: Vec<_> = biggest.iter().map(|block| number(&block["bytes"]) >> 20).collect();
    assert!(rooms.len() >= 2 && rooms[0] == 64 && rooms[1] == 10, "{rooms:?}");
    assert_near(number(&biggest[0]["resident"]), 32 << 20, 10);
    assert_near(number(&biggest[1]["resident"]), 10 << 20, 1);
    let advice = account["advice"].to_string();
    assert!(advice.contains("survivors scattered"), "{advice}");
    assert_eq!(steps(account), number(&account["resident"]["sum"]) as i64);
    let above = ["free_in_spans", "dirty", "metadata"].map(|name| number(&account["floor"][name]));
    let floor = number(&account["floor"]["bytes"]) + above.iter().sum::<u64>();
    assert_eq!(floor, number(&account["resident"]["through_cairn"]));
}

#[test]
fn a_heap_is_known_from_outside() {
    let home = Home::new();
    let Some(process) = known(&home, &[]) else { return };
    let account = account(&home, &process.0.id().to_string());
    assert_known(&account, 112);
    let resident = &account["resident"];
    assert_near(number(&resident["sum"]), number(&resident["kernel"]), 2);
    assert_eq!(account["target"]["threads"][0], 9);
    assert_eq!(account["target"]["hardened"], false);
    // Those that sleep have blocks ready, or in spans of their own.
    let row = class(&account, 1024);
    assert!(
        number(&row["in_use"]) < 16 && number(&row["free"]) + number(&row["cached"]) > 64,
        "{row}"
    );
    assert!(account["heaps"].as_array().unwrap().len() >= 8, "{account}");
}

#[test]
fn the_hardened_build_is_accounted() {
    let home = Home::new();
    let Some(process) = known(&home, &["--hardened"]) else { return };
    let account = account(&home, &process.0.id().to_string());
    assert_known(&account, 112);
    assert_eq!(account["target"]["hardened"], true);
    assert!(account["notes"].to_string().contains("hardened"), "{account}");
    assert_near(number(&account["resident"]["sum"]), number(&account["resident"]["kernel"]), 2);
}

#[test]
fn the_account_is_told_in_words() {
    let home = Home::new();
    let Some(process) = known(&home, &[]) else { return };
    let output = home.cairn().args(["inspect", &process.0.id().to_string()]).output().unwrap();
    assert_succeeded(&output);
    let said = text(&output.stdout);
    for part in [
        "blocks that the program holds",
        "resident in all",
        "The floor",
        "Size classes",
        "Heaps",
        "The biggest blocks",
        "Survivors are scattered: 5000 blocks of 112 bytes",
    ] {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
}

#[test]
fn a_core_file_says_the_same() {
    let home = Home::new();
    let Some(process) = known(&home, &[]) else { return };
    let alive = account(&home, &process.0.id().to_string());
    let core = home.path().join("core");
    core_file::write(process.0.id(), &core);
    drop(process);
    let dead = account(&home, display(&core));
    assert_known(&dead, 112);
    for name in ["held", "classes", "heaps"] {
        assert_eq!(alive[name], dead[name], "{name}");
    }
    let through = |account: &Value| number(&account["resident"]["through_cairn"]);
    assert_near(through(&dead), through(&alive), 1);
    assert!(dead["resident"]["kernel"].is_null());
    // Cut off, it has less, or nothing, and that is said.
    let length = core.metadata().unwrap().len();
    for part in [length / 2, length / 100, 4096, 100] {
        std::fs::File::options().write(true).open(&core).unwrap().set_len(part).unwrap();
        let output = home.cairn().args(["inspect", display(&core)]).output().unwrap();
        assert!(output.status.success() || output.status.code() == Some(125), "{part}");
    }
}

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

#[test]
fn what_cannot_be_is_said() {
    let home = Home::new();
    let inspect = |target: &str| home.cairn().args(["inspect", target]).output().unwrap();
    let other = Running(Command::new("sleep").arg("1000").spawn().unwrap());
    std::thread::sleep(Duration::from_millis(100));
    let pid = other.0.id().to_string();
    assert_refused(&inspect(&pid), 125, &["no cairn in it"]);
    drop(other);
    assert_refused(&inspect(&pid), 125, &["no process", &pid]);
    assert_refused(&inspect("./absent"), 125, &["./absent: ", "No such file"]);
    let file = home.file("text", 0o644, b"hello\n");
    assert_refused(&inspect(display(&file)), 125, &["no core file"]);
    assert_refused(&inspect("/bin/sh"), 125, &["no core file"]);
    let help = home.cairn().args(["inspect", "--help"]).output().unwrap();
    assert!(text(&help.stdout).contains("Examples:"));
}

#[test]
fn another_version_is_refused() {
    let home = Home::new();
    let source = b"#include <stdio.h>\n#include <unistd.h>\n\
        const char cairn_header[256] __attribute__((visibility(\"default\"))) = \"CAIRNHDR\\11\\0\\0\\0\\377\";\n\
        int main(void) { puts(\"ready\"); fflush(stdout); pause(); }\n";
    let Some(program) = compiled(&home, source, &["-rdynamic"]) else { return };
    let process = start(&mut Command::new(&program));
    let output = home.cairn().args(["inspect", &process.0.id().to_string()]).output().unwrap();
    assert_refused(
        &output,
        125,
        &["version 9", "reads version 7", "use the command of that cairn"],
    );
}

/// What is linked with the archive has the symbol in its own table; without one that is said.
#[test]
fn a_static_program_is_read() {
    let home = Home::new();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/lib/libcairn.a");
    if !archive.is_file() {
        return skipped("no libcairn.a; `cargo xtask library` builds it");
    }
    let Some(program) = compiled(&home, KNOWN, &["-static", display(&archive)]) else { return };
    let look = |program: &Path| {
        let process = start(&mut Command::new(program));
        home.cairn().args(["inspect", "--json", &process.0.id().to_string()]).output().unwrap()
    };
    let output = look(&program);
    assert_succeeded(&output);
    assert_known(&serde_json::from_slice(&output.stdout).unwrap(), 112);
    if Command::new("strip").arg(&program).status().is_ok_and(|status| status.success()) {
        assert_refused(&look(&program), 125, &["without symbols", "/program"]);
    }
}

#[test]
fn it_takes_the_rights_of_a_debugger() {
    if !is_root() {
        return skipped("only root can become another user");
    }
    let home = Home::new();
    let Some(process) = known(&home, &[]) else { return };
    std::fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let cairn = home.file("cairn", 0o755, &std::fs::read(env!("CARGO_BIN_EXE_cairn")).unwrap());
    let mut command = Command::new(cairn);
    command.args(["inspect", &process.0.id().to_string()]).uid(NOBODY).gid(NOBODY);
    assert_refused(&command.output().unwrap(), 125, &["not permitted", "CAP_SYS_PTRACE"]);
}

/// 1,000 threads and 2 GiB: in less than two seconds, by a command that is not optimized.
#[test]
#[ignore = "it takes 2 GiB; `--ignored` runs it"]
fn a_large_process_takes_little_time() {
    let home = Home::new();
    let Some(program) = compiled(&home, LARGE, &[]) else { return };
    let process = start(home.cairn().arg("run").arg(program));
    let begin = Instant::now();
    account(&home, &process.0.id().to_string());
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
}

const LARGE: &[u8] = b"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { THREADS = 1000, BLOCKS = 8 << 20 };
static void *blocks[BLOCKS];
static void *sleeper(void *arg)
{
    void *some[100];
    for (int i = 0; i < 100; i++) some[i] = malloc(10 * i);
    for (int i = 0; i < 100; i++) free(some[i]);
    pthread_barrier_wait(arg);
    pause();
    return 0;
}
int main(void)
{
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, 0, THREADS + 1);
    for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(256), 1, 256);
    for (int i = 0; i < BLOCKS; i++) if (i % 3 == 0) free(blocks[i]);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    pthread_t thread;
    for (int i = 0; i < THREADS; i++) pthread_create(&thread, &small, sleeper, &barrier);
    pthread_barrier_wait(&barrier);
    puts(\"ready\");
    fflush(stdout);
    pause();
}
";
