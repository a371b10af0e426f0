//! The hardened build: what stands behind the bytes that a program has asked for.
#![cfg(feature = "hardened")]

use super::alone::{alone, shares_its_address_space};
use super::heaps::{Other, free};
use super::misuse::last_words;
use crate::base::size_class::class_size;
use crate::base::{CANARY_BYTES, CLASS_COUNT, MEDIUM_MAX};
use crate::large::{Size, Sizes};
use crate::map::address_map;
use crate::store::{Behind, Canary, canary};
use crate::{
    HeapId, allocate, allocate_aligned, allocate_batch, allocate_in, allocate_zeroed, check,
    good_size, reallocate, reallocate_in, try_expand, usable_size,
};
use std::collections::HashSet;
use std::vec::Vec;

/// Sizes that leave as little room as there may be, one byte more, and much.
fn sizes() -> impl Iterator<Item = usize> {
    (0..CLASS_COUNT).flat_map(|class| {
        let most = class_size(class) - CANARY_BYTES;
        [most, most - 1, most - most / 8]
    })
}

/// Of runs, with room for colour and without, and of mappings.
const LARGE: [usize; 9] = [
    MEDIUM_MAX + 1,
    96 << 10,
    100_000,
    (128 << 10) - CANARY_BYTES,
    1 << 20,
    (1 << 20) + 1,
    5 << 20,
    33 << 20,
    (34 << 20) - 3,
];

/// All of them, or each `nth` where a process takes a quarter of a second to make.
fn some_of(sizes: impl Iterator<Item = usize>, nth: usize) -> impl Iterator<Item = usize> {
    sizes.step_by(if shares_its_address_space() { nth } else { 1 })
}

/// Writes over one byte, so that it is another one.
///
/// # Safety
/// It is inside a block's memory.
unsafe fn change(block: *mut u8, at: usize) {
    // SAFETY: the caller's.
    unsafe { *block.add(at) ^= 1 << (at % 8) };
}

/// Bytes that the program has of a block.
fn has(block: *mut u8) -> usize {
    match address_map::span_block(block) {
        // SAFETY: a live block.
        Some((class, _)) => unsafe { Canary::size_of(block, class, "test") },
        None => Size::asked(block, "test").expect("a large block"),
    }
}

/// The tests of `asked` in `cairn-sight`, which reads canaries from outside, have the same figures.
#[test]
fn a_number_is_the_readers() {
    let (sum, factor) = (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3211);
    let numbers =
        [0x0700_0000_0006, 0x0700_0000_004f].map(|place| canary::mixed(place, sum, factor));
    assert_eq!(numbers, [0x792e_14a9_648b_972d, 0x20e7_11eb_ea55_a601]);
}

fn is_noticed(what: impl FnOnce()) {
    let said = last_words(what);
    assert!(
        said.starts_with("cairn: ") && said.contains("beyond the end of this block"),
        "{said:?}"
    );
}

#[test]
fn a_byte_beyond_each_size_is_noticed() {
    alone(|| {
        for size in some_of(sizes(), 20) {
            let block = allocate(size);
            // SAFETY: one byte more than there is: that is what is tried.
            is_noticed(|| unsafe {
                change(block, size);
                free(block);
            });
            // And each byte of the word at the end of the block.
            let end = good_size(size) + CANARY_BYTES;
            for at in end - CANARY_BYTES..end {
                // SAFETY: as above.
                is_noticed(|| unsafe {
                    change(block, at);
                    free(block);
                });
            }
            free(block);
        }
        check();
    });
}

#[test]
fn no_zero_stands_behind_a_block() {
    alone(|| {
        for size in [0, 8, 24, 40, 200].repeat(600).into_iter().chain(LARGE) {
            let block = allocate(size);
            // SAFETY: the canary's first byte.
            assert_ne!(unsafe { *block.add(size) }, 0, "of {size} bytes");
            free(block);
        }
    });
}

