//! The stress test of mimalloc, after its description: rounds of fresh threads, each with
//! a changing set of objects and one retained to the end of the thread. Sizes are powers
//! of two with some noise, a few of them large. Now and then a thread exchanges an object
//! for whatever lies at a random shared place, so objects outlive their thread and are
//! freed by others; between rounds half of what lies there is freed.

use super::slot::Slot;
use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::malloc::Block;
use std::time::Instant;

const PLACES: usize = 1000;
/// Objects that one thread allocates in a round, apart from the retained ones.
const CHANGING: usize = 10_000;
/// Objects that it keeps to its end.
const RETAINED: usize = 5000;
/// Threads in all rounds at scale 1.
const THREADS: usize = 240;

/// The case.
pub const WORKLOADS: &[Workload] = &[Case::new(
    "mstress",
    Group::Threads,
    "Rounds of fresh threads that allocate objects of 8 B to 2 MiB, keep a part, and leave some \
     to other threads through shared slots.",
    Row::NS_PEAK,
)
.from("mimalloc's stress test, Leijen, 2019")
.quick(0.15)
.c(run)];

type Object = (Block, u16);

fn run(settings: &Settings) -> Results {
    let threads = settings.threads();
    let rounds = settings.scaled(THREADS).div_ceil(threads);
    rounds_of(threads, 1);
    let start = Instant::now();
    rounds_of(threads, rounds);
    let ns = start.elapsed().as_nanos() as f64;
    Results::of([("ns", ns / (rounds * threads * (CHANGING + RETAINED)) as f64)])
}

/// All rounds; checks that as many objects were freed as allocated.
fn rounds_of(threads: usize, rounds: usize) {
    let places = Slot::several(PLACES);
    let mut freed = 0;
    for round in 0..rounds {
        std::thread::scope(|scope| {
            let places = &places;
            let lives: Vec<_> = (0..threads)
                .map(|me| (round * threads + me) as u64)
                .map(|seed| scope.spawn(move || life(fastrand::Rng::with_seed(seed), places)))
                .collect();
            for life in lives {
                freed += life.join().expect("the thread ends well");
            }
        });
        let every = if round + 1 == rounds { 1 } else { 2 };
        for place in places.iter().step_by(every) {
            freed += free(place.swap(None));
        }
    }
    assert_eq!(freed, rounds * threads * (CHANGING + RETAINED), "objects were lost");
}

/// One thread; how many objects it freed.
fn life(mut rng: fastrand::Rng, places: &[Slot]) -> usize {
    // These grow as they will, by the allocator under test.
    let mut changing: Vec<Option<Object>> = Vec::new();
    let mut retained: Vec<Option<Object>> = Vec::new();
    let mut freed = 0;
    while changing.len() < CHANGING || retained.len() < RETAINED {
        let to_change = changing.len() < CHANGING && rng.bool();
        if to_change || retained.len() == RETAINED {
            changing.push(Some(object(&mut rng)));
        } else {
            retained.push(Some(object(&mut rng)));
        }
        if changing.is_empty() {
            continue;
        }
        if rng.u8(0..3) < 2 {
            let at = rng.usize(0..changing.len());
            freed += free(changing[at].take());
        }
        if rng.u8(0..4) == 0 {
            let at = rng.usize(0..changing.len());
            changing[at] = places[rng.usize(0..PLACES)].swap(changing[at].take());
        }
    }
    freed + retained.into_iter().chain(changing).map(free).sum::<usize>()
}

/// Mostly 8-2,047 B; one in a hundred 64 times that, one in ten thousand 1,024 times.
fn object(rng: &mut fastrand::Rng) -> Object {
    let power = 1 << rng.u32(3..=10);
    let size = power + rng.usize(0..power);
    let factor = match rng.u32(0..10_000) {
        0 => 1024,
        1..=100 => 64,
        _ => 1,
    };
    let tag = rng.u16(..);
    (Block::paged(size * factor, tag.into()), tag)
}

/// How many that were: none or one.
fn free(object: Option<Object>) -> usize {
    object.map_or(0, |(block, tag)| {
        block.free(tag.into());
        1
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_object_is_freed_once() {
        super::rounds_of(3, 2);
    }
}
