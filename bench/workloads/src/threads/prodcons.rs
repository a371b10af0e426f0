//! One thread allocates, another frees: 64 B blocks through a bounded queue of pointers.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::malloc::Block;
use std::time::Instant;

/// Blocks in flight at most.
const QUEUE: usize = 4096;
const WARM_UP: usize = 200_000;

/// The case.
pub const WORKLOADS: &[Workload] = &[Case::new(
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
    Results::of([("ns", pass(blocks) / blocks as f64)])
}

/// Hands `blocks` blocks over; nanoseconds in all.
fn pass(blocks: usize) -> f64 {
    let (mut sender, mut receiver) = rtrb::RingBuffer::new(QUEUE);
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for tag in 0..blocks as u64 {
                let mut block = Block::new(64, tag);
                let mut wait = Wait::default();
                while let Err(rtrb::PushError::Full(back)) = sender.push(block) {
                    block = back;
                    wait.a_little();
                }
            }
        });
        scope.spawn(move || {
            for tag in 0..blocks as u64 {
                let mut wait = Wait::default();
                let block = loop {
                    match receiver.pop() {
                        Ok(block) => break block,
                        Err(rtrb::PopError::Empty) => wait.a_little(),
                    }
                };
                block.free(tag);
            }
        });
    });
    start.elapsed().as_nanos() as f64
}

/// Spins a while, then lets others run: the machine may have fewer free cores than threads.
#[derive(Default)]
struct Wait(u32);

impl Wait {
    fn a_little(&mut self) {
        self.0 += 1;
        if self.0 < 200 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}
