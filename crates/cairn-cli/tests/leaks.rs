//! `cairn leaks`: a program that has lost known blocks, alive and as a core file, in both builds.

mod common;

use common::core_file;
use common::inspected::{Running, compiled, number, start};
use common::{Home, assert_refused, display, skipped, text};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// It loses a list by its head, blocks alone, and a ring on which a block hangs; it keeps some by pointers in its data, into
/// their middle, and on stacks of threads. What is not in use of stacks is overwritten.
const LOSES: &str = "
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct node { struct node *volatile next, *volatile prev; char text[84]; };
void *global;
char *inside;
__attribute__((noinline)) static void clear(void)
{
    volatile char stack[65536];
    for (int i = 0; i < 65536; i++) stack[i] = 0;
}
__attribute__((noinline)) void lose_list(int count)
{
    struct node *list = 0;
    for (int i = 0; i < count; i++) {
        struct node *node = calloc(1, sizeof *node);
        node->next = list;
        list = node;
    }
}
__attribute__((noinline)) void lose_some(int count)
{
    for (int i = 0; i < count; i++) {
        char *volatile block = calloc(1, 200);
        memcpy(block, \"alone\", 6);
    }
}
__attribute__((noinline)) void lose_ring(void)
{
    struct node *first = calloc(1, 300), *last = first;
    for (int i = 0; i < 9; i++) {
        struct node *node = calloc(1, 300);
        node->next = last;
        last = node;
    }
    first->next = last;
    first->prev = calloc(1, 400);
}
__attribute__((noinline)) void lose_large(void)
{
    for (int i = 0; i < 3; i++) {
        char *volatile block = malloc(1 << 20);
        block[0] = i;
    }
}
static void *work(void *barrier)
{
    void *volatile mine[20];
    for (int i = 0; i < 20; i++) mine[i] = calloc(1, 600);
    clear();
    pthread_barrier_wait(barrier);
    pause();
    return mine[3];
}
/* The kernel alone has the pointer, and the register by which it came there. */
static void *receive(void *from)
{
    return (void *)read(*(int *)from, calloc(1, 900), 900);
}
int main(void)
{
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, 0, 4);
    static int pipes[2];
    pipe(pipes);
    global = calloc(1, 5000);
    *(void **)global = calloc(1, 3000);
    inside = (char *)calloc(1, 7000) + 100;
    *(void **)(inside - 20) = calloc(1, 2500);
    if (LOSE) {
        lose_list(1000);
        lose_some(500);
        lose_ring();
        lose_large();
    }
    clear();
    pthread_t thread;
    for (int i = 0; i < 3; i++) pthread_create(&thread, 0, work, &barrier);
    pthread_create(&thread, 0, receive, pipes);
    pthread_barrier_wait(&barrier);
    clear();
    usleep(200000);
    puts(\"ready\");
    fflush(stdout);
    for (;;) pause();
}
";

/// It has large blocks of a heap of its own by nothing but the heap: runs, and a mapping.
const HAS_A_HEAP: &[u8] = b"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
void *cairn_heap_new(void) __attribute__((weak));
void *cairn_heap_malloc(void *, size_t) __attribute__((weak));
static void *heap;
__attribute__((noinline)) static void clear(void)
{
    volatile char stack[65536];
    for (int i = 0; i < 65536; i++) stack[i] = 0;
}
__attribute__((noinline)) static void fill(void)
{
    for (int i = 0; i < 20; i++) memset(cairn_heap_malloc(heap, 100000), 1, 100000);
    memset(cairn_heap_malloc(heap, 40 << 20), 1, 4096);
}
int main(void)
{
    heap = cairn_heap_new();
    fill();
    clear();
    puts(\"ready\");
    fflush(stdout);
    for (;;) pause();
}
";

/// The program, at rest.
fn program(home: &Home, lose: bool, options: &[&str]) -> Option<Running> {
    let lose = if lose { "-DLOSE=1" } else { "-DLOSE=0" };
    let program = compiled(home, LOSES.as_bytes(), &[lose, "-g", "-fno-omit-frame-pointer"])?;
    Some(start(home.cairn().arg("run").args(options).arg(program)))
}

/// The report, and the exit status.
#[track_caller]
fn report(home: &Home, arguments: &[&str]) -> (Value, Option<i32>) {
    let output = home.cairn().args(["leaks", "--json"]).args(arguments).output().unwrap();
    let report = serde_json::from_slice(&output.stdout);
    (report.unwrap_or_else(|_| panic!("{}", text(&output.stderr))), output.status.code())
}

/// (directly, indirectly) lost blocks of the class that has so many bytes at least.
fn lost(report: &Value, bytes: u64) -> (u64, u64) {
    let rows = report["classes"].as_array().unwrap().iter();
    let row = rows
        .filter(|row| row["size"].as_u64().is_some_and(|size| size >= bytes))
        .min_by_key(|row| row["size"].as_u64());
    row.map_or((0, 0), |row| (number(&row["direct"]["blocks"]), number(&row["indirect"]["blocks"])))
}

#[track_caller]
fn assert_known(report: &Value) {
    // Of each kind one may still be in a register that has been saved.
    let near = |(direct, indirect): (u64, u64), blocks: (u64, u64)| {
        assert_eq!((direct.max(1), indirect), blocks, "{report:#}");
    };
    near(lost(report, 100), (1, 999));
    near(lost(report, 300), (1, 9));
    assert_eq!(lost(report, 400), (0, 1), "{report:#}");
    let (alone, others) = lost(report, 200);
    assert!((499..=500).contains(&alone) && others == 0, "{report:#}");
    let rows = report["classes"].as_array().unwrap();
    let large = rows.iter().find(|row| row["size"].is_null()).unwrap();
    assert_eq!(number(&large["direct"]["blocks"]), 3, "the last one, too: {report:#}");
    let biggest = report["biggest"].as_array().unwrap();
    assert!(biggest.iter().any(|block| number(&block["bytes"]) >= 1 << 20), "{report:#}");
    let head = biggest.iter().find(|block| number(&block["leads_to"]["blocks"]) == 999);
    assert!(head.is_some(), "{report:#}");
    assert!(report.to_string().contains("616c6f6e6500"), "{report:#}");
    assert!(number(&report["possibly"]["blocks"]) >= 2, "{report:#}");
    let rows = report["classes"].as_array().unwrap().iter();
    let sizes: Vec<_> = rows.filter_map(|row| row["size"].as_u64()).collect();
    assert!(!sizes.iter().any(|size| (900..1100).contains(size)), "in a register: {report:#}");
}

/// Nothing that has a pointer is lost.
#[track_caller]
fn assert_none(report: &Value) {
    let sums = ["direct", "indirect"].map(|sum| number(&report[sum]["blocks"]));
    assert_eq!(sums, [0, 0], "{report:#}");
    assert!(number(&report["reachable"]["blocks"]) >= 62, "{report:#}");
}

#[test]
fn lost_blocks_are_found() {
    let home = Home::new();
    for build in [&[][..], &["--hardened"]] {
        let Some(process) = program(&home, true, build) else { return };
        let pid = process.0.id().to_string();
        for options in [&[][..], &["--again", "1"]] {
            let (report, status) = report(&home, &[options, &[&*pid]].concat());
            assert_known(&report);
            assert_eq!(status, Some(1));
            assert_eq!(report["target"]["hardened"], !build.is_empty());
        }
    }
}

#[test]
fn what_has_a_pointer_is_not_lost() {
    let home = Home::new();
    for build in [&[][..], &["--hardened"]] {
        let Some(process) = program(&home, false, build) else { return };
        let (report, status) = report(&home, &[&process.0.id().to_string()]);
        assert_none(&report);
        assert_eq!(status, Some(0));
    }
}

/// They end with their heap, which has them as it has small ones.
#[test]
fn large_blocks_of_the_programs_heaps_are_not_lost() {
    let home = Home::new();
    for build in [&[][..], &["--hardened"]] {
        let Some(program) = compiled(&home, HAS_A_HEAP, &[]) else { return };
        let process = start(home.cairn().arg("run").args(build).arg(program));
        let (report, status) = report(&home, &[&process.0.id().to_string()]);
        assert_eq!(number(&report["direct"]["blocks"]), 0, "{report:#}");
        assert!(number(&report["reachable"]["bytes"]) >= 42_000_000, "{report:#}");
        assert_eq!(status, Some(0));
    }
}

#[test]
fn a_core_file_says_the_same() {
    let home = Home::new();
    for build in [&[][..], &["--hardened"]] {
        for lose in [true, false] {
            let Some(process) = program(&home, lose, build) else { return };
            let core = home.path().join("core");
            core_file::write(process.0.id(), &core);
            drop(process);
            let (report, status) = report(&home, &[display(&core)]);
            assert_eq!(status, Some(i32::from(lose)));
            if lose { assert_known(&report) } else { assert_none(&report) }
        }
    }
}

#[test]
fn it_is_told_in_words() {
    let home = Home::new();
    let Some(process) = program(&home, true, &[]) else { return };
    let output = home.cairn().args(["leaks", &process.0.id().to_string()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    for part in [
        "999 more blocks",
        "lost directly: no pointer leads there",
        "lost indirectly",
        "possibly lost",
        "reachable",
        "Lost blocks, by size",
        "this is a guess",
    ] {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
}

#[test]
fn what_cannot_be_is_said() {
    let home = Home::new();
    let leaks = |arguments: &[&str]| home.cairn().arg("leaks").args(arguments).output().unwrap();
    let other = Running(Command::new("sleep").arg("1000").spawn().unwrap());
    let pid = other.0.id().to_string();
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_refused(&leaks(&[&pid]), 125, &["no cairn in it"]);
    drop(other);
    assert_refused(&leaks(&[&pid]), 125, &["no process", &pid]);
    assert_refused(&leaks(&["./absent"]), 125, &["./absent: "]);
    assert_refused(&leaks(&["/bin/sh"]), 125, &["no core file"]);
    for seconds in ["0", "x", "1000000"] {
        assert_eq!(leaks(&["--again", seconds, "1"]).status.code(), Some(125), "{seconds}");
    }
    let again = leaks(&["--again", "1", "./core"]);
    assert_refused(&again, 125, &["--again: a core file does not change"]);
    assert!(text(&leaks(&["--help"]).stdout).contains("Examples:"));
}

#[test]
fn the_guide_names_each_field() {
    let home = Home::new();
    let Some(process) = program(&home, true, &[]) else { return };
    let (report, _) = report(&home, &[&process.0.id().to_string()]);
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/leaks.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let fields = report.as_object().unwrap().keys();
    for field in fields.chain(report["biggest"][0].as_object().unwrap().keys()) {
        assert!(guide.contains(&format!("`{field}`")), "{field}");
    }
}

/// Where the library's header leads to a heap profile, lost blocks are told by stacks.
#[test]
fn stacks_of_lost_blocks_are_known() {
    let home = Home::new();
    let file = home.path().join("heap");
    let options = ["--profile", display(&file), "--profile-rate", "1KiB"];
    let Some(process) = program(&home, true, &options) else { return };
    let (report, _) = report(&home, &[&process.0.id().to_string()]);
    if report["notes"].to_string().contains("no heap profile") {
        return skipped("the library does not say where its heap profile is");
    }
    let stacks = report["stacks"].to_string();
    for function in ["lose_list", "lose_some", "lose_large"] {
        assert!(stacks.contains(function), "no {function} in {report:#}");
    }
    for kept in ["main", "work"] {
        let first = |row: &Value| row["stack"][0].as_str().unwrap().starts_with(kept);
        assert!(!report["stacks"].as_array().unwrap().iter().any(first), "{report:#}");
    }
    let biggest = report["biggest"].as_array().unwrap();
    let large = biggest.iter().find(|block| number(&block["bytes"]) >= 1 << 20).unwrap();
    assert!(large["stack"].to_string().contains("lose_large"), "{report:#}");
}
