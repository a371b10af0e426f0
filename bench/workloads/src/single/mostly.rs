//! What an allocator does to a heap as a whole: costs that grow with the heap, where the work does not.

use crate::case::{Results, Settings};
use crate::malloc::Block;
use crate::words::Words;
use std::time::{Duration, Instant};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

pub(crate) fn sparse(settings: &Settings) -> Results {
    const SIZE: usize = 20 * MIB;
    let mut first = Words::malloc(SIZE);
    first.fill(1);
    let start = Instant::now();
    let blocks: Vec<Words> = (0..settings.scaled(100))
        .map(|nth| {
            let mut block = Words::zeroed(SIZE);
            block.expect(block.last() / 3, 0);
            block.set(block.last() / 3, nth as u64 + 1);
            block
        })
        .collect();
    let time = start.elapsed();
    for (nth, block) in blocks.iter().enumerate() {
        block.expect(block.last() / 3, nth as u64 + 1);
    }
    Results::ms(time)
}

pub(crate) fn holes(settings: &Settings) -> Results {
    const OPERATIONS: usize = 2000;
    let count = settings.scaled(2048 * MIB / (80 * KIB)).max(2 * OPERATIONS + 2);
    let mut old: Vec<Option<Block>> = (0..count).map(|_| Some(Block::new(80_000))).collect();
    old.iter_mut().step_by(2).for_each(|block| *block = None);
    let mut new = Vec::with_capacity(OPERATIONS);
    let start = Instant::now();
    for nth in 0..OPERATIONS {
        new.push(Block::new(120_000));
        old[2 * nth + 1] = None;
    }
    Results::ns(start.elapsed(), 2 * OPERATIONS)
}

pub(crate) fn account(settings: &Settings) -> Results {
    const TIMES: usize = 10;
    let count = settings.scaled(256 * MIB / 512);
    let _blocks: Vec<Block> = (0..count).map(|_| Block::new(512)).collect();
    let start = Instant::now();
    for _ in 0..TIMES {
        // SAFETY: has no preconditions.
        std::hint::black_box(unsafe { libc::mallinfo2() });
    }
    Results::of([("us", start.elapsed().as_secs_f64() * 1e6 / TIMES as f64)])
}

pub(crate) fn forks(settings: &Settings) -> Results {
    const THREADS: usize = 16;
    const FORKS: usize = 20;
    let count = settings.scaled(32 * MIB / 1000);
    let meeting = std::sync::Barrier::new(THREADS + 1);
    let mut time = Duration::ZERO;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let _blocks: Vec<Block> = (0..count).map(|_| Block::new(1000)).collect();
                meeting.wait();
                meeting.wait();
            });
        }
        meeting.wait();
        let start = Instant::now();
        for _ in 0..FORKS {
            // SAFETY: the child ends at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: has no preconditions.
                unsafe { libc::_exit(0) };
            }
            let mut status = -1;
            // SAFETY: `status` is valid for writing.
            let ended = unsafe { libc::waitpid(child, &mut status, 0) };
            assert!(child > 0 && ended == child && status == 0, "a fork has failed");
        }
        time = start.elapsed() / FORKS as u32;
        meeting.wait();
    });
    Results::ms(time)
}
