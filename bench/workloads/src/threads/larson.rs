//! A server, after Larson and Krishnan (ISMM 1998): every thread replaces random blocks
//! among its 1,000, then hands them all to a fresh thread and ends.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::malloc::Block;
use crate::random::SMALL;
use std::thread::Scope;
use std::time::Instant;

const SLOTS: usize = 1000;
/// Replacements by one thread before it hands over.
const PER_THREAD: usize = 50_000;
/// Replacements in all at scale 1.
const TOTAL: usize = 40_000_000;

/// The cases.
pub const WORKLOADS: &[Workload] = &[
    case("larson-2", "server of 2 threads, 16-1024 B, handing over to fresh threads")
        .quick(0.2)
        .c(|s| run(s, 2)),
    case("larson-16", "the same with 16 threads").quick(0.2).c(|s| run(s, 16)),
    case("larson-100", "the same with 100 threads, far more than cores")
        .quick(0.1)
        .c(|s| run(s, 100)),
];

const fn case(name: &'static str, about: &'static str) -> Case {
    Case::new(name, Group::Threads, about, Row::NS_PEAK).from("Larson and Krishnan, ISMM 1998")
}

fn run(settings: &Settings, threads: usize) -> Results {
    let threads = settings.threads.unwrap_or(threads);
    let generations = settings.scaled(TOTAL / PER_THREAD).div_ceil(threads);
    // Many threads warm up enough in one generation.
    serve(threads, (32 / threads).clamp(1, 2));
    let start = Instant::now();
    serve(threads, generations);
    let ns = start.elapsed().as_nanos() as f64;
    Results::of([("ns", ns / (threads * generations * PER_THREAD) as f64)])
}

/// Runs `threads` lines of `generations` threads each.
fn serve(threads: usize, generations: usize) {
    std::thread::scope(|scope| {
        for line in 0..threads {
            let mut rng = fastrand::Rng::with_seed(line as u64);
            let slots = fill(&mut rng);
            scope.spawn(move || generation(scope, slots, rng, generations));
        }
    });
}

/// One thread's life: work, then a successor or the end.
fn generation<'scope>(
    scope: &'scope Scope<'scope, '_>,
    mut slots: Vec<Block>,
    mut rng: fastrand::Rng,
    left: usize,
) {
    replace(&mut slots, &mut rng, PER_THREAD);
    if left > 1 {
        scope.spawn(move || generation(scope, slots, rng, left - 1));
    } else {
        empty(slots);
    }
}

/// A thread's blocks, each tagged with its place.
pub(super) fn fill(rng: &mut fastrand::Rng) -> Vec<Block> {
    (0..SLOTS).map(|at| Block::with_ends(rng.usize(SMALL), at as u64)).collect()
}

/// Replaces random ones of [`fill`]'s blocks.
pub(super) fn replace(slots: &mut [Block], rng: &mut fastrand::Rng, times: usize) {
    for _ in 0..times {
        let at = rng.usize(0..SLOTS);
        let fresh = Block::with_ends(rng.usize(SMALL), at as u64);
        std::mem::replace(&mut slots[at], fresh).free(at as u64);
    }
}

/// Frees [`fill`]'s blocks.
pub(super) fn empty(slots: Vec<Block>) {
    for (at, block) in slots.into_iter().enumerate() {
        block.free(at as u64);
    }
}
