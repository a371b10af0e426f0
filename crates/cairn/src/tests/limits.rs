//! What a heap holds, and what it may hold.

mod process;

use super::alone::alone;
use super::filling;
use super::heaps::{Other, free};
use crate::base::SLICE_SIZE;
use crate::{Heap, HeapId, HeapStats, allocate, check, heap_of, purge, reallocate, try_expand};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::vec::Vec;

const MIB: usize = 1 << 20;

/// Allocates until there is no more.
fn fill<Kind>(heap: &Heap<Kind>, size: usize) -> Vec<*mut u8> {
    std::iter::repeat_with(|| heap.allocate(size, 16))
        .take_while(|block| !block.is_null())
        .collect()
}

fn held<Kind>(heap: &Heap<Kind>) -> usize {
    heap.stats().spans + heap.stats().large
}

#[test]
fn a_heap_has_no_more_than_its_limit() {
    alone(|| {
        for block_bytes in [16, 1000, 30_000, 60_000, 300_000, 33 * MIB] {
            let size = filling(block_bytes);
            let mut heap = Heap::new().expect("memory");
            let limit = if size < 32 * MIB { 4 * MIB } else { 150 * MIB };
            assert!(heap.set_limits(0, limit, None, [0; 2]));
            for round in 0..3 {
                let blocks = fill(&heap, size);
                let bytes = blocks.len() * block_bytes;
                assert!(held(&heap) <= limit, "{size}");
                assert!(bytes > limit * 3 / 4, "{size}, round {round}: {bytes} of {limit}");
                assert!(heap.stats().peak <= limit);
                // The rest of the process has memory.
                free(allocate(size));
                assert!(heap.allocate(size, 16).is_null(), "{size}, {round}, {:?}", heap.stats());
                blocks.into_iter().for_each(free);
                assert!(held(&heap) <= limit);
            }
            // What has been free in one size is there for another.
            free(heap.allocate(100, 16));
            heap.purge();
            assert_eq!(
                HeapStats { peak: 0, ..heap.stats() },
                HeapStats { hard_limit: limit, ..HeapStats::default() }
            );
            heap.destroy();
            check();
        }
    });
}

#[test]
fn a_large_block_grows_up_to_the_limit() {
    alone(|| {
        let mut heap = Heap::new().expect("memory");
        assert!(heap.set_limits(0, 64 * MIB, None, [0; 2]));
        let mut block = heap.allocate(MIB, 16);
        let mut size = MIB;
        loop {
            // SAFETY: in use, this test's.
            let new = unsafe { heap.reallocate(block, size + MIB, 16) };
            assert!(held(&heap) <= 64 * MIB);
            if new.is_null() {
                break;
            }
            (block, size) = (new, size + MIB);
            // SAFETY: as above.
            unsafe { block.add(size - 1).write(1) };
        }
        assert!((30 * MIB..=64 * MIB).contains(&size), "{size}");
        // SAFETY: as above.
        let half = unsafe { heap.reallocate(block, size / 2, 16) };
        assert!(!half.is_null() && held(&heap) < size * 3 / 4);
        free(half);
        heap.purge();
        assert_eq!(held(&heap), 0);
        check();
    });
}

#[test]
fn a_block_of_a_heap_grows_to_no_more_than_can_be() {
    alone(|| {
        let heap = Heap::new().expect("memory");
        for size in [1000, 300_000, 40 * MIB] {
            let block = heap.allocate(size, 16);
            for much in
                [usize::MAX, usize::MAX - 4095, isize::MAX as usize + 1, isize::MAX as usize]
            {
                // SAFETY: in use, this test's, and so long still.
                unsafe {
                    assert!(heap.reallocate(block, much, 16).is_null(), "{size}, {much}");
                    block.write_bytes(1, size);
                }
            }
            free(block);
        }
        check();
    });
}

