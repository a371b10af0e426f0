//! C++ compilers on one generated translation unit: many small blocks that live long.

use super::prepare::Numbers;
use super::task::Task;
use super::{Program, Subject, find};
use crate::child::Failure;
use cairn_workloads::case::{Case, Group, Results, Row};
use std::fmt::Write as _;

/// The programs.
pub const PROGRAMS: &[Program] = &[
    Program {
        case: case("g++", "g++ -O2 on templates of the standard library: compiler and assembler."),
        run: |s| run(s, "g++", "g++", &[]),
    },
    Program {
        case: case("clang++", "clang++ -O2 on the same source, in one process."),
        run: |s| run(s, "clang++", "clang", &[]),
    },
    Program {
        case: case("g++-syntax", "g++ -fsyntax-only on the same source: the front end alone.")
            .quick(0.2),
        run: |s| run(s, "g++", "g++", &["-fsyntax-only"]),
    },
];

const fn case(name: &'static str, about: &'static str) -> Case {
    Case::new(name, Group::Programs, about, Row::MS_PEAK).quick(0.0)
}

fn run(
    subject: &Subject<'_>,
    compiler: &str,
    package: &str,
    options: &[&str],
) -> Result<Results, Failure> {
    let source = subject.prepared("templates.cc", || source(subject.scaled(2)))?;
    let object = subject.scratch.join("templates.o");
    let name = [&[compiler], options].concat().join("");
    let mut task = Task::new(&name, find(compiler, package)?).line("-std=c++17 -O2");
    for option in options {
        task = task.arg(*option);
    }
    if options.is_empty() {
        task = task.line("-c -o").arg(&object).makes(&object);
    }
    task.arg(&source).run(subject)
}

/// So many instances of a template that makes instances of others.
fn source(instances: usize) -> String {
    let mut numbers = Numbers::new(1);
    let mut text = include_str!("scripts/templates.cc").to_owned();
    for i in 0..instances {
        let value = numbers.below(1 << 30);
        let _ = write!(
            text,
            "struct Tag{i} {{ static constexpr unsigned long value = {value}; }};\n\
             unsigned long part{i}(unsigned long keys) {{ return work<Tag{i}, {}>(keys); }}\n",
            3 + numbers.below(8)
        );
    }
    text
}
