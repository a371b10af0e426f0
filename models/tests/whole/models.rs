//! Owns: what the threads of each model do.
//! Idea: few threads and few operations, many executions; spans of few blocks fill and empty.
//! Never: knows how it is scheduled.
//! Threads: the model's.
//! Checked: contents and overlap at each step; at the end nothing is left (`nothing_is_left`).
//! Story: docs/results/verification.md

use super::held::{Bag, Held, Random};
use super::threads::{self, spawn};
use crate::address_map;
use crate::pool;
use crate::size_class::SLICE_SIZE;
use crate::sync::Ordering;
use crate::{Stats, check, purge, set_purge_delay_ms};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};

const KIB: usize = 1 << 10;

/// A size whose spans hold 16 to 25 blocks.
fn small(random: &mut Random) -> usize {
    [1000, 1000, 600, 3800][random.below(4)]
}

/// A size of a run.
fn run(random: &mut Random) -> usize {
    66 * KIB + random.below(300 * KIB)
}

/// A size of a mapping.
fn mapping(random: &mut Random) -> usize {
    520 * KIB + random.below(400 * KIB)
}

/// Any size; the larger, the rarer.
fn any(random: &mut Random) -> usize {
    match random.below(20) {
        0 => mapping(random),
        1..4 => run(random),
        4..6 => 5 * KIB + random.below(59 * KIB),
        6..9 => random.below(900),
        _ => small(random),
    }
}

type Size = fn(&mut Random) -> usize;

/// Allocates, frees, resizes and passes on; what is left at the end is passed on or freed.
fn work(bag: &Bag, random: &mut Random, rounds: usize, size: Size) {
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
            7..9 => bag.take(random).into_iter().for_each(Held::free),
            9 => {
                if let Some(held) = mine.last_mut() {
                    held.resize(size(random).max(1));
                }
            }
            _ => random.take(&mut mine).into_iter().for_each(Held::free),
        }
    }
    for held in mine {
        match random.below(2) {
            0 => bag.put(held),
            _ => held.free(),
        }
    }
}

/// Runs `body` in so many threads at once.
fn crew(count: u64, body: impl Fn(Random) + Clone + Send + 'static) {
    let start = |thread| {
        let body = body.clone();
        spawn(move || body(Random::new(thread)))
    };
    let threads: Vec<_> = (1..=count).map(start).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("it ends well"));
}

/// Three threads pass blocks of all kinds of spans to each other.
pub(crate) fn blocks_go_round() {
    let bag = Bag::default();
    let shared = bag.clone();
    crew(3, move |mut random| work(&shared, &mut random, 40, small));
    bag.empty();
}

/// One thread allocates, two free.
pub(crate) fn one_allocates_others_free() {
    let bag = Bag::default();
    let done = Arc::new(AtomicBool::new(false));
    let consumer = |thread| {
        let (bag, done) = (bag.clone(), done.clone());
        spawn(move || {
            let mut random = Random::new(thread);
            loop {
                let last = done.load(Ordering::SeqCst);
                match bag.take(&mut random) {
                    Some(held) => held.free(),
                    None if last => return,
                    None => threads::pause(),
                }
            }
        })
    };
    let consumers = [consumer(1), consumer(2)];
    let mut random = Random::new(0);
    let size = small(&mut random);
    (0..80).filter_map(|_| Held::allocate(size)).for_each(|held| bag.put(held));
    done.store(true, Ordering::SeqCst);
    consumers.into_iter().for_each(|thread| thread.join().expect("it ends well"));
}

/// Threads begin and end while others run; what they leave is freed and taken over by those. Some
/// go on after they have given their heap back.
pub(crate) fn threads_come_and_go() {
    let bag = Bag::default();
    let mut running = Vec::new();
    let bytes = small(&mut Random::new(0));
    for generation in 1..9 {
        let shared = bag.clone();
        running.push(spawn(move || {
            let mut random = Random::new(generation);
            let mine: Vec<_> =
                (0..20 + random.below(20)).filter_map(|_| Held::allocate(bytes)).collect();
            for held in mine {
                match random.below(3) {
                    0 => held.free(),
                    _ => shared.put(held),
                }
            }
            for at in 0..25 {
                if at == 20 && generation % 2 == 0 {
                    // What comes now is like later destructors: there is no heap any more.
                    threads::leave();
                    (0..2).filter_map(|_| Held::allocate(bytes)).for_each(|held| shared.put(held));
                }
                shared.take(&mut random).into_iter().for_each(Held::free);
            }
        }));
        if running.len() > 2 {
            running.remove(0).join().expect("it ends well");
        }
    }
    running.into_iter().for_each(|thread| thread.join().expect("it ends well"));
    bag.empty();
}

