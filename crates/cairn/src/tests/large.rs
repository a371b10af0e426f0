//! Blocks that own a run of slices or a mapping: where they stand, how they grow and shrink,
//! what is kept of them for the next one.

mod zeroing;

use super::alone::alone;
use super::filling;
use super::heaps::Other;
use crate::base::{CANARY_BYTES, MEDIUM_MAX, SLICE_SIZE};
use crate::map::address_map;
use crate::{
    Stats, allocate, allocate_aligned, base, check, deallocate, large, purge, reallocate,
    usable_size,
};
use std::collections::HashSet;
use std::vec::Vec;

pub(super) const KIB: usize = 1 << 10;
pub(super) const MIB: usize = 1 << 20;

pub(super) fn free(block: *mut u8) {
    // SAFETY: these tests free each block once.
    unsafe { deallocate(block) };
}

pub(super) fn usable(block: *mut u8) -> usize {
    // SAFETY: a live block.
    unsafe { usable_size(block) }
}

/// Resizes and looks whether the contents have come along; the block.
pub(super) fn resize(block: *mut u8, size: usize) -> *mut u8 {
    let kept = usable(block).min(size);
    // SAFETY: live blocks of those sizes.
    unsafe {
        for at in (0..kept).step_by(1021) {
            block.add(at).write((at / 1021) as u8);
        }
        let new = reallocate(block, size);
        assert!(!new.is_null());
        assert!((0..kept).step_by(1021).all(|at| new.add(at).read() == (at / 1021) as u8));
        assert!(usable_size(new) >= size);
        new
    }
}

/// Slices that large blocks have, kept ones not counted; and how many blocks.
pub(super) fn large_slices() -> (usize, usize) {
    let stats = Stats::take();
    (stats.large.bytes / SLICE_SIZE, stats.large_blocks)
}

pub(super) fn mapped() -> (usize, usize) {
    let stats = Stats::take();
    (stats.mappings.bytes, stats.mapping_blocks)
}

/// Whether there is a page at `at`.
pub(super) fn is_mapped(at: *mut u8) -> bool {
    // SAFETY: nothing but asking.
    unsafe { libc::msync(at.cast(), 4096, libc::MS_ASYNC) == 0 }
}

#[test]
fn runs_have_as_many_slices_as_it_takes() {
    alone(|| {
        let mut sum = 0;
        for (i, (size, slices)) in [
            (65 * KIB, 5),
            (80 * KIB, 5),
            (80 * KIB + 1, 6),
            // From 128 KiB on there is a page more, for colour.
            (128 * KIB - 1, 8),
            (128 * KIB + 8, 9),
            (140 * KIB, 9),
            (140 * KIB + 1, 10),
            (MIB, 65),
            (32 * MIB - 1, 2049),
        ]
        .into_iter()
        .enumerate()
        {
            let size = filling(size);
            let block = allocate(size);
            sum += slices;
            assert_eq!(large_slices(), (sum, i + 1), "{size}");
            let bytes = filling(slices * SLICE_SIZE);
            let colour = bytes - usable(block);
            assert_eq!(colour, block.addr() % SLICE_SIZE);
            assert!(usable(block) >= size && colour.is_multiple_of(64) && colour < 4096);
            // Found from everywhere inside, from nowhere outside.
            for at in [0, 1, size / 2, size - 1, usable(block) - 1] {
                assert_eq!(base(block.wrapping_add(at)), Some(block));
            }
            if colour > 0 {
                assert_eq!(base(block.wrapping_sub(1)), None);
            }
            let behind = usable(block) + CANARY_BYTES;
            assert_ne!(base(block.wrapping_add(behind)), Some(block));
        }
        let mapping = allocate(32 * MIB);
        assert_eq!((large_slices().1, mapped().1), (9, 1));
        assert!((32 * MIB..32 * MIB + 8192).contains(&mapped().0));
        assert_eq!(base(mapping.wrapping_add(32 * MIB - 1)), Some(mapping));
        check();
    });
}

/// Equal parts of many blocks do not compete for the same cache sets.
#[test]
fn large_blocks_begin_at_different_lines() {
    alone(|| {
        for (size, least) in [(200 * KIB, 60), (33 * MIB, 60), (100 * KIB, 30)] {
            let held: Vec<_> = (0..64).map(|_| allocate(size)).collect();
            let lines: HashSet<usize> = held.iter().map(|block| block.addr() % 4096).collect();
            assert!(lines.len() >= least, "{} of 64 for {size} bytes", lines.len());
            held.into_iter().for_each(free);
        }
    });
}

