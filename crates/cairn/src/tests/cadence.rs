//! A heap that somebody uses comes by its slow path, whatever the pattern of frees.

use super::alone::alone;
use super::heaps;
use crate::base::size_class::class_of;
use crate::base::{CACHE_UNITS, SizeClass};
use crate::store::canary;
use crate::{allocate, check, deallocate, thread};

fn free(block: *mut u8) {
    // SAFETY: these tests free each block once.
    unsafe { deallocate(block) };
}

fn slow_ticks() -> u32 {
    // SAFETY: this thread's heap.
    unsafe { (*thread::heap()).slow_ticks }
}

/// Pairs of malloc and free of `size` until the next slow tick; `held` others are in use meanwhile.
fn pairs_to_a_tick(size: usize, held: usize) -> usize {
    let held = heaps::blocks(size, held);
    let before = slow_ticks();
    let mut pairs = 0;
    while slow_ticks() == before && pairs < 1_000_000 {
        free(allocate(size));
        pairs += 1;
    }
    held.into_iter().for_each(free);
    pairs
}

#[test]
fn a_loop_over_one_block_comes_by_the_slow_path() {
    alone(|| {
        for class in SizeClass::all() {
            // One that frees have filled, one that has just been refilled, and others.
            for held in [0, 1, 7, 100] {
                let pairs = pairs_to_a_tick(canary::room(class), held);
                let most = (class.layout().cache_blocks() as usize + 2) * CACHE_UNITS as usize;
                assert!(pairs <= most, "{}: {pairs} pairs, at most {most}", class.block_size());
            }
        }
        check();
    });
}

/// Blocks come and go in a loop, as many as a cache takes in, first in first out.
#[test]
fn a_loop_over_several_blocks_comes_by_the_slow_path() {
    alone(|| {
        for size in [16, 64, 1000, 1024, 5000] {
            let room = class_of(size).layout().cache_blocks() as usize;
            for several in [2, room / 2, room - 1] {
                let before = slow_ticks();
                let turns = 4 * CACHE_UNITS as usize * room / several;
                for _ in 0..turns {
                    heaps::blocks(size, several).into_iter().for_each(free);
                }
                assert!(slow_ticks() > before, "{several} blocks of {size}");
            }
        }
        check();
    });
}
