//! The z3 solver on generated problems.

use super::prepare::Numbers;
use super::task::Task;
use super::{Program, Subject, find};
use crate::child::Failure;
use cairn_workloads::case::{Case, Group, Results, Row};
use std::fmt::Write as _;

/// The program.
pub const PROGRAMS: &[Program] = &[Program {
    case: Case::new(
        "z3",
        Group::Programs,
        "z3 on generated problems: linear integers, bit vectors, arrays. Terms and clauses of all \
         sizes, shared and dropped.",
        Row::MS_PEAK,
    )
    .from("mimalloc-bench, with a problem of its own")
    .quick(0.25),
    run,
}];

fn run(subject: &Subject<'_>) -> Result<Results, Failure> {
    let problem = subject.prepared("problem.smt2", || {
        let mut text = String::new();
        for round in 0..subject.scaled(5) as u64 {
            let _ = write!(text, "{}(reset)\n{}(reset)\n", integers(round), arrays(80));
            let _ = writeln!(text, "{}(reset)", factors(round));
        }
        text
    })?;
    Task::new("z3", find("z3", "z3")?).arg(&problem).run(subject)
}

/// Random linear constraints over bounded integers.
fn integers(seed: u64) -> String {
    const VARIABLES: u64 = 30;
    let mut numbers = Numbers::new(seed);
    let mut text = String::new();
    for i in 0..VARIABLES {
        let _ = write!(text, "(declare-const x{i} Int)\n(assert (<= 0 x{i} 40))\n");
    }
    for _ in 0..VARIABLES {
        let terms: String = (0..4)
            .map(|_| format!(" (* {} x{})", 1 + numbers.below(9), numbers.below(VARIABLES)))
            .collect();
        let _ = writeln!(text, "(assert (<= {} (+{terms}) {}))", 20, 60 + numbers.below(200));
    }
    text + "(check-sat)\n"
}

/// Stores in two orders make the same array when the places differ.
fn arrays(stores: u64) -> String {
    let mut numbers = Numbers::new(stores);
    let mut text = "(declare-const a (Array Int Int))\n".to_owned();
    let (mut one, mut two) = ("a".to_owned(), "a".to_owned());
    let values: Vec<u64> = (0..stores).map(|_| numbers.below(1000)).collect();
    for i in 0..stores {
        let last = stores - 1 - i;
        let _ = writeln!(text, "(declare-const i{i} Int)");
        one = format!("(store {one} i{i} {})", values[i as usize]);
        two = format!("(store {two} i{last} {})", values[last as usize]);
    }
    let all: String = (0..stores).map(|i| format!(" i{i}")).collect();
    let _ = write!(text, "(assert (distinct{all}))\n(assert (not (= {one} {two})))\n(check-sat)\n");
    text
}

/// The two factors of a product, as bit vectors.
fn factors(seed: u64) -> String {
    const PRIMES: [u64; 8] = [1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051];
    let product = PRIMES[seed as usize % 8] * PRIMES[(seed as usize + 3) % 8];
    format!(
        "(declare-const x (_ BitVec 24))\n(declare-const y (_ BitVec 24))\n\
         (assert (= (bvmul x y) (_ bv{product} 24)))\n(assert (bvult x (_ bv4096 24)))\n\
         (assert (bvult y (_ bv4096 24)))\n(assert (bvugt x (_ bv1 24)))\n\
         (assert (bvugt y x))\n(check-sat)\n(get-value (x y))\n"
    )
}
