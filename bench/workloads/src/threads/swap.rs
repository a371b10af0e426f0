//! Producer and consumer in one: all threads allocate, all free what others allocated.

use crate::case::{Results, Settings};
use crate::malloc::{Block, SMALL};
use crate::team;
use crossbeam_utils::atomic::AtomicCell;
use std::time::{Duration, Instant};

const PLACES: usize = 4096;
const TOTAL: usize = 8_000_000;
const WARM_UP: usize = 200_000;

/// A place where threads exchange blocks, by one atomic swap.
type Place = AtomicCell<Option<Block>>;

/// So many empty places.
fn places(count: usize) -> Vec<Place> {
    const { assert!(Place::is_lock_free()) };
    (0..count).map(|_| Place::default()).collect()
}

pub(crate) fn run(settings: &Settings) -> Results {
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

const STRESS_PLACES: usize = 1000;
/// Objects that one thread allocates in a round, apart from the retained ones.
const CHANGING: usize = 10_000;
/// Objects that it keeps to its end.
const RETAINED: usize = 5000;
const THREADS: usize = 240;

/// Each thread of a round has a changing set of objects. Now and then it exchanges one for whatever
/// lies at a random shared place, so objects outlive their thread and are freed by others; between
/// rounds half of what lies there is freed.
pub(crate) fn stress(settings: &Settings) -> Results {
    let threads = settings.threads();
    let rounds = settings.scaled(THREADS).div_ceil(threads);
    rounds_of(threads, 1);
    let start = Instant::now();
    rounds_of(threads, rounds);
    Results::ns(start.elapsed(), rounds * threads * (CHANGING + RETAINED))
}

/// All rounds; checks that as many objects were freed as allocated.
fn rounds_of(threads: usize, rounds: usize) {
    let places = places(STRESS_PLACES);
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
        freed += places.iter().step_by(every).filter_map(Place::take).count();
    }
    assert_eq!(freed, rounds * threads * (CHANGING + RETAINED), "objects were lost");
}

/// One thread; how many objects it freed.
fn life(mut rng: fastrand::Rng, places: &[Place]) -> usize {
    // These grow as they will, by the allocator under test.
    let mut changing: Vec<Option<Block>> = Vec::new();
    let mut retained: Vec<Block> = Vec::new();
    let mut freed = 0;
    while changing.len() < CHANGING || retained.len() < RETAINED {
        let to_change = changing.len() < CHANGING && rng.bool();
        if to_change || retained.len() == RETAINED {
            changing.push(Some(object(&mut rng)));
        } else {
            retained.push(object(&mut rng));
        }
        if changing.is_empty() {
            continue;
        }
        if rng.u8(0..3) < 2 {
            let at = rng.usize(0..changing.len());
            freed += usize::from(changing[at].take().is_some());
        }
        if rng.u8(0..4) == 0 {
            let at = rng.usize(0..changing.len());
            changing[at] = places[rng.usize(0..STRESS_PLACES)].swap(changing[at].take());
        }
    }
    freed + retained.len() + changing.into_iter().flatten().count()
}

/// Mostly 8-2,047 B; one in a hundred 64 times that, one in ten thousand 1,024 times.
fn object(rng: &mut fastrand::Rng) -> Block {
    let power = 1 << rng.u32(3..=10);
    let size = power + rng.usize(0..power);
    let factor = match rng.u32(0..10_000) {
        0 => 1024,
        1..=100 => 64,
        _ => 1,
    };
    Block::paged(size * factor)
}
