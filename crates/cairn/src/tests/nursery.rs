//! Nurseries: where the first blocks of a heap lie.

mod chance;
mod handles;

use super::alone::alone;
use super::forks::child_does;
use super::heaps::{Other, free};
use crate::base::{Ordering, SLICE_SIZE, in_hardened};
use crate::large::Nursery;
use crate::map::address_map;
use crate::{
    Heap, Resized, Stats, allocate, base, check, deallocate_named, heap_of, large, may_have_size,
    purge, reallocate, usable_size, visit,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Barrier;
use std::vec::Vec;

/// Nurseries that a slice has for heaps.
const PIECES: usize = in_hardened(8, 6);

fn in_nursery(block: *mut u8) -> bool {
    large::nursery_around(block).is_some()
}

fn nurseries() -> usize {
    Stats::take().nurseries.bytes
}

/// Fills it with a number, all of it.
fn fill(block: *mut u8, with: u8) {
    // SAFETY: in use, this test's.
    unsafe { block.write_bytes(with, usable_size(block)) };
}

fn holds(block: *mut u8, with: u8) -> bool {
    // SAFETY: in use, this test's, and written.
    unsafe {
        std::slice::from_raw_parts(block, usable_size(block)).iter().all(|&byte| byte == with)
    }
}

#[test]
fn blocks_of_all_sizes_lie_side_by_side() {
    alone(|| {
        let heap = Heap::new().expect("memory");
        let mut blocks = BTreeMap::new();
        for (nth, size) in [0, 1, 15, 16, 17, 100, 64, 500, 1, 33, 800].into_iter().enumerate() {
            let block = heap.allocate(size, 16);
            assert!(in_nursery(block) && block.addr().is_multiple_of(16));
            // SAFETY: in use.
            let usable = unsafe { usable_size(block) };
            assert_eq!(usable, size.max(1).next_multiple_of(16));
            assert!(
                may_have_size(block, size, 1, Resized::Never)
                    && !may_have_size(block, usable + 1, 1, Resized::Perhaps)
            );
            fill(block, nth as u8);
            for inside in [0, usable / 2, usable - 1] {
                assert_eq!(base(block.wrapping_add(inside)), Some(block));
            }
            assert!(
                heap_of(block) == Some(heap.id())
                    && heap_of(block.wrapping_add(usable - 1)) == Some(heap.id())
            );
            blocks.insert(block.addr(), (block, nth as u8));
        }
        assert!(blocks.values().all(|&(block, with)| holds(block, with)));
        assert_eq!(Stats::take().nursery_blocks, 11);
        // Zeroed, aligned, grown and shrunk.
        let zeroed = heap.allocate_zeroed(200, 16);
        assert!(holds(zeroed, 0));
        // SAFETY: in use, this test's.
        unsafe {
            fill(zeroed, 5);
            let grown = heap.reallocate(zeroed, 3000, 16);
            assert!(!in_nursery(grown) && heap_of(grown) == Some(heap.id()));
            assert!((0..200).all(|at| *grown.add(at) == 5));
            let block = heap.allocate(100, 16);
            assert_eq!(heap.reallocate(block, 60, 16), block);
            assert_eq!(reallocate(block, 100), block);
            fill(block, 6);
            let moved = reallocate(block, 200);
            assert!(heap_of(moved).is_none() && *moved.add(99) == 6);
            free(moved);
        }
        assert!(heap.allocate(100, 64).addr().is_multiple_of(64));
        heap.destroy();
        check();
    });
}

/// A heap goes with its nurseries, and the next one has them.
#[test]
fn nurseries_are_used_again() {
    alone(|| {
        let mut first = None;
        for _ in 0..1000 {
            let heap = Heap::new().expect("memory");
            let blocks: Vec<_> = (0..100).map(|nth| heap.allocate(16 + nth, 16)).collect();
            for (nth, &block) in blocks.iter().enumerate() {
                fill(block, nth as u8);
            }
            assert!(blocks.iter().enumerate().all(|(nth, &block)| holds(block, nth as u8)));
            blocks.iter().step_by(7).copied().for_each(free);
            first = Some(first.unwrap_or(nurseries()));
            heap.destroy();
        }
        assert_eq!(Some(nurseries()), first);
        purge();
        assert_eq!(nurseries(), 0);
        check();
    });
}

/// One block that comes and goes takes no more memory.
#[test]
fn an_empty_nursery_begins_anew() {
    alone(|| {
        let heap = Heap::new().expect("memory");
        for _ in 0..10_000 {
            free(heap.allocate(300, 16));
        }
        assert_eq!(heap.stats().spans, large::NURSERY_BYTES);
        // If most of what comes goes, while some stays, classes serve it.
        let mut kept = Vec::new();
        for nth in 0..10_000 {
            let block = heap.allocate(300, 16);
            if nth % 100 == 0 { kept.push(block) } else { free(block) }
        }
        assert!(heap.stats().spans < 5 * 16_384, "{}", heap.stats().spans);
        kept.into_iter().for_each(free);
        heap.purge();
        assert_eq!(heap.stats().spans, 0);
        heap.destroy();
        check();
    });
}

/// Blocks outlive a deleted heap, and the last of them takes its nursery with it, whoever frees it.
#[test]
fn blocks_outlive_their_heap() {
    alone(|| {
        let other = Other::new();
        for round in 0..300 {
            let heap = Heap::new().expect("memory");
            let blocks: Vec<_> = (0..40).map(|nth| heap.allocate(16 + nth, 16)).collect();
            blocks[..round % 40].iter().copied().for_each(free);
            let theirs: Vec<_> = blocks[round % 40..].iter().step_by(2).copied().collect();
            let mine: Vec<_> = blocks[round % 40..].iter().skip(1).step_by(2).copied().collect();
            if round % 3 == 0 {
                // While it goes.
                let theirs = theirs.clone();
                other.begins(move || theirs.into_iter().for_each(free));
                drop(heap);
                other.does(|| ());
            } else {
                drop(heap);
                other.frees(&theirs);
            }
            for &block in &mine {
                assert!(heap_of(block).is_none() && in_nursery(block));
                free(block);
            }
        }
        other.does(purge);
        purge();
        assert_eq!(nurseries(), 0);
        other.leaves();
        check();
    });
}

#[test]
fn bad_frees_are_told() {
    alone(|| {
        let heap = Heap::new().expect("memory");
        let blocks: Vec<_> = (0..10).map(|_| heap.allocate(100, 16)).collect();
        let other = Other::new();
        free(blocks[0]);
        other.frees(&blocks[1..2]);
        // SAFETY: the child ends.
        let frees = |block: *mut u8| child_does(|| unsafe { deallocate_named(block, "free") });
        assert!(frees(blocks[2]));
        // Twice, inside, and what has never been one.
        assert!(!frees(blocks[0]) && !frees(blocks[1]));
        assert!(!frees(blocks[3].wrapping_add(16)) && !frees(blocks[3].wrapping_add(8)));
        assert!(!frees(blocks[9].wrapping_sub(32)));
        heap.destroy();
        assert!(!frees(blocks[3]));
        other.leaves();
    });
}

/// Bytes of this process, by the kernel's account.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("the kernel tells");
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("a number") * crate::os::page_size()
}

