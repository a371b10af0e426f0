//! z3 on generated problems of several theories.

use super::generate::Numbers;
use super::install::Need;
use super::{Evidence, Program};
use anyhow::ensure;
use std::fmt::Write as _;

pub(super) const Z3: Program = Program {
    name: "z3",
    quick: true,
    needs: &[Need::new("z3", "z3")],
    version: &["z3", "--version"],
    what: "generated SMT problems: pigeonholes, bit vectors, arrays, integers, strings; answers",
    loaded_in: &["z3"],
    prepare: |stage| {
        stage.write_input("1-pigeons.smt2", pigeons(stage.pick(8, 9)))?;
        stage.write_input("2-vectors.smt2", vectors(stage.pick(11, 13)))?;
        stage.write_input("3-arrays.smt2", arrays(stage.pick(200, 600)))?;
        stage.write_input("4-integers.smt2", integers(stage.pick(8, 10)))?;
        stage.write_input("5-strings.smt2", include_str!("scripts/strings.smt2"))
    },
    run: |stage| {
        let mut evidence = Evidence::default();
        let mut answers = Vec::new();
        let names = ["1-pigeons", "2-vectors", "3-arrays", "4-integers", "5-strings"];
        for name in names {
            let answer = stage
                .process("z3")?
                .arg(stage.input.join(format!("{name}.smt2")))
                .limit(200)
                .success()?
                .text();
            ensure!(!answer.contains("error"), "{name} is wrong:\n{answer}");
            answers.push(answer.lines().next().unwrap_or_default().to_owned());
            evidence = evidence.fact(name, answer);
        }
        evidence.summary = answers.join(", ");
        Ok(evidence)
    },
};

/// One pigeon too many for the holes: unsatisfiable, and tedious to show.
fn pigeons(holes: usize) -> String {
    let mut text = "(set-logic QF_UF)\n".to_owned();
    for pigeon in 0..=holes {
        for hole in 0..holes {
            let _ = writeln!(text, "(declare-const p{pigeon}_{hole} Bool)");
        }
        let somewhere: String = (0..holes).map(|hole| format!(" p{pigeon}_{hole}")).collect();
        let _ = writeln!(text, "(assert (or{somewhere}))");
        for other in 0..pigeon {
            for hole in 0..holes {
                let _ = writeln!(text, "(assert (not (and p{pigeon}_{hole} p{other}_{hole})))");
            }
        }
    }
    text + "(check-sat)\n"
}

/// Multiplication commutes, bit by bit; and a product to be taken apart.
fn vectors(bits: u32) -> String {
    format!(
        "(declare-const a (_ BitVec 7))\n(declare-const b (_ BitVec 7))\n(push)\n\
         (assert (not (= (bvmul a (bvadd b a)) (bvadd (bvmul b a) (bvmul a a)))))\n(check-sat)\n\
         (pop)\n(declare-const x (_ BitVec {wide}))\n(declare-const y (_ BitVec {wide}))\n\
         (assert (= (bvmul x y) (_ bv{product} {wide})))\n(assert (bvult x (_ bv{limit} {wide})))\n\
         (assert (bvult y (_ bv{limit} {wide})))\n(assert (bvugt x (_ bv1 {wide})))\n\
         (assert (bvugt y x))\n(check-sat)\n(get-value (x y))\n",
        wide = 2 * bits,
        limit = 1_u64 << bits,
        product = 1013_u64 * 1999,
    )
}

/// Stores in two orders make the same array when the places differ.
fn arrays(stores: u64) -> String {
    let mut numbers = Numbers::new(9);
    let mut text = "(declare-const a (Array Int Int))\n".to_owned();
    let (mut one, mut two) = ("a".to_owned(), "a".to_owned());
    let mut places = Vec::new();
    for i in 0..stores {
        let _ = writeln!(text, "(declare-const i{i} Int)");
        places.push((i, numbers.below(1000)));
    }
    for (place, value) in &places {
        one = format!("(store {one} i{place} {value})");
    }
    for (place, value) in places.iter().rev() {
        two = format!("(store {two} i{place} {value})");
    }
    let all: String = (0..stores).map(|i| format!(" i{i}")).collect();
    let _ = write!(
        text,
        "(define-fun one () (Array Int Int) {one})\n(define-fun two () (Array Int Int) {two})\n\
         (push)\n(assert (distinct{all}))\n(assert (not (= one two)))\n(check-sat)\n(pop)\n\
         (assert (not (= (select one 5) (select two 5))))\n(check-sat)\n"
    );
    text
}

/// Random linear constraints over bounded integers, solved for the largest sum.
fn integers(variables: u64) -> String {
    let mut numbers = Numbers::new(10);
    let mut text = String::new();
    for i in 0..variables {
        let _ = write!(text, "(declare-const x{i} Int)\n(assert (<= 0 x{i} 40))\n");
    }
    for _ in 0..variables {
        let terms: String = (0..5)
            .map(|_| format!(" (* {} x{})", 1 + numbers.below(9), numbers.below(variables)))
            .collect();
        let _ = writeln!(text, "(assert (<= (+{terms}) {}))", 60 + numbers.below(200));
    }
    let all: String = (0..variables).map(|i| format!(" x{i}")).collect();
    let _ = write!(text, "(maximize (+{all}))\n(check-sat)\n(get-objectives)\n");
    text
}
