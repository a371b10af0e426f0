//! What the models' threads do: a crew of them shares a bag of blocks. Contents and overlap are looked
//! at in each step; at the end nothing is left.

use super::held::{Bag, Held, Random};
use super::threads::{self, JoinHandle, spawn};
use crate::base::size_class::SLICE_SIZE;
use crate::base::sync::Ordering;
use crate::map::address_map;
use crate::{MemoryUse, Stats, check, purge, set_purge_delay_ms};

pub(crate) const KIB: usize = 1 << 10;

/// A size whose spans hold 16 to 25 blocks.
pub(crate) fn small(random: &mut Random) -> usize {
    [1000, 1000, 600, 3800][random.below(4)]
}

/// A size of a run.
pub(crate) fn run(random: &mut Random) -> usize {
    66 * KIB + random.below(300 * KIB)
}

/// The least size of a mapping.
pub(crate) const MAPPING_LEAST: usize = 520 * KIB;

/// A size of a mapping.
pub(crate) fn mapping(random: &mut Random) -> usize {
    MAPPING_LEAST + random.below(400 * KIB)
}

/// Any size; the larger, the rarer.
pub(crate) fn any(random: &mut Random) -> usize {
    match random.below(20) {
        0 => mapping(random),
        1..4 => run(random),
        4..6 => 5 * KIB + random.below(59 * KIB),
        6..9 => random.below(900),
        _ => small(random),
    }
}

pub(crate) type Size = fn(&mut Random) -> usize;

/// Allocates, frees, resizes and passes on; what is left at the end is passed on or freed.
pub(crate) fn work(bag: &Bag, random: &mut Random, rounds: usize, size: Size) {
    let mut mine = Vec::new();
    for _ in 0..rounds {
        match random.below(12) {
            0 if mine.len() < 64 => {
                let bytes = size(random);
                let count = if bytes < 4 * KIB { 1 + random.below(20) } else { 1 };
                mine.extend((0..count).filter_map(|_| Held::allocate(bytes)));
            }
            1..4 => mine.extend(Held::allocate(size(random))),
            4 => mine.extend(Held::zeroed(size(random))),
            5..7 => random.take(&mut mine).into_iter().for_each(|held| bag.put(held)),
            7..9 => bag.free_one(random),
            9 => mine.last_mut().into_iter().for_each(|held| held.resize(size(random).max(1))),
            _ => random.take(&mut mine).into_iter().for_each(Held::free),
        }
    }
    bag.pass_on(mine, 2, random);
}

/// Ends when all of them have.
pub(crate) fn finish(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("it ends well"));
}

/// Runs `body` in so many threads at once, which share a bag; what is in it then is freed.
pub(crate) fn crew(count: u64, body: impl Fn(&Bag, &mut Random) + Clone + Send + 'static) {
    let bag = Bag::default();
    let start = |thread| {
        let (bag, body) = (bag.clone(), body.clone());
        spawn(move || body(&bag, &mut Random::new(thread)))
    };
    finish((1..=count).map(start).collect::<Vec<_>>());
    bag.empty();
}

/// Runs that fill the reservation.
pub(crate) fn ballast() -> Vec<*mut u8> {
    let mut runs = Vec::new();
    let before = address_map::committed();
    while runs.is_empty() || address_map::committed() == before {
        let block = crate::allocate(400 * KIB);
        assert!(!block.is_null());
        runs.push(block);
    }
    runs
}

pub(crate) fn drop_ballast(runs: Vec<*mut u8>) {
    for block in runs {
        // SAFETY: nobody else has it.
        unsafe { crate::deallocate(block) };
    }
}

/// One thread, sizes and alignments of all kinds. At first one call of `failing` fails, or none if
/// that is 0; then none, and there is memory for more than before.
pub(crate) fn alone(operations: usize, failing: usize) {
    set_purge_delay_ms(5);
    let mut random = Random::new(0);
    let mut mine: Vec<Held> = Vec::new();
    for (failing, most) in [(failing, 100), (0, 250)] {
        threads::FAILING.store(failing, Ordering::Relaxed);
        for _ in 0..operations / 2 {
            operate(&mut random, &mut mine, most);
        }
    }
    mine.into_iter().for_each(Held::free);
    threads::leave();
    threads::arrive();
}

/// One operation; no more than about `most` blocks are held.
fn operate(random: &mut Random, mine: &mut Vec<Held>, most: usize) {
    match random.below(if mine.len() < most { 10 } else { 6 }) {
        0..3 => random.take(mine).into_iter().for_each(Held::free),
        3 => mine.last().into_iter().for_each(|held| held.find(random)),
        4 => mine.last_mut().into_iter().for_each(|held| held.resize(any(random).max(1))),
        5 if random.below(8) == 0 => {
            purge();
            mine.iter().for_each(Held::verify);
            check();
        }
        5..7 => mine.extend(Held::zeroed(any(random))),
        7 => {
            let shifts = if random.below(8) == 0 { 22 } else { 15 };
            let align = 1 << random.below(shifts);
            let bytes = any(random).min(200 * KIB);
            mine.extend(Held::aligned(bytes, align));
        }
        _ => mine.extend(Held::allocate(any(random))),
    }
}

/// With all threads gone and all blocks free: every byte is back where it came from.
pub(crate) fn nothing_is_left(exact: bool) {
    check();
    purge();
    check();
    let stats = Stats::take();
    for row in &stats.classes {
        assert_eq!((row.spans, row.in_use, row.cached), (0, 0, 0), "{row:?}");
    }
    assert_eq!((stats.large_blocks, stats.mapping_blocks, stats.allocated()), (0, 0, 0));
    assert_eq!(stats.dirty.bytes, 0);
    let slices = address_map::committed();
    assert_eq!(stats.clean, slices * SLICE_SIZE, "slices are lost");
    assert_eq!(stats.heaps.0, 0, "heaps are lost");
    assert_eq!(MemoryUse::take().counted, 0, "nothing counts for a limit");
    if exact {
        // The table of mappings is one, and doubles.
        let mapped = super::memory::mapped_above_the_reservation();
        assert!(mapped <= 64 * KIB.max(super::memory::page_size()), "{mapped} bytes are mapped");
    }
}
