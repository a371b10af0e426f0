//! CPython, most of the time with its own small-object allocator switched off: then every
//! object is a malloc.

use super::task::Task;
use super::{Program, Subject, find};
use crate::child::Failure;
use cairn_workloads::case::{Case, Group, Results, Row};

/// The programs.
pub const PROGRAMS: &[Program] = &[
    Program {
        case: case("python", "CPython on malloc, building dicts, lists and strings.").quick(0.3),
        run: |s| run(s, "python", include_str!("scripts/tables.py"), 10, "malloc"),
    },
    Program {
        case: case("python-json", "CPython on malloc, writing and reading JSON."),
        run: |s| run(s, "python-json", include_str!("scripts/json.py"), 28, "malloc"),
    },
    Program {
        case: case(
            "python-ast",
            "CPython on malloc, parsing and compiling modules of its library: syntax trees, \
             arenas, code objects.",
        ),
        run: |s| run(s, "python-ast", include_str!("scripts/ast.py"), 30, "malloc"),
    },
    Program {
        case: case(
            "python-objects",
            "CPython on malloc: trees of objects, comprehensions, cycles for its collector.",
        ),
        run: |s| run(s, "python-objects", include_str!("scripts/objects.py"), 70, "malloc"),
    },
    Program {
        case: case(
            "python-default",
            "CPython as it comes: its own arenas below, malloc for what is larger than 512 bytes.",
        ),
        run: |s| run(s, "python-default", include_str!("scripts/tables.py"), 12, "default"),
    },
];

const fn case(name: &'static str, about: &'static str) -> Case {
    Case::new(name, Group::Programs, about, Row::MS_PEAK).quick(0.0)
}

/// Runs a script, so many rounds of it in a full run.
fn run(
    subject: &Subject<'_>,
    name: &str,
    script: &str,
    rounds: usize,
    malloc: &str,
) -> Result<Results, Failure> {
    let rounds = subject.scaled(rounds).to_string();
    Task::new(name, find("python3", "python3")?)
        .line("-S -B -c")
        .arg(script)
        .arg(&rounds)
        .env("PYTHONMALLOC", malloc)
        .env("PYTHONHASHSEED", "0")
        .run(subject)
}
