//! Producer and consumer in one: all threads allocate, all free what others allocated.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::malloc::{Block, SMALL};
use crate::team;
use crossbeam_utils::atomic::AtomicCell;
use std::time::Duration;

const PLACES: usize = 4096;
/// Exchanges of all threads at scale 1.
const TOTAL: usize = 8_000_000;
const WARM_UP: usize = 200_000;

pub(crate) const WORKLOADS: &[Workload] = &[Case::new(
    "swap",
    Group::Threads,
    "All threads allocate 16-1024 B and exchange blocks through shared slots, freeing what they \
     get: as many remote frees on every side.",
    Row::NS_PEAK,
)
.quick(0.2)
.c(run)];

/// A place where threads exchange blocks, by one atomic swap.
pub(super) type Place = AtomicCell<Option<Block>>;

/// So many empty places.
pub(super) fn places(count: usize) -> Vec<Place> {
    const { assert!(Place::is_lock_free()) };
    (0..count).map(|_| Place::default()).collect()
}

fn run(settings: &Settings) -> Results {
    let threads = settings.threads();
    exchange(threads, WARM_UP.div_ceil(threads));
    let each = settings.scaled(TOTAL).div_ceil(threads);
    Results::ns(exchange(threads, each), each * threads)
}

/// The time of `each` exchanges per thread.
fn exchange(threads: usize, each: usize) -> Duration {
    let places = places(PLACES);
    let (time, freed) = team::timed(
        0..threads,
        |me| (fastrand::Rng::with_seed(me as u64), 0),
        |(rng, freed)| {
            for _ in 0..each {
                let block = Block::with_ends(rng.usize(SMALL));
                let found = places[rng.usize(0..PLACES)].swap(Some(block));
                *freed += usize::from(found.is_some());
            }
        },
        |(_, freed)| freed,
    );
    let left = places.iter().filter_map(AtomicCell::take).count();
    assert_eq!(freed.iter().sum::<usize>() + left, each * threads, "blocks were lost");
    time
}
