//! Instructions per operation, counted by valgrind's callgrind: the same in every run, on any
//! machine, under any load.
//!
//! One process does all patterns, each once before it counts; what the loops themselves cost
//! is counted on functions that do nothing, and subtracted. The kernel is not counted.

use super::{Program, Subject, find};
use crate::child::{self, Failure};
use cairn_workloads::case::{Case, Group, Results, Row, Table};
use std::collections::BTreeMap;
use std::path::Path;

/// The programs.
pub const PROGRAMS: &[Program] = &[
    Program {
        case: case("instr-pair-64", "malloc(64), touch, free: instructions of the fast path."),
        run: |s| run(s, "pair-64"),
    },
    Program {
        case: case(
            "instr-batch-64",
            "1,000 x malloc(64), then all freed in the same order: instructions of one malloc and \
             one free.",
        ),
        run: |s| run(s, "batch-64"),
    },
    Program {
        case: case(
            "instr-random-small",
            "10,000 slots of 16-1024 B, a random one replaced: instructions of one malloc and one \
             free.",
        ),
        run: |s| run(s, "random-small"),
    },
    Program {
        case: case(
            "instr-realloc",
            "A block grown from 16 to 2048 B by 16 at a time: instructions of one realloc, its \
             copying included.",
        ),
        run: |s| run(s, "realloc"),
    },
];

const ROWS: &[Row] = &[Row::new("", Table::Counts, "instructions", "instructions").floor(1.0)];

const fn case(name: &'static str, about: &'static str) -> Case {
    Case::new(name, Group::Instructions, about, ROWS)
}

/// Operations in each count; the C source has the same number.
const OPERATIONS: f64 = 20_000.0;

fn run(subject: &Subject<'_>, pattern: &str) -> Result<Results, Failure> {
    let counts = subject.cached("instructions", || count(subject))?;
    let count = |name: &str| {
        let line = counts.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|count| count.parse::<f64>().ok())
    };
    let (all, loops) = (count(pattern), count(&format!("{pattern}-loop")));
    match all.zip(loops) {
        Some((all, loops)) => Ok(Results::of([("instructions", (all - loops) / OPERATIONS)])),
        None => Err(Failure::wrong(format!("no count for {pattern}: {counts}"))),
    }
}

/// Counts all patterns; a line of a name and a number for each.
fn count(subject: &Subject<'_>) -> Result<String, Failure> {
    let valgrind = find("valgrind", "valgrind")?;
    let program = subject.made("instructions-program", |path| {
        subject.compile(include_str!("scripts/instructions.c"), path, "gcc", &["-O2"])
    })?;
    let dumps = subject.scratch.join("instructions-dumps");
    let _ = std::fs::remove_dir_all(&dumps);
    std::fs::create_dir(&dumps)?;
    let mut command = subject.command(&valgrind);
    command.args(["--quiet", "--tool=callgrind"]);
    command.arg(format!("--callgrind-out-file={}/dump", dumps.display())).arg(program);
    child::run(&mut command, subject.limits)?;
    let counts = read(&dumps)?;
    Ok(counts.iter().map(|(name, count)| format!("{name} {count}\n")).collect())
}

/// The totals of all dumps that the program asked for, by the names that it gave them.
fn read(dumps: &Path) -> Result<BTreeMap<String, u64>, Failure> {
    let mut counts = BTreeMap::new();
    for entry in std::fs::read_dir(dumps)? {
        let text = std::fs::read_to_string(entry?.path())?;
        let after = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
        let name = after("desc: Trigger: Client Request: ");
        let total = after("totals: ").and_then(|total| total.trim().parse().ok());
        counts.extend(name.map(str::to_owned).zip(total));
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_dumps_are_read() {
        let dumps = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            std::fs::write(dumps.path().join(name), text).expect("written");
        };
        write("dump.1", "desc: Trigger: Client Request: pair-64\nevents: Ir\ntotals: 1234\n");
        write("dump", "desc: Trigger: Program termination\ntotals: 9\n");
        let counts = read(dumps.path()).expect("readable");
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), [("pair-64".to_owned(), 1234)]);
    }
}
