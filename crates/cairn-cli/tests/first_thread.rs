//! A program whose first thread has ended, and that runs on: what reads it from outside finds its memory by another thread.

mod common;

use common::inspected::{Running, account, assert_near, compiled, number, start, steps};
use common::{Home, assert_succeeded, display, text};
use serde_json::Value;
use std::process::Output;

/// It is ready once the kernel shows no memory of the first thread, by which the process has its number.
const SOURCE: &[u8] = b"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { BLOCKS = 20000 };
void *kept[BLOCKS];
__attribute__((noinline)) void *keeps(void) { void *p = malloc(1000); __asm__(\"\" ::: \"memory\"); return p; }
static int first_has_ended(void)
{
    FILE *pages = fopen(\"/proc/self/statm\", \"r\");
    int digit = fgetc(pages);
    fclose(pages);
    return digit == '0';
}
static void *runs(void *unused)
{
    for (int i = 0; i < BLOCKS; i++) memset(kept[i] = keeps(), 1, 1000);
    while (!first_has_ended()) usleep(1000);
    puts(\"ready\");
    fflush(stdout);
    for (int i = 0;; i = (i + 1) % BLOCKS) {
        free(kept[i]);
        kept[i] = keeps();
        if (i % 100 == 0) usleep(1000);
    }
}
int main(void)
{
    pthread_t thread;
    pthread_create(&thread, 0, runs, 0);
    pthread_exit(0);
}
";

const LIVE: u64 = 20_000 << 10;

fn running(home: &Home, options: &[&str]) -> Option<Running> {
    let program = compiled(home, SOURCE, &["-g", "-fno-omit-frame-pointer"])?;
    Some(start(home.cairn().arg("run").args(options).arg("--").arg(program)))
}

fn cairn(home: &Home, arguments: &[&str]) -> Output {
    let output = home.cairn().args(arguments).output().unwrap();
    assert_succeeded(&output);
    output
}

#[test]
fn its_memory_is_seen() {
    let home = Home::new();
    let Some(process) = running(&home, &[]) else { return };
    let pid = process.0.id().to_string();
    let account = account(&home, &pid);
    assert_near(number(&account["held"]["bytes"]), LIVE, 5);
    assert_eq!(steps(&account), number(&account["resident"]["sum"]) as i64);
    assert!(number(&account["resident"]["kernel"]) > LIVE, "{}", account["resident"]);
    assert_eq!(account["target"]["program"], "program");
    assert_eq!(account["target"]["threads"][0], 2);
    let leaks = cairn(&home, &["leaks", "--json", &pid]);
    let leaks: Value = serde_json::from_slice(&leaks.stdout).unwrap();
    assert_near(number(&leaks["reachable"]["bytes"]), LIVE, 5);
    // One that is named, and one of all.
    for pids in [&[&*pid][..], &[]] {
        let seen = cairn(&home, &[&["top", "--once", "--json"][..], pids].concat());
        let seen: Value = serde_json::from_slice(&seen.stdout).unwrap();
        let mut all = seen["processes"].as_array().unwrap().iter();
        let known = all.find(|known| known["pid"] == process.0.id());
        let known = known.unwrap_or_else(|| panic!("no {pid}: {seen}"));
        assert_near(number(&known["heap"]["live"]), LIVE, 5);
        assert!(number(&known["rss"]) > LIVE, "{known}");
    }
}

#[test]
fn it_is_told_what_to_do() {
    let home = Home::new();
    let Some(process) = running(&home, &[]) else { return };
    let pid = process.0.id().to_string();
    for (wanted, said) in [("1KiB", "guards are on: "), ("off", "guards are off")] {
        let output = cairn(&home, &["guards", &pid, wanted]);
        assert!(text(&output.stdout).starts_with(said), "{}", text(&output.stdout));
    }
}

#[test]
fn it_is_sampled_for_a_while() {
    let home = Home::new();
    let Some(process) = running(&home, &[]) else { return };
    let pid = process.0.id().to_string();
    let options = ["profile", &pid, "--seconds", "1", "--rate", "64KiB"];
    let table = || text(&cairn(&home, &options).stdout);
    // On a busy machine the program may hardly run in one second.
    let found = (0..20).map(|_| table()).find(|table| !table.contains(", 0 sites"));
    assert!(found.as_ref().is_some_and(|table| table.contains("sampled for 1 s")), "{found:?}");
}

/// Sampled from its start on: the first thread has ended in between.
#[test]
#[cfg(target_arch = "x86_64")]
fn its_functions_have_names() {
    let home = Home::new();
    let file = home.path().join("heap");
    let options = ["--profile", display(&file), "--profile-rate", "64KiB"];
    let Some(process) = running(&home, &options) else { return };
    let output = cairn(&home, &["profile", &process.0.id().to_string()]);
    assert!(text(&output.stdout).contains("keeps (program.c:"), "{}", text(&output.stdout));
}
