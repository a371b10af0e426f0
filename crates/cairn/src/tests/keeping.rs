//! Nothing goes back, and nothing is mapped apart, where the program wants no page faults.

use super::alone::{Random, alone};
use super::arena::BURST;
use super::heaps::{Other, blocks};
use super::large::{MIB, free, mapped, resize};
use crate::base::SLICE_SIZE;
use crate::base::size_class::class_of;
use crate::map::address_map;
use crate::slices::{Memory, PURGE_DELAY_MS, arena};
use crate::{
    Stats, allocate, allocate_aligned, check, keep_memory, map_nothing_apart, os, purge,
    set_memory_limits, thread,
};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::vec::Vec;

/// Both ways to say it.
const WAYS: [fn(bool); 2] =
    [|on| arena::set_purge_delay_ms(if on { usize::MAX } else { PURGE_DELAY_MS }), keep_memory];

#[test]
fn neither_time_nor_a_burst_gives_back() {
    alone(|| {
        let mut now_ms = 10_000;
        let mut tick = || {
            now_ms += 10_000;
            arena::tick(now_ms)
        };
        let take =
            || arena::take_run(8 * BURST, arena::Use::Filled).expect("there is memory").index;
        assert!(thread::start());
        for way in WAYS {
            way(true);
            let before = arena::counts();
            arena::release(take(), 8 * BURST, Memory::Written);
            for _ in 0..4 {
                tick();
                assert!(!arena::in_debt());
            }
            let counts = arena::counts();
            assert_eq!((counts.dirty, counts.purged), (8 * BURST, before.purged));
            // Who asks gets it.
            assert_eq!(arena::purge_all(), 8 * BURST * SLICE_SIZE);
            // And back again.
            way(false);
            let purged = |before: u64| arena::counts().purged - before;
            let (index, before) = (take(), arena::counts().purged);
            arena::release(index, 4 * BURST, Memory::Written);
            assert!(purged(before) > 2 * BURST as u64, "a burst goes at once");
            arena::purge_all();
            let before = arena::counts().purged;
            arena::release(index + 4 * BURST, BURST / 2, Memory::Written);
            assert!(purged(before) == 0 && tick() && tick() && tick());
            assert!(purged(before) > 0, "what is idle goes by time");
            arena::release(index + 4 * BURST + BURST / 2, 4 * BURST - BURST / 2, Memory::Written);
            arena::purge_all();
            // Later the next round regrets nothing.
            std::thread::sleep(Duration::from_millis(1100));
        }
    });
}

/// A heap that shrinks, and a quiet one, look for pages without a live byte: here they do not.
#[test]
fn no_holes_are_made() {
    alone(|| {
        let mut random = Random(0x9876_5432_1fed_cba9);
        let size = |at: usize| 64 + at % 29 * 32;
        let mut live: Vec<*mut u8> = (0..60_000).map(|at| allocate(size(at))).collect();
        keep_memory(true);
        while live.len() > 6_000 {
            free(live.swap_remove(random.below(live.len())));
        }
        let resident = || Stats::take().spans.resident;
        let before = resident();
        for at in 0..400 {
            std::thread::sleep(Duration::from_millis(2));
            free(allocate(size(at)));
        }
        assert_eq!(resident(), before);
        // Who asks has them.
        purge();
        assert!(resident() < before / 4 * 3 || os::page_size() > 4096);
        check();
        live.into_iter().for_each(free);
    });
}

#[test]
fn large_blocks_come_from_the_reservation() {
    alone(|| {
        for way in [WAYS[0], WAYS[1], map_nothing_apart] {
            way(true);
            let large = allocate(40 * MIB);
            assert!(address_map::contains(large) && mapped().1 == 0);
            free(large);
            // And when they grow.
            let grown = [3, 20, 50].into_iter().fold(allocate(MIB), |block, mib| {
                let neighbour = allocate(MIB);
                let block = resize(block, mib * MIB);
                free(neighbour);
                block
            });
            assert!(address_map::contains(grown) && mapped().1 == 0);
            free(grown);
            purge();
            check();
            // More than the reservation holds has a mapping all the same, if the system gives one.
            let huge = allocate(3 << 40);
            assert!(huge.is_null() || !address_map::contains(huge));
            free(huge);
            way(false);
            let large = allocate(40 * MIB);
            assert!(!address_map::contains(large) && mapped().1 == 1);
            free(large);
        }
    });
}

