//! `cairn inspect --seconds`: a program that leaks is suspected, and none that is steady; with a heap profile its code is named,
//! and one look is enough.

mod common;

use common::browser::Browser;
use common::inspected::{Running, account, compiled, start};
use common::page::{NARROW, WIDE, heap_page};
use common::{Home, assert_refused, assert_succeeded, core_file, display, text};
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// 4 MiB a second that are kept, freed after 2 seconds, kept for a second and no longer, or none.
const PROGRAMS: &[u8] = b"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { MOST = 8192 };
static char *kept[MOST];
#define FAR __attribute__((noinline))
FAR char *lose(void) { char *p = malloc(1000); __asm__(\"\" ::: \"memory\"); return p; }
FAR char *keep(void) { char *p = malloc(1000); __asm__(\"\" ::: \"memory\"); return p; }
int main(int argc, char **argv)
{
    int nth = 0;
    puts(\"ready\");
    fflush(stdout);
    for (int turn = 0;; turn++) {
        for (int i = 0; i < 41; i++) {
            if (*argv[1] == 'l') memset(lose(), 1, 1000);
            if (*argv[1] == 's') kept[nth++] = keep();
            if (*argv[1] == 'c' && nth < 4096) kept[nth++] = keep();
        }
        if (nth > MOST - 50) while (nth) free(kept[--nth]);
        usleep(10000);
    }
}
";

const KINDS: [&str; 4] = ["leak", "sawtooth", "cache", "idle"];

/// Begins to look at a program for so long.
fn watching(home: &Home, process: &Running) -> Child {
    let mut command = home.cairn();
    command.args(["inspect", "--json", "--seconds", "12", &process.0.id().to_string()]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What has been seen, with looks enough: on a machine that is busy for a moment it is watched again.
fn seen(home: &Home, process: &Running, mut look: Child) -> Value {
    for _ in 0..5 {
        let output = look.wait_with_output().unwrap();
        assert_succeeded(&output);
        let account: Value = serde_json::from_slice(&output.stdout).unwrap();
        let notes = account["notes"].as_array().unwrap();
        if !notes.iter().any(|note| note.as_str().unwrap().contains("too few looks")) {
            return account;
        }
        look = watching(home, process);
    }
    panic!("the machine is too busy to look at a process");
}

#[test]
fn a_leak_is_suspected_and_nothing_else() {
    let home = Home::new();
    let Some(program) = compiled(&home, PROGRAMS, &[]) else { return };
    let run = |kind: &&str| start(home.cairn().arg("run").arg(&program).arg(kind));
    let all: Vec<_> = KINDS.iter().map(run).collect();
    let looks: Vec<_> = all.iter().map(|process| watching(&home, process)).collect();
    for ((kind, process), look) in KINDS.iter().zip(&all).zip(looks) {
        let account = seen(&home, process, look);
        let suspected = said(&account, "leak suspected");
        println!("{kind}: {}", account["advice"]);
        assert_eq!(suspected.len(), usize::from(*kind == "leak"), "{kind}: {suspected:?}");
        if let Some(leak) = suspected.first() {
            let text = leak["text"].as_str().unwrap();
            assert!(text.contains("blocks of 1024 bytes grew by"), "{text}");
            assert!(text.ends_with("cairn leaks what no pointer leads to."), "{text}");
            assert!(leak["bytes"].as_u64().unwrap() > 8 << 20, "{leak}");
            assert_eq!(leak["sites"], json!([]));
        }
        let curve = account["curve"].as_array().unwrap();
        // One in each eighth of the time, however slow a look is.
        assert!(curve.len() >= 8, "{}", curve.len());
        assert!(curve.last().unwrap()["seconds"].as_f64().unwrap() >= 12.0);
    }
}

/// With a heap profile; and what one look says then, of the ages of samples.
#[test]
#[cfg(target_arch = "x86_64")]
fn code_that_leaks_is_named() {
    let home = Home::new();
    let flags = ["-g", "-fno-omit-frame-pointer"];
    let Some(program) = compiled(&home, PROGRAMS, &flags) else { return };
    let run = |kind: &&str| {
        let file = home.path().join(format!("profile-{kind}"));
        let options = ["--profile", display(&file), "--profile-rate", "64KiB"];
        start(home.cairn().arg("run").args(options).arg(&program).arg(kind))
    };
    let all: Vec<_> = KINDS.iter().map(run).collect();
    let looks: Vec<_> = all.iter().map(|process| watching(&home, process)).collect();
    let looks = all.iter().zip(looks).map(|(process, look)| seen(&home, process, look));
    let looks: Vec<_> = looks.collect();
    for ((kind, process), watched) in KINDS.iter().zip(&all).zip(looks) {
        let once = account(&home, &process.0.id().to_string());
        println!("{kind}: {} {}", watched["advice"], once["advice"]);
        let expected = usize::from(*kind == "leak");
        let told = [said(&watched, "leak suspected"), said(&once, "leak possible")];
        assert_eq!(
            told.each_ref().map(Vec::len),
            [expected; 2],
            "{kind}: {told:?} {}",
            watched["curve"]
        );
        assert_eq!(said(&watched, "leak possible").len(), 0, "{kind}: it is known better");
        for leak in told.into_iter().flatten() {
            let sites = leak["sites"].as_array().unwrap();
            assert_eq!(sites.len(), 1, "{leak}");
            let line = sites[0]["line"].as_str().unwrap();
            assert!(line.starts_with("lose (program.c:") && line.contains(" < main ("), "{line}");
            assert!(sites[0]["stack"][0].as_str().unwrap().starts_with("lose"), "{leak}");
            assert!(sites[0]["bytes"].as_u64().unwrap() > 6 << 20, "{leak}");
        }
    }
    let pid = all[0].0.id().to_string();
    let output = home.cairn().args(["inspect", &pid]).output().unwrap();
    assert_succeeded(&output);
    let said = text(&output.stdout);
    assert!(
        said.contains("A leak is possible") && said.contains("MiB  by lose (program.c:"),
        "{said}"
    );
    let Some(mut browser) = Browser::start() else { return };
    let page = heap_page(&home, &pid);
    for (look, name) in [(WIDE, "suspects-light"), (NARROW, "suspects-narrow-dark")] {
        browser.open(&page.path, look);
        browser.wait("document.querySelector('#advice li').textContent.includes(' by lose (')");
        browser.picture(name);
        browser.assert_fits();
    }
    browser.assert_sound();
}

/// Advice of a kind.
fn said(account: &Value, kind: &str) -> Vec<Value> {
    let all = account["advice"].as_array().unwrap();
    all.iter().filter(|advice| advice["kind"] == kind).cloned().collect()
}

#[test]
fn a_while_is_told_in_words() {
    let home = Home::new();
    let Some(program) = compiled(&home, PROGRAMS, &[]) else { return };
    let process = start(home.cairn().arg("run").arg(program).arg("leak"));
    let pid = process.0.id().to_string();
    let look = |target: &str| -> Command {
        let mut command = home.cairn();
        command.args(["inspect", "--seconds", "1", target]);
        command
    };
    let output = look(&pid).output().unwrap();
    assert_succeeded(&output);
    let said = text(&output.stdout);
    assert!(said.contains("In 1 s, ") && said.contains("first        least"), "{said}");
    assert!(!said.contains("Leak suspected"), "a second says nothing: {said}");
    let core = home.path().join("core");
    core_file::write(process.0.id(), &core);
    assert_refused(&look(display(&core)).output().unwrap(), 125, &["a core file does not change"]);
    drop(process);
    assert_refused(&look(&pid).output().unwrap(), 125, &["no process"]);
}

/// A process that ends while it is watched was there.
#[test]
fn the_end_of_a_process_is_told() {
    let home = Home::new();
    let source = b"#include <stdio.h>\n#include <stdlib.h>\n\
        int main(void) { free(malloc(10)); puts(\"ready\"); fflush(stdout); getchar(); }\n";
    let Some(program) = compiled(&home, source, &[]) else { return };
    for arguments in [
        &["inspect", "--seconds", "60"][..],
        &["leaks", "--again", "3"],
        &["top", "-i", "0.1", "--plain"],
    ] {
        let process = start(home.cairn().arg("run").arg(&program));
        let pid = process.0.id().to_string();
        let mut command = home.cairn();
        command.args(arguments).arg(&pid).stdout(Stdio::piped()).stderr(Stdio::piped());
        let looks = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        drop(process);
        let output = looks.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        let why = format!("cairn: process {pid} has ended\n");
        assert_eq!(text(&output.stderr), why, "{arguments:?}");
    }
}
