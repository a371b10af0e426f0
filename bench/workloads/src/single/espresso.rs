//! Two-level logic minimisation: expand, irredundant and reduce, over and over, until the
//! cover no longer shrinks (Brayton, Hachtel, McMullen and Sangiovanni-Vincentelli, Logic
//! Minimization Algorithms for VLSI Synthesis, 1984).
//!
//! Stands for programs that recurse over many short lists of small objects: a cube is a block
//! of a few bytes, and each step of the recursion makes a new list of new cubes.
//!
//! A cube has one bit per value of each variable: an input has the values 0 and 1, and the
//! outputs together are one variable with a value each. A cube stands for all choices of one
//! of its values for every variable; a cover stands for the union of its cubes.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use std::hint::black_box;
use std::time::Instant;

/// Its heap is tiny: no row for the memory.
pub(crate) const WORKLOADS: &[Workload] = &[Case::new(
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
    let time = start.elapsed();
    for (function, cover) in functions.iter().zip(&covers) {
        function.check(cover);
    }
    Results::ms(time)
}

/// Bits.
type Cube = Box<u32>;
/// A union of cubes.
type Cover = Vec<Cube>;

/// A block that the compiler may not do without.
fn cube(bits: u32) -> Cube {
    black_box(Box::new(bits))
}

/// Whether the second has all bits of the first.
fn within(a: u32, b: u32) -> bool {
    a & !b == 0
}

fn size(cube: &Cube) -> u32 {
    cube.count_ones()
}

/// The bits of any of them.
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

/// How many inputs and outputs there are. The first input has the lowest two bits.
#[derive(Clone, Copy)]
struct Space {
    inputs: u32,
    outputs: u32,
}

impl Space {
    /// The bits of all variables.
    fn full(self) -> u32 {
        (1 << (2 * self.inputs + self.outputs)) - 1
    }

    /// The bits of the outputs.
    fn outputs(self) -> u32 {
        self.full() & !((1 << (2 * self.inputs)) - 1)
    }

    /// The bits of each variable.
    fn variables(self) -> impl Iterator<Item = u32> {
        (0..self.inputs).map(|input| 0b11 << (2 * input)).chain([self.outputs()])
    }

    /// Whether the two have a value of every variable in common.
    fn meet(self, a: u32, b: u32) -> bool {
        let both = a & b;
        // The two values of an input are neighbours: here both count as the first.
        let first = self.full() & !self.outputs() & 0x5555_5555;
        (both | both >> 1) & first == first && both & self.outputs() != 0
    }

    /// The cover as seen from inside `cube`: what `cube` fixes no longer matters.
    fn cofactor(self, cover: &[Cube], from: u32) -> Cover {
        let met = cover.iter().filter(|other| self.meet(***other, from));
        met.map(|other| cube(**other | self.full() & !from)).collect()
    }

    /// The variable that the most cubes depend on, if any does. Inputs come before outputs,
    /// and inputs that occur with both values before the others.
    fn most_binate(self, cover: &[Cube]) -> Option<u32> {
        let lacking = |bit: u32| cover.iter().filter(|cube| ***cube & bit == 0).count();
        let depends = |variable: u32| {
            let counts: Vec<usize> = bits(variable).map(lacking).collect();
            let both = counts.iter().filter(|&&count| count > 0).count() > 1;
            (both && variable != self.outputs(), counts.iter().sum::<usize>(), variable)
        };
        let (_, count, variable) = self.variables().map(depends).max()?;
        (count > 0).then_some(variable)
    }

    /// For each value of the variable: the half space, and the cover as seen from there.
    fn split(self, cover: &[Cube], variable: u32) -> impl Iterator<Item = (u32, Cover)> {
        bits(variable).map(move |bit| {
            let half = self.full() & !variable | bit;
            (half, self.cofactor(cover, half))
        })
    }

    /// Whether the cover is everything.
    fn is_tautology(self, cover: &[Cube]) -> bool {
        if cover.iter().any(|cube| **cube == self.full()) {
            return true;
        }
        if union(cover) != self.full() {
            return false;
        }
        let Some(variable) = self.most_binate(cover) else { return false };
        self.split(cover, variable).all(|(_, seen)| self.is_tautology(&seen))
    }

    /// Everything that is not in the cover.
    fn complement(self, cover: &[Cube]) -> Cover {
        if cover.iter().any(|cube| **cube == self.full()) {
            return Cover::new();
        }
        // No cube is full; with none at all nothing depends on a variable.
        let Some(variable) = self.most_binate(cover) else { return vec![cube(self.full())] };
        if let [only] = cover {
            // One cube for each variable that the cube restricts.
            let lacking = self.variables().map(|values| (values, values & !**only));
            let outside = lacking.filter(|&(_, lacking)| lacking != 0);
            return outside
                .map(|(values, lacking)| cube(self.full() & !values | lacking))
                .collect();
        }
        let mut result = Cover::new();
        for (half, seen) in self.split(cover, variable) {
            for part in self.complement(&without_contained(seen)) {
                let part = cube(*part & half);
                // The same cube in both halves is one cube.
                let apart = |whole: &Cube| cube(**whole & !variable);
                let joined = |other: &Cube| apart(other) == apart(&part);
                match result.iter().position(joined) {
                    Some(at) => result[at] = cube(*result[at] | *part),
                    None => result.push(part),
                }
            }
        }
        result
    }
}

/// Each single bit.
fn bits(of: u32) -> impl Iterator<Item = u32> {
    let next = |rest: u32| (rest != 0).then_some(rest);
    std::iter::successors(next(of), move |rest| next(rest & (rest - 1)))
        .map(|rest| 1 << rest.trailing_zeros())
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
        let mut random = |_| {
            let mut bits = 0;
            for input in 0..space.inputs {
                let values = match rng.u32(0..4) {
                    value @ 0..2 => 1 << value,
                    _ => 0b11,
                };
                bits |= values << (2 * input);
            }
            for _ in 0..rng.usize(1..=2) {
                bits |= 1 << (2 * space.inputs + rng.u32(0..space.outputs));
            }
            cube(bits)
        };
        let [on, any] = cubes.map(|count| (0..count).map(&mut random).collect());
        Function { space, on, any }
    }

    /// A small cover of the same functions.
    fn minimised(&self) -> Cover {
        let off = self.space.complement(&[&self.on[..], &self.any[..]].concat());
        let mut best = self.irredundant(self.expand(self.on.clone(), &off));
        loop {
            let next = self.irredundant(self.expand(self.reduce(best.clone()), &off));
            if cost(&next) >= cost(&best) {
                return best;
            }
            best = next;
        }
    }

    /// Grows each cube as far as it does not meet the cover `off`, and drops those that are
    /// swallowed. Small cubes come first: they are the most likely to be swallowed whole.
    fn expand(&self, mut cover: Cover, off: &[Cube]) -> Cover {
        let column = |bit: u32| cover.iter().filter(|cube| ***cube & bit != 0).count();
        let mut order: Vec<_> = bits(self.space.full()).map(|bit| (column(bit), bit)).collect();
        order.sort_unstable_by(|a, b| b.cmp(a));
        cover.sort_by_key(size);
        let mut primes = Cover::new();
        for mut prime in cover {
            if primes.iter().any(|other| within(*prime, **other)) {
                continue;
            }
            for &(_, bit) in &order {
                if *prime & bit == 0 {
                    let wider = cube(*prime | bit);
                    if !off.iter().any(|other| self.space.meet(*wider, **other)) {
                        prime = wider;
                    }
                }
            }
            primes.push(prime);
        }
        without_contained(primes)
    }

    /// Drops cubes that the others cover together.
    fn irredundant(&self, mut cover: Cover) -> Cover {
        cover.sort_by_key(size);
        let mut at = 0;
        while at < cover.len() {
            let cube = cover.swap_remove(at);
            if !self.space.is_tautology(&self.seen_by_others(&cover, *cube)) {
                cover.push(cube);
                let last = cover.len() - 1;
                cover.swap(at, last);
                at += 1;
            }
        }
        cover
    }

    /// Shrinks each cube to what only it covers, so that it can grow elsewhere.
    fn reduce(&self, mut cover: Cover) -> Cover {
        cover.sort_by_key(|cube| std::cmp::Reverse(size(cube)));
        for at in 0..cover.len() {
            let whole = std::mem::replace(&mut cover[at], cube(0));
            let alone = self.space.complement(&self.seen_by_others(&cover, *whole));
            cover[at] = cube(*whole & union(&alone));
        }
        cover
    }

    /// The rest of the cover as seen from inside `cube`.
    fn seen_by_others(&self, others: &[Cube], cube: u32) -> Cover {
        let mut seen = self.space.cofactor(others, cube);
        seen.append(&mut self.space.cofactor(&self.any, cube));
        seen
    }

    /// Ends the run unless `cover` is 1 wherever the function is, and nowhere else but where
    /// its value does not matter.
    fn check(&self, cover: &Cover) {
        assert!(cover.len() <= self.on.len(), "the cover grew");
        let Space { inputs, outputs } = self.space;
        for point in 0..1u32 << inputs {
            let at =
                (0..inputs).fold(0, |bits, input| bits | 1 << (2 * input + (point >> input & 1)));
            for output in 0..outputs {
                let at = at | 1 << (2 * inputs + output);
                let holds = |cover: &Cover| cover.iter().any(|cube| within(at, **cube));
                let free = holds(&self.any);
                assert!(free || holds(cover) == holds(&self.on), "wrong at {point}, {output}");
            }
        }
    }
}

