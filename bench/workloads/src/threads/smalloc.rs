//! smalloc's operation mixes in many threads, and its two worst cases: every thread at the
//! same size, and many threads that free what one has allocated.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::rust_block::RustBlock;
use crate::single::smalloc::{Holder, Mix, ORIGIN};
use crate::threads::team;
use std::sync::Barrier;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// Size of all blocks of the two hotspots.
const SIZE: usize = 32;
/// Blocks that a thread of `hotspot` holds at a time.
const HELD: usize = 64;
/// Allocations of all threads of `hotspot` at scale 1.
const PAIRS: usize = 15_000_000;
/// Blocks that one thread hands out at a time in `free-hotspot`.
const HANDED: usize = 100_000;
/// How many times, at scale 1.
const ROUNDS: usize = 50;

/// The cases.
pub const WORKLOADS: &[Workload] = &[
    case("smalloc-alloc-n", "smalloc-alloc in every thread: all build up data.", Row::NS_PEAK)
        .rust(|s| mixed(s, Mix::Alloc)),
    case("smalloc-ad-n", "smalloc-ad in every thread, each with its own blocks.", Row::NS_PEAK)
        .rust(|s| mixed(s, Mix::AllocFree)),
    case("smalloc-adr-n", "smalloc-adr in every thread, each with its own blocks.", Row::NS_PEAK)
        .rust(|s| mixed(s, Mix::AllocFreeResize)),
    case(
        "hotspot",
        "Every thread allocates 64 blocks of 32 B and frees them, over and over: contention \
         for one size.",
        const { &[Row::time("ns")] },
    )
    .rust(hotspot),
    case(
        "free-hotspot",
        "One thread allocates 100,000 blocks of 32 B, all threads free them at once, each \
         every n-th block. Frees that meet in the same places.",
        Row::NS_PEAK,
    )
    .rust(free_hotspot),
];

const fn case(name: &'static str, about: &'static str, rows: &'static [Row]) -> Case {
    Case::new(name, Group::Threads, about, rows).from(ORIGIN).quick(0.2)
}

fn mixed(settings: &Settings, mix: Mix) -> Results {
    let threads = settings.threads();
    // Half as many as the form with one thread has.
    let steps = settings.scaled(mix.steps() / 2);
    let mut ns = 0.0;
    for round in 0..mix.rounds() {
        let prepare = |thread| Holder::new(mix, (round * threads + thread) as u64, steps);
        let work = |_, holder: &mut Holder| holder.work(steps);
        let (time, _) = team::timed(threads, prepare, work, |_, holder| holder.finish());
        ns += time.as_nanos() as f64;
    }
    Results::of([("ns", ns / (threads * steps * mix.rounds()) as f64)])
}

fn hotspot(settings: &Settings) -> Results {
    let threads = settings.threads();
    let batches = settings.scaled(PAIRS / HELD).div_ceil(threads);
    let work = |held: &mut Vec<RustBlock>, batches| {
        for batch in 0..batches {
            held.extend((0..HELD).map(|_| RustBlock::new(SIZE, batch as u8)));
            held.clear();
        }
    };
    let prepare = |_| {
        let mut held = Vec::with_capacity(HELD);
        work(&mut held, 1000);
        held
    };
    let (time, _) = team::timed(threads, prepare, |_, held| work(held, batches), |_, _| ());
    Results::of([("ns", time.as_nanos() as f64 / (threads * batches * HELD) as f64)])
}

fn free_hotspot(settings: &Settings) -> Results {
    let threads = settings.threads();
    // A round to warm up is not timed.
    let rounds = settings.scaled(ROUNDS) + 1;
    let slots: Vec<AtomicPtr<u8>> = (0..HANDED).map(|_| AtomicPtr::default()).collect();
    let (ready, done) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    let freed = AtomicUsize::new(0);
    let (mut all, mut freeing) = (0.0, 0.0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (slots, ready, done, freed) = (&slots, &ready, &done, &freed);
            scope.spawn(move || {
                for round in 0..rounds {
                    ready.wait();
                    let count = free_every(slots, thread, threads, round as u8);
                    freed.fetch_add(count, Relaxed);
                    done.wait();
                }
            });
        }
        for round in 0..rounds {
            let start = Instant::now();
            for slot in &slots {
                slot.store(RustBlock::new(SIZE, round as u8).into_raw(), Relaxed);
            }
            let full = Instant::now();
            ready.wait();
            done.wait();
            if round > 0 {
                all += start.elapsed().as_nanos() as f64;
                freeing += full.elapsed().as_nanos() as f64;
            }
        }
    });
    assert_eq!(freed.into_inner(), rounds * HANDED, "blocks freed");
    let blocks = ((rounds - 1) * HANDED) as f64;
    Results::of([("ns", all / blocks), ("free_ns", freeing / blocks)])
}

/// Frees one thread's share; how many that were.
fn free_every(slots: &[AtomicPtr<u8>], first: usize, step: usize, tag: u8) -> usize {
    let share = slots.iter().skip(first).step_by(step);
    let count = share.len();
    for slot in share {
        let start = slot.swap(std::ptr::null_mut(), Relaxed);
        // SAFETY: the one thread stored it before the barrier, with this size and tag, and
        // the exchange takes it once.
        drop(unsafe { RustBlock::from_raw(start, SIZE, tag) });
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_run_with_any_number_of_threads() {
        for threads in [1, 3] {
            let settings = Settings { threads: Some(threads), scale: 1e-3, no_alloc: false };
            for workload in WORKLOADS {
                assert!((workload.run)(&settings).values["ns"] > 0.0);
            }
        }
    }
}
