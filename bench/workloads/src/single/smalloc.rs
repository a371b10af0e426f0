//! The operation mixes of smalloc's own benchmark: allocations and writes; allocations and
//! frees by the toss of a coin; reallocations besides; and blocks that mostly grow.
//!
//! Sizes are those of Rust programs as that project sees them: most are tiny, a few are some
//! KiB, very few are large. A block is freed or resized at random or, as often, the newest.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::rust_block::RustBlock;
use std::time::Instant;

/// The cases.
pub const WORKLOADS: &[Workload] = &[
    case(
        "smalloc-alloc",
        "600,000 blocks, mostly tiny, are allocated and written, twice; freeing is off the \
         clock: building up a program's data.",
    )
    .rust(|s| run(s, Mix::Alloc)),
    case(
        "smalloc-ad",
        "Allocate or free, by the toss of a coin, among some 20,000 blocks, mostly tiny.",
    )
    .rust(|s| run(s, Mix::AllocFree)),
    case(
        "smalloc-adr",
        "Allocate, free or reallocate to any other size, with equal chances, among some 20,000 \
         blocks, mostly tiny.",
    )
    .rust(|s| run(s, Mix::AllocFreeResize)),
    case(
        "smalloc-grow",
        "Seven in eight operations double a block by realloc, from a few bytes to 64 KiB at \
         most: vectors that were not given a capacity.",
    )
    .rust(|s| run(s, Mix::Grow)),
];

const fn case(name: &'static str, about: &'static str) -> Case {
    Case::new(name, Group::Single, about, Row::NS_PEAK).from(ORIGIN).quick(0.2)
}

/// Where the mixes were described.
pub const ORIGIN: &str = "smalloc's bench: Zooko Wilcox-O'Hearn";

/// Which operations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// Allocations and writes only.
    Alloc,
    /// Allocations and frees.
    AllocFree,
    /// Those and reallocations to a size at random.
    AllocFreeResize,
    /// Mostly reallocations to twice the size.
    Grow,
}

impl Mix {
    /// Operations at scale 1, of one thread.
    pub fn steps(self) -> usize {
        match self {
            Mix::Alloc => 600_000,
            Mix::AllocFree => 6_000_000,
            Mix::AllocFreeResize => 4_000_000,
            Mix::Grow => 1_500_000,
        }
    }

    /// Blocks there before the first operation.
    fn start(self) -> usize {
        match self {
            Mix::Alloc => 0,
            Mix::AllocFree | Mix::AllocFreeResize => 20_000,
            Mix::Grow => 500,
        }
    }

    /// How many times the whole is done, each time from the start.
    pub fn rounds(self) -> usize {
        if self == Mix::Alloc { 2 } else { 1 }
    }
}

fn run(settings: &Settings, mix: Mix) -> Results {
    let steps = settings.scaled(mix.steps());
    let mut ns = 0.0;
    for seed in 0..mix.rounds() {
        let mut holder = Holder::new(mix, seed as u64, steps);
        let start = Instant::now();
        holder.work(steps);
        ns += start.elapsed().as_nanos() as f64;
        holder.finish();
    }
    Results::of([("ns", ns / (steps * mix.rounds()) as f64)])
}

/// The largest block that still grows.
const GROWN: usize = 64 << 10;

/// One thread's blocks.
pub struct Holder {
    mix: Mix,
    rng: fastrand::Rng,
    sizes: Vec<u32>,
    blocks: Vec<RustBlock>,
    allocated: usize,
    freed: usize,
}

impl Holder {
    /// With the blocks that are there at the start, and room for the pointers to all others.
    pub fn new(mix: Mix, seed: u64, steps: usize) -> Holder {
        let mut rng = fastrand::Rng::with_seed(seed);
        let sizes = (0..4096).map(|_| size(&mut rng) as u32).collect();
        // The coin's walk stays far below twice the start.
        let room = if mix == Mix::Alloc { steps } else { 2 * mix.start() };
        let blocks = Vec::with_capacity(room);
        let mut holder = Holder { mix, rng, sizes, blocks, allocated: 0, freed: 0 };
        for _ in 0..mix.start() {
            holder.allocate();
        }
        holder
    }

    /// So many operations.
    pub fn work(&mut self, steps: usize) {
        match self.mix {
            Mix::Alloc => (0..steps).for_each(|_| self.allocate()),
            Mix::AllocFree => {
                for _ in 0..steps {
                    if self.rng.bool() { self.allocate() } else { self.free() }
                }
            }
            Mix::AllocFreeResize => {
                for _ in 0..steps {
                    match self.rng.u32(0..3) {
                        0 => self.allocate(),
                        1 => self.free(),
                        _ => self.resize(),
                    }
                }
            }
            Mix::Grow => (0..steps).for_each(|_| self.grow()),
        }
    }

    /// Frees everything; as many blocks must be left as were counted.
    pub fn finish(self) {
        assert_eq!(self.blocks.len(), self.allocated - self.freed, "blocks left");
    }

    #[inline]
    fn allocate(&mut self) {
        let size = self.size();
        self.blocks.push(RustBlock::new(size, self.allocated as u8));
        self.allocated += 1;
    }

    #[inline]
    fn free(&mut self) {
        if let Some(at) = self.pick() {
            drop(self.blocks.swap_remove(at));
            self.freed += 1;
        }
    }

    #[inline]
    fn resize(&mut self) {
        let size = self.size();
        if let Some(at) = self.pick() {
            self.blocks[at].resize(size);
        }
    }

    /// Doubles a block at random, or puts a new one in the place of one that is large or, once
    /// in a while, of any.
    #[inline]
    fn grow(&mut self) {
        let at = self.rng.usize(0..self.blocks.len());
        let size = self.blocks[at].size();
        if size >= GROWN || self.rng.u8(0..8) == 0 {
            let size = self.rng.usize(4..64);
            self.blocks[at] = RustBlock::new(size, self.allocated as u8);
            (self.allocated, self.freed) = (self.allocated + 1, self.freed + 1);
        } else {
            self.blocks[at].resize((2 * size).min(GROWN));
        }
    }

    #[inline]
    fn size(&mut self) -> usize {
        match self.mix {
            Mix::Grow => self.rng.usize(4..64),
            _ => self.sizes[self.rng.usize(0..self.sizes.len())] as usize,
        }
    }

    /// The newest block or any, as often.
    #[inline]
    fn pick(&mut self) -> Option<usize> {
        let newest = self.blocks.len().checked_sub(1)?;
        Some(if self.rng.bool() { newest } else { self.rng.usize(0..=newest) })
    }
}

/// Of 1000 blocks 900 have up to 70 bytes, 90 up to 1 KiB, 9 are of 8-16 KiB, and one is of
/// 64 KiB-1 MiB, of which only the ends are touched.
fn size(rng: &mut fastrand::Rng) -> usize {
    match rng.u32(0..1000) {
        0 => rng.usize(64 << 10..=1 << 20),
        1..10 => rng.usize(8 << 10..16 << 10),
        10..100 => rng.usize(70..1 << 10),
        100..400 => rng.usize(1..8),
        _ => rng.usize(8..70),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mix_counts_its_blocks() {
        for mix in [Mix::Alloc, Mix::AllocFree, Mix::AllocFreeResize, Mix::Grow] {
            let mut holder = Holder::new(mix, 3, 2000);
            holder.work(2000);
            assert!(holder.allocated > holder.freed);
            assert_eq!(holder.freed == 0, mix == Mix::Alloc);
            holder.finish();
        }
    }
}
