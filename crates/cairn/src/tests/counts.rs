//! What a thread counts is what it has allocated and freed, to the byte.

use super::alone::alone;
use super::heaps::Other;
use super::large::{KIB, MIB, usable};
use crate::base::SLICE_SIZE;
use crate::{
    Heap, Stats, ThreadCounts, allocate, allocate_aligned, allocate_batch, allocate_zeroed, check,
    count, deallocate, deallocate_batch, purge, reallocate, thread_counts, thread_idle, try_expand,
};
use core::ptr::null_mut;
use std::vec::Vec;

/// A thread's own account, to compare with.
#[derive(Default)]
struct Account {
    live: Vec<*mut u8>,
    counts: ThreadCounts,
}

impl Account {
    fn allocated(&mut self, block: *mut u8) {
        assert!(!block.is_null());
        self.counts.allocated += usable(block) as u64;
        self.live.push(block);
    }

    fn free(&mut self, at: usize) {
        let block = self.live.swap_remove(at);
        self.counts.freed += usable(block) as u64;
        // SAFETY: live until now.
        unsafe { deallocate(block) };
    }

    fn check(&self) {
        assert_eq!(thread_counts(), self.counts);
    }
}

fn next(state: &mut u64) -> usize {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
    (*state >> 33) as usize
}

fn work(account: &mut Account, mut random: u64) {
    for _ in 0..20_000 {
        let size = next(&mut random) % (1 << (next(&mut random) % 17));
        match next(&mut random) % 20 {
            0..=6 => account.allocated(allocate(size)),
            7 => account.allocated(allocate_zeroed(size)),
            8 => account.allocated(allocate_aligned(size, 1 << (next(&mut random) % 20))),
            9 => account.allocated(allocate(size * 64)),
            10..=11 if !account.live.is_empty() => {
                let at = next(&mut random) % account.live.len();
                let (block, before) = (account.live[at], usable(account.live[at]));
                // SAFETY: live.
                let moved = unsafe { reallocate(block, size * 3) };
                account.live[at] = moved;
                let after = usable(moved);
                // Small blocks that stay do not count.
                if moved != block || after != before || after > 64 * KIB {
                    account.counts.allocated += after as u64;
                    account.counts.freed += before as u64;
                }
            }
            _ if !account.live.is_empty() => account.free(next(&mut random) % account.live.len()),
            _ => {}
        }
    }
    account.check();
}

#[test]
fn counts_are_exact() {
    alone(|| {
        let mut account = Account::default();
        assert_eq!(thread_counts(), account.counts);
        assert!(count(true));
        work(&mut account, 1);
        purge();
        thread_idle();
        work(&mut account, 2);
        // Not while it is off; on again, it goes on.
        let before = thread_counts();
        assert!(count(false));
        let block = allocate(100);
        assert_eq!(thread_counts(), before);
        assert!(count(true));
        account.allocated(allocate(40 * MIB));
        account.live.push(block);
        while !account.live.is_empty() {
            account.free(0);
        }
        account.check();
        count(false);
        purge();
        assert_eq!((Stats::take().sum(|row| row.in_use), Stats::take().large_blocks), (0, 0));
        check();
    });
}

#[test]
fn batches_and_growing_count() {
    alone(|| {
        count(true);
        let mut blocks = [null_mut(); 1000];
        assert_eq!(allocate_batch(100, &mut blocks), 1000);
        let all = 1000 * crate::good_size(100) as u64;
        assert_eq!(thread_counts(), ThreadCounts { allocated: all, freed: 0 });
        // SAFETY: live blocks.
        unsafe { deallocate_batch(&blocks) };
        assert_eq!(thread_counts(), ThreadCounts { allocated: all, freed: all });
        let block = allocate(100 * KIB);
        // SAFETY: a live block.
        unsafe { deallocate(allocate(MIB)) };
        // SAFETY: as above.
        let fits = unsafe { try_expand(block, 500 * KIB) };
        assert!(fits);
        // SAFETY: as above.
        unsafe { deallocate(block) };
        let counts = thread_counts();
        assert_eq!(counts.allocated, counts.freed);
    });
}

#[test]
fn a_block_that_cannot_grow_does_not_count() {
    alone(|| {
        let block = allocate(MIB);
        let behind = allocate(MIB);
        let between = (behind as usize).wrapping_sub(block as usize + usable(block));
        assert!(between < SLICE_SIZE);
        count(true);
        // SAFETY: live blocks.
        unsafe {
            assert!(!try_expand(block, 8 * MIB));
            assert_eq!(thread_counts(), ThreadCounts::default());
            count(false);
            deallocate(block);
            deallocate(behind);
        }
    });
}

#[test]
fn each_thread_counts_for_itself() {
    alone(|| {
        let [one, other] = [Other::new(), Other::new()];
        one.does(|| assert!(count(true)));
        let blocks = one.allocates(200, 5000);
        let size = usable(blocks[0]) as u64;
        other.does(|| assert_eq!(thread_counts(), ThreadCounts::default()));
        other.does(|| assert!(count(true)));
        other.frees(&blocks[..3000]);
        other.does(move || {
            assert_eq!(thread_counts(), ThreadCounts { allocated: 0, freed: 3000 * size })
        });
        one.frees(&blocks[3000..]);
        one.does(move || {
            let counts = ThreadCounts { allocated: 5000 * size, freed: 2000 * size };
            assert_eq!(thread_counts(), counts);
        });
        // They end while they count; the next thread has their heap and none of their counts.
        one.leaves();
        other.leaves();
        let next = Other::new();
        next.does(|| {
            // SAFETY: a block that nobody uses.
            unsafe { deallocate(allocate(1)) };
            assert_eq!(thread_counts(), ThreadCounts::default());
        });
        next.leaves();
        purge();
        check();
        assert_eq!(Stats::take().sum(|row| row.in_use), 0);
    });
}

#[test]
fn closed_heaps_do_not_count() {
    alone(|| {
        count(true);
        let heap = Heap::new().expect("memory");
        let blocks = [100, 5000, 300 * KIB, 40 * MIB].map(|size| heap.allocate(size, 16));
        for block in blocks {
            // SAFETY: a live block.
            unsafe { deallocate(block) };
        }
        assert_eq!(thread_counts(), ThreadCounts::default());
    });
}
