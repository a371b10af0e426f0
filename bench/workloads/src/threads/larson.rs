//! A server, after Larson and Krishnan (ISMM 1998): every thread replaces random blocks
//! among its 1,000, then hands them all to a fresh thread and ends.

use super::xmalloc;
use crate::case::{Curve, Results, Settings};
use crate::malloc::{Block, SMALL};
use crate::team;
use std::thread::Scope;
use std::time::{Duration, Instant};

const SLOTS: usize = 1000;
/// Replacements by one thread before it hands over.
const PER_THREAD: usize = 50_000;
const TOTAL: usize = 40_000_000;

pub(crate) fn run(settings: &Settings, threads: usize) -> Results {
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

struct Shop {
    rng: fastrand::Rng,
    slots: Vec<Block>,
}

impl Shop {
    fn new(seed: usize) -> Shop {
        let mut rng = fastrand::Rng::with_seed(seed as u64);
        let slots = (0..SLOTS).map(|_| Block::with_ends(rng.usize(SMALL))).collect();
        Shop { rng, slots }
    }

    fn replace(&mut self, times: usize) {
        for _ in 0..times {
            let at = self.rng.usize(0..SLOTS);
            self.slots[at] = Block::with_ends(self.rng.usize(SMALL));
        }
    }
}

// Throughput by the number of threads, from one to four times the cores. Up to the cores the work
// grows with the threads; beyond them it stays, so every count takes about as long.

/// Operations per core and thread count, at scale 1.
pub(crate) const LOCAL: usize = 12_000_000;
pub(crate) const REPLACED: usize = 8_000_000;
pub(crate) const XMALLOC: usize = 1_000_000;
/// Blocks of a thread in `scale-local`.
const SET: usize = 256;

/// Takes the numbers of threads and of operations in all; says how long that took, and how many operations it were.
pub(crate) type Pass = fn(usize, usize) -> (Duration, usize);

/// The curve from `least` threads on.
pub(crate) fn curve(settings: &Settings, per_core: usize, least: usize, pass: Pass) -> Results {
    let per_core = settings.scaled(per_core);
    pass(least, per_core / 10);
    let mut ns = 0.0;
    let mut points = Curve::new();
    for threads in settings.scaling().filter(|&threads| threads >= least) {
        let (time, operations) = pass(threads, per_core * threads.min(settings.threads()));
        ns = time.as_nanos() as f64 / operations as f64;
        points.push([threads as f64, 1e3 / ns]);
    }
    Results::of([("ns", ns)]).with_curve("scaling", points)
}

pub(crate) fn local(threads: usize, operations: usize) -> (Duration, usize) {
    let turns = operations.div_ceil(threads * SET);
    let set_up = |me| {
        let mut rng = fastrand::Rng::with_seed(me);
        let mut order: Vec<usize> = (0..SET).collect();
        rng.shuffle(&mut order);
        let blocks: Vec<Option<Block>> = (0..SET).map(|_| None).collect();
        (rng, order, blocks)
    };
    let work = |(rng, order, blocks): &mut (fastrand::Rng, Vec<usize>, Vec<Option<Block>>)| {
        for _ in 0..turns {
            for block in &mut *blocks {
                *block = Some(Block::with_ends(rng.usize(SMALL)));
            }
            order.iter().for_each(|&at| blocks[at] = None);
        }
    };
    (team::timed(0..threads as u64, set_up, work, drop).0, threads * turns * SET)
}

pub(crate) fn replace(threads: usize, operations: usize) -> (Duration, usize) {
    let each = operations.div_ceil(threads);
    (team::timed(0..threads, Shop::new, |shop| shop.replace(each), drop).0, threads * each)
}

/// Half of the threads allocate, the others free.
pub(crate) fn pass_on(threads: usize, blocks: usize) -> (Duration, usize) {
    xmalloc::pass(threads / 2, blocks, SMALL)
}