/// Ten thousand heaps with ten blocks each.
#[test]
fn small_heaps_are_small() {
    alone(|| {
        free(allocate(64));
        let before = resident();
        let heaps: Vec<_> = (0..10_000)
            .map(|nth| {
                let heap = Heap::new().expect("memory");
                (0..10).for_each(|each| fill(heap.allocate(20 + (nth + each * 13) % 200, 16), 1));
                heap
            })
            .collect();
        let after = resident();
        assert!((after - before) / 10_000 <= 4096, "{} bytes each", (after - before) / 10_000);
        heaps.into_iter().for_each(Heap::destroy);
        purge();
        check();
        assert_eq!(nurseries(), 0);
    });
}

#[test]
fn they_are_visited() {
    alone(|| {
        let (heap, other) = (Heap::new().expect("memory"), Heap::new().expect("memory"));
        let blocks: Vec<_> = (0..50).map(|nth| heap.allocate(16 + nth, 16)).collect();
        (0..30).for_each(|_| free(other.allocate(30, 16)));
        let theirs = other.allocate(30, 16);
        blocks.iter().step_by(2).copied().for_each(free);
        let mut found = Vec::with_capacity(100);
        // SAFETY: nobody else is at work.
        unsafe {
            visit(Some(heap.id()), true, |_, block| {
                found.extend(block);
                true
            })
        };
        found.sort_unstable();
        let mut expected: Vec<_> = blocks.iter().skip(1).step_by(2).copied().collect();
        expected.sort_unstable();
        assert_eq!(found, expected);
        found.clear();
        // SAFETY: as above.
        unsafe {
            visit(Some(other.id()), true, |_, block| {
                found.extend(block);
                true
            })
        };
        assert_eq!(found, [theirs]);
    });
}

