//! Every thread allocates blocks and exchanges each for another at a random one of 4,096
//! shared places; it frees what it gets. All threads allocate and all free what others
//! allocated, in equal parts: producer and consumer in one.

use super::slot::Slot;
use super::team;
use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::malloc::Block;
use crate::random::SMALL;

const PLACES: usize = 4096;
/// Exchanges of all threads at scale 1.
const TOTAL: usize = 8_000_000;
const WARM_UP: usize = 200_000;

/// The case.
pub const WORKLOADS: &[Workload] = &[Case::new(
    "swap",
    Group::Threads,
    "All threads allocate 16-1024 B and exchange blocks through shared slots, freeing what they \
     get: as many remote frees on every side.",
    Row::NS_PEAK,
)
.quick(0.2)
.c(run)];

fn run(settings: &Settings) -> Results {
    let threads = settings.threads();
    exchange(threads, WARM_UP.div_ceil(threads));
    let each = settings.scaled(TOTAL).div_ceil(threads);
    let (ns, _) = exchange(threads, each);
    Results::of([("ns", ns / (each * threads) as f64)])
}

/// Nanoseconds of `each` exchanges per thread, and the blocks that were left at the end.
fn exchange(threads: usize, each: usize) -> (f64, usize) {
    let places = Slot::several(PLACES);
    let (time, freed) = team::timed(
        threads,
        |me| (fastrand::Rng::with_seed(me as u64), 0),
        |_, (rng, freed)| {
            for _ in 0..each {
                let tag = rng.u16(..);
                let block = Block::with_ends(rng.usize(SMALL), tag.into());
                if let Some((other, tag)) = places[rng.usize(0..PLACES)].swap(Some((block, tag))) {
                    other.free(tag.into());
                    *freed += 1;
                }
            }
        },
        |_, (_, freed)| freed,
    );
    let left = places.iter().filter_map(|place| place.swap(None));
    let left = left.map(|(block, tag)| block.free(tag.into())).count();
    assert_eq!(freed.iter().sum::<usize>() + left, each * threads, "blocks were lost");
    (time.as_nanos() as f64, left)
}

#[cfg(test)]
mod tests {
    use super::exchange;

    #[test]
    fn what_stays_depends_on_the_places_alone() {
        // Whichever thread comes first: a place stays filled.
        let left = exchange(2, 3000).1;
        assert_eq!(left, exchange(2, 3000).1);
        assert!((2000..4096).contains(&left), "{left}");
    }
}
