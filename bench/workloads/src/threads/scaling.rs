//! Throughput by the number of threads, from one to four times the cores. Up to the cores
//! the work grows with the threads; beyond them it stays, so every count takes about as
//! long. An operation is one malloc and one free.

use super::{larson, team, xmalloc};
use crate::case::{Case, Curve, Group, Plot, Results, Row, Settings, Workload};
use crate::malloc::Block;
use crate::random::SMALL;

/// Operations per core and thread count, at scale 1.
const LOCAL: usize = 12_000_000;
const LARSON: usize = 8_000_000;
const XMALLOC: usize = 1_000_000;
/// Blocks of a thread in `scale-local`.
const SET: usize = 256;

/// The cases.
pub const WORKLOADS: &[Workload] = &[
    case("scale-local", "Every thread fills and frees sets of 256 blocks of 16-1024 B.")
        .c(|s| curve(s, LOCAL, 1, local)),
    case("scale-larson", "Every thread replaces random ones of its 1,000 blocks, as in larson.")
        .from("after Larson and Krishnan, ISMM 1998")
        .c(|s| curve(s, LARSON, 1, replace)),
    case("scale-xmalloc", "Half of the threads allocate, half free, as in xmalloc.")
        .from("after Kuszmaul, SuperMalloc, ISMM 2015")
        .c(|s| curve(s, XMALLOC, 2, hand_over)),
];

const fn case(name: &'static str, about: &'static str) -> Case {
    Case::new(name, Group::Threads, about, const { &[Row::time("ns")] })
        .plots(&[Plot::SCALING])
        .quick(0.2)
}

/// The curve from `least` threads on. `run` takes the number of threads and of operations
/// in all, and says how many nanoseconds an operation took on the whole.
fn curve(
    settings: &Settings,
    per_core: usize,
    least: usize,
    run: fn(usize, usize) -> f64,
) -> Results {
    let per_core = settings.scaled(per_core);
    run(least, per_core / 10);
    let mut ns = 0.0;
    let mut points = Curve::new();
    for threads in settings.scaling().filter(|&threads| threads >= least) {
        ns = run(threads, per_core * threads.min(settings.threads()));
        points.push([threads as f64, 1e3 / ns]);
    }
    Results::of([("ns", ns)]).with_curve("scaling", points)
}

fn local(threads: usize, operations: usize) -> f64 {
    let turns = operations.div_ceil(threads * SET);
    let set_up = |me| {
        let mut rng = fastrand::Rng::with_seed(me as u64);
        let mut order: Vec<usize> = (0..SET).collect();
        rng.shuffle(&mut order);
        let blocks: Vec<Option<Block>> = (0..SET).map(|_| None).collect();
        (rng, order, blocks)
    };
    let (time, _) = team::timed(
        threads,
        set_up,
        |_, (rng, order, blocks)| {
            for _ in 0..turns {
                for (tag, block) in blocks.iter_mut().enumerate() {
                    *block = Some(Block::with_ends(rng.usize(SMALL), tag as u64));
                }
                for &at in &*order {
                    blocks[at].take().expect("filled above").free(at as u64);
                }
            }
        },
        |_, _| {},
    );
    time.as_nanos() as f64 / (threads * turns * SET) as f64
}

fn replace(threads: usize, operations: usize) -> f64 {
    let each = operations.div_ceil(threads);
    let (time, _) = team::timed(
        threads,
        |me| {
            let mut rng = fastrand::Rng::with_seed(me as u64);
            (larson::fill(&mut rng), rng)
        },
        |_, (slots, rng)| larson::replace(slots, rng, each),
        |_, (slots, _)| larson::empty(slots),
    );
    time.as_nanos() as f64 / (threads * each) as f64
}

fn hand_over(threads: usize, operations: usize) -> f64 {
    xmalloc::pass(threads / 2, operations, xmalloc::Sizes::Random)
}

#[cfg(test)]
mod tests {
    use super::WORKLOADS;
    use crate::case::Settings;

    #[test]
    fn curves_have_a_point_for_each_count() {
        let settings = Settings { threads: Some(2), scale: 0.001, no_alloc: false };
        for (workload, least) in WORKLOADS.iter().zip([1, 1, 2]) {
            let results = (workload.run)(&settings);
            let threads: Vec<f64> = results.curves["scaling"].iter().map(|p| p[0]).collect();
            let expected: Vec<f64> = [1.0, 2.0, 4.0, 8.0].into_iter().skip(least - 1).collect();
            assert_eq!(threads, expected, "{}", &*workload.case.name);
        }
    }
}
