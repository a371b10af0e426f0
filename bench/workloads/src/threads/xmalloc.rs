//! Producers allocate, consumers free: malloc-test in the batched form of the SuperMalloc
//! paper. A producer allocates 4,096 blocks and puts them into a bounded queue as one
//! batch; any consumer takes the batch and frees all of it. Little time goes into the
//! hand-over; the blocks go one way, which empties the caches on one side and fills those
//! on the other.

use crate::case::{Case, Group, Results, Row, Settings, Table, Workload};
use crate::malloc::Block;
use crate::random::SMALL;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

const BATCH: usize = 4096;
/// Blocks in all at scale 1, of random sizes.
const TOTAL: usize = 4_000_000;
/// Blocks in all of one size of the sweep.
const TOTAL_SWEEP: usize = 700_000;

/// The sizes of the sweep, and where their results are.
const SWEEP: [(usize, &str); 8] = [
    (16, "ns_16"),
    (32, "ns_32"),
    (64, "ns_64"),
    (128, "ns_128"),
    (256, "ns_256"),
    (512, "ns_512"),
    (1024, "ns_1024"),
    (2048, "ns_2048"),
];

/// The cases.
pub const WORKLOADS: &[Workload] = &[
    Case::new(
        "xmalloc-sweep",
        Group::Threads,
        "Half of the threads allocate batches of blocks of one size, the others free them; a row \
         for each size.",
        const {
            &[
                Row::new(" 16", Table::Time, "ns_16", "ns"),
                Row::new(" 32", Table::Time, "ns_32", "ns"),
                Row::new(" 64", Table::Time, "ns_64", "ns"),
                Row::new(" 128", Table::Time, "ns_128", "ns"),
                Row::new(" 256", Table::Time, "ns_256", "ns"),
                Row::new(" 512", Table::Time, "ns_512", "ns"),
                Row::new(" 1024", Table::Time, "ns_1024", "ns"),
                Row::new(" 2048", Table::Time, "ns_2048", "ns"),
                Row::PEAK,
            ]
        },
    )
    .from(ORIGIN)
    .quick(0.2)
    .c(sweep),
    case("xmalloc-1x1", "One thread allocates batches of 16-1024 B, another frees them.", |s| {
        random(s, 1)
    }),
    case("xmalloc-2x2", "The same with 2 producers and 2 consumers.", |s| random(s, 2)),
    case("xmalloc-8x8", "The same with 8 producers and 8 consumers.", |s| random(s, 8)),
];

const ORIGIN: &str = "malloc-test: Lever and Boreham, USENIX 2000; batched: Kuszmaul, \
                      SuperMalloc, ISMM 2015";

const fn case(name: &'static str, about: &'static str, run: fn(&Settings) -> Results) -> Workload {
    Case::new(name, Group::Threads, about, Row::NS_PEAK).from(ORIGIN).quick(0.2).c(run)
}

fn sweep(settings: &Settings) -> Results {
    let pairs = (settings.threads() / 2).max(1);
    let blocks = settings.scaled(TOTAL_SWEEP);
    let mut results = Results::default();
    for (size, key) in SWEEP {
        pass(pairs, blocks / 10, Sizes::All(size));
        results.values.insert(key.to_owned(), pass(pairs, blocks, Sizes::All(size)));
    }
    results
}

fn random(settings: &Settings, pairs: usize) -> Results {
    let blocks = settings.scaled(TOTAL);
    pass(pairs, blocks / 10, Sizes::Random);
    Results::of([("ns", pass(pairs, blocks, Sizes::Random))])
}

/// Which sizes the producers ask for.
#[derive(Clone, Copy)]
pub(super) enum Sizes {
    /// This one.
    All(usize),
    /// 16-1024 B.
    Random,
}

