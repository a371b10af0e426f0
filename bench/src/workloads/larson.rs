//! A server, after Larson and Krishnan (ISMM 1998): every thread replaces random blocks
//! among its 1,000, then hands them all to a fresh thread and ends.

use super::{SMALL, values};
use crate::case::{Case, Row, Run, Settings, Values};
use crate::malloc::Block;
use std::thread::Scope;
use std::time::Instant;

const SLOTS: usize = 1000;
/// Replacements by one thread before it hands over.
const PER_THREAD: usize = 50_000;
/// Replacements in all at scale 1.
const TOTAL: usize = 40_000_000;

/// The cases.
pub const CASES: &[Case] = &[
    case("larson-2", "server of 2 threads, 16-1024 B, handing over to fresh threads", |s| {
        run(s, 2)
    }),
    case("larson-16", "the same with 16 threads", |s| run(s, 16)),
];

const fn case(name: &'static str, about: &'static str, run: fn(&Settings) -> Values) -> Case {
    const ROWS: &[Row] = &[Row::time("ns"), Row::PEAK];
    Case { name, about, rows: ROWS, quick_scale: 0.2, run: Run::Workload(run) }
}

fn run(settings: &Settings, threads: usize) -> Values {
    let threads = settings.threads.unwrap_or(threads);
    let generations = settings.scaled(TOTAL / PER_THREAD).div_ceil(threads);
    serve(threads, 2);
    let start = Instant::now();
    serve(threads, generations);
    let ns = start.elapsed().as_nanos() as f64;
    values([("ns", ns / (threads * generations * PER_THREAD) as f64)])
}

/// Runs `threads` lines of `generations` threads each.
fn serve(threads: usize, generations: usize) {
    std::thread::scope(|scope| {
        for line in 0..threads {
            let mut rng = fastrand::Rng::with_seed(line as u64);
            let slots: Vec<Block> =
                (0..SLOTS).map(|at| Block::with_ends(rng.usize(SMALL), at as u64)).collect();
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
    for _ in 0..PER_THREAD {
        let at = rng.usize(0..SLOTS);
        let fresh = Block::with_ends(rng.usize(SMALL), at as u64);
        std::mem::replace(&mut slots[at], fresh).free(at as u64);
    }
    if left > 1 {
        scope.spawn(move || generation(scope, slots, rng, left - 1));
    } else {
        for (at, block) in slots.into_iter().enumerate() {
            block.free(at as u64);
        }
    }
}
