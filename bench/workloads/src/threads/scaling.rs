//! Throughput by the number of threads, from one to four times the cores. Up to the cores
//! the work grows with the threads; beyond them it stays, so every count takes about as
//! long. An operation is one malloc and one free.

use super::larson::Shop;
use super::xmalloc;
use crate::case::{Case, Curve, Group, Plot, Results, Row, Settings, Workload};
use crate::malloc::{Block, SMALL};
use crate::team;
use std::time::Duration;

/// Operations per core and thread count, at scale 1.
const LOCAL: usize = 12_000_000;
const LARSON: usize = 8_000_000;
const XMALLOC: usize = 1_000_000;
/// Blocks of a thread in `scale-local`.
const SET: usize = 256;

pub(crate) const WORKLOADS: &[Workload] = &[
    case("scale-local", "Every thread fills and frees sets of 256 blocks of 16-1024 B.")
        .c(|s| curve(s, LOCAL, 1, local)),
    case("scale-larson", "Every thread replaces random ones of its 1,000 blocks, as in larson.")
        .from("after Larson and Krishnan, ISMM 1998")
        .c(|s| curve(s, LARSON, 1, replace)),
    case("scale-xmalloc", "Half of the threads allocate, half free, as in xmalloc.")
        .from("after Kuszmaul, SuperMalloc, ISMM 2015")
        .c(|s| curve(s, XMALLOC, 2, |threads, blocks| xmalloc::pass(threads / 2, blocks, SMALL))),
];

const fn case(name: &'static str, about: &'static str) -> Case {
    Case::new(name, Group::Threads, about, const { &[Row::time("ns")] })
        .plots(&[Plot::SCALING])
        .quick(0.2)
}

/// Takes the numbers of threads and of operations in all; says how long that took, and how
/// many operations it were.
type Pass = fn(usize, usize) -> (Duration, usize);

/// The curve from `least` threads on.
fn curve(settings: &Settings, per_core: usize, least: usize, pass: Pass) -> Results {
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

fn local(threads: usize, operations: usize) -> (Duration, usize) {
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

fn replace(threads: usize, operations: usize) -> (Duration, usize) {
    let each = operations.div_ceil(threads);
    (team::timed(0..threads, Shop::new, |shop| shop.replace(each), drop).0, threads * each)
}