#[test]
fn aligned_blocks_take_what_they_need_and_no_more() {
    alone(|| {
        let mut sum = 0;
        for (size, align, slices) in [
            (100 * KIB, 64, 7),
            (100 * KIB, 128, 7),
            (100 * KIB, 16 * KIB, 7),
            (100 * KIB, 64 * KIB, 7),
            (16 * KIB, 128 * KIB, 1),
            (300 * KIB, MIB, 19),
            (MIB, MIB, 64),
        ] {
            let block = allocate_aligned(filling(size), align);
            assert!(block.addr().is_multiple_of(align));
            sum += slices;
            assert_eq!(large_slices().0, sum, "{size} at {align}");
            check();
        }
        assert_eq!(mapped().1, 0);
        for (size, align) in [(100, 2 * MIB), (3 * MIB, 16 * MIB)] {
            let block = allocate_aligned(filling(size), align);
            assert!(block.addr().is_multiple_of(align));
            sum += size.div_ceil(SLICE_SIZE);
            assert_eq!((large_slices().0, mapped().1), (sum, 0), "{size} at {align}");
            check();
        }
        for (size, align) in [(100, 32 * MIB), (3 * MIB, 64 * MIB), (33 * MIB, 64 * KIB)] {
            let before = mapped().0;
            let block = allocate_aligned(filling(size), align);
            assert!(block.addr().is_multiple_of(align));
            assert_eq!(mapped().0 - before, size.next_multiple_of(4096));
            // Nothing is left mapped around it.
            assert!(is_mapped(block));
            assert!(align <= 64 * KIB || !is_mapped(block.wrapping_sub(4096)));
        }
        assert!(allocate_aligned(usize::MAX >> 1, 2 * MIB).is_null());
        assert!(allocate_aligned(1, 1 << 62).is_null());
    });
}

/// They lie side by side, and each fits where one has been.
#[test]
fn aligned_blocks_take_each_others_places() {
    alone(|| {
        for (size, align) in [(2 * MIB, 2 * MIB), (64 << 10, 128 << 10), (300_000, 64 << 10)] {
            let take = || allocate_aligned(filling(size), align);
            let held: Vec<_> = (0..20).map(|_| take()).collect();
            held.iter().step_by(2).for_each(|&block| free(block));
            purge();
            let committed = address_map::committed();
            let again: Vec<_> = (0..10).map(|_| take()).collect();
            let at_old_places = again.iter().filter(|block| held.contains(block)).count();
            assert!(at_old_places >= 9, "{size}, {align}: {at_old_places}");
            assert_eq!(address_map::committed(), committed);
            assert!(again.iter().all(|block| block.addr().is_multiple_of(align)));
            again.into_iter().chain(held.into_iter().skip(1).step_by(2)).for_each(free);
            check();
        }
    });
}

/// What stands before and behind an aligned block is free again, and as clean as it was.
#[test]
fn what_is_cut_off_around_an_aligned_block_is_free() {
    alone(|| {
        for dirty in [false, true] {
            let big = allocate(7 * MIB);
            if dirty {
                // SAFETY: a live block.
                unsafe { big.write_bytes(1, 7 * MIB) };
            }
            free(big);
            if !dirty {
                purge();
            }
            let before = Stats::take().dirty.bytes;
            assert_eq!(before > 0, dirty);
            let mut held = Vec::new();
            for (size, align) in [
                (16 * KIB, 128 * KIB),
                (100 * KIB, 64 * KIB),
                (300 * KIB, MIB),
                (16 * KIB, 32 * KIB),
                (100 * KIB, 16),
                (200 * KIB, 256 * KIB),
                (100 * KIB, 64 * KIB),
            ] {
                held.push(allocate_aligned(size, align));
                let l = Stats::take();
                let slices = address_map::committed();
                let sum = l.clean + l.dirty.bytes + l.large.bytes;
                assert_eq!(sum, slices * SLICE_SIZE, "{size} at {align}");
                assert_eq!(l.dirty.bytes, before.saturating_sub(l.large.bytes));
            }
            held.into_iter().for_each(free);
            purge();
            check();
        }
    });
}

