//! `cairn profile` for programs whose calls go through libraries: the program's own functions are told, and what they call.

mod common;

use common::{Home, assert_succeeded, display, skipped, text};
use std::process::Command;

const CPP: &[u8] = b"
#include <map>
#include <string>
__attribute__((noinline)) void fills(std::map<int, std::string> &names)
{
    for (int i = 0; i < 20000; i++) names.emplace(i, std::string(500, 'x'));
}
int main() { std::map<int, std::string> names; fills(names); }
";

const RUST: &[u8] = b"
#[inline(never)]
fn fills(names: &mut std::collections::BTreeMap<u32, String>) {
    for i in 0..20000 { names.insert(i, String::from(\"x\").repeat(500)); }
}
fn main() { fills(&mut std::collections::BTreeMap::new()); }
";

/// Compiles a program, has it profiled, and gives its table of what was allocated; None if there is no such compiler.
fn table_of(compiler: &str, options: &[&str], name: &str, source: &[u8]) -> Option<String> {
    let home = Home::new();
    let file = home.file(name, 0o644, source);
    let mut command = Command::new(compiler);
    command.args(options).arg(file).args(["-o", "program"]).current_dir(home.path());
    if !command.output().is_ok_and(|output| output.status.success()) {
        skipped(&format!("no {compiler}"));
        return None;
    }
    let program = home.path().join("program");
    let options = ["--profile", "heap", "--profile-rate", "64KiB", "--"];
    assert_succeeded(&home.run(&[&options[..], &[display(&program)]].concat()));
    let mut profile = home.cairn();
    profile.args(["profile", "heap", "--view", "allocated"]).current_dir(home.path());
    Some(text(&profile.output().unwrap().stdout))
}

/// The table's rows.
fn rows(table: &str) -> Vec<&str> {
    table.split_once("  by\n").unwrap().1.lines().collect()
}

/// The program's function stands right behind the first, and no call inside of the library is there.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_programs_functions_are_told() {
    let rustc = std::env::var("RUSTC").unwrap_or("rustc".to_owned());
    for (compiler, name, source) in [("c++", "main.cpp", CPP), (&rustc, "main.rs", RUST)] {
        let Some(table) = table_of(compiler, &["-g"], name, source) else { continue };
        let rows = rows(&table);
        let (first, second) = (rows[0], rows[1]);
        assert!(first.contains("std::") || first.contains("repeat"), "{table}");
        assert!(
            second.contains("< ") && second.contains("fills") && second.contains(name),
            "{table}"
        );
    }
}

const C: &[u8] = b"
#include <stdlib.h>
void *kept;
__attribute__((noinline)) void f(void) { kept = malloc(500); __asm__(\"\" ::: \"memory\"); }
int main(void) { for (int i = 0; i < 20000; i++) f(); return 0; }
";

/// `f` is `float` among the names that C++'s compilers make.
#[test]
#[cfg(target_arch = "x86_64")]
fn names_of_one_letter_stay() {
    let options = ["-O1", "-fno-omit-frame-pointer"];
    let Some(table) = table_of("cc", &options, "main.c", C) else { return };
    assert!(rows(&table)[0].ends_with("  f"), "{table}");
}
