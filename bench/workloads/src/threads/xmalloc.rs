//! A producer puts a whole batch into a bounded queue, any consumer frees all of it: little time goes into the
//! hand-over. The blocks go one way, which empties the caches on one side and fills those on the other.

use crate::case::{Results, Settings};
use crate::malloc::{Block, SMALL};
use crate::team::{self, Mail};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

const BATCH: usize = 4096;
/// Blocks in all at scale 1, of random sizes.
const TOTAL: usize = 4_000_000;
/// Blocks in all of one size of the sweep.
const TOTAL_SWEEP: usize = 700_000;

pub(crate) fn sweep(settings: &Settings) -> Results {
    let pairs = (settings.threads() / 2).max(1);
    let blocks = settings.scaled(TOTAL_SWEEP);
    let mut results = Results::default();
    for size in (4..=11).map(|power| 1 << power) {
        pass(pairs, blocks / 10, size..=size);
        let (time, freed) = pass(pairs, blocks, size..=size);
        let ns = time.as_nanos() as f64 / freed as f64;
        results.values.insert(format!("ns_{size}"), ns);
    }
    results
}

pub(crate) fn random(settings: &Settings, pairs: usize) -> Results {
    let blocks = settings.scaled(TOTAL);
    pass(pairs, blocks / 10, SMALL);
    let (time, freed) = pass(pairs, blocks, SMALL);
    Results::ns(time, freed)
}

/// A producer and a consumer, without batches.
pub(crate) fn one_by_one(settings: &Settings) -> Results {
    /// Blocks in flight at most.
    const QUEUE: usize = 4096;
    let pass = |blocks| {
        let ends = Mail::ring(2, 1, QUEUE).into_iter().zip([blocks, 0]);
        let work = |(mail, to_make): &mut (Mail<Block>, usize)| {
            (0..*to_make).for_each(|_| mail.deliver(0, Block::new(64), drop));
            mail.close(drop);
        };
        team::timed(ends, |end| end, work, drop).0
    };
    let blocks = settings.scaled(20_000_000);
    pass(200_000);
    Results::ns(pass(blocks), blocks)
}

/// `pairs` producers and as many consumers pass on `blocks` blocks, rounded up to whole
/// batches: how long that took, and how many they were.
pub(super) fn pass(pairs: usize, blocks: usize, sizes: RangeInclusive<usize>) -> (Duration, usize) {
    let batches = blocks.div_ceil(pairs * BATCH);
    let (sender, receiver) = crossbeam_channel::bounded(pairs.max(2));
    let start = Instant::now();
    let freed: usize = std::thread::scope(|scope| {
        for producer in 0..pairs {
            let (sender, sizes) = (sender.clone(), sizes.clone());
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(producer as u64);
                for _ in 0..batches {
                    let blocks = (0..BATCH).map(|_| Block::with_ends(rng.usize(sizes.clone())));
                    sender.send(blocks.collect::<Vec<_>>()).expect("the consumers wait");
                }
            });
        }
        // The consumers end when all producers have.
        drop(sender);
        let consume = || receiver.iter().map(|batch| batch.len()).sum::<usize>();
        let consumers: Vec<_> = (0..pairs).map(|_| scope.spawn(consume)).collect();
        consumers.into_iter().map(|consumer| consumer.join().expect("it ends well")).sum()
    });
    assert_eq!(freed, pairs * batches * BATCH, "blocks were lost");
    (start.elapsed(), freed)
}
