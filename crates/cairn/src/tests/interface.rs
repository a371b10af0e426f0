//! What the interface answers: statistics, sizes that cannot be, addresses inside blocks.

use super::alone::alone;
use super::filling;
use super::heap::{IN_SPAN, blocks, free};
use super::heaps::{Other, SIZE};
use crate::base::size_class::class_of;
use crate::base::{CANARY_BYTES, MEDIUM_MAX, shares};
use crate::map::address_map;
use crate::os::fault;
use crate::{NoMemory, Stats, allocate, allocate_aligned, allocate_zeroed, check, purge, thread};

/// What the statistics say adds up.
#[test]
fn the_stats_adds_up() {
    alone(|| {
        let empty = Stats::take();
        assert_eq!((empty.total().bytes, empty.allocated(), empty.clean), (0, 0, 0));
        assert_eq!(empty.heaps, (0, 0));
        let small = blocks(20);
        let large = allocate(100 << 10);
        let mapping = allocate(33 << 20);
        free(allocate(300 << 10));
        let l = Stats::take();
        let row = l.classes[class_of(SIZE).index()];
        assert_eq!(row.size, 1024);
        assert_eq!(row.in_use + row.cached + row.free + row.untouched, 2 * IN_SPAN);
        assert_eq!((row.spans, l.spans.bytes), (2, 2 << 14));
        assert_eq!((l.large_blocks, l.mapping_blocks), (1, 1));
        // SAFETY: live blocks.
        let (usable, mapped) = unsafe { (crate::usable_size(large), crate::usable_size(mapping)) };
        assert!((usable..usable + (16 << 10)).contains(&l.large.bytes));
        assert!((mapped..mapped + 4096).contains(&l.mappings.bytes));
        assert!(l.dirty.bytes >= 300 << 10, "what a heap keeps is dirty");
        assert_eq!(l.sum(|row| row.in_use), 20 << 10);
        assert_eq!(l.allocated(), (20 << 10) + l.large.bytes + l.mappings.bytes);
        let parts = [l.spans, l.large, l.mappings, l.dirty, l.metadata];
        assert_eq!(l.total().bytes, parts.iter().map(|part| part.bytes).sum::<usize>());
        assert_eq!(l.total().resident, parts.iter().map(|part| part.resident).sum::<usize>());
        assert!(parts.iter().all(|part| part.resident <= part.bytes));
        assert!(l.metadata.resident > 0 && l.spans.resident > 0);
        assert_eq!((l.heaps, l.given_back), ((1, 1), 0));
        let slices = address_map::committed();
        assert_eq!(l.clean + l.dirty.bytes + l.large.bytes + l.spans.bytes, slices << 14);
        small.into_iter().chain([large, mapping]).for_each(free);
        assert!(purge() > 0);
        let l = Stats::take();
        assert!(l.given_back > 0);
        assert_eq!(l.total().bytes, l.metadata.bytes);
        assert_eq!(shares::in_use(), 1);
    });
}

/// Another answer than null, where somebody needs it.
struct NotNull;

impl NoMemory for NotNull {
    fn answer(size: usize, align: usize) -> *mut u8 {
        core::ptr::without_provenance_mut(size << 16 | align)
    }
}

#[test]
fn callers_say_what_no_memory_means() {
    alone(|| {
        let said = |size, align| NotNull::answer(size, align);
        for start in [false, true] {
            if start {
                assert!(thread::start());
            }
            fault::arm(0, true);
            for size in [0, 1, 100, 1024, 1025, 64 << 10, (64 << 10) + 1, 33 << 20] {
                assert_eq!(crate::allocate_or::<NotNull>(size), said(size, 16));
                assert_eq!(crate::allocate_zeroed_or::<NotNull>(size), said(size, 16));
                assert_eq!(crate::allocate_aligned_or::<NotNull>(size, 16), said(size, 16));
                assert_eq!(crate::allocate_aligned_or::<NotNull>(size, 64), said(size, 64));
                assert!(allocate(size).is_null());
            }
            fault::disarm();
        }
        assert!(!crate::allocate_or::<NotNull>(100).is_null());
    });
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    alone(|| {
        assert!(thread::start());
        for size in [isize::MAX as usize, isize::MAX as usize + 1, usize::MAX - 5000, usize::MAX] {
            assert!(allocate(size).is_null());
            assert!(allocate_zeroed(size).is_null());
            assert!(allocate_aligned(size, 1 << 20).is_null());
        }
        let stats = Stats::take();
        assert_eq!((stats.large_blocks, stats.mapping_blocks), (0, 0));
        check();
    });
}

/// A block stays where it is while half of it is used, the smallest always.
#[test]
fn small_blocks_stay_if_that_wastes_little() {
    alone(|| {
        let other = Other::new();
        for (size, new, stays) in [
            (SIZE, SIZE, true),
            (SIZE, SIZE / 2, true),
            (SIZE, SIZE / 2 - 1, false),
            (SIZE, SIZE + 1, false),
            (1000, SIZE, true),
            (filling(80), filling(80) / 2, true),
            (filling(80), filling(80) / 2 - 1, false),
            (filling(80), filling(80) + 1, false),
            (filling(64), 1, true),
            (filling(64), filling(64) + 1, false),
            (filling(16), 0, true),
            (MEDIUM_MAX, MEDIUM_MAX / 2, true),
            (MEDIUM_MAX, MEDIUM_MAX / 2 - 1, false),
        ] {
            for block in [allocate(size), other.allocates(size, 1)[0]] {
                let kept = size.min(new);
                // SAFETY: live blocks of those sizes.
                unsafe {
                    block.write_bytes(7, kept);
                    let resized = crate::reallocate(block, new);
                    assert_eq!(resized == block, stays, "from {size} to {new}");
                    assert!((0..kept).all(|at| resized.add(at).read() == 7));
                    assert!(crate::usable_size(resized) >= new);
                    free(resized);
                }
            }
        }
        other.leaves();
        check();
    });
}

#[test]
fn every_address_inside_a_block_leads_to_its_start() {
    alone(|| {
        for size in [1, 16, 80, 1000, SIZE, 1300, 5000, 20_000, 60_000, MEDIUM_MAX] {
            for block in [size; 5].map(allocate) {
                // SAFETY: a live block.
                let usable = unsafe { crate::usable_size(block) };
                let end = crate::good_size(size) + CANARY_BYTES;
                assert_eq!(usable, end - CANARY_BYTES);
                for at in [0, 1, size / 2, size - 1, end - 1] {
                    assert_eq!(crate::base(block.wrapping_add(at)), Some(block), "{size}");
                }
                assert_ne!(crate::base(block.wrapping_add(end)), Some(block));
                assert_ne!(crate::base(block.wrapping_sub(1)), Some(block));
            }
        }
    });
}

#[test]
fn purge_says_how_much_went() {
    alone(|| {
        free(allocate(100));
        purge();
        free(allocate_aligned(filling(3 << 20), 4096));
        assert_eq!(purge(), 3 << 20);
        free(allocate_aligned(filling(1 << 20), 4096));
        assert_eq!(purge(), 1 << 20);
        free(allocate_aligned(filling(3 << 20), 4096));
        free(allocate_aligned(filling(1 << 20), 4096));
        assert_eq!((purge(), purge()), (4 << 20, 0));
        // A mapping goes at once.
        free(allocate_aligned(33 << 20, 4096));
        assert_eq!(purge(), 0);
    });
}
