//! What the threads do.

use super::{Apart, Block, Order, SIZE, Shape, Slot, Worker};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// Blocks that a thread keeps, or a ring has room for.
const SET: usize = 64;
const BATCH: usize = 32;
/// Batches that are looked at before a thread waits.
const LOOKS: usize = 16;
/// Slots in one cache line.
const LANE: usize = 8;

type Set = Apart<[[Slot; LANE]; SET / LANE]>;

#[derive(Default)]
struct Batch {
    state: Apart<AtomicU8>,
    slots: Apart<[Slot; BATCH]>,
}

/// The states of a batch; whoever makes it busy has it alone.
const EMPTY: u8 = 0;
const BUSY: u8 = 1;
const FULL: u8 = 2;

/// Through what threads hand blocks over; each shape uses a part of it.
pub(super) struct Exchange {
    sets: Vec<Set>,
    batches: Vec<Batch>,
    slots: Vec<Apart<Slot>>,
    /// Numbers of sets that nobody has.
    boxes: Vec<Apart<AtomicUsize>>,
}

impl Exchange {
    /// What the order's shape does not use is empty: it would lie between the blocks.
    pub(super) fn new(order: Order) -> Exchange {
        let threads = order.threads;
        let of = |used: &[Shape], count| if used.contains(&order.shape) { count } else { 0 };
        let sets = of(&[Shape::Pairs, Shape::OneToAll, Shape::LarsonLike], 2 * threads);
        let boxes = threads..threads + of(&[Shape::LarsonLike], threads);
        Exchange {
            sets: (0..sets).map(|_| Set::default()).collect(),
            batches: (0..of(&[Shape::AnyConsumer], threads)).map(|_| Batch::default()).collect(),
            slots: (0..of(&[Shape::Swap], 4 * threads)).map(|_| Apart::default()).collect(),
            boxes: boxes.map(|set| Apart(AtomicUsize::new(set))).collect(),
        }
    }
}

/// Runs a thread for ever.
pub(super) fn work(worker: &mut Worker, exchange: &Exchange) -> ! {
    let me = worker.index;
    let first_half = me.is_multiple_of(2);
    match worker.common.order.shape {
        Shape::Local => local(worker),
        Shape::Pairs if first_half => produce(worker, &exchange.sets[me / 2].0),
        Shape::Pairs => consume(worker, &exchange.sets[me / 2].0),
        Shape::AnyConsumer if first_half => fill(worker, &exchange.batches),
        Shape::AnyConsumer => empty(worker, &exchange.batches),
        Shape::Swap => swap(worker, &exchange.slots),
        Shape::LarsonLike => replace(worker, exchange),
        Shape::OneToAll if me == 0 => serve(worker, &exchange.sets),
        Shape::OneToAll => consume(worker, &exchange.sets[me].0[..1]),
    }
}

fn local(worker: &mut Worker) -> ! {
    let mut set: [Option<Block>; SET] = [const { None }; SET];
    loop {
        for slot in &mut set {
            worker.free(slot.replace(Block::new(SIZE)));
        }
    }
}

fn produce(worker: &mut Worker, ring: &[[Slot; LANE]]) -> ! {
    loop {
        for slot in ring.as_flattened() {
            let block = Block::new(SIZE);
            while !slot.is_empty() {
                worker.wait();
            }
            slot.put(block);
            worker.count();
        }
    }
}

fn consume(worker: &mut Worker, ring: &[[Slot; LANE]]) -> ! {
    loop {
        for slot in ring.as_flattened() {
            while slot.is_empty() {
                worker.wait();
            }
            worker.free(slot.take());
        }
    }
}

/// Finds a batch in state `from` and has it alone.
fn claim<'a>(worker: &mut Worker, batches: &'a [Batch], from: u8) -> &'a Batch {
    loop {
        for _ in 0..LOOKS {
            let batch = &batches[worker.random.usize(..batches.len())];
            let state = &batch.state.0;
            if state.load(Ordering::Relaxed) == from
                && state.compare_exchange(from, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return batch;
            }
        }
        worker.wait();
    }
}

fn fill(worker: &mut Worker, batches: &[Batch]) -> ! {
    loop {
        let batch = claim(worker, batches, EMPTY);
        for slot in &batch.slots.0 {
            slot.put(Block::new(SIZE));
            worker.count();
        }
        batch.state.0.store(FULL, Ordering::Release);
    }
}

fn empty(worker: &mut Worker, batches: &[Batch]) -> ! {
    loop {
        let batch = claim(worker, batches, FULL);
        for slot in &batch.slots.0 {
            worker.free(slot.take());
        }
        batch.state.0.store(EMPTY, Ordering::Release);
    }
}

fn swap(worker: &mut Worker, slots: &[Apart<Slot>]) -> ! {
    loop {
        let block = Block::new(SIZE);
        let slot = &slots[worker.random.usize(..slots.len())].0;
        worker.free(slot.swap(block));
    }
}

fn replace(worker: &mut Worker, exchange: &Exchange) -> ! {
    let mut mine = worker.index;
    loop {
        let set = exchange.sets[mine].0.as_flattened();
        for _ in 0..SET {
            let slot = &set[worker.random.usize(..SET)];
            let old = slot.take();
            let fresh = worker.random.usize(SIZE / 4..=SIZE * 4);
            slot.put(Block::new(fresh));
            worker.free(old);
        }
        let other = &exchange.boxes[worker.random.usize(..exchange.boxes.len())].0;
        mine = other.swap(mine, Ordering::AcqRel);
    }
}

fn serve(worker: &mut Worker, sets: &[Set]) -> ! {
    loop {
        for set in &sets[1..worker.common.order.threads] {
            for slot in set.0[0].iter().filter(|slot| slot.is_empty()) {
                slot.put(Block::new(SIZE));
                worker.count();
            }
        }
        worker.give_way();
    }
}
