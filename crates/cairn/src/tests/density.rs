//! Blocks that had better be elsewhere: moving them frees spans, and comes to an end.

use super::alone::alone;
use super::heap::{free, row};
use super::heaps::Other;
use crate::{Heap, allocate, check, class_sizes, purge, should_move};
use core::ptr::null;
use std::vec::Vec;

/// Moves blocks until none is to be moved; how many times one was.
fn defragment(blocks: &mut [*mut u8], size: usize) -> usize {
    let mut moves = 0;
    for _ in 0..50 {
        let before = moves;
        for block in &mut *blocks {
            if should_move(*block) {
                let moved = allocate(size);
                // SAFETY: both have that many bytes.
                unsafe { moved.copy_from_nonoverlapping(*block, size) };
                free(*block);
                *block = moved;
                moves += 1;
            }
        }
        if moves == before {
            return moves;
        }
    }
    panic!("{moves} moves of {} blocks of {size} and no end", blocks.len());
}

/// Blocks of a size, of which one in `kept` stays, by a rule that leaves all spans alike, or not.
fn scattered(size: usize, kept: usize, alike: bool) -> Vec<*mut u8> {
    let blocks: Vec<_> = (0..(8 << 20) / size).map(|_| allocate(size)).collect();
    let mut random = 1u64;
    let mut left = Vec::new();
    for (at, block) in blocks.into_iter().enumerate() {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let stays = if alike { at } else { (random >> 40) as usize }.is_multiple_of(kept);
        if stays {
            // SAFETY: it has that many bytes.
            unsafe { block.cast::<usize>().write(at) };
            left.push(block);
        } else {
            free(block);
        }
    }
    left
}

fn contents(blocks: &[*mut u8]) -> Vec<usize> {
    // SAFETY: live blocks, filled so.
    blocks.iter().map(|block| unsafe { block.cast::<usize>().read() }).collect()
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "blocks take random places: it always says no")]
fn moving_what_should_move_frees_spans() {
    alone(|| {
        for size in class_sizes().step_by(5).chain([64, 65_536]) {
            for (kept, alike) in [(2, true), (4, false), (10, false), (16, true)] {
                let mut blocks = scattered(size, kept, alike);
                let (before, held) = (row(size), contents(&blocks));
                let moves = defragment(&mut blocks, size);
                assert!(
                    moves <= blocks.len() + blocks.len() / 4 + 50,
                    "{moves} of {}",
                    blocks.len()
                );
                assert_eq!(contents(&blocks), held);
                // What the heap keeps for any class goes.
                purge();
                let after = row(size);
                let in_span =
                    (before.in_use + before.cached + before.free + before.untouched) / before.spans;
                // Spans up to a seventh more than are needed; a spare one, the active one, one that was too full.
                let most = blocks.len().div_ceil(in_span) * 8 / 7 + 3;
                assert!(
                    after.spans <= most.max(before.spans / 8),
                    "{size}, {kept}: {after:?}, {before:?}"
                );
                check();
                blocks.into_iter().for_each(free);
                purge();
            }
        }
    });
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "blocks take random places: it always says no")]
fn blocks_of_others_move_here() {
    alone(|| {
        let other = Other::new();
        let mut blocks = other.does(|| scattered(256, 8, false));
        let before = row(256).spans;
        defragment(&mut blocks, 256);
        other.does(|| (0..1000).for_each(|_| free(allocate(64))));
        purge();
        other.does(crate::thread_idle);
        let after = row(256).spans;
        assert!(after < before / 4, "{before} spans, then {after}");
        blocks.into_iter().for_each(free);
        other.leaves();
        // What a thread has left behind.
        let other = Other::new();
        let mut blocks = other.does(|| scattered(512, 8, false));
        other.leaves();
        let before = row(512).spans;
        defragment(&mut blocks, 512);
        assert!(row(512).spans < before / 4, "{before} spans, then {:?}", row(512));
        check();
    });
}

#[test]
fn it_says_no_of_what_does_not_gain() {
    alone(|| {
        let heap = Heap::new().expect("memory");
        let closed: Vec<_> = (0..3000).map(|_| heap.allocate(64, 16)).collect();
        let full: Vec<_> = (0..3000).map(|_| allocate(64)).collect();
        let others = [
            allocate(100_000),
            allocate(40 << 20),
            full[0].wrapping_add(1),
            full[5].wrapping_add(32),
        ];
        for &block in closed.iter().chain(&full).chain(&others) {
            assert!(!should_move(block));
        }
        assert!(!should_move(null()) && !should_move((&raw const others).cast()));
    });
}