/// A thread keeps one run for its next block, if that fits well enough.
#[test]
fn one_run_is_kept_for_the_next_block() {
    alone(|| {
        // A thread without a heap keeps none.
        free(allocate(100));
        let first = allocate(200 * KIB);
        assert_eq!(large_slices(), (13, 1));
        free(first);
        assert_eq!(large_slices(), (0, 0));
        assert_eq!(Stats::take().dirty.bytes, 13 * SLICE_SIZE);
        assert_eq!(allocate(190 * KIB), first);
        assert_eq!(large_slices(), (13, 1));
        free(first);
        // Larger than what is kept, or so small that too much would be wasted.
        let larger = allocate(213 * KIB);
        let smaller = allocate(100 * KIB);
        assert!(larger != first && smaller != first);
        assert_eq!(allocate(200 * KIB), first);
        free(larger);
        // The next one drives it out.
        free(first);
        assert_eq!(allocate(213 * KIB).addr() >> 14, larger.addr() >> 14);
        check();
        purge();
        assert_eq!(Stats::take().dirty.bytes, 0);
        // What is kept may be anything but zero.
        let big = allocate(7 * MIB);
        // SAFETY: a live block.
        unsafe { big.write_bytes(1, 7 * MIB) };
        free(big);
        let zero = crate::allocate_zeroed(7 * MIB);
        // SAFETY: a live block.
        assert!(unsafe { std::slice::from_raw_parts(zero, 7 * MIB) }.iter().all(|&b| b == 0));
        check();
    });
}

/// It keeps no more than its share: alone 8 MiB, one of two 4 MiB.
#[test]
fn no_large_run_is_kept() {
    alone(|| {
        free(allocate(100));
        let other = Other::new();
        for (alone, most) in [(true, 512), (false, 256)] {
            if !alone {
                other.allocates(100, 1);
            }
            for slices in [most - 1, most, most + 1] {
                // There is a page more for colour.
                let size = filling((slices * SLICE_SIZE - 4096).min(8 * MIB - 1));
                let block = allocate(size);
                assert_eq!(large_slices(), (slices, 1));
                free(block);
                let again = allocate(size);
                assert_eq!(again == block, slices <= most, "{slices} slices");
                free(again);
                purge();
            }
        }
        other.leaves();
    });
}

/// A kept run serves all that it holds, but not what would waste more than an eighth and a slice.
#[test]
fn what_is_kept_fits_well_enough() {
    alone(|| {
        free(allocate(100));
        // One of a few colours allows for a size at the very bound.
        let fits = |usable: usize, size: usize| usable - size == SLICE_SIZE + size / 8;
        let (block, least) = (0..20)
            .map(|_| allocate(500 * KIB))
            .find_map(|block| {
                let size = (1..usable(block)).find(|&size| fits(usable(block), size))?;
                Some((block, size))
            })
            .expect("there is one");
        let most = usable(block);
        for (size, serves) in [(most, true), (most + 1, false), (least, true), (least - 1, false)] {
            free(block);
            assert_eq!(allocate(size) == block, serves, "{size} of {most} bytes");
            if !serves {
                assert_eq!(allocate(most), block);
            }
        }
        check();
    });
}

#[test]
fn a_second_free_of_a_large_block_is_noticed() {
    alone(|| {
        let block = allocate(200 * KIB);
        assert!(!large::free(block.wrapping_add(64), "free"));
        assert!(large::free(block, "free"));
        assert!(!large::free(block, "free"));
        let block = allocate(33 * MIB);
        assert!(!large::free_mapping(block.wrapping_add(64), "free"));
        assert!(!large::free_mapping(block.wrapping_sub(64), "free"));
        assert_eq!(large::mapping_usable_size(block.wrapping_add(64)), None);
        assert!(large::free_mapping(block, "free"));
        assert!(!large::free_mapping(block, "free"));
        assert_eq!(large::mapping_base(block), None);
        check();
    });
}

#[test]
fn runs_shrink_by_whole_slices_if_it_is_worth_it() {
    alone(|| {
        let block = allocate(MIB);
        assert_eq!(large_slices().0, 65);
        // An eighth may stay.
        let same = resize(block, MIB - 100 * KIB);
        assert_eq!((same, large_slices().0), (block, 65));
        let colour = block.addr() % SLICE_SIZE;
        for (slices, left) in [(57, 65), (56, 56)] {
            let same = resize(block, filling(slices * SLICE_SIZE - colour));
            assert_eq!((same, large_slices().0), (block, left));
        }
        let same = resize(block, filling(300 * KIB));
        assert_eq!(same, block);
        assert_eq!(large_slices().0, (300 * KIB + colour).div_ceil(SLICE_SIZE));
        // What was given back is free.
        let next = allocate(200 * KIB);
        assert_eq!(next.addr() >> 14, (block.addr() + 300 * KIB).div_ceil(SLICE_SIZE));
        // Up to `MEDIUM_MAX` it becomes a span's block.
        let small = resize(block, MEDIUM_MAX);
        assert_ne!(small, block);
        assert_eq!(large_slices().1, 1);
        check();
    });
}

