//! A server, after Larson and Krishnan (ISMM 1998): every thread replaces random blocks
//! among its 1,000, then hands them all to a fresh thread and ends.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::malloc::{Block, SMALL};
use std::thread::Scope;
use std::time::Instant;

const SLOTS: usize = 1000;
/// Replacements by one thread before it hands over.
const PER_THREAD: usize = 50_000;
/// Replacements in all at scale 1.
const TOTAL: usize = 40_000_000;

pub(crate) const WORKLOADS: &[Workload] = &[
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
    Results::ns(start.elapsed(), threads * generations * PER_THREAD)
}

/// Runs `threads` lines of `generations` threads each.
fn serve(threads: usize, generations: usize) {
    std::thread::scope(|scope| {
        for line in 0..threads {
            let shop = Shop::new(line);
            scope.spawn(move || generation(scope, shop, generations));
        }
    });
}

/// One thread's life: work, then a successor or the end.
fn generation<'scope>(scope: &'scope Scope<'scope, '_>, mut shop: Shop, left: usize) {
    shop.replace(PER_THREAD);
    if left > 1 {
        scope.spawn(move || generation(scope, shop, left - 1));
    }
}

/// A thread's blocks.
pub(super) struct Shop {
    rng: fastrand::Rng,
    slots: Vec<Block>,
}

impl Shop {
    pub(super) fn new(seed: usize) -> Shop {
        let mut rng = fastrand::Rng::with_seed(seed as u64);
        let slots = (0..SLOTS).map(|_| Block::with_ends(rng.usize(SMALL))).collect();
        Shop { rng, slots }
    }

    /// Replaces random blocks.
    pub(super) fn replace(&mut self, times: usize) {
        for _ in 0..times {
            let at = self.rng.usize(0..SLOTS);
            self.slots[at] = Block::with_ends(self.rng.usize(SMALL));
        }
    }
}
