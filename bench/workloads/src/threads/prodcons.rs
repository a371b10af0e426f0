//! One thread allocates, another frees: 64 B blocks through a bounded queue of pointers.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::malloc::Block;
use std::time::{Duration, Instant};

/// Blocks in flight at most.
const QUEUE: usize = 4096;
const WARM_UP: usize = 200_000;

pub(crate) const WORKLOADS: &[Workload] = &[Case::new(
    "prodcons",
    Group::Threads,
    "One producer, one consumer, 64 B blocks through a bounded queue.",
    Row::NS_PEAK,
)
.from("malloc-test: Lever and Boreham, USENIX 2000")
.quick(0.3)
.c(run)];

fn run(settings: &Settings) -> Results {
    let blocks = settings.scaled(20_000_000);
    pass(WARM_UP);
    Results::ns(pass(blocks), blocks)
}

/// Hands `blocks` blocks over.
fn pass(blocks: usize) -> Duration {
    let (mut sender, mut receiver) = rtrb::RingBuffer::new(QUEUE);
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..blocks {
                let mut unsent = Some(Block::new(64));
                until(|| {
                    let block = unsent.take().expect("it came back");
                    unsent = sender.push(block).err().map(|rtrb::PushError::Full(block)| block);
                    unsent.is_none()
                });
            }
        });
        scope.spawn(move || (0..blocks).for_each(|_| until(|| receiver.pop().is_ok())));
    });
    start.elapsed()
}

/// Spins a while, then lets others run: the machine may have fewer free cores than threads.
fn until(mut done: impl FnMut() -> bool) {
    let mut turns = 0;
    while !done() {
        turns += 1;
        if turns < 200 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}
