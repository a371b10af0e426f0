//! Two-level logic minimisation: expand, irredundant and reduce, over and over, until the cover no longer shrinks
//! (Brayton, Hachtel, McMullen and Sangiovanni-Vincentelli, Logic Minimization Algorithms for VLSI Synthesis, 1984).
//!
//! A cube has a bit for each of the two values of each input. It stands for all choices of one
//! of its values for every input; a cover stands for the union of its cubes.

use crate::case::{Results, Settings};
use std::hint::black_box;
use std::time::Instant;

const FUNCTIONS: usize = 17;
const INPUTS: u32 = 15;
const CUBES: usize = 80;

const FULL: u32 = (1 << (2 * INPUTS)) - 1;
/// The bits of the first value of each input; those of the second are above them.
const FIRST: u32 = FULL & 0x5555_5555;

type Cube = Box<u32>;
type Cover = Vec<Cube>;

pub(crate) fn run(settings: &Settings) -> Results {
    let count = settings.scaled(FUNCTIONS) as u64;
    let functions: Vec<Cover> = (1..=count).map(random).collect();
    let start = Instant::now();
    let covers: Vec<Cover> = functions.iter().map(|function| minimised(function)).collect();
    let time = start.elapsed();
    functions.iter().zip(&covers).for_each(|(function, cover)| check(function, cover));
    Results::ms(time)
}

/// Random cubes: each input is 0, 1 or either.
fn random(seed: u64) -> Cover {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut value = || [0b01, 0b10, 0b11, 0b11][rng.usize(0..4)];
    (0..CUBES).map(|_| cube((0..INPUTS).fold(0, |bits, _| bits << 2 | value()))).collect()
}

fn minimised(function: &[Cube]) -> Cover {
    let off = complement(function);
    let mut best = irredundant(expand(function.to_vec(), &off));
    loop {
        let next = irredundant(expand(reduce(best.clone()), &off));
        if cost(&next) >= cost(&best) {
            return best;
        }
        best = next;
    }
}

/// Ends the run unless the cover has the same points as the function.
fn check(function: &[Cube], cover: &[Cube]) {
    assert!(cover.len() < function.len(), "the cover did not shrink");
    for point in 0..1u32 << INPUTS {
        let bits = (0..INPUTS).fold(0, |bits, at| bits | 1 << (2 * at + (point >> at & 1)));
        let holds = |cover: &[Cube]| cover.iter().any(|cube| within(bits, **cube));
        assert_eq!(holds(function), holds(cover), "wrong at {point}");
    }
}

/// A block that the compiler may not do without.
fn cube(bits: u32) -> Cube {
    black_box(Box::new(bits))
}

/// Whether the second has all bits of the first.
fn within(a: u32, b: u32) -> bool {
    a & !b == 0
}

/// Whether the two have a value of every input in common.
fn meet(a: u32, b: u32) -> bool {
    let both = a & b;
    (both | both >> 1) & FIRST == FIRST
}

/// Where an input has this value and not the other.
fn only(value: u32) -> u32 {
    FULL & !if value & FIRST == 0 { value >> 1 } else { value << 1 }
}

fn size(cube: &Cube) -> u32 {
    cube.count_ones()
}

/// The number of cubes, then the number of literals.
fn cost(cover: &Cover) -> (usize, u32) {
    (cover.len(), u32::MAX - cover.iter().map(size).sum::<u32>())
}

fn union(cover: &[Cube]) -> u32 {
    cover.iter().fold(0, |all, cube| all | **cube)
}

/// Leaves out every cube that lies within another of the cover.
fn without_contained(mut cover: Cover) -> Cover {
    cover.sort_by_key(|cube| std::cmp::Reverse(size(cube)));
    let mut kept = Cover::with_capacity(cover.len());
    for cube in cover {
        if !kept.iter().any(|other| within(*cube, **other)) {
            kept.push(cube);
        }
    }
    kept
}

/// The cover as seen from inside `from`: what that fixes no longer matters.
fn cofactor(cover: &[Cube], from: u32) -> Cover {
    let met = cover.iter().filter(|other| meet(***other, from));
    met.map(|other| cube(**other | FULL & !from)).collect()
}

/// For the two values of the input that the most cubes depend on: the half space, and the
/// cover as seen from there. Inputs that occur with both values come first.
fn split(cover: &[Cube]) -> [(u32, Cover); 2] {
    let lacking = |bit: u32| cover.iter().filter(|cube| ***cube & bit == 0).count();
    let inputs = (0..INPUTS).map(|input| [1 << (2 * input), 2 << (2 * input)]);
    let most = inputs.max_by_key(|values| {
        let [a, b] = values.map(lacking);
        (a.min(b) > 0, a + b)
    });
    most.expect("there are inputs").map(|value| (only(value), cofactor(cover, only(value))))
}

fn is_tautology(cover: &[Cube]) -> bool {
    cover.iter().any(|cube| **cube == FULL)
        || union(cover) == FULL && split(cover).iter().all(|(_, seen)| is_tautology(seen))
}

fn complement(cover: &[Cube]) -> Cover {
    match cover {
        [] => return vec![cube(FULL)],
        _ if cover.iter().any(|cube| **cube == FULL) => return Cover::new(),
        [single] => {
            // One cube for each value that the cube lacks.
            let lacking = (0..2 * INPUTS).map(|at| 1 << at).filter(|value| **single & value == 0);
            return lacking.map(|value| cube(only(value))).collect();
        }
        _ => {}
    }
    let mut result = Cover::new();
    let halves = split(cover);
    let both = halves[0].0 & halves[1].0;
    for (half, seen) in halves {
        for part in complement(&without_contained(seen)) {
            let part = cube(*part & half);
            // The same cube in both halves is one cube.
            let apart = |whole: &Cube| cube(**whole & both);
            let joined = |other: &Cube| apart(other) == apart(&part);
            match result.iter().position(joined) {
                Some(at) => result[at] = cube(*result[at] | *part),
                None => result.push(part),
            }
        }
    }
    result
}

/// Grows each cube as far as it does not meet the cover `off`, and drops those that are
/// swallowed. Small cubes come first: they are the most likely to be swallowed whole.
fn expand(mut cover: Cover, off: &[Cube]) -> Cover {
    cover.sort_by_key(size);
    let mut primes = Cover::new();
    for mut prime in cover {
        if primes.iter().any(|other| within(*prime, **other)) {
            continue;
        }
        for bit in (0..2 * INPUTS).map(|at| 1 << at) {
            if *prime & bit == 0 {
                let wider = cube(*prime | bit);
                if !off.iter().any(|other| meet(*wider, **other)) {
                    prime = wider;
                }
            }
        }
        primes.push(prime);
    }
    without_contained(primes)
}

/// Drops cubes that the others cover together.
fn irredundant(mut cover: Cover) -> Cover {
    cover.sort_by_key(size);
    let mut at = 0;
    while at < cover.len() {
        let cube = cover.remove(at);
        if !is_tautology(&cofactor(&cover, *cube)) {
            cover.insert(at, cube);
            at += 1;
        }
    }
    cover
}

/// Shrinks each cube to what only it covers, so that it can grow elsewhere.
fn reduce(mut cover: Cover) -> Cover {
    cover.sort_by_key(|cube| std::cmp::Reverse(size(cube)));
    for at in 0..cover.len() {
        let whole = std::mem::replace(&mut cover[at], cube(0));
        let alone = complement(&cofactor(&cover, *whole));
        cover[at] = cube(*whole & union(&alone));
    }
    cover
}
