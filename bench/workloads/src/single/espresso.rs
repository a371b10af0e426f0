//! Two-level logic minimisation: expand, irredundant and reduce, over and over, until the
//! cover no longer shrinks (Brayton, Hachtel, McMullen and Sangiovanni-Vincentelli, Logic
//! Minimization Algorithms for VLSI Synthesis, 1984).
//!
//! Stands for programs that recurse over many short lists of small objects: a cube is a block
//! of a few bytes, and each step of the recursion makes a new list of new cubes.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::clock::ms_since;
use cubes::{Cover, Cube, Space};
use std::time::Instant;

mod cubes;

/// The case. Its heap is tiny: no row for the memory.
pub const WORKLOADS: &[Workload] = &[Case::new(
    "espresso-like",
    Group::Single,
    "Minimises two-level logic; every step makes short lists of cubes of a few bytes each. \
     Programs that recurse over small, short-lived lists.",
    const { &[Row::time("ms")] },
)
.from("Zorn and Grunwald, Empirical measurements of six allocation-intensive C programs, 1992")
.quick(0.2)
.rust(run)];

/// Functions minimised at scale 1.
const FUNCTIONS: usize = 10;
const SPACE: Space = Space { inputs: 11, outputs: 6 };
/// Cubes of each function, and those where its value does not matter.
const CUBES: [usize; 2] = [100, 16];

fn run(settings: &Settings) -> Results {
    let small = Function::random(Space { inputs: 5, outputs: 2 }, [8, 2], 0);
    small.check(&small.minimised());
    let count = settings.scaled(FUNCTIONS) as u64;
    let functions: Vec<_> = (1..=count).map(|seed| Function::random(SPACE, CUBES, seed)).collect();
    let start = Instant::now();
    let covers: Vec<Cover> = functions.iter().map(Function::minimised).collect();
    let ms = ms_since(start);
    for (function, cover) in functions.iter().zip(&covers) {
        function.check(cover);
    }
    Results::of([("ms", ms)])
}

/// Several functions of the same inputs.
struct Function {
    space: Space,
    /// Where they are 1.
    on: Cover,
    /// Where their values do not matter.
    any: Cover,
}

impl Function {
    /// Random cubes: each input is 0, 1 or either, and one or two outputs are meant.
    fn random(space: Space, cubes: [usize; 2], seed: u64) -> Function {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut cube = |_| {
            let mut cube = space.none();
            for input in 0..space.inputs {
                let values = match rng.u32(0..4) {
                    0 => 0..1,
                    1 => 1..2,
                    _ => 0..2,
                };
                for value in values {
                    cube = cubes::with(&cube, 2 * input + value);
                }
            }
            for _ in 0..rng.usize(1..=2) {
                let output = 2 * space.inputs + rng.usize(0..space.outputs);
                cube = cubes::with(&cube, output);
            }
            cube
        };
        let [on, any] = cubes.map(|count| (0..count).map(&mut cube).collect());
        Function { space, on, any }
    }

    /// A small cover of the same functions.
    fn minimised(&self) -> Cover {
        let space = self.space;
        let off = space.complement(&[&self.on[..], &self.any[..]].concat());
        let mut best = irredundant(space, expand(space, self.on.clone(), &off), &self.any);
        loop {
            let reduced = reduce(space, best.clone(), &self.any);
            let next = irredundant(space, expand(space, reduced, &off), &self.any);
            if cost(&next) >= cost(&best) {
                return best;
            }
            best = next;
        }
    }

    /// Ends the run unless `cover` is 1 wherever the function is, and nowhere else but where
    /// its value does not matter.
    fn check(&self, cover: &Cover) {
        assert!(cover.len() <= self.on.len(), "the cover grew");
        let Space { inputs, outputs } = self.space;
        for point in 0..1usize << inputs {
            let at = (0..inputs).fold(self.space.none(), |cube, input| {
                cubes::with(&cube, 2 * input + (point >> input & 1))
            });
            for output in 0..outputs {
                let at = cubes::with(&at, 2 * inputs + output);
                let holds = |cover: &Cover| cover.iter().any(|cube| cubes::within(&at, cube));
                let free = holds(&self.any);
                assert!(free || holds(cover) == holds(&self.on), "wrong at {point}, {output}");
            }
        }
    }
}

