//! What sizes a program may know of, and blocks that grow where they stand.

use super::alone::alone;
use super::filling;
use super::large::{MIB, free, large_slices, mapped, usable};
use crate::base::CANARY_BYTES;
use crate::{
    Stats, allocate, allocate_aligned_at, allocate_at_least, check, class_sizes, good_size,
    reallocate, set_purge_delay_ms, try_expand,
};
use std::vec::Vec;

/// Sizes around all bounds there are.
fn sizes() -> impl Iterator<Item = usize> {
    let bounds = class_sizes().chain((1..300).map(|n| n << 14)).chain([32 * MIB, 40 * MIB]);
    bounds.flat_map(|size| size - 1..size + 2)
}

#[test]
fn classes_are_those_of_the_statistics() {
    let rows: Vec<usize> = Stats::count().classes.iter().map(|row| row.size).collect();
    assert!(class_sizes().map(|size| size + CANARY_BYTES).eq(rows));
}

#[test]
fn a_good_size_costs_no_more_and_is_usable() {
    alone(|| {
        assert_eq!([0, 1, 1025].map(good_size), [16, 16, 1280].map(filling));
        assert_eq!([usize::MAX, isize::MAX as usize + 1].map(good_size), [0, 0]);
        let expect_good = |size| {
            let good = good_size(size);
            assert!(good >= size && good_size(good) == good, "{good} for {size}");
            good
        };
        (isize::MAX as usize - 100..=isize::MAX as usize).for_each(|size| _ = expect_good(size));
        for size in sizes() {
            let good = expect_good(size);
            let taken = [size, good].map(|size| {
                // Not a run that is kept.
                crate::purge();
                let block = allocate(size);
                let stats = Stats::count();
                assert!(usable(block) >= good || size < good, "{} of {good}", usable(block));
                free(block);
                let spans: usize = stats.classes.iter().map(|row| row.in_use * row.size).sum();
                (spans, stats.large.bytes, stats.mappings.bytes)
            });
            // A mapping has a page more in some colours.
            assert!(taken[0] == taken[1] || size >= 32 * MIB, "{taken:?} for {size}, {good}");
        }
    });
}

#[test]
fn at_least_tells_what_may_be_used() {
    for size in sizes().chain([0]) {
        for align in [1, 16, 64, 4096, MIB] {
            let (block, bytes) = allocate_at_least(size, align);
            assert!(bytes >= size && bytes == usable(block) && block.addr().is_multiple_of(align));
            free(block);
        }
    }
    assert_eq!(allocate_at_least(isize::MAX as usize, 16), (core::ptr::null_mut(), 0));
}

fn expands(block: *mut u8, size: usize) -> bool {
    // SAFETY: a live block; where it is not, the process ends.
    unsafe { try_expand(block, size) }
}

#[test]
fn small_blocks_have_the_room_of_their_class() {
    for size in class_sizes() {
        let block = allocate(size.saturating_sub(15));
        assert!(expands(block, 0) && expands(block, size) && !expands(block, size + 1));
        assert!(!expands(block, usize::MAX));
        assert_eq!(usable(block), size);
        free(block);
    }
    assert!(!expands(core::ptr::null_mut(), 1));
}

#[test]
fn runs_grow_into_free_slices_and_give_them_back() {
    alone(|| {
        let [block, behind] = [allocate(100_000), allocate(3 * MIB)];
        assert!(block < behind && !expands(block, 200_000), "something stands behind it");
        // SAFETY: it has that many bytes.
        unsafe { block.write_bytes(7, 100_000) };
        free(behind);
        // What another heap might want is not kept.
        crate::purge();
        assert!(expands(block, 2 * MIB) && usable(block) >= 2 * MIB);
        assert_eq!(large_slices().0, usable(block).div_ceil(1 << 14));
        assert!(!expands(block, 60 * MIB));
        // SAFETY: all of it is the block's.
        unsafe {
            assert!((0..100_000).all(|at| block.add(at).read() == 7));
            block.write_bytes(8, usable(block));
        }
        assert!(expands(block, 100) && usable(block) <= 80 << 10, "{}", usable(block));
        check();
        free(block);
        assert_eq!(large_slices(), (0, 0));
        // A run no longer than spans' blocks.
        let short = allocate_aligned_at(100, 64, 8);
        assert!(expands(short, 0) && expands(short, 1000) && usable(short) < 1 << 14);
        free(short);
        // Beyond what realloc fills up, for it would move pages.
        let block = allocate(15 * MIB);
        free(allocate(12 * MIB));
        crate::purge();
        assert!(expands(block, 20 * MIB) && usable(block) >= 20 * MIB);
        free(block);
        check();
    });
}

#[test]
fn mappings_grow_where_the_addresses_are_free() {
    alone(|| {
        set_purge_delay_ms(0);
        let block = allocate(40 * MIB);
        // SAFETY: a live block.
        let moved = unsafe { reallocate(block, 41 * MIB) };
        let room = usable(moved);
        assert!(room > 41 * MIB && expands(moved, room) && !expands(moved, 1 << 50));
        assert_eq!(mapped().1, 1);
        // Far below what it has: it stays, however much it keeps.
        assert!(expands(moved, 34 * MIB) && usable(moved) >= 34 * MIB);
        assert!(usable(moved) < room, "what it need not keep goes back");
        assert!(expands(moved, 10) && usable(moved) >= 34 * MIB);
        let before = usable(moved);
        // What has just been given back is free, unless somebody else has it.
        if expands(moved, 41 * MIB) {
            // SAFETY: it has that many bytes.
            unsafe { moved.write_bytes(1, 41 * MIB) };
        } else {
            assert_eq!(usable(moved), before);
        }
        free(moved);
        assert_eq!(mapped(), (0, 0));
    });
}

#[test]
fn any_byte_of_a_block_can_be_aligned() {
    alone(|| {
        let sizes = [0, 1, 100, 5000, 100_000, 3 * MIB, 33 * MIB];
        for align in (0..=25).map(|shift| 1usize << shift) {
            let offsets =
                [1, 8, 16, 64, 4096, 5000, 1 << 14, MIB - 1, usize::MAX, align, align / 2 + 1];
            for (offset, size) in offsets.iter().flat_map(|&at| sizes.map(|size| (at, size))) {
                let block = allocate_aligned_at(size, align, offset);
                let at = block.addr().wrapping_add(offset);
                assert!(at.is_multiple_of(align), "{block:p}, {offset} at {align}");
                assert!(usable(block) >= size && crate::base(block) == Some(block));
                // SAFETY: it has that many bytes; the block is live.
                unsafe {
                    block.write_bytes(1, size.min(100_000));
                    assert!(crate::base(block.add(size.max(1) - 1)) == Some(block));
                    // What is kept of it serves no other block.
                    let grown = reallocate(block, 2 * size + 1);
                    assert!((0..size.min(100_000)).all(|at| grown.add(at).read() == 1));
                    free(grown);
                }
                let next = allocate(70_000);
                assert!(next.addr().is_multiple_of(16));
                free(next);
            }
            check();
        }
        assert!(allocate_aligned_at(isize::MAX as usize, 64, 1).is_null());
        assert!(allocate_aligned_at(1, 1 << 63, 1).is_null());
        assert_eq!((large_slices().1, mapped()), (0, (0, 0)));
    });
}