/// Threads make closed heaps, others free what is in them, and they go, with what is left in use or without.
pub(crate) fn closed_heaps() {
    crew(2, |mut random| {
        for round in 0..4 {
            let mut heap = crate::ClosedHeap::new().expect("calls do not fail");
            let bag = Bag::default();
            let free = |thread: u64| {
                let bag = bag.clone();
                spawn(move || {
                    let mut random = Random::new(thread);
                    for _ in 0..12 {
                        bag.take(&mut random).into_iter().for_each(Held::free);
                    }
                })
            };
            let mut attached = heap.attach();
            let mut more = |bag: &Bag, random: &mut Random| {
                let size = [small, small, small, run, mapping][random.below(5)](random);
                let count = if size < 4 * KIB { 10 } else { 1 };
                let new = |_| Held::allocate_in(&mut attached, size);
                (0..count).filter_map(new).for_each(|held| bag.put(held));
            };
            more(&bag, &mut random);
            let others = [free(round * 2), free(round * 2 + 1)];
            for _ in 0..5 {
                more(&bag, &mut random);
                // Its own frees, and what it has in the meantime of the others' memory.
                bag.take(&mut random).into_iter().for_each(Held::free);
                Held::allocate(small(&mut random)).into_iter().for_each(Held::free);
            }
            others.into_iter().for_each(|thread| thread.join().expect("it ends well"));
            if random.below(3) == 0 {
                drop(attached);
                drop(heap);
                bag.empty();
            } else {
                std::mem::take(&mut *bag.all()).into_iter().for_each(|held| _ = held.forget());
                drop(attached);
                // SAFETY: nobody has a block of it any more.
                unsafe { heap.destroy() };
            }
        }
    });
}

/// Runs that fill the reservation.
fn ballast() -> Vec<*mut u8> {
    let mut runs = Vec::new();
    let before = address_map::committed();
    while runs.is_empty() || address_map::committed() == before {
        let block = crate::allocate(400 * KIB);
        assert!(!block.is_null());
        runs.push(block);
    }
    runs
}

fn drop_ballast(runs: Vec<*mut u8>) {
    for block in runs {
        // SAFETY: nobody else has it.
        unsafe { crate::deallocate(block) };
    }
}

/// Threads need more than the reservation has, while others free.
pub(crate) fn the_reservation_grows() {
    let ballast = ballast();
    let size: Size = |random| [1000, 60 * KIB, 60 * KIB, 100 * KIB, 450 * KIB][random.below(5)];
    let bag = Bag::default();
    let shared = bag.clone();
    crew(3, move |mut random| work(&shared, &mut random, 12, size));
    bag.empty();
    drop_ballast(ballast);
}

/// One thread gives everything back again and again, and ticks and bursts do, while others
/// allocate and free: nobody's contents change, and zeroed memory is zero.
pub(crate) fn free_memory_is_purged() {
    set_purge_delay_ms(1);
    // Little is free, and so what has just been purged is what is needed next.
    let mut ballast = ballast();
    drop_ballast(ballast.split_off(ballast.len().saturating_sub(3)));
    let size: Size = |random| if random.below(2) == 0 { run(random) } else { small(random) };
    let bag = Bag::default();
    let shared = bag.clone();
    crew(3, move |mut random| {
        if random.below(3) > 0 {
            return work(&shared, &mut random, 25, size);
        }
        for _ in 0..3 {
            purge();
            work(&shared, &mut random, 6, size);
        }
    });
    bag.empty();
    drop_ballast(ballast);
}

/// Runs are resized, in place and away, while their neighbours are freed.
pub(crate) fn runs_grow_and_shrink() {
    set_purge_delay_ms(3);
    let bag = Bag::default();
    let shared = bag.clone();
    crew(3, move |mut random| {
        work(&shared, &mut random, 10, run);
        let Some(mut grower) = Held::allocate(run(&mut random)) else { return };
        for _ in 0..6 {
            grower.resize(40 * KIB + random.below(700 * KIB));
            grower.find(&mut random);
            shared.take(&mut random).into_iter().for_each(Held::free);
        }
        shared.put(grower);
    });
    bag.empty();
}

/// The same of mappings; blocks are looked for from inside meanwhile.
pub(crate) fn mappings_grow_and_shrink() {
    set_purge_delay_ms(3);
    let bag = Bag::default();
    let shared = bag.clone();
    crew(3, move |mut random| {
        for _ in 0..8 {
            if let Some(mut held) = Held::allocate(mapping(&mut random)) {
                held.find(&mut random);
                held.resize(mapping(&mut random) + random.below(3) * 512 * KIB);
                held.find(&mut random);
                shared.put(held);
            }
            if random.below(4) == 0 {
                shared.all().iter().for_each(Held::verify);
            }
            for _ in 0..random.below(3) {
                shared.take(&mut random).into_iter().for_each(Held::free);
            }
        }
    });
    bag.empty();
}

