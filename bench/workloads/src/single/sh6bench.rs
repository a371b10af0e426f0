//! `lifo` frees every set as a stack of temporaries does, `reverse` as a queue does. The retained blocks leave holes
//! between them, which the next batches have to fill. `sh8bench` does both in turn in every thread.

use crate::case::{Results, Settings};
use crate::malloc::Block;
use crate::team::{self, Mail};
use std::time::{Duration, Instant};

const BATCH: usize = 4096;
/// One block in so many of a batch is retained, or handed over.
const RETAIN: usize = 4;
/// For how many batches.
const SETS: usize = 64;
const ROUNDS: usize = 1200;
const ROUNDS_TOGETHER: usize = 1500;
/// Blocks under way from one thread to the next at most: 16 batches' worth.
const UNDER_WAY: usize = 16 * BATCH / RETAIN;
/// Distinct sizes; a power of two.
const SIZES: usize = 1024;

/// Frees a set of blocks in some order.
type Free = fn(&mut Vec<Block>);

pub(crate) fn lifo(set: &mut Vec<Block>) {
    while set.pop().is_some() {}
}

/// From the first block on.
pub(crate) const REVERSE: Free = Vec::clear;

pub(crate) fn retaining(settings: &Settings, free: Free) -> Results {
    let rounds = settings.scaled(ROUNDS);
    let mut retained: Vec<Vec<Block>> =
        (0..SETS).map(|_| Vec::with_capacity(BATCH / RETAIN)).collect();
    let mut batches = Batches::new(6);
    let mut start = Instant::now();
    for round in 0..SETS + rounds {
        if round == SETS {
            // Every set is full by now.
            start = Instant::now();
        }
        let set = &mut retained[round % SETS];
        free(set);
        batches.batch(free, |block| set.push(block));
    }
    let time = start.elapsed();
    assert!(retained.iter().all(|set| set.len() == BATCH / RETAIN), "blocks left");
    retained.iter_mut().for_each(free);
    Results::ns(time, rounds * BATCH)
}

pub(crate) fn together(settings: &Settings) -> Results {
    let threads = settings.threads();
    let rounds = settings.scaled(ROUNDS_TOGETHER).div_ceil(threads);
    pass(threads, 32);
    Results::ns(pass(threads, rounds), threads * rounds * BATCH)
}

fn pass(threads: usize, rounds: usize) -> Duration {
    let (time, received) = team::timed(
        Mail::ring(threads, 1, UNDER_WAY).into_iter().zip(0..),
        |(mail, me)| (mail, Batches::new(me), 0),
        |(mail, batches, received)| {
            for round in 0..rounds {
                let free: Free = if round % 2 == 0 { lifo } else { REVERSE };
                batches.batch(free, |block| mail.deliver(0, block, |_| *received += 1));
                mail.receive(|_| *received += 1);
            }
            mail.close(|_| *received += 1);
        },
        |(_, _, received)| received,
    );
    let handed = threads * rounds * BATCH / RETAIN;
    assert_eq!(received.iter().sum::<usize>(), handed, "blocks handed over");
    time
}

/// Makes batches; their list and the table of sizes are reserved.
struct Batches {
    rng: fastrand::Rng,
    sizes: Vec<u16>,
    batch: Vec<Block>,
}

impl Batches {
    fn new(seed: u64) -> Batches {
        let rng = fastrand::Rng::with_seed(seed);
        // Their logarithm is evenly spread.
        let size = |n| 1000f64.powf((n as f64 + 0.5) / SIZES as f64) as u16;
        let batch = Vec::with_capacity(BATCH);
        Batches { rng, sizes: (0..SIZES).map(size).collect(), batch }
    }

    /// Allocates a batch, gives away every fourth block, and frees the others.
    fn batch(&mut self, free: Free, mut give: impl FnMut(Block)) {
        for at in 0..BATCH {
            let block = Block::with_ends(self.sizes[self.rng.usize(0..SIZES)].into());
            if at % RETAIN == 0 { give(block) } else { self.batch.push(block) }
        }
        free(&mut self.batch);
    }
}
