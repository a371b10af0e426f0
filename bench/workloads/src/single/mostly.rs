//! What an allocator does to a heap as a whole: large zeroed blocks of which hardly anything is used, a
//! search among many holes, the account of all blocks, a fork.
//!
//! Tables that may grow, column stores after a delete, monitoring once a second, servers that fork:
//! costs that grow with the heap, where the work does not.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::clock::ms_since;
use crate::malloc::Block;
use crate::words::Words;
use std::time::Instant;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The cases.
pub const WORKLOADS: &[Workload] = &[
    case(
        "calloc-sparse",
        "A block of 20 MiB is filled; then 100 of 20 MiB come from calloc, a word written in each: tables \
         that are larger than what is in them.",
        Row::MS_PEAK,
    )
    .quick(1.0)
    .c(sparse),
    case(
        "holes-80k",
        "2 GiB of blocks of 80 KB, every other freed; then 120 KB are allocated and an old block freed in \
         turn: where does it fit?",
        &[Row::time("ns")],
    )
    .quick(0.25)
    .c(holes),
    case(
        "account",
        "256 MiB of blocks of 512 B; mallinfo2 ten times: monitoring that asks for figures.",
        &[Row::time("us").floor(1.0)],
    )
    .quick(0.25)
    .c(account),
    case(
        "fork",
        "16 threads hold 32 MiB of blocks of 1,000 B each and wait; 20 forks, the child ends at once.",
        &[Row::time("ms")],
    )
    .quick(0.25)
    .c(forks),
];

const fn case(name: &'static str, about: &'static str, rows: &'static [Row]) -> Case {
    Case::new(name, Group::Single, about, rows)
}

fn sparse(settings: &Settings) -> Results {
    const SIZE: usize = 20 * MIB;
    let mut first = Words::malloc(SIZE);
    first.fill(1);
    let start = Instant::now();
    let blocks: Vec<Words> = (0..settings.scaled(100))
        .map(|nth| {
            let mut block = Words::zeroed(SIZE);
            block.expect(block.len() / 3, 0);
            block.set(block.len() / 3, nth as u64 + 1);
            block
        })
        .collect();
    let ms = ms_since(start);
    for (nth, block) in blocks.iter().enumerate() {
        block.expect(block.len() / 3, nth as u64 + 1);
    }
    drop(first);
    Results::of([("ms", ms)])
}

fn holes(settings: &Settings) -> Results {
    const OPERATIONS: usize = 2000;
    let count = settings.scaled(2048 * MIB / (80 * KIB)).max(2 * OPERATIONS + 2);
    let mut old: Vec<Option<Block>> =
        (0..count).map(|nth| Some(Block::new(80_000, nth as u64))).collect();
    old.iter_mut().enumerate().step_by(2).for_each(|(nth, block)| free(block, nth));
    let mut new = Vec::with_capacity(OPERATIONS);
    let start = Instant::now();
    for nth in 0..OPERATIONS {
        new.push(Block::new(120_000, nth as u64));
        free(&mut old[2 * nth + 1], 2 * nth + 1);
    }
    let ns = start.elapsed().as_nanos() as f64;
    Results::of([("ns", ns / (2 * OPERATIONS) as f64)])
}

fn free(block: &mut Option<Block>, tag: usize) {
    block.take().into_iter().for_each(|block| block.free(tag as u64));
}

fn account(settings: &Settings) -> Results {
    const TIMES: usize = 10;
    let count = settings.scaled(256 * MIB / 512);
    let blocks: Vec<Block> = (0..count).map(|nth| Block::new(512, nth as u64)).collect();
    let start = Instant::now();
    for _ in 0..TIMES {
        // SAFETY: has no preconditions.
        std::hint::black_box(unsafe { libc::mallinfo2() });
    }
    let us = ms_since(start) * 1000.0;
    blocks.into_iter().zip(0..).for_each(|(block, tag)| block.free(tag));
    Results::of([("us", us / TIMES as f64)])
}

fn forks(settings: &Settings) -> Results {
    const THREADS: usize = 16;
    const FORKS: usize = 20;
    let count = settings.scaled(32 * MIB / 1000);
    let (ready, done) =
        (std::sync::Barrier::new(THREADS + 1), std::sync::Barrier::new(THREADS + 1));
    let mut ms = 0.0;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let blocks: Vec<Block> =
                    (0..count).map(|nth| Block::new(1000, nth as u64)).collect();
                ready.wait();
                done.wait();
                blocks.into_iter().zip(0..).for_each(|(block, tag)| block.free(tag));
            });
        }
        ready.wait();
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
        ms = ms_since(start) / FORKS as f64;
        done.wait();
    });
    Results::of([("ms", ms)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_run() {
        let settings = Settings { threads: None, scale: 0.02, no_alloc: false };
        for (run, key) in
            [(sparse as fn(&Settings) -> Results, "ms"), (account, "us"), (forks, "ms")]
        {
            assert!(run(&settings).values[key] > 0.0);
        }
        assert!(holes(&settings).values["ns"] > 0.0);
    }
}