/// Four threads need a few blocks each of many classes: the shared heap serve them.
pub(crate) fn few_blocks_of_many_classes() {
    let bag = Bag::default();
    let shared = bag.clone();
    crew(4, move |mut random| {
        for _ in 0..14 {
            let bytes = 1 + random.below(1024);
            for _ in 0..1 + random.below(3) {
                Held::allocate(bytes).into_iter().for_each(|held| shared.put(held));
            }
            for _ in 0..random.below(4) {
                shared.take(&mut random).into_iter().for_each(Held::free);
            }
        }
    });
    bag.empty();
}

/// A thread forks while others are anywhere in their work. In the child every block is whole
/// and can be freed, and no block is handed out that is in use.
#[cfg(not(miri))]
pub(crate) fn forks_of_busy_threads() {
    let bag = Bag::default();
    let start = |thread| {
        let bag = bag.clone();
        let size: Size = |random| if random.below(6) == 0 { run(random) } else { small(random) };
        spawn(move || work(&bag, &mut Random::new(thread), 30, size))
    };
    let busy = [start(1), start(2)];
    let mut random = Random::new(3);
    // The allocator's handlers are there, and the forker may have a heap.
    let first = Held::allocate(1000);
    for _ in 0..2 {
        work(&bag, &mut random, 4, small);
        let between = || {
            for bytes in [1000, 100 * KIB, 600 * KIB] {
                Held::allocate(bytes).into_iter().for_each(Held::free);
            }
        };
        threads::fork(between, || {
            check();
            bag.all().iter().for_each(Held::verify);
            let mut random = Random::new(4);
            let mine: Vec<_> = (0..60).filter_map(|_| Held::allocate(small(&mut random))).collect();
            bag.empty();
            work(&bag, &mut random, 30, any);
            mine.into_iter().for_each(Held::free);
            bag.empty();
            check();
            purge();
            check();
        });
    }
    busy.into_iter().for_each(|thread| thread.join().expect("it ends well"));
    first.into_iter().for_each(Held::free);
    bag.empty();
}

/// One system call in four fails. What cannot be had is refused, and nothing is lost.
pub(crate) fn calls_fail() {
    set_purge_delay_ms(2);
    threads::set_failing(4);
    let size: Size = |random| if random.below(5) == 0 { mapping(random) } else { any(random) };
    let bag = Bag::default();
    let shared = bag.clone();
    crew(3, move |mut random| {
        work(&shared, &mut random, 25, size);
        if random.below(2) == 0 {
            purge();
        }
    });
    bag.empty();
    threads::set_failing(0);
}

/// Mappings grow and shrink, and one system call in four fails.
pub(crate) fn mappings_cannot_grow() {
    threads::set_failing(4);
    mappings_grow_and_shrink();
    threads::set_failing(0);
}

/// Two threads free the same large block, one that no heap keeps: exactly one is told.
pub(crate) fn large_blocks_freed_twice() {
    let bag = Bag::default();
    for bytes in [400 * KIB, 600 * KIB] {
        let block = Held::allocate(bytes).expect("there is memory").forget();
        let block = Arc::new(AtomicPtr::new(block));
        let told = Arc::new(AtomicUsize::new(0));
        let counted = told.clone();
        crew(2, move |_| {
            let freed = std::panic::catch_unwind(|| {
                // SAFETY: one of the two owns the block; the other is the misuse to be told of.
                unsafe { crate::deallocate(block.load(Ordering::Relaxed)) };
            });
            if let Err(panic) = freed {
                let words = panic.downcast::<String>().unwrap_or_default();
                assert!(words.starts_with("cairn: free(0x"), "{words}");
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert_eq!(told.load(Ordering::SeqCst), 1, "one of two frees is told");
        bag.put(Held::allocate(bytes).expect("there is memory"));
    }
    bag.empty();
}

/// One thread, sizes and alignments of all kinds. At first one call of `failing` fails, or none if
/// that is 0; then none, and there is memory for more than before.
pub(crate) fn alone(operations: usize, failing: usize) {
    set_purge_delay_ms(5);
    let mut random = Random::new(0);
    let mut mine: Vec<Held> = Vec::new();
    for (failing, most) in [(failing, 100), (0, 250)] {
        threads::set_failing(failing);
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
        3 => {
            if let Some(held) = mine.last_mut() {
                held.find(random);
            }
        }
        4 => {
            if let Some(held) = mine.last_mut() {
                held.resize(any(random).max(1));
            }
        }
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
    let slices = address_map::committed() - address_map::first_slice();
    assert_eq!(stats.clean, slices * SLICE_SIZE, "slices are lost");
    assert_eq!(stats.heaps.0, 0, "heaps are lost");
    if exact {
        // The table of mappings is one, and doubles.
        let mapped = super::memory::mapped_above_the_reservation();
        assert!(mapped <= 64 * KIB.max(super::memory::page_size()), "{mapped} bytes are mapped");
    }
}