/// What is free in the heap goes first, and the program is told where the block passes the soft limit.
#[test]
fn a_large_block_grows_as_a_new_one_is_allocated() {
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    fn told(_: HeapId, _: [usize; 2]) {
        TOLD.fetch_add(1, Ordering::Relaxed);
    }
    alone(|| {
        let mut heap = Heap::new().expect("memory");
        assert!(heap.set_limits(0, 8 * MIB, None, [0; 2]));
        let small: Vec<_> = (0..1500).map(|_| heap.allocate(2000, 16)).collect();
        let block = heap.allocate(4 * MIB, 16);
        // There is room behind it.
        free(allocate(8 * MIB));
        small.into_iter().for_each(free);
        // SAFETY: in use, this test's.
        let block = unsafe { heap.reallocate(block, 6 * MIB, 16) };
        assert!(!block.is_null(), "{:?}", heap.stats());
        assert!(heap.set_limits(7 * MIB, 0, Some(told), [0; 2]));
        // SAFETY: as above.
        let block = unsafe { heap.reallocate(block, 10 * MIB, 16) };
        assert_eq!(TOLD.load(Ordering::Relaxed), 1);
        free(block);
        check();
    });
}

/// Plain realloc asks no heap: where the limit has no room for the block to grow, it moves out.
#[test]
fn a_large_block_grows_out_of_a_heap_at_its_limit() {
    alone(|| {
        for (limit, size, more) in [(2, 1, 9), (2, 1, 40), (40, 35, 90)] {
            let mut heap = Heap::new().expect("memory");
            assert!(heap.set_limits(0, limit * MIB, None, [0; 2]));
            let block = heap.allocate(size * MIB, 16);
            // SAFETY: in use, this test's, and as long.
            unsafe {
                block.write_bytes(7, size * MIB);
                assert!(heap.reallocate(block, more * MIB, 16).is_null());
                let moved = reallocate(block, more * MIB);
                assert!(!moved.is_null() && heap_of(moved).is_none() && held(&heap) == 0);
                assert!(*moved == 7 && *moved.add(size * MIB - 1) == 7);
                free(moved);
            }
            check();
        }
    });
}

#[test]
fn limits_that_cannot_be_are_refused() {
    alone(|| {
        let mut heap = Heap::new().expect("memory");
        let block = heap.allocate(300_000, 16);
        assert!(!heap.set_limits(0, 200_000, None, [0; 2]));
        assert!(!heap.set_limits(2 * MIB, MIB, None, [0; 2]));
        assert!(heap.set_limits(100_000, MIB, None, [0; 2]));
        assert!(heap.stats().soft_limit == 100_000 && heap.stats().hard_limit == MIB);
        free(block);
        assert!(heap.set_limits(0, 200_000, None, [0; 2]));
    });
}

/// The program is told once, until the heap has been below the limit again; inside it may use the heap.
#[test]
fn the_program_is_told_of_the_soft_limit() {
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    static IDS: AtomicUsize = AtomicUsize::new(0);
    fn told(heap: HeapId, [first, second]: [usize; 2]) {
        assert_eq!([first, second], [3, 4]);
        IDS.store(heap.into_raw().addr().get(), Ordering::Relaxed);
        TOLD.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the heap is this thread's.
        unsafe {
            free(heap.allocate(500, 16));
            free(heap.allocate(500_000, 16));
        }
    }
    alone(|| {
        let mut heap = Heap::new().expect("memory");
        assert!(heap.set_limits(MIB, 0, Some(told), [3, 4]));
        for round in 1..4 {
            let blocks: Vec<_> = (0..2000).map(|_| heap.allocate(1000, 16)).collect();
            assert_eq!(TOLD.load(Ordering::Relaxed), 2 * round - 1);
            assert_eq!(IDS.load(Ordering::Relaxed), heap.id().into_raw().addr().get());
            blocks.into_iter().for_each(free);
            heap.purge();
            assert_eq!(held(&heap), 0);
            free(heap.allocate(2 * MIB, 16));
            assert_eq!(TOLD.load(Ordering::Relaxed), 2 * round);
        }
        // What is only kept goes first, and nobody is told.
        for size in [100, 200, 400, 800, 1600, 3200, 6400] {
            let blocks: Vec<_> = (0..500_000 / size).map(|_| heap.allocate(size, 16)).collect();
            blocks.into_iter().for_each(free);
        }
        let mut shared = Heap::shared().expect("memory");
        assert!(shared.set_limits(MIB, 0, Some(told), [3, 4]));
        for size in [100, 200, 400, 800, 1600, 3200, 6400] {
            let blocks: Vec<_> = (0..500_000 / size).map(|_| shared.allocate(size, 16)).collect();
            blocks.into_iter().for_each(free);
        }
        assert_eq!(TOLD.load(Ordering::Relaxed), 6);
        check();
    });
}