#[test]
fn runs_grow_in_place_where_there_is_room() {
    alone(|| {
        let block = allocate(100 * KIB);
        assert_eq!(large_slices().0, 7);
        let same = resize(block, 200 * KIB);
        assert_eq!((same, large_slices().0), (block, 13));
        // From the second time on there is an eighth to spare.
        let colour = block.addr() % SLICE_SIZE;
        let same = resize(block, 400 * KIB);
        assert_eq!((same, large_slices().0), (block, (450 * KIB + colour).div_ceil(SLICE_SIZE)));
        // With a neighbour right behind: by as much as is needed, but no more; then elsewhere.
        let end = (block.addr() >> 14) + large_slices().0;
        let neighbour = allocate(100 * KIB);
        assert_eq!(neighbour.addr() >> 14, end);
        let other = allocate(300 * KIB);
        for size in [isize::MAX as usize, isize::MAX as usize + 1, usize::MAX] {
            // SAFETY: a live block, which stays.
            assert!(unsafe { reallocate(block, size) }.is_null());
        }
        free(neighbour);
        purge();
        let room = large_slices().0;
        let exact = resize(block, 540 * KIB);
        assert_eq!(exact, block, "there are seven slices");
        assert!(large_slices().0 > room);
        let moved = resize(block, 700 * KIB);
        assert_ne!(moved, block);
        assert_eq!(large_slices().1, 2);
        free(other);
        check();
    });
}

/// Each stands in the other's way. With an eighth of room at each copy it takes some 20 from 100 KB to 1.9 MB, without some 50.
#[test]
fn blocks_that_grow_side_by_side_are_seldom_copied() {
    alone(|| {
        const COUNT: usize = 48;
        let mut blocks: Vec<_> = (0..COUNT).map(|_| allocate(100_000)).collect();
        let mut moves = 0;
        for size in (120_000..1_900_000).step_by(20_000) {
            for block in &mut blocks {
                let new = resize(*block, size);
                moves += usize::from(new != *block);
                *block = new;
            }
        }
        assert!(moves < COUNT * 30, "{moves}");
        assert!(large_slices().0 * SLICE_SIZE < COUNT * 1_900_000 * 8 / 7);
        blocks.into_iter().for_each(free);
        check();
    });
}

/// What a mapping of so many bytes grows to, or keeps: a quarter more, from 4 MiB on to where a huge page
/// ends.
pub(super) fn roomy(exact: usize) -> usize {
    let unit = if exact < 4 * MIB { 4096 } else { 2 * MIB };
    (exact + exact / 4).next_multiple_of(unit)
}

/// From 2 MiB on a block that must move goes to a mapping, where it grows by moving pages.
#[test]
fn a_run_that_cannot_grow_goes_to_a_mapping() {
    alone(|| {
        let block = allocate(2 * MIB);
        let neighbour = allocate(100 * KIB);
        let moved = resize(block, 3 * MIB);
        assert!(!address_map::contains(moved));
        assert_eq!((large_slices().1, mapped().1), (1, 1));
        // It begins where a huge page does, and so do its later parts.
        assert!(moved.addr().is_multiple_of(2 * MIB));
        let grown = resize(moved, 4 * MIB);
        assert_eq!((mapped().0, grown.addr() % 4096), (roomy(4 * MIB), 0));
        // The slices are free.
        let again = allocate(MIB + 500 * KIB);
        assert_eq!(again.addr() >> 14, block.addr() >> 14);
        [grown, neighbour, again].into_iter().for_each(free);
        check();
    });
}

#[test]
fn no_run_grows_beyond_16_mib() {
    alone(|| {
        // Room for it.
        let room = [0; 3].map(|_| allocate(8 * MIB - 64 * KIB));
        room.into_iter().for_each(free);
        purge();
        let block = allocate(7 * MIB);
        assert_eq!(resize(block, 15 * MIB), block);
        assert_eq!(large_slices().1, 1);
        assert!(!address_map::contains(resize(block, 16 * MIB)));
        assert_eq!((large_slices().1, mapped().1), (0, 1));
        check();
    });
}

/// The run that a heap keeps serves who asks for an alignment that it has, and nobody who asks for another.
#[test]
fn a_kept_run_serves_its_alignment() {
    alone(|| {
        free(allocate(100));
        let block = allocate_aligned(200_000, 4096);
        free(block);
        let again = allocate_aligned(200_000, 4096);
        assert_eq!(again, block);
        free(again);
        for align in [8192, 1 << 16, 1 << 20] {
            let other = allocate_aligned(200_000, align);
            assert!(!other.is_null() && other.addr().is_multiple_of(align));
            free(other);
        }
        // A line behind a page's beginning, or a few.
        let plain: Vec<_> = (0..8).map(|_| allocate(200_000)).collect();
        for block in plain {
            free(block);
            let aligned = allocate_aligned(200_000, 4096);
            assert!(aligned.addr().is_multiple_of(4096));
            free(aligned);
        }
        check();
    });
}