/// The number of cubes, then the number of literals.
fn cost(cover: &Cover) -> (usize, usize) {
    let bits: u32 = cover.iter().map(cubes::size).sum();
    (cover.len(), usize::MAX - bits as usize)
}

/// Grows each cube as far as it does not meet the cover `off`, and drops those that are
/// swallowed. Small cubes come first: they are the most likely to be swallowed whole.
fn expand(space: Space, mut cover: Cover, off: &[Cube]) -> Cover {
    let column = |bit| cover.iter().filter(|cube| cubes::has(cube, bit)).count();
    let mut bits: Vec<(usize, usize)> = (0..space.bits()).map(|bit| (column(bit), bit)).collect();
    bits.sort_unstable_by(|a, b| b.cmp(a));
    cover.sort_by_key(cubes::size);
    let mut primes = Cover::new();
    for mut cube in cover {
        if primes.iter().any(|prime| cubes::within(&cube, prime)) {
            continue;
        }
        for &(_, bit) in &bits {
            if !cubes::has(&cube, bit) {
                let wider = cubes::with(&cube, bit);
                if !off.iter().any(|other| space.meet(&wider, other)) {
                    cube = wider;
                }
            }
        }
        primes.push(cube);
    }
    cubes::without_contained(primes)
}

/// Drops cubes that the others cover together.
fn irredundant(space: Space, mut cover: Cover, any: &[Cube]) -> Cover {
    cover.sort_by_key(cubes::size);
    let mut at = 0;
    while at < cover.len() {
        let cube = cover.swap_remove(at);
        if !space.is_tautology(&seen_by_others(space, &cover, any, &cube)) {
            cover.push(cube);
            let last = cover.len() - 1;
            cover.swap(at, last);
            at += 1;
        }
    }
    cover
}

/// Shrinks each cube to what only it covers, so that it can grow elsewhere.
fn reduce(space: Space, mut cover: Cover, any: &[Cube]) -> Cover {
    cover.sort_by_key(|cube| std::cmp::Reverse(cubes::size(cube)));
    for at in 0..cover.len() {
        let cube = std::mem::replace(&mut cover[at], space.none());
        let alone = space.complement(&seen_by_others(space, &cover, any, &cube));
        let around = alone.iter().fold(space.none(), |all, part| cubes::or(&all, part));
        cover[at] = cubes::and(&cube, &around);
    }
    cover
}

/// The rest of the cover as seen from inside `cube`.
fn seen_by_others(space: Space, others: &[Cube], any: &[Cube], cube: &Cube) -> Cover {
    let mut seen = space.cofactor(others, cube);
    seen.append(&mut space.cofactor(any, cube));
    seen
}

#[cfg(test)]
mod tests {
    use super::{Function, Space};

    #[test]
    fn covers_stay_equivalent_and_shrink() {
        let space = Space { inputs: 6, outputs: 3 };
        for seed in 0..20 {
            let function = Function::random(space, [20, 4], seed);
            let cover = function.minimised();
            function.check(&cover);
            assert!(cover.len() < 20, "{}", cover.len());
        }
    }

    #[test]
    fn parity_cannot_shrink_and_everything_is_one_cube() {
        let space = Space { inputs: 4, outputs: 1 };
        let points = |wanted: fn(u32) -> bool| {
            let points = (0..16u32).filter(|&point| wanted(point));
            let cube = |point: u32| {
                let inputs = (0..4).map(|at| 2 * at + (point as usize >> at & 1));
                inputs.chain([8]).fold(space.none(), |cube, bit| super::cubes::with(&cube, bit))
            };
            Function { space, on: points.map(cube).collect(), any: Vec::new() }
        };
        assert_eq!(points(|point| point.count_ones() % 2 == 1).minimised().len(), 8);
        assert_eq!(points(|_| true).minimised(), [space.full()]);
        assert_eq!(points(|point| point & 1 == 1).minimised().len(), 1);
    }
}