/// Parts of a shared heap have one limit.
#[test]
fn the_parts_of_a_shared_heap_count_together() {
    alone(|| {
        let mut heap = Heap::shared().expect("memory");
        assert!(heap.set_limits(0, 4 * MIB, None, [0; 2]));
        let (heap, other) = (Arc::new(heap), Other::new());
        let there = heap.clone();
        let theirs =
            other.does(move || (0..2000).map(|_| there.allocate(1000, 16)).collect::<Vec<_>>());
        assert!(theirs.iter().all(|block| !block.is_null()));
        let mine = fill(&heap, 1000);
        assert!(mine.len() < 2200 && mine.len() > 1800 && held(&heap) <= 4 * MIB);
        other.frees(&theirs);
        let there = heap.clone();
        other.does(move || there.purge());
        assert!(fill(&heap, 1000).len() > 1800);
        other.leaves();
        check();
    });
}

/// What a heap says that it holds is what is there, whatever has come and gone.
#[test]
fn the_account_is_exact() {
    alone(|| {
        free(allocate(64));
        purge();
        let others = crate::Stats::take();
        let heap = Heap::new().expect("memory");
        heap.id().use_no_nursery();
        let mut random = 7_u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) as usize % below
        };
        let mut blocks = Vec::new();
        for step in 0..20_000 {
            let size = [40, 3000, 50_000, 200_000, 3 * MIB][next(20).saturating_sub(15)];
            match next(5) {
                0 | 1 if !blocks.is_empty() => free(blocks.swap_remove(next(blocks.len()))),
                2 if !blocks.is_empty() => {
                    let at = next(blocks.len());
                    let old: *mut u8 = blocks[at];
                    // SAFETY: in use, this test's.
                    let stays = unsafe { crate::usable_size(old) } > 70_000 && size > 70_000;
                    // SAFETY: as above.
                    blocks[at] = unsafe {
                        if stays && step % 2 == 0 {
                            reallocate(old, size)
                        } else {
                            heap.reallocate(old, size, 16)
                        }
                    };
                }
                _ => blocks.push(heap.allocate(size, 16)),
            }
            if step % 1000 == 0 {
                let (now, own) = (crate::Stats::take(), heap.stats());
                assert_eq!(now.spans.bytes - others.spans.bytes, own.spans);
                let large = now.large.bytes + now.mappings.bytes;
                assert_eq!(large - others.large.bytes, own.large);
                assert_eq!(now.large_blocks + now.mapping_blocks, own.large_blocks);
            }
        }
        assert!(heap.stats().spans.is_multiple_of(SLICE_SIZE));
        heap.destroy();
        check();
    });
}

/// Whatever falls, first blocks or large ones, and however much comes again.
#[test]
fn the_peak_is_the_most_that_was_held() {
    alone(|| {
        let heap = Heap::new().expect("memory");
        let mut most = 0;
        let mut see = || {
            most = most.max(held(&heap));
            assert_eq!(heap.stats().peak, most);
        };
        let small: Vec<_> = (0..20).map(|_| heap.allocate(500, 16)).collect();
        see();
        let large = heap.allocate(MIB, 16);
        see();
        free(large);
        see();
        small.into_iter().for_each(free);
        heap.purge();
        see();
        let again: Vec<_> = (0..30).map(|_| heap.allocate(500, 16)).collect();
        see();
        let larger = heap.allocate(2 * MIB, 16);
        see();
        again.into_iter().for_each(free);
        heap.purge();
        free(larger);
        see();
        assert!(held(&heap) == 0 && most > 2 * MIB);
        heap.destroy();
        check();
    });
}

/// What cannot be had has not been held, however large.
#[test]
fn what_fails_is_not_in_the_peak() {
    alone(|| {
        let heap = Heap::new().expect("memory");
        let [first, behind] = [heap.allocate(MIB, 16), heap.allocate(MIB, 16)];
        let mapped = heap.allocate(40 * MIB, 16);
        let most = held(&heap);
        // SAFETY: live blocks.
        unsafe {
            assert!(first < behind && !try_expand(first, 8 * MIB));
            assert!(reallocate(mapped, isize::MAX as usize / 2).is_null());
        }
        assert_eq!((held(&heap), heap.stats().peak), (most, most));
        heap.destroy();
        check();
    });
}
