//! The Rust compiler and formatter on one generated source.
//!
//! The compiler that rustup installs has jemalloc linked in, in front of anything preloaded;
//! Debian's uses the C library's malloc. The formatter does so in both.

use super::prepare::Numbers;
use super::task::Task;
use super::{Program, Subject, find, find_tool};
use crate::child::Failure;
use cairn_workloads::case::{Case, Group, Results, Row};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

/// The programs.
pub const PROGRAMS: &[Program] = &[
    Program {
        case: case("rustc", "rustc -O on a generated crate, as Debian builds it: on malloc."),
        run: compile,
    },
    Program {
        case: case("rustfmt", "rustfmt on a generated crate: a Rust program on malloc."),
        run: format,
    },
];

const fn case(name: &'static str, about: &'static str) -> Case {
    Case::new(name, Group::Programs, about, Row::MS_PEAK).quick(0.0)
}

fn compile(subject: &Subject<'_>) -> Result<Results, Failure> {
    let source = subject.prepared("crate.rs", || source(subject.scaled(2)))?;
    let made = subject.scratch.join("libgenerated.rlib");
    Task::new("rustc", find("rustc", "rustc")?)
        .line("--edition 2021 --crate-type lib --crate-name generated -O -C codegen-units=1 -o")
        .arg(&made)
        .arg(&source)
        .makes(&made)
        .run(subject)
}

fn format(subject: &Subject<'_>) -> Result<Results, Failure> {
    let source = subject.prepared("format.rs", || source(subject.scaled(2000)))?;
    Task::new("rustfmt", formatter()?)
        .line("--edition 2021 --emit stdout --quiet")
        .arg(&source)
        .run(subject)
}

/// The program itself: what rustup puts into the path is only a proxy.
fn formatter() -> Result<PathBuf, Failure> {
    if let Ok(program) = find("rustfmt", "rustfmt") {
        return Ok(program);
    }
    let root =
        Command::new(find_tool("rustc", "rustfmt")?).args(["--print", "sysroot"]).output()?;
    let root = PathBuf::from(String::from_utf8_lossy(&root.stdout).trim());
    let program = root.join("bin/rustfmt");
    match program.exists() {
        true => Ok(program),
        false => find("rustfmt", "rustfmt"),
    }
}

/// Modules with traits, generics, iterators and formatting.
fn source(modules: usize) -> String {
    let mut numbers = Numbers::new(2);
    let mut text =
        "//! Generated.\npub trait Shape { fn area(&self) -> f64; fn name(&self) -> String; }\n"
            .to_owned();
    for i in 0..modules {
        let (a, b) = (1 + numbers.below(99), 1 + numbers.below(99));
        let module = include_str!("scripts/module.rs.txt");
        let module = module.replace("AAA", &a.to_string()).replace("BBB", &b.to_string());
        let _ = write!(text, "pub mod m{i} {{\n{module}}}\n");
    }
    text
}
