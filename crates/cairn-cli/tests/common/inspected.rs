//! Programs that are started to be inspected, and what their accounts say.

use super::{Home, assert_succeeded, skipped};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A program that ends with this.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a command, writes to it, and waits for the first line that it writes.
pub(crate) fn start_with(command: &mut Command, input: &str) -> Running {
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

pub(crate) fn start(command: &mut Command) -> Running {
    start_with(command, "")
}

/// Compiles a program; none if there is no C compiler.
pub(crate) fn compiled(home: &Home, source: &[u8], flags: &[&str]) -> Option<PathBuf> {
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

pub(crate) fn account(home: &Home, target: &str) -> Value {
    let output = home.cairn().args(["inspect", "--json", target]).output().unwrap();
    let command = std::fs::read(format!("/proc/{target}/cmdline")).unwrap_or_default();
    println!("{target}: {}", String::from_utf8_lossy(&command));
    assert_succeeded(&output);
    serde_json::from_slice(&output.stdout).unwrap()
}

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

pub(crate) fn steps(account: &Value) -> i64 {
    let steps = account["steps"].as_array().unwrap();
    steps.iter().map(|step| step["bytes"].as_i64().unwrap()).sum()
}

#[track_caller]
pub(crate) fn assert_near(one: u64, other: u64, percent: u64) {
    assert!(one.abs_diff(other) * 100 <= other * percent, "{one} is not {other}");
}