#[test]
fn a_byte_beyond_a_large_block_is_noticed() {
    alone(|| {
        for size in LARGE {
            let block = allocate(size);
            for at in size..size + CANARY_BYTES {
                // SAFETY: more than there is: that is what is tried.
                is_noticed(|| unsafe {
                    change(block, at);
                    free(block);
                });
            }
            free(block);
            // The next one has it from the same heap, and is longer.
            let block = allocate(size + 5);
            // SAFETY: a live block.
            unsafe { block.add(size).write_bytes(7, 5) };
            free(block);
        }
        check();
    });
}

#[test]
fn whoever_frees_or_asks_notices() {
    alone(|| {
        let heap = HeapId::new_shared().expect("memory");
        let small = [0, 1, 7, 8, 9, 24, 100, 1016, 1017, 5000, MEDIUM_MAX];
        let large = [100_000, 1 << 20, 33 << 20];
        for size in some_of(small.into_iter().chain(large), 5) {
            // SAFETY: the heap is there; sizes are kept; one byte more than there is: that is what is tried.
            unsafe {
                let batch: &mut [_] = &mut [core::ptr::null_mut()];
                assert_eq!(allocate_batch(size, batch), 1);
                let grown = reallocate(allocate(size / 2), size);
                let blocks = [
                    batch[0],
                    grown,
                    allocate_zeroed(size),
                    allocate_in(3, size, 16),
                    heap.allocate(size, 16),
                    heap.allocate_zeroed(size, 16),
                    heap.reallocate(allocate(size * 2), size, 16),
                    Other::once(move || allocate(size)),
                ];
                for block in blocks {
                    assert_eq!(has(block), size);
                    let written = |then: &dyn Fn()| {
                        is_noticed(|| {
                            change(block, size);
                            then();
                        });
                    };
                    written(&|| free(block));
                    written(&|| Other::once(move || free(block)));
                    written(&|| _ = reallocate(block, size));
                    written(&|| _ = reallocate(block, 4 * MEDIUM_MAX));
                    written(&|| _ = reallocate_in(5, block, size + 1, 16));
                    written(&|| _ = usable_size(block));
                    written(&|| _ = try_expand(block, size));
                    let usable = usable_size(block);
                    // A large block may have a page less.
                    assert!(usable >= if size > MEDIUM_MAX { size } else { good_size(size) });
                    assert_eq!(has(block), usable);
                    free(block);
                }
            }
        }
        check();
    });
}

/// What is the program's may be anything, the mark of a free block, too.
#[test]
fn what_is_written_within_the_size_accuses_nobody() {
    alone(|| {
        let mut held = Vec::new();
        for fill in [0, 0xff, 0xf6, 0xd5, 0x7f] {
            for size in sizes().chain(0..200) {
                // SAFETY: a live block.
                unsafe {
                    let block = allocate(size);
                    block.write_bytes(fill, size);
                    // As it stands in memory, the upper half of a mark first or last.
                    for at in (8..size.min(16)).filter(|at| at % 2 == 0 && fill > 0x7f) {
                        block.add(at).write(0xd5);
                    }
                    held.push((block, size));
                }
            }
        }
        let (theirs, mine) = held.split_at(held.len() / 2);
        mine.iter().for_each(|&(block, _)| free(block));
        let theirs = theirs.to_vec();
        Other::once(move || theirs.iter().for_each(|&(block, _)| free(block)));
        check();
    });
}