/// The number of cubes, then the number of literals.
fn cost(cover: &Cover) -> (usize, u32) {
    (cover.len(), u32::MAX - cover.iter().map(size).sum::<u32>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covers_stay_equivalent_and_shrink() {
        for seed in 0..20 {
            let function = Function::random(Space { inputs: 6, outputs: 3 }, [20, 4], seed);
            let cover = function.minimised();
            function.check(&cover);
            assert!(cover.len() < 20, "{}", cover.len());
        }
    }

    #[test]
    fn parity_cannot_shrink_and_everything_is_one_cube() {
        let space = Space { inputs: 4, outputs: 1 };
        let minimised = |wanted: fn(u32) -> bool| {
            let inputs =
                |point: u32| (0..4).fold(0, |bits, at| bits | 1 << (2 * at + (point >> at & 1)));
            let points = (0..16u32).filter(|&point| wanted(point));
            let on = points.map(|point| cube(inputs(point) | space.outputs())).collect();
            Function { space, on, any: Vec::new() }.minimised()
        };
        assert_eq!(minimised(|point| point.count_ones() % 2 == 1).len(), 8);
        assert_eq!(minimised(|_| true), [cube(space.full())]);
        assert_eq!(minimised(|point| point & 1 == 1).len(), 1);
    }
}