#[test]
fn metadata_is_there_before_it_is_used() {
    alone(|| {
        keep_memory(true);
        free(allocate(100));
        let index = arena::take_run(4000, arena::Use::Filled).expect("there is memory").index;
        let slots = address_map::slot(index).cast::<u8>();
        let pages = 4000 * size_of::<address_map::Slot>() / os::page_size();
        let bytes = (pages - 1) * os::page_size();
        let first = slots.map_addr(|at| at & !(os::page_size() - 1));
        assert_eq!(os::resident(first, bytes), bytes);
    });
}

/// A size that no free memory makes up for has none given back, whoever refuses it.
#[test]
fn an_absurd_size_gives_nothing_back() {
    alone(|| {
        let settings: [fn(); 3] = [
            || keep_memory(true),
            || {
                keep_memory(false);
                // No time passes meanwhile.
                arena::set_purge_delay_ms(1 << 30);
            },
            || assert!(set_memory_limits(usize::MAX, 1 << 30)),
        ];
        for set in settings {
            set();
            let held: Vec<*mut u8> = (0..8).map(|_| allocate(MIB)).collect();
            for block in held {
                // SAFETY: a live block.
                unsafe { block.write_bytes(1, MIB) };
                free(block);
            }
            let counts = || {
                let counts = arena::counts();
                (counts.dirty, counts.purged)
            };
            let before = counts();
            assert!(before.0 > MIB / SLICE_SIZE, "{before:?}");
            for size in [1 << 62, 1 << 50] {
                assert!(allocate(size).is_null());
                assert!(allocate_aligned(size, MIB).is_null());
                assert_eq!(counts(), before);
            }
        }
        check();
    });
}

/// A heap's spans in which others have freed all that was in use go, though its thread is at work and asks for other sizes, or
/// has freed a part itself.
#[test]
fn what_others_have_emptied_goes_while_the_owner_works() {
    alone(|| others_empty_what_goes_then(|| {}));
}

/// However long the purge delay is, if there is one: the heap does not wait longer than it can tell.
#[test]
fn what_others_have_emptied_goes_with_a_long_delay() {
    alone(|| {
        arena::set_purge_delay_ms(2 << 20);
        others_empty_what_goes_then(|| {
            os::SKIPPED_MS.fetch_add(70_000, Ordering::Relaxed);
        });
    });
}

fn others_empty_what_goes_then(wait: impl Fn()) {
    let held = blocks(1000, 20_000);
    let (own, rest): (Vec<_>, Vec<_>) = held.chunks(4).map(|part| (part[0], &part[1..])).unzip();
    own.into_iter().for_each(free);
    let other = Other::with_heap();
    other.frees(&rest.concat());
    other.leaves();
    let spans = || Stats::take().spans.bytes;
    assert!(spans() > 10 * MIB, "nobody has looked");
    let end = Instant::now() + Duration::from_secs(20);
    while spans() > 2 * MIB && Instant::now() < end {
        wait();
        for size in [64, 200] {
            blocks(size, 1000).into_iter().for_each(free);
        }
    }
    assert!(spans() <= 2 * MIB, "{}", spans());
    check();
}

/// Where memory is scarce, heaps are asked often: none goes through all its spans then.
#[test]
fn a_brief_notice_has_nobody_go_through_all() {
    alone(|| {
        let held = blocks(1000, 20_000);
        let firsts = held.chunks(16).map(|part| (part[0], part[1]));
        let (own, others): (Vec<_>, Vec<_>) = firsts.unzip();
        own.into_iter().for_each(free);
        let other = Other::with_heap();
        other.frees(&others);
        other.leaves();
        let pending = |&block: &*mut u8| {
            let index = address_map::span_index(block, class_of(1000));
            // SAFETY: a span with live blocks.
            unsafe { address_map::remote_word(index) }.pending() > 0
        };
        let pending = || others.iter().filter(|block| pending(block)).count();
        // SAFETY: the calling thread's heap.
        let tick = || unsafe { (*thread::heap()).slow_tick() };
        tick();
        let before = pending();
        assert!(before > 900, "{before}");
        os::notify_briefly();
        tick();
        assert_eq!(pending(), before);
        os::notify_all();
        tick();
        assert!(pending() < 10, "{}", pending());
        check();
    });
}
