//! The many-threaded sibling of sh6bench: every thread allocates batches of small blocks and
//! frees most of them itself, alternately last in, first out and in the order of allocation;
//! every fourth block is freed by the next thread of the ring.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::single::sh6bench::{BATCH, Order, RETAIN, Sizes, Tagged, free_all};
use crate::threads::team;
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use std::sync::Mutex;

/// Blocks under way from one thread to the next at most: 16 batches' worth.
const UNDER_WAY: usize = 16 * BATCH / RETAIN;
/// Batches of all threads together at scale 1.
const ROUNDS: usize = 1500;

/// The case.
pub const WORKLOADS: &[Workload] = &[Case::new(
    "sh8bench",
    Group::Threads,
    "Every thread frees batches of 1-1000 B, mostly small, in both orders; every fourth block \
     is freed by the next thread. Temporaries, and objects that move on.",
    Row::NS_PEAK,
)
.from("sh8bench: MicroQuill, SmartHeap")
.quick(0.2)
.c(run)];

fn run(settings: &Settings) -> Results {
    let threads = settings.threads();
    let rounds = settings.scaled(ROUNDS).div_ceil(threads);
    pass(threads, 32);
    Results::of([("ns", pass(threads, rounds) / (threads * rounds * BATCH) as f64)])
}

/// Every thread works off `rounds` batches; nanoseconds in all.
fn pass(threads: usize, rounds: usize) -> f64 {
    let (senders, mut receivers): (Vec<_>, Vec<_>) =
        (0..threads).map(|_| RingBuffer::new(UNDER_WAY)).unzip();
    receivers.rotate_right(1);
    let ends: Vec<_> =
        senders.into_iter().zip(receivers).map(|ends| Mutex::new(Some(ends))).collect();
    let prepare = |thread: usize| {
        let ends = ends[thread].lock().expect("no thread panics").take();
        let (sender, receiver) = ends.expect("one thread per end");
        Worker::new(thread, sender, receiver)
    };
    let work = |_, worker: &mut Worker| worker.work(rounds);
    let (time, received) = team::timed(threads, prepare, work, |_, worker| worker.received);
    assert_eq!(
        received.iter().sum::<usize>(),
        threads * rounds * BATCH / RETAIN,
        "blocks handed over"
    );
    time.as_nanos() as f64
}

struct Worker {
    sizes: Sizes,
    tags: std::ops::RangeFrom<u64>,
    batch: Vec<Tagged>,
    sender: Option<Producer<Tagged>>,
    receiver: Consumer<Tagged>,
    received: usize,
}

impl Worker {
    fn new(thread: usize, sender: Producer<Tagged>, receiver: Consumer<Tagged>) -> Worker {
        Worker {
            sizes: Sizes::new(thread as u64),
            tags: (thread as u64) << 40..,
            batch: Vec::with_capacity(BATCH),
            sender: Some(sender),
            receiver,
            received: 0,
        }
    }

    fn work(&mut self, rounds: usize) {
        for round in 0..rounds {
            for at in 0..BATCH {
                let tag = self.tags.next().expect("endless");
                let block = Tagged::new(self.sizes.next(), tag);
                if at % RETAIN == 0 { self.hand_over(block) } else { self.batch.push(block) }
            }
            free_all(&mut self.batch, if round % 2 == 0 { Order::Lifo } else { Order::Reverse });
            self.receive();
        }
        // The one before may still be waiting for room.
        self.sender = None;
        while !(self.receiver.is_abandoned() && self.receiver.is_empty()) {
            self.receive();
            std::thread::yield_now();
        }
    }

    /// Waits for room if there is none; makes room for others meanwhile.
    fn hand_over(&mut self, mut block: Tagged) {
        loop {
            match self.sender.as_mut().expect("not at the end").push(block) {
                Ok(()) => return,
                Err(PushError::Full(back)) => block = back,
            }
            self.receive();
            std::thread::yield_now();
        }
    }

    /// Frees what has arrived.
    fn receive(&mut self) {
        while let Ok(block) = self.receiver.pop() {
            block.free();
            self.received += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_arrives_with_any_number_of_threads() {
        for threads in 1..5 {
            assert!(pass(threads, 40) > 0.0);
        }
    }
}
