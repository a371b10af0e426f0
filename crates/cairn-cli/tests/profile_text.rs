//! `cairn profile` for programs whose calls go through libraries: the program's own functions are told, and what they call.

mod common;

use common::{Home, assert_refused, assert_succeeded, display, skipped, text};
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

/// The table of a profile with one stack of these functions, the innermost first.
fn table_of_stack(functions: &[&str]) -> String {
    let calls = (1..=functions.len()).map(|at| format!(" {at}001")).collect::<String>();
    let name = |(at, name): (usize, &&str)| format!("{}000 100 {name}\n", at + 1);
    let names: String = functions.iter().enumerate().map(name).collect();
    let contents =
        format!("cairn heap profile 2\nsite 16 1 5 80 0 0{calls}\nmappings\nnames\n{names}end\n");
    let home = Home::new();
    home.file("heap", 0o644, contents.as_bytes());
    let output = home.cairn().args(["profile", "heap"]).current_dir(home.path()).output().unwrap();
    assert_succeeded(&output);
    text(&output.stdout)
}

/// The functions that it tells of that stack.
fn told(functions: &[&str]) -> Vec<String> {
    let table = table_of_stack(functions);
    let name = |row: &&str| {
        let (_, name) = row.split_once("< ").or_else(|| row.split_once("  5  ")).expect(row);
        name.to_owned()
    };
    rows(&table).iter().map(name).collect()
}

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

/// Nothing in a thread of C++'s has a name of the program's where a lambda is inlined: then all is told.
#[test]
fn where_a_thread_begins_is_no_function_of_the_programs() {
    let inner = "std::vector<int>::_M_realloc_insert";
    let run = "std::thread::_State_impl<main::{lambda()#1}>::_M_run()";
    for begins in [
        ["libstdc++.so.6.0.30+0xd44a3", "libc.so.6+0x891f5"],
        ["libstdc++.so.6.0.28+0xd6de4", "libpthread-2.31.so+0x8609"],
        ["libstdc++.so.6+0xd44a3", "libpthread.so.0+0x8609"],
        ["libstdc++.so.6+0xd44a3", "libc-2.31.so+0x11f353"],
        ["libstdc++.so.6.0.32+0xe0000", "ld-musl-x86_64.so.1+0x5c1f0"],
        ["execute_native_thread_routine", "start_thread"],
        ["void* std::__1::__thread_proxy<main::$_0>(void*)", "__clone"],
        ["libc++.so.1.0+0x4a3", "ld-linux-x86-64.so.2+0x1b"],
        ["__libc_start_call_main", "__libc_start_main"],
    ] {
        let stack = [inner, run, begins[0], begins[1]];
        assert_eq!(told(&stack), stack);
        // Where the program has a function, what is called inside of the library is not told.
        assert_eq!(told(&[inner, inner, "fills", begins[0]])[..2], [inner, "fills"]);
    }
}

/// Only those files: functions of a stripped program have no names, either.
#[test]
fn nameless_functions_are_the_programs() {
    for own in ["server+0x1429", "libc-client.so.2007+0x1429", "libserver.so.1+0x1429", "0x1429"] {
        let stack = ["std::string::_M_create", "std::string::_M_assign", own, "libc.so.6+0x2724a"];
        assert_eq!(told(&stack), stack[1..]);
    }
}

/// Of templates' functions with long types, those with other types, and other functions.
#[test]
fn instances_of_templates_differ() {
    let string = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";
    let name =
        |of: &str, function: &str| format!("app::Cache<{string}, {of}>::{function}({string})");
    let names = [("First", "insert"), ("Second", "insert"), ("First", "find")];
    let names = names.map(|(of, function)| name(of, function));
    let told = told(&names.each_ref().map(String::as_str));
    assert!(told[0] != told[1] && told[0] != told[2], "{told:?}");
    assert!(told[0].ends_with("First>::insert(...)"), "{told:?}");
}

/// A view of which nothing would be seen, before anything is written.
#[test]
fn a_view_that_is_not_shown_is_refused() {
    let home = Home::new();
    home.file("heap", 0o644, b"cairn heap profile 2\nmappings\nend\n");
    let out = home.path().join("out");
    let run = |view: &str, forms: &[&str]| {
        let mut command = home.cairn();
        command.args(["profile", "heap", "--view", view]).current_dir(home.path());
        command.args(forms.iter().flat_map(|form| [*form, "out"])).output().unwrap()
    };
    for forms in [&["--save"][..], &["--pprof"], &["--save", "--pprof"]] {
        for view in ["live", "peak", "lifetimes"] {
            assert_refused(
                &run(view, forms),
                125,
                &["--view: it is for the table, --collapsed and --html"],
            );
        }
    }
    for forms in [&["--collapsed"][..], &["--html"], &["--html", "--pprof"]] {
        assert_refused(&run("lifetimes", forms), 125, &["--view lifetimes: it is a table"]);
        assert!(!out.exists());
        assert_succeeded(&run("peak", forms));
        std::fs::remove_file(&out).unwrap();
    }
    assert_succeeded(&run("lifetimes", &[]));
}