/// A child that was forked while another thread was changing the list of slices has all those in it that have free nurseries,
/// and nothing else: no full ones, and no large blocks where such slices were.
#[test]
fn a_forked_child_lists_what_is_free() {
    alone(|| {
        free(allocate(64));
        let slices: Vec<_> = (0..100).map(|_| large::take_nursery()).collect();
        // SAFETY: nurseries are never unmapped.
        let base = |nursery: *mut Nursery| unsafe { (*nursery).base.load(Ordering::Relaxed) };
        let slice = |nursery: *mut Nursery| address_map::slice_of(base(nursery));
        let were: BTreeSet<_> = slices.iter().map(|&nursery| slice(nursery)).collect();
        slices.into_iter().for_each(large::put_nursery);
        let blocks: Vec<_> = (0..4).map(|_| allocate(100_000)).collect();
        assert!(blocks.iter().any(|&block| were.contains(&address_map::slice_of(block))));
        // A slice of which one is free, others that are full, and one of which one is in use.
        let mut held: Vec<_> = (0..5 * PIECES + 1).map(|_| large::take_nursery()).collect();
        large::put_nursery(held.swap_remove(0));
        let bytes = nurseries();
        let (inside, done) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _held = large::hold_nurseries();
                inside.wait();
                done.wait();
            });
            inside.wait();
            let child = child_does(|| {
                let all = large::nurseries().map(slice).collect::<BTreeSet<_>>().len();
                assert_eq!(all * SLICE_SIZE, bytes);
                let free = all * PIECES - held.len();
                let more: Vec<_> = (0..free).map(|_| large::take_nursery()).collect();
                let distinct: BTreeSet<_> = held.iter().chain(&more).collect();
                assert_eq!((distinct.len(), nurseries()), (all * PIECES, bytes));
                let next = large::take_nursery();
                assert_eq!(nurseries(), bytes + SLICE_SIZE, "none was left");
                more.into_iter()
                    .chain([next])
                    .chain(held.iter().copied())
                    .for_each(large::put_nursery);
                assert_eq!(nurseries(), 0);
                check();
            });
            done.wait();
            assert!(child);
        });
        held.into_iter().for_each(large::put_nursery);
        blocks.into_iter().for_each(free);
        check();
    });
}

/// In a forked child a heap goes on, and what another thread's had lives on.
#[test]
fn a_forked_child_has_them() {
    alone(|| {
        let (heap, other) = (Heap::new().expect("memory"), Other::new());
        let mine: Vec<_> = (0..50).map(|_| heap.allocate(64, 16)).collect();
        let theirs = other.does(|| {
            let heap = core::mem::ManuallyDrop::new(Heap::new().expect("memory"));
            (0..50).map(|_| heap.allocate(64, 16)).collect::<Vec<_>>()
        });
        assert!(child_does(|| {
            mine.iter().chain(&theirs).step_by(3).copied().for_each(free);
            let more: Vec<_> = (0..300).map(|_| heap.allocate(64, 16)).collect();
            more.into_iter().for_each(free);
            purge();
            // SAFETY: nobody uses it any more.
            unsafe { heap.id().destroy() };
            check();
        }));
        other.leaves();
    });
}