/// Nanoseconds per block when `pairs` producers and as many consumers pass on `blocks`
/// blocks, rounded up to whole batches.
pub(super) fn pass(pairs: usize, blocks: usize, sizes: Sizes) -> f64 {
    let batches = blocks.div_ceil(pairs * BATCH);
    let queue = Queue::new(pairs);
    let start = Instant::now();
    let freed: usize = std::thread::scope(|scope| {
        for producer in 0..pairs {
            let queue = &queue;
            scope.spawn(move || produce(queue, producer, batches, sizes));
        }
        let consumers: Vec<_> = (0..pairs).map(|_| scope.spawn(|| consume(&queue))).collect();
        consumers.into_iter().map(|consumer| consumer.join().expect("it ends well")).sum()
    });
    let ns = start.elapsed().as_nanos() as f64;
    assert_eq!(freed, pairs * batches * BATCH, "blocks were lost");
    ns / freed as f64
}

fn produce(queue: &Queue, producer: usize, batches: usize, sizes: Sizes) {
    let mut rng = fastrand::Rng::with_seed(producer as u64);
    for batch in 0..batches {
        let tag = ((producer << 48) + batch * BATCH) as u64;
        let size = |_| match sizes {
            Sizes::All(size) => size,
            Sizes::Random => rng.usize(SMALL),
        };
        let blocks = (0..BATCH).map(size).zip(tag..);
        let blocks = blocks.map(|(size, tag)| Block::with_ends(size, tag)).collect();
        queue.push(Batch { tag, blocks });
    }
    queue.end();
}

/// How many blocks it freed.
fn consume(queue: &Queue) -> usize {
    let mut freed = 0;
    while let Some(batch) = queue.pop() {
        freed += batch.blocks.len();
        for (block, tag) in batch.blocks.into_iter().zip(batch.tag..) {
            block.free(tag);
        }
    }
    freed
}

/// Blocks that are handed over at once.
struct Batch {
    /// Of the first; the next ones follow.
    tag: u64,
    blocks: Vec<Block>,
}

/// A bounded queue: as many batches as there are producers, but at least 2.
struct Queue {
    state: Mutex<State>,
    limit: usize,
    shorter: Condvar,
    longer: Condvar,
}

struct State {
    batches: VecDeque<Batch>,
    producers: usize,
}

impl Queue {
    fn new(producers: usize) -> Queue {
        let limit = producers.max(2);
        let state = State { batches: VecDeque::with_capacity(limit), producers };
        let (shorter, longer) = Default::default();
        Queue { state: Mutex::new(state), limit, shorter, longer }
    }

    fn push(&self, batch: Batch) {
        let full = |state: &mut State| state.batches.len() == self.limit;
        let state = self.shorter.wait_while(self.lock(), full);
        state.unwrap_or_else(PoisonError::into_inner).batches.push_back(batch);
        self.longer.notify_one();
    }

    /// The next batch, or nothing once all producers have ended.
    fn pop(&self) -> Option<Batch> {
        let empty = |state: &mut State| state.batches.is_empty() && state.producers > 0;
        let state = self.longer.wait_while(self.lock(), empty);
        let batch = state.unwrap_or_else(PoisonError::into_inner).batches.pop_front();
        self.shorter.notify_one();
        batch
    }

    /// One producer has ended.
    fn end(&self) {
        self.lock().producers -= 1;
        self.longer.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{BATCH, SWEEP, Sizes, WORKLOADS, pass};

    #[test]
    fn every_batch_arrives() {
        // The tags and the count are checked inside.
        assert!(pass(1, 3 * BATCH, Sizes::All(16)) > 0.0);
        assert!(pass(3, 10 * BATCH, Sizes::Random) > 0.0);
    }

    #[test]
    fn the_sweep_fills_its_rows() {
        for (row, (size, key)) in WORKLOADS[0].case.rows.iter().zip(SWEEP) {
            assert_eq!((&*row.key, &*row.suffix), (key, &*format!(" {size}")));
        }
    }
}
