//! Interpreters, each with a script that allocates in the ways of its language.

use super::task::Task;
use super::{Program, Subject, find};
use crate::child::Failure;
use cairn_workloads::case::{Case, Group, Results, Row};

/// The programs.
pub const PROGRAMS: &[Program] = &[
    Program {
        case: case(
            "lua",
            "Lua, which takes every string, table and closure from realloc: trees, strings, \
             coroutines.",
        )
        .from("mimalloc-bench, which has Lua compile itself")
        .quick(0.25),
        run: |s| run(s, "lua5.4", "lua5.4", include_str!("scripts/work.lua"), 12),
    },
    Program {
        case: case(
            "ruby",
            "Ruby: strings, arrays and hashes that are too large for its own object slots.",
        )
        .quick(0.0),
        run: |s| run(s, "ruby", "ruby", include_str!("scripts/work.rb"), 16),
    },
    Program {
        case: case("perl", "Perl: hashes, strings, nested data, regular expressions.").quick(0.0),
        run: |s| run(s, "perl", "perl", include_str!("scripts/work.pl"), 10),
    },
    Program {
        case: case(
            "node",
            "Node.js: buffers, compression, digests and the compiler's own memory come from \
             malloc, what scripts allocate does not.",
        )
        .quick(0.0),
        run: |s| run(s, "node", "nodejs", include_str!("scripts/work.js"), 24),
    },
];

const fn case(name: &'static str, about: &'static str) -> Case {
    Case::new(name, Group::Programs, about, Row::MS_PEAK)
}

/// Runs a script, so many rounds of it in a full run.
fn run(
    subject: &Subject<'_>,
    program: &str,
    package: &str,
    script: &str,
    rounds: usize,
) -> Result<Results, Failure> {
    let file = subject.prepared(&format!("{program}-script"), || script)?;
    let rounds = subject.scaled(rounds).to_string();
    Task::new(program, find(program, package)?)
        .arg(&file)
        .arg(&rounds)
        // Orders of hashes that change from run to run would change the work.
        .env("PERL_HASH_SEED", "1")
        .env("PERL_PERTURB_KEYS", "0")
        .run(subject)
}
