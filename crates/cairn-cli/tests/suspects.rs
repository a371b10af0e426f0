//! `cairn inspect --seconds`: a program that leaks is suspected, and none that is steady.

mod common;

use common::inspected::{Running, compiled, start};
use common::{Home, assert_refused, assert_succeeded, core_file, display, text};
use serde_json::Value;
use std::process::{Child, Command, Stdio};

/// 4 MiB a second that are kept, freed after 2 seconds, kept for a second and no longer, or none.
const PROGRAMS: &[u8] = b"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { MOST = 8192 };
static char *kept[MOST];
int main(int argc, char **argv)
{
    int nth = 0;
    puts(\"ready\");
    fflush(stdout);
    for (int turn = 0;; turn++) {
        for (int i = 0; i < 41; i++) {
            if (*argv[1] == 'l') memset(malloc(1000), 1, 1000);
            if (*argv[1] == 's') kept[nth++] = malloc(1000);
            if (*argv[1] == 'c' && nth < 4096) kept[nth++] = malloc(1000);
        }
        if (nth > MOST - 50) while (nth) free(kept[--nth]);
        usleep(10000);
    }
}
";

/// Begins to look at a program for so long.
fn watching(home: &Home, process: &Running) -> Child {
    let mut command = home.cairn();
    command.args(["inspect", "--json", "--seconds", "12", &process.0.id().to_string()]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_leak_is_suspected_and_nothing_else() {
    let home = Home::new();
    let Some(program) = compiled(&home, PROGRAMS, &[]) else { return };
    let kinds = ["leak", "sawtooth", "cache", "idle"];
    let run = |kind: &&str| start(home.cairn().arg("run").arg(&program).arg(kind));
    let all: Vec<_> = kinds.iter().map(run).collect();
    let looks: Vec<_> = all.iter().map(|process| watching(&home, process)).collect();
    for (kind, look) in kinds.iter().zip(looks) {
        let output = look.wait_with_output().unwrap();
        assert_succeeded(&output);
        let account: Value = serde_json::from_slice(&output.stdout).unwrap();
        let advice = account["advice"].as_array().unwrap();
        let suspected: Vec<_> =
            advice.iter().filter(|advice| advice["kind"] == "leak suspected").collect();
        println!("{kind}: {advice:?}");
        assert_eq!(suspected.len(), usize::from(*kind == "leak"), "{kind}: {suspected:?}");
        if let Some(leak) = suspected.first() {
            assert!(leak["text"].as_str().unwrap().contains("blocks of 1024 bytes grew by"));
            assert!(leak["bytes"].as_u64().unwrap() > 8 << 20, "{leak}");
        }
        let curve = account["curve"].as_array().unwrap();
        // One in each eighth of the time, however slow a look is.
        assert!(curve.len() >= 8, "{}", curve.len());
        assert!(curve.last().unwrap()["seconds"].as_f64().unwrap() >= 12.0);
    }
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
