//! A library and a program whose names are no UTF-8: what reads a process from outside, or its files, finds them.

mod common;

use common::inspected::{Running, account, assert_near, compiled, number, start};
use common::{Home, assert_succeeded, core_file, display, text};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Command, Output};

/// It allocates a lot, is ready, and goes on with a little.
const SOURCE: &[u8] = b"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { BLOCKS = 20000 };
void *kept[BLOCKS];
__attribute__((noinline)) void *keeps(void) { void *p = malloc(1000); __asm__(\"\" ::: \"memory\"); return p; }
int main(int argc, char **argv)
{
    for (int i = 0; i < BLOCKS; i++) memset(kept[i] = keeps(), 1, 1000);
    puts(\"ready\");
    fflush(stdout);
    for (int i = 0; argc == 1; i = (i + 1) % BLOCKS) {
        free(kept[i]);
        kept[i] = keeps();
        if (i % 100 == 0) usleep(1000);
    }
}
";

const LIVE: u64 = 20_000 << 10;

/// The folder of both, and the program in it.
fn program(home: &Home) -> Option<(PathBuf, PathBuf)> {
    let program = compiled(home, SOURCE, &["-g", "-fno-omit-frame-pointer"])?;
    let folder = home.path().join(OsStr::from_bytes(b"caf\xe9"));
    fs::create_dir(&folder).unwrap();
    let there = folder.join("program");
    fs::rename(program, &there).unwrap();
    Some((folder, there))
}

fn running(home: &Home) -> Option<Running> {
    let (folder, program) = program(home)?;
    let library = folder.join("libcairn.so");
    fs::copy(home.library(), &library).unwrap();
    Some(start(Command::new(program).env("LD_PRELOAD", library)))
}

fn cairn(home: &Home, arguments: &[&str]) -> Output {
    let output = home.cairn().current_dir(home.path()).args(arguments).output().unwrap();
    assert_succeeded(&output);
    output
}

#[test]
fn a_library_is_found() {
    let home = Home::new();
    let Some(process) = running(&home) else { return };
    let pid = process.0.id().to_string();
    // As text they are what they can be.
    let is_it = |library: &Value| library.as_str().unwrap().ends_with("/caf\u{fffd}/libcairn.so");
    let known = account(&home, &pid);
    assert!(is_it(&known["target"]["library"]), "{}", known["target"]);
    assert_near(number(&known["held"]["bytes"]), LIVE, 5);
    assert!(known["steps"].to_string().contains("file that cairn is in"), "{known}");
    for pids in [&[&*pid][..], &[]] {
        let seen = cairn(&home, &[&["top", "--once", "--json"][..], pids].concat());
        let seen: Value = serde_json::from_slice(&seen.stdout).unwrap();
        let mut all = seen["processes"].as_array().unwrap().iter();
        let known = all.find(|known| known["pid"] == process.0.id());
        assert!(known.is_some_and(|known| is_it(&known["library"])), "{seen}");
    }
    let leaks: Value =
        serde_json::from_slice(&cairn(&home, &["leaks", "--json", &pid]).stdout).unwrap();
    assert_near(number(&leaks["reachable"]["bytes"]), LIVE, 5);
    cairn(&home, &["diff", &pid, &pid]);
    core_file::write(process.0.id(), &home.path().join("core"));
    let known = account(&home, display(&home.path().join("core")));
    assert!(is_it(&known["target"]["library"]), "{}", known["target"]);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_process_is_profiled() {
    let home = Home::new();
    let Some(process) = running(&home) else { return };
    let pid = process.0.id().to_string();
    let options = ["profile", &pid, "--seconds", "1", "--rate", "64KiB"];
    let table = || text(&cairn(&home, &options).stdout);
    // On a busy machine the program may hardly run in one second.
    let is_found = |table: &String| table.contains("keeps (program.c:");
    let tables: Vec<_> = (0..20).map(|_| table()).take_while(|table| !is_found(table)).collect();
    assert!(tables.len() < 20, "{tables:?}");
    // What is saved names files as they are.
    let save = ["profile", &pid, "--seconds", "1", "--rate", "64KiB", "--save", "saved"];
    let saved = || {
        cairn(&home, &save);
        text(&cairn(&home, &["profile", "saved"]).stdout)
    };
    let tables: Vec<_> = (0..20).map(|_| saved()).take_while(|table| !is_found(table)).collect();
    assert!(tables.len() < 20, "{tables:?}");
}

/// The library writes names as they are.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_profile_in_a_file_has_names() {
    let home = Home::new();
    let Some((_, program)) = program(&home) else { return };
    let options = ["--profile", "heap", "--profile-rate", "64KiB", "--"].map(OsStr::new);
    let program = [program.as_os_str(), OsStr::new("once")];
    assert_succeeded(&home.run(&[&options[..], &program].concat()));
    let table = text(&cairn(&home, &["profile", "heap"]).stdout);
    assert!(table.contains("keeps (program.c:"), "{table}");
}
