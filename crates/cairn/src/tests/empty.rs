//! What a heap has in hand for its next spans: empty ones, and clean slices in a row.

use super::alone::alone;
use super::forks::child_does;
use super::heaps::{IN_SPAN, Other, SIZE, blocks, free, row};
use crate::base::SLICE_SIZE;
use crate::heap::Heap;
use crate::map::address_map::slice_of;
use crate::slices::arena;
use crate::thread::pool;
use crate::{check, os, purge, set_memory_limits, set_purge_delay_ms, thread};
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeSet;
use std::vec::Vec;

fn slices(blocks: &[*mut u8]) -> BTreeSet<usize> {
    blocks.iter().map(|&block| slice_of(block)).collect()
}

/// The calling thread's.
fn heap() -> &'static mut Heap {
    // SAFETY: tests use one borrow at a time.
    unsafe { &mut *thread::heap() }
}

/// Slices that the arena has to give.
fn free_slices() -> usize {
    let counts = arena::counts();
    counts.clean + counts.dirty
}

/// Slices that heaps have in hand in a row.
fn ahead() -> usize {
    // SAFETY: heaps are never unmapped.
    pool::all().map(|heap| unsafe { (*heap).ahead.run().1 }).sum()
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "it keeps none")]
fn empty_spans_are_for_any_class() {
    alone(|| {
        // However slow this is, the heap is not quiet.
        set_purge_delay_ms(usize::MAX);
        let held = blocks(SIZE, 8 * IN_SPAN);
        let had = slices(&held);
        let given = free_slices();
        held.into_iter().for_each(free);
        assert_eq!((row(SIZE).spans, free_slices()), (8, given));
        let others = blocks(SIZE / 2, 4 * 32);
        assert!(slices(&others).is_subset(&had));
        assert_eq!((row(SIZE).spans, free_slices()), (4, given));
        check();
        // A purge gives up the rest.
        purge();
        assert!(row(SIZE).spans == 0 && free_slices() >= given + 4);
        others.into_iter().for_each(free);
        purge();
        assert_eq!(row(SIZE / 2).spans, 0);
        check();
    });
}

/// Those that have become empty last have lists, which begin with the block freed last; the others begin anew.
#[test]
#[cfg_attr(feature = "hardened", ignore = "it keeps none")]
fn warm_lists_are_used_again() {
    alone(|| {
        let held = blocks(SIZE, 50 * IN_SPAN);
        let had = slices(&held);
        held.into_iter().for_each(free);
        check();
        let again = blocks(SIZE, 50 * IN_SPAN);
        assert_eq!(slices(&again), had);
        let rows: Vec<_> = again.chunk_by(|&a, &b| slice_of(a) == slice_of(b)).collect();
        let whole = rows.iter().filter(|row| row.len() == IN_SPAN);
        let is_anew =
            |row: &&&[*mut u8]| row.is_sorted() && row[0].addr().is_multiple_of(SLICE_SIZE);
        let anew: Vec<_> = whole.clone().map(|row| is_anew(&row)).collect();
        let warm = anew.iter().take_while(|&&anew| !anew).count();
        assert!((30..36).contains(&warm), "{anew:?}");
        assert!(anew[warm..].iter().all(|&anew| anew) && anew.len() > warm + 10, "{anew:?}");
        check();
    });
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "it keeps none")]
fn no_more_than_a_mib_is_kept() {
    alone(|| {
        let given = free_slices();
        let held = blocks(SIZE, 200 * IN_SPAN);
        held.into_iter().for_each(free);
        let spans = row(SIZE).spans;
        assert!((64..70).contains(&spans), "{spans}");
        assert!(free_slices() >= given, "{} {given}", free_slices());
        check();
        // With many others it is less. Each has a heap of its own.
        let others: Vec<_> = (0..31).map(|_| Other::new()).collect();
        for other in &others {
            free(other.allocates(4096, 40)[0]);
        }
        let spans = others[0].does(|| {
            blocks(SIZE, 100 * IN_SPAN).into_iter().for_each(free);
            row(SIZE).spans
        });
        assert!(spans < 80, "{spans}");
        others.into_iter().for_each(Other::leaves);
        check();
    });
}

/// What a round of upkeep has not used goes back.
#[test]
#[cfg_attr(feature = "hardened", ignore = "it keeps none")]
fn what_is_not_used_goes_back() {
    alone(|| {
        blocks(SIZE, 40 * IN_SPAN).into_iter().for_each(free);
        assert!(row(SIZE).spans >= 39);
        for _ in 0..3 * 14 * 64 {
            heap().slow_tick();
        }
        assert!(row(SIZE).spans <= 2, "{}", row(SIZE).spans);
        check();
        // What is used in each round stays.
        for _ in 0..100 {
            blocks(SIZE, 40 * IN_SPAN).into_iter().for_each(free);
        }
        assert!(row(SIZE).spans >= 39);
        check();
    });
}

