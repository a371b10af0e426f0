//! Guarded blocks, as far as nothing goes wrong with them; what does is in the tests of the C layer.

use super::alone::alone;
use super::{all_zero, assert_nothing_is_left, filling};
use crate::base::{BLOCK_MAX, CACHE_UNITS, MEDIUM_MAX, in_hardened, size_class};
use crate::samples::guards;
use crate::{
    Resized, Stats, allocate, allocate_aligned, allocate_zeroed, base, check, deallocate,
    guard_every, may_have_size, os, purge, reallocate, sample_every, thread, usable_size,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::vec::Vec;

/// Begins with a thread that has a heap.
fn begin(bytes: usize) {
    free(allocate(64));
    assert!(guard_every(bytes));
}

/// A guarded block of that size.
fn guarded(size: usize) -> *mut u8 {
    let block = allocate(size);
    assert!(guards::holds(block), "each allocation is guarded as far as there is room");
    block
}

fn free(block: *mut u8) {
    // SAFETY: a live block.
    unsafe { deallocate(block) };
}

#[test]
fn a_guarded_block_is_known_by_its_address() {
    alone(|| {
        begin(1);
        for size in [0, 1, 16, 100, 4096, 5000, MEDIUM_MAX] {
            let block = guarded(size);
            // SAFETY: a live block of that size.
            unsafe {
                block.write_bytes(1, size);
                assert_eq!(usable_size(block), size);
            }
            let last = block.wrapping_add(size.saturating_sub(1));
            assert_eq!(base(last), Some(block));
            assert_eq!(base(block.wrapping_add(size.max(1))), None);
            assert!(may_have_size(block, size, 16, Resized::Never));
            assert!(!may_have_size(block, size + 1, 1, Resized::Perhaps));
            free(block);
            assert_eq!(base(block), None);
        }
        check();
    });
}

#[test]
fn contents_and_alignment_are_as_ever() {
    alone(|| {
        begin(1);
        for align in [16, 64, 256, 4096] {
            let block = allocate_aligned(100, align);
            assert!(guards::holds(block) && block.addr().is_multiple_of(align));
            free(block);
        }
        for round in 0..600 {
            let block = allocate_zeroed(1000 + round);
            // SAFETY: a live block has that many bytes.
            unsafe {
                assert!(all_zero(block, 1000 + round));
                block.write_bytes(7, 1000 + round);
                let grown = reallocate(block, 70_000);
                assert!((0..1000).all(|at| grown.add(at).read() == 7));
                let shrunk = reallocate(grown, 500);
                assert!((0..500).all(|at| shrunk.add(at).read() == 7));
                free(shrunk);
            }
        }
        check();
    });
}

/// The place that was freed first is used first.
#[test]
fn freed_places_rest_the_longest() {
    alone(|| {
        begin(1);
        // Where the place begins of a block of 64 bytes, which lies at its start or at its end.
        let place = |block: *mut u8| match block.addr() % os::page_size() {
            0 => block.addr(),
            _ => block.addr() + 64 - BLOCK_MAX,
        };
        let first = guarded(64);
        free(first);
        let mut others = 0;
        loop {
            let block = guarded(64);
            free(block);
            if place(block) == place(first) {
                break;
            }
            others += 1;
        }
        assert!(others >= 200, "{others}");
    });
}

/// One block in four lies at the start of its place, whatever the program does in turns.
#[test]
fn some_blocks_begin_behind_a_guard() {
    const BLOCKS: usize = 4000;
    alone(|| {
        begin(1);
        let is_at_start = |block: *mut u8| block.addr().is_multiple_of(os::page_size());
        let near = |count: usize| (BLOCKS / 5..BLOCKS / 3).contains(&count);
        // How many are freed after as many have been allocated.
        for turn in [1, 2, 3, 4, 7] {
            let mut count = 0;
            for _ in 0..BLOCKS / turn {
                let blocks: Vec<_> = (0..turn).map(|_| guarded(100)).collect();
                count += blocks.iter().filter(|&&block| is_at_start(block)).count();
                blocks.into_iter().for_each(free);
            }
            assert!(near(count), "{count} of {BLOCKS}, {turn} at a time");
        }
    });
}

#[test]
fn without_room_blocks_are_ordinary() {
    alone(|| {
        begin(1);
        let blocks: Vec<_> = (0..1000).map(|_| allocate(100)).collect();
        let count = blocks.iter().filter(|block| guards::holds(**block)).count();
        assert_eq!(count, (768 << 10) / os::page_size());
        let stats = Stats::take();
        assert_eq!(stats.mapping_blocks, count);
        assert_eq!(stats.mappings.bytes, count * os::page_size());
        assert!(stats.mappings.resident + (90 << 10) <= 1 << 20);
        blocks.into_iter().for_each(free);
        assert!(guard_every(0));
        purge();
        check();
        assert_nothing_is_left();
    });
}

/// Ever so many bytes, whether they come from refills or go round in a cache.
#[test]
fn refills_draw_as_many_as_asked() {
    alone(|| {
        guards::IN_A_ROW.store(1000, Ordering::Relaxed);
        begin(1 << 20);
        let blocks: Vec<_> = (0..1_000_000).map(|_| allocate(filling(64))).collect();
        let count = blocks.iter().filter(|block| guards::holds(**block)).count();
        assert!((58..=62).contains(&count), "{count} in 61 MiB");
        blocks.into_iter().for_each(free);
        let count = (0..1_000_000)
            .filter(|_| {
                let block = allocate(filling(64));
                free(block);
                guards::holds(block)
            })
            .count();
        // From one slow tick to the next there are 50,000 pairs, 3 MiB.
        assert!((15..=62).contains(&count), "{count} in 61 MiB");
        check();
    });
}

/// A refill has failed, and what the program has freed then serves: of a full cache one block.
#[test]
fn what_comes_without_a_refill_counts_once() {
    alone(|| {
        begin(1 << 30);
        // What the cache tells then. Hardened, how many blocks are ready.
        let (class, left) = (size_class::class_of(64), in_hardened(50 * CACHE_UNITS, 0));
        // SAFETY: this thread's own heap.
        let sampling = unsafe { &mut (*thread::heap()).sampling };
        for _ in 0..1000 {
            assert!(!sampling.count(class, 0, left));
        }
    });
}

static TOLD: AtomicUsize = AtomicUsize::new(0);

/// Whoever asks last draws.
#[test]
fn guards_and_a_profiler_take_turns() {
    alone(|| {
        begin(1);
        free(guarded(64));
        sample_every(1, |_, _| {
            TOLD.fetch_add(1, Ordering::Relaxed);
        });
        let block = allocate(64);
        assert!(!guards::holds(block) && TOLD.load(Ordering::Relaxed) == 1);
        free(block);
        // That is not the guards' any more.
        assert!(guard_every(0));
        free(allocate(64));
        assert_eq!(TOLD.load(Ordering::Relaxed), 2);
        assert!(guard_every(1));
        free(guarded(64));
        assert_eq!(TOLD.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn without_memory_it_says_so() {
    alone(|| {
        for nth in 0..2 {
            os::fault::arm(nth, true);
            assert!(!guard_every(1));
            os::fault::disarm();
        }
        assert!(!guards::holds(allocate(64)));
        assert!(guard_every(1));
        let block = guarded(64);
        os::fault::arm(0, true);
        let other = allocate(64);
        os::fault::disarm();
        assert!(!guards::holds(other));
        free(block);
        free(other);
    });
}
