//! Batches of small blocks: most are freed again at once, one in four is retained for many
//! batches. Sizes are 1 to 1000 bytes, biased to small.
//!
//! `lifo` frees every set last in, first out, as a stack of temporaries does; `reverse` frees
//! it the other way, from the first to the last, as a queue does. The retained blocks leave
//! holes between them, which the next batches have to fill.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::malloc::Block;
use std::time::Instant;

/// Blocks of a batch.
pub const BATCH: usize = 4096;
/// One block in so many of a batch is retained.
pub const RETAIN: usize = 4;
/// For how many batches.
const SETS: usize = 64;
/// Batches at scale 1.
const ROUNDS: usize = 1200;
/// Distinct sizes; a power of two.
const SIZES: usize = 1024;

/// The cases.
pub const WORKLOADS: &[Workload] = &[
    case(
        "sh6bench-lifo",
        "Batches of 1-1000 B, mostly small, freed last in, first out; every fourth block is \
         retained for 64 batches. Temporaries between longer-lived objects.",
    )
    .c(|s| run(s, Order::Lifo)),
    case("sh6bench-reverse", "The same, but every batch is freed from its first block on.")
        .c(|s| run(s, Order::Reverse)),
];

const fn case(name: &'static str, about: &'static str) -> Case {
    Case::new(name, Group::Single, about, Row::NS_PEAK)
        .from("sh6bench: MicroQuill, SmartHeap")
        .quick(0.2)
}

/// In which order a set of blocks is freed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The last block first.
    Lifo,
    /// The first block first.
    Reverse,
}

fn run(settings: &Settings, order: Order) -> Results {
    let rounds = settings.scaled(ROUNDS);
    let mut batches = Batches::new(order, 6);
    batches.rounds(SETS);
    let start = Instant::now();
    batches.rounds(rounds);
    let ns = start.elapsed().as_nanos() as f64;
    batches.finish();
    Results::of([("ns", ns / (rounds * BATCH) as f64)])
}

/// The retained sets and the batch in work; its memory is reserved.
struct Batches {
    order: Order,
    sizes: Sizes,
    round: usize,
    batch: Vec<Tagged>,
    retained: Vec<Vec<Tagged>>,
}

impl Batches {
    fn new(order: Order, seed: u64) -> Batches {
        let retained = (0..SETS).map(|_| Vec::with_capacity(BATCH / RETAIN)).collect();
        let batch = Vec::with_capacity(BATCH);
        Batches { order, sizes: Sizes::new(seed), round: 0, batch, retained }
    }

    fn rounds(&mut self, rounds: usize) {
        for _ in 0..rounds {
            let set = &mut self.retained[self.round % SETS];
            free_all(set, self.order);
            let first = (self.round * BATCH) as u64;
            for tag in first..first + BATCH as u64 {
                let block = Tagged::new(self.sizes.next(), tag);
                if tag.is_multiple_of(RETAIN as u64) {
                    set.push(block)
                } else {
                    self.batch.push(block)
                }
            }
            free_all(&mut self.batch, self.order);
            self.round += 1;
        }
    }

    /// Frees everything; as many blocks must be left as the last rounds retained.
    fn finish(mut self) {
        let left: usize = self.retained.iter().map(Vec::len).sum();
        assert_eq!(left, self.round.min(SETS) * BATCH / RETAIN, "blocks left");
        for set in &mut self.retained {
            free_all(set, self.order);
        }
    }
}

/// A block and its tag.
pub struct Tagged {
    block: Block,
    tag: u64,
}

impl Tagged {
    /// Allocates; touches both ends.
    #[inline]
    pub fn new(size: usize, tag: u64) -> Tagged {
        Tagged { block: Block::with_ends(size, tag), tag }
    }

    /// Checks the tag and frees.
    #[inline]
    pub fn free(self) {
        self.block.free(self.tag);
    }
}

/// Frees a set and leaves its vector empty.
pub fn free_all(set: &mut Vec<Tagged>, order: Order) {
    match order {
        Order::Lifo => {
            while let Some(block) = set.pop() {
                block.free();
            }
        }
        Order::Reverse => set.drain(..).for_each(Tagged::free),
    }
}

/// Sizes of 1 to 1000 bytes, their logarithm evenly spread.
pub struct Sizes {
    rng: fastrand::Rng,
    table: Vec<u16>,
}

impl Sizes {
    /// The same sequence for the same seed.
    pub fn new(seed: u64) -> Sizes {
        let size = |n| 1000f64.powf((n as f64 + 0.5) / SIZES as f64) as u16;
        let table = (0..SIZES).map(size).collect();
        Sizes { rng: fastrand::Rng::with_seed(seed), table }
    }

    /// The next size.
    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> usize {
        self.table[self.rng.usize(0..SIZES)].into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_biased_to_small() {
        let mut sizes = Sizes::new(1);
        let sample: Vec<usize> = (0..10_000).map(|_| sizes.next()).collect();
        assert!(sample.iter().all(|size| (1..=1000).contains(size)));
        assert!(sample.iter().filter(|&&size| size <= 32).count() > 4500);
        assert!(sample.iter().any(|&size| size > 900));
    }

    #[test]
    fn retained_sets_are_kept_as_long_as_said() {
        for order in [Order::Lifo, Order::Reverse] {
            let mut batches = Batches::new(order, 1);
            batches.rounds(SETS + 3);
            batches.finish();
        }
    }
}
