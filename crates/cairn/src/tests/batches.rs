//! Many blocks in one call are as good as one by one.

use super::alone::alone;
use super::filling;
use super::heaps::Other;
use crate::{
    Stats, allocate_batch, check, deallocate, deallocate_batch, sample_every, usable_size,
};
use core::ptr::null_mut;
use std::collections::HashSet;
use std::vec;
use std::vec::Vec;

fn batch(size: usize, count: usize) -> Vec<*mut u8> {
    let mut blocks = vec![null_mut(); count];
    assert_eq!(allocate_batch(size, &mut blocks), count);
    for &block in &blocks {
        // SAFETY: a live block.
        unsafe {
            assert!(usable_size(block) >= size);
            block.write_bytes(1, size);
        }
    }
    assert_eq!(blocks.iter().collect::<HashSet<_>>().len(), count);
    blocks
}

fn free(blocks: &[*mut u8]) {
    // SAFETY: these tests free each block once.
    unsafe { deallocate_batch(blocks) };
}

fn in_use() -> usize {
    let stats = Stats::take();
    stats.classes.iter().map(|row| row.in_use).sum::<usize>() + stats.large_blocks
}

#[test]
fn batches_come_and_go() {
    alone(|| {
        for (size, count) in [
            (0, 1),
            (1, 5000),
            (64, 1000),
            (1024, 300),
            (5000, 100),
            (filling(65_536), 20),
            (100_000, 9),
        ] {
            for _ in 0..3 {
                let mut blocks = batch(size, count);
                assert_eq!(in_use(), count);
                let single = blocks.swap_remove(count / 2);
                // SAFETY: freed once.
                unsafe { deallocate(single) };
                blocks.insert(0, null_mut());
                blocks.push(null_mut());
                free(&blocks);
                assert_eq!(in_use(), 0);
                check();
            }
        }
        free(&[]);
        assert_eq!(allocate_batch(10, &mut []), 0);
        let mut places = [null_mut(); 3];
        assert_eq!(allocate_batch(isize::MAX as usize, &mut places), 0);
        assert_eq!(places, [null_mut(); 3]);
    });
}

#[test]
fn batches_are_freed_by_others() {
    alone(|| {
        let other = Other::new();
        // The first thing that the other thread does, and the last one.
        let blocks = other.does(|| batch(100, 3000));
        free(&blocks);
        let blocks = batch(300, 1000);
        other.does(move || free(&blocks));
        other.leaves();
        crate::purge();
        assert_eq!(in_use(), 0);
        check();
    });
}

#[test]
fn samples_are_drawn_from_batches() {
    static SEEN: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    alone(|| {
        free(&batch(filling(64), 1));
        sample_every(640, |_, _| _ = SEEN.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        free(&batch(filling(64), 1000));
        // Ten blocks of 64 bytes fit; the next one is the sample.
        assert_eq!(SEEN.load(std::sync::atomic::Ordering::Relaxed), 1000 / 11);
        sample_every(0, |_, _| {});
    });
}