/// Where a hard limit counts what nobody uses, no heap has rows.
#[test]
#[cfg_attr(feature = "hardened", ignore = "it never keeps any")]
fn under_a_hard_limit_no_slices_are_kept_ahead() {
    alone(|| {
        let other = Other::new();
        assert!(set_memory_limits(0, 1 << 30));
        let (mine, others) = (blocks(SIZE, 20 * IN_SPAN), other.allocates(SIZE, 20 * IN_SPAN));
        assert_eq!(ahead(), 0);
        assert!(set_memory_limits(0, 0));
        let more = blocks(SIZE, 60 * IN_SPAN);
        assert!(ahead() > 0);
        // A limit that comes later, too.
        assert!(set_memory_limits(0, 1 << 30));
        heap().slow_tick();
        assert_eq!(ahead(), 0);
        other.frees(&others);
        mine.into_iter().chain(more).for_each(free);
    });
}

/// Threads that grow at the same time do not take turns at neighbouring slices.
#[test]
#[cfg_attr(feature = "hardened", ignore = "its guards belong to runs")]
fn slices_come_in_rows() {
    alone(|| {
        let other = Other::new();
        let (mut mine, mut others) = (Vec::new(), Vec::new());
        for _ in 0..300 {
            mine.extend(blocks(SIZE, IN_SPAN));
            others.extend(other.allocates(SIZE, IN_SPAN));
        }
        let (my, its) = (slices(&mine), slices(&others));
        let borders = my.iter().filter(|&slice| its.contains(&(slice + 1))).count();
        assert!(borders < 35, "{borders} of {}", my.len());
        assert!(ahead() > 0);
        check();
        // What is dirty comes first, one by one.
        mine.drain(10 * IN_SPAN..200 * IN_SPAN).for_each(free);
        purge();
        assert_eq!(heap().ahead.run().1, 0);
        let dirty = other.does(|| {
            let taken = blocks(2 * SIZE, 300 * IN_SPAN / 2);
            taken.into_iter().for_each(free);
            purge();
            arena::counts().dirty
        });
        assert!(dirty <= 1, "{dirty}");
        // A thread that ends gives its row back.
        let its_row = ahead();
        let given = free_slices();
        other.frees(&others);
        other.leaves();
        assert!(ahead() == 0 && free_slices() >= given + its_row);
        mine.into_iter().for_each(free);
        check();
    });
}

/// A heap that grows has huge pages as early as without rows.
#[test]
#[cfg_attr(feature = "hardened", ignore = "it takes no rows")]
fn rows_keep_no_huge_page_away() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    alone(|| {
        os::SLOW_NS.store(u64::MAX, Ordering::Relaxed);
        let other = Other::new();
        other.allocates(4096, 40);
        let first = (0..40 * 64).find(|_| {
            blocks(SIZE, IN_SPAN);
            // What is left of one is resident.
            arena::counts().dirty > 64
        });
        assert!(first.is_some_and(|spans| spans < 24 * 64), "{first:?}");
        other.leaves();
        check();
    });
}

/// A forked child gets what a thread that it does not have had in hand.
#[test]
#[cfg_attr(feature = "hardened", ignore = "it keeps nothing in hand")]
fn a_child_gets_what_others_had_in_hand() {
    alone(|| {
        free(allocate_small());
        let other = Other::new();
        let held = other.allocates(SIZE, 50 * IN_SPAN);
        other.frees(&held[5 * IN_SPAN..45 * IN_SPAN]);
        let (row_of_it, spans) = (ahead(), row(SIZE).spans);
        assert!(row_of_it > 0 && spans >= 50);
        assert!(child_does(|| {
            check();
            let given = free_slices();
            pool::salvage::all();
            let got = free_slices() - given;
            assert!(got >= row_of_it + 30, "{got}");
            assert_eq!(ahead(), 0);
            check();
            blocks(SIZE, 100 * IN_SPAN).into_iter().for_each(free);
            check();
        }));
        other.leaves();
    });
}

/// The same where the child makes the arena's bitmaps anew.
#[test]
#[cfg_attr(feature = "hardened", ignore = "it keeps nothing in hand")]
fn a_row_in_hand_is_not_free_in_a_child() {
    alone(|| {
        free(allocate_small());
        let other = Other::new();
        let held = other.allocates(SIZE, 50 * IN_SPAN);
        // Mine is alive in the child.
        let mut mine = blocks(SIZE, 50 * IN_SPAN);
        assert!(heap().ahead.run().1 > 0);
        static HELD: AtomicBool = AtomicBool::new(false);
        static DONE: AtomicBool = AtomicBool::new(false);
        let holder = std::thread::spawn(|| {
            let _held = arena::ARENA.lock();
            HELD.store(true, Ordering::Release);
            while !DONE.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        });
        while !HELD.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let done = child_does(move || {
            check();
            mine.extend(blocks(SIZE, 200 * IN_SPAN));
            assert_eq!(mine.len(), mine.iter().collect::<BTreeSet<_>>().len());
            assert!(!held.iter().any(|block| mine.contains(block)));
            check();
            pool::salvage::all();
            mine.extend(blocks(SIZE, 200 * IN_SPAN));
            assert_eq!(mine.len(), mine.iter().collect::<BTreeSet<_>>().len());
            check();
        });
        DONE.store(true, Ordering::Release);
        holder.join().expect("it ends");
        assert!(done);
        other.leaves();
    });
}

fn allocate_small() -> *mut u8 {
    crate::allocate(64)
}
