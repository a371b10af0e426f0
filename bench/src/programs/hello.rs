//! The resident set of the smallest C program: what loading the allocator costs.

use super::find;
use crate::case::{Case, Row, Run, Subject, Values};
use crate::child::{self, Failure};
use crate::process::parse_kib;
use std::process::Command;

/// The case.
pub const CASES: &[Case] = &[Case {
    name: "hello",
    about: "resident set of a C program that prints one line",
    rows: &[Row::memory("", "rss_kib", "KiB", 0.0)],
    quick_scale: 1.0,
    run: Run::Program(run),
}];

fn run(subject: &Subject<'_>) -> Result<Values, Failure> {
    let program = subject.scratch.join("hello");
    if !program.exists() {
        let source = subject.scratch.join("hello.c");
        std::fs::write(&source, include_str!("hello.c"))?;
        let mut compiler = Command::new(find("cc", "gcc")?);
        child::run(compiler.arg("-O2").arg("-o").arg(&program).arg(&source), subject.limits)?;
    }
    let output = child::run(&mut subject.command(&program), subject.limits)?.stdout;
    if !output.starts_with("hello\n") {
        return Err(Failure::wrong("hello did not greet"));
    }
    let kib = parse_kib(&output, "Rss:").ok_or_else(|| Failure::wrong("no Rss line"))?;
    Ok(Values::from([("rss_kib".to_owned(), kib)]))
}