#[test]
fn a_block_that_stays_has_another_end() {
    alone(|| {
        let small =
            [(20, 9), (9, 20), (15, 3), (3, 15), (24, 8), (50, 1), (1000, 600), (600, 1000)];
        let large = [(1 << 20, 900_000), (900_000, 1 << 20), (1 << 20, 70_000), (70_000, 5 << 20)];
        let mapped = [(40 << 20, 34 << 20), (34 << 20, 60 << 20), (40 << 20, 1 << 20)];
        for (from, to) in small.into_iter().chain(large).chain(mapped) {
            for fill in [0_u8, 0xff, 0xf6] {
                // SAFETY: a live block, and then one byte more than there is: that is what is tried.
                unsafe {
                    let block = allocate(from);
                    block.write_bytes(fill, from);
                    // The program's own bytes look like a mark.
                    if from >= 16 {
                        block
                            .cast::<[u8; 16]>()
                            .write([0xd5, 0xf6].repeat(8).try_into().expect("16"));
                    }
                    let moved = reallocate(block, to);
                    assert_eq!(has(moved), to);
                    is_noticed(|| {
                        change(moved, to);
                        free(moved);
                    });
                    moved.write_bytes(fill, to);
                    free(moved);
                }
            }
        }
        // It does not take away what the program has.
        let block = allocate(100);
        // SAFETY: a live block.
        unsafe {
            assert!(try_expand(block, 50));
            block.write_bytes(7, 100);
            assert!(try_expand(block, good_size(100)));
            block.write_bytes(7, good_size(100));
            assert!(!try_expand(block, good_size(100) + 1));
        }
        free(block);
        for size in [200_000, 40 << 20] {
            let block = allocate(size);
            // SAFETY: a live block.
            unsafe {
                assert!(try_expand(block, size - 10));
                block.write_bytes(7, size);
                assert!(try_expand(block, size + 10));
                block.write_bytes(7, size + 10);
                assert!(try_expand(block, size / 2));
                block.write_bytes(7, size / 2);
            }
            free(block);
        }
    });
}

#[test]
fn aligned_blocks_have_a_word_behind_them_too() {
    alone(|| {
        for (size, align) in [
            (64, 64),
            (4096, 4096),
            (1, 4096),
            (16 << 10, 16 << 10),
            (100, 32),
            (100_000, 4096),
            (1, 64 << 10),
            (1 << 20, 1 << 20),
            (1 << 20, 32 << 20),
        ] {
            let block = allocate_aligned(size, align);
            assert!(block.addr().is_multiple_of(align));
            // SAFETY: one byte more than there is: that is what is tried.
            is_noticed(|| unsafe {
                change(block, size);
                free(block);
            });
            free(block);
        }
    });
}

/// Several threads ask for the size of one block, and each that is told writes.
#[test]
fn who_asks_at_the_same_time_is_not_accused() {
    // A sanitizer calls it a race that both write the same.
    if shares_its_address_space() {
        return;
    }
    alone(|| {
        for round in 0..2000 {
            let large = if round % 4 == 0 { 70_000 } else { 0 };
            let (size, start) = (20 + round % 50 + large, std::sync::Barrier::new(2));
            let block = allocate(size).expose_provenance();
            let asks = || {
                start.wait();
                let block = core::ptr::with_exposed_provenance_mut::<u8>(block);
                // SAFETY: a live block; both threads write the same.
                unsafe {
                    let usable = usable_size(block);
                    (size..usable).for_each(|at| block.add(at).write_volatile(3));
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(asks);
                asks();
            });
            free(core::ptr::with_exposed_provenance_mut(block));
        }
    });
}

/// Who reads one block's does not know another's, nor does the next process.
#[test]
fn each_place_has_a_word_of_its_own() {
    alone(|| {
        // Of seven classes, whose places are as often odd as even. Of one alone, places follow each other at one distance,
        // and one in twenty factors leaves some bit as it is in most of them.
        let word = |at: usize| {
            let size = class_size(2 + at % 7 * 2) - CANARY_BYTES;
            // SAFETY: a live block, which ends with the word.
            unsafe { allocate(size).add(size).cast::<u64>().read() }
        };
        let words: HashSet<u64> = (0..4000).map(word).collect();
        assert_eq!(words.len(), 4000);
        for bit in (0..64).filter(|bit| ![0, 7, 63].contains(bit)) {
            let ones = words.iter().filter(|&word| word >> bit & 1 == 1).count();
            assert!((1200..2800).contains(&ones), "bit {bit}: {ones}");
        }
    });
}
