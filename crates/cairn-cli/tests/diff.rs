//! `cairn diff`: what a program has allocated between two looks is what has grown, whatever the accounts come from.

mod common;

use common::core_file;
use common::inspected::{Running, assert_near, compiled, start};
use common::{Home, assert_refused, assert_succeeded, display, text};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};

/// 20,000 blocks of 500 bytes, and 30,000 more and one of 40 MiB when a line is read.
const GROWS: &[u8] = b"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void more(int blocks)
{
    for (int i = 0; i < blocks; i++) memset(malloc(500), 1, 500);
    puts(\"ready\");
    fflush(stdout);
}
int main(void)
{
    more(20000);
    getchar();
    memset(malloc(40 << 20), 1, 40 << 20);
    more(30000);
    getchar();
    getchar();
}
";

fn grow(process: &mut Running) {
    process.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let mut line = String::new();
    BufReader::new(process.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
}

fn diff(home: &Home, arguments: &[&str]) -> String {
    let output =
        home.cairn().arg("diff").args(arguments).current_dir(home.path()).output().unwrap();
    assert_succeeded(&output);
    text(&output.stdout)
}

fn save(home: &Home, target: &str, name: &str) {
    let output = home.cairn().args(["inspect", "--json", target]).output().unwrap();
    assert_succeeded(&output);
    std::fs::write(home.path().join(name), output.stdout).unwrap();
}

#[track_caller]
fn assert_grown(said: &str) {
    let found: Value = serde_json::from_str(said).unwrap();
    let class = &found["classes"][0];
    assert_eq!(class["size"], 512, "{found}");
    assert_near(class["blocks"]["grown"].as_u64().unwrap(), 30_000, 2);
    assert_near(class["held"]["grown"].as_u64().unwrap(), 30_000 << 9, 2);
    let row = |rows: &str, name: &str| {
        let rows = found[rows].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap()["grown"].as_u64().unwrap()
    };
    let all = (30_000 << 9) + (40 << 20);
    assert_near(row("steps", "blocks that the program holds"), all, 2);
    assert_near(row("totals", "resident through cairn"), all, 5);
    assert_near(row("totals", "large blocks and mappings"), 40 << 20, 2);
    let words = found["words"].to_string();
    assert!(words.contains("blocks of 512 bytes") && words.contains("large blocks (40"), "{words}");
}

#[test]
fn what_has_grown_is_said() {
    let home = Home::new();
    let Some(program) = compiled(&home, GROWS, &[]) else { return };
    for build in [&[][..], &["--hardened"]] {
        let mut process = start(home.cairn().arg("run").args(build).arg(&program));
        let pid = process.0.id().to_string();
        save(&home, &pid, "before");
        grow(&mut process);
        save(&home, &pid, "after");
        let core = home.path().join("core");
        core_file::write(process.0.id(), &core);
        assert_grown(&diff(&home, &["--json", "before", &pid]));
        assert_grown(&diff(&home, &["--json", "before", "after"]));
        assert_grown(&diff(&home, &["--json", "before", display(&core)]));
        let said = diff(&home, &["before", "after"]);
        for part in ["The program holds", "blocks that the program holds", "+", "Size classes"] {
            assert!(said.contains(part), "no {part:?} in: {said}");
        }
        let said = diff(&home, &["after", "after"]);
        assert!(said.contains("Nothing else grew"), "{said}");
        let said = diff(&home, &["after", "before"]);
        assert!(said.contains("Resident memory fell by"), "{said}");
    }
}

#[test]
fn the_guide_names_each_field() {
    let home = Home::new();
    let Some(program) = compiled(&home, GROWS, &[]) else { return };
    let process = start(home.cairn().arg("run").arg(&program));
    save(&home, &process.0.id().to_string(), "before");
    drop(process);
    let found: Value = serde_json::from_str(&diff(&home, &["--json", "before", "before"])).unwrap();
    let guide =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/inspect.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    for object in [&found, &found["steps"][0]] {
        for field in object.as_object().unwrap().keys() {
            assert!(guide.contains(&format!("`{field}`")), "{field}");
        }
    }
}

#[test]
fn what_is_no_account_is_refused() {
    let home = Home::new();
    let Some(program) = compiled(&home, GROWS, &[]) else { return };
    let process = start(home.cairn().arg("run").arg(&program));
    save(&home, &process.0.id().to_string(), "good");
    let good = std::fs::read_to_string(home.path().join("good")).unwrap();
    let diff = |one: &str| {
        let mut command = home.cairn();
        command.current_dir(home.path()).args(["diff", "good", one]).output().unwrap()
    };
    assert_refused(&diff("./absent"), 125, &["./absent", "No such file"]);
    assert_refused(&diff("0"), 125, &["no process 0"]);
    let newer = good.replacen("\"schema\": 1", "\"schema\": 2", 1);
    let long = "{".repeat(100_000);
    for (text, said) in [
        ("", "no core file"),
        ("hello", "no core file"),
        ("{}", "no account"),
        (&good[..good.len() / 2], "no account"),
        (&long, "no account"),
        (&newer, "its schema is 2, not 1"),
    ] {
        home.file("bad", 0o644, text.as_bytes());
        assert_refused(&diff("bad"), 125, &["bad", said]);
    }
    // Numbers that cannot be, and names with what a terminal would do.
    let numbers = good.replace("\"size\": 512", "\"size\": 18446744073709551615");
    let names = numbers.replace("metadata\",", "\\u001b[2J\",");
    home.file("odd", 0o644, names.as_bytes());
    let output = diff("odd");
    assert_succeeded(&output);
    assert!(!output.stdout.contains(&0x1b), "{}", text(&output.stdout));
}
