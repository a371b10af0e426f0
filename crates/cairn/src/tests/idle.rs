//! What a thread gives up that is going to wait.

mod presence;

use super::alone::alone;
use super::heap::free;
use super::heaps::Other;
use crate::{Stats, purge};
use std::vec::Vec;

/// A pool whose threads wait holds nothing of what they have done, but for blocks in use.
#[test]
fn idle_threads_hold_nothing() {
    alone(|| {
        let pool: Vec<Other> = (0..8).map(|_| Other::new()).collect();
        let mut kept = Vec::new();
        for (number, thread) in pool.iter().enumerate() {
            let work = || -> Vec<*mut u8> {
                // All classes, blocks of others, a large block that is kept.
                let blocks: Vec<_> =
                    (0..4000).map(|at| crate::allocate(at * at % 70_000)).collect();
                blocks.iter().skip(1).for_each(|&block| free(block));
                free(crate::allocate(500_000));
                // A heap that shrinks keeps no caches: it goes on.
                (0..100).for_each(|at| free(crate::allocate(at * 16)));
                blocks
            };
            let block = thread.does(work)[0];
            if number % 2 == 0 {
                kept.push(block);
            } else {
                pool[number - 1].does(move || free(block));
            }
        }
        purge();
        let busy = Stats::take();
        assert!(busy.sum(|row| row.cached) > 0 || cfg!(feature = "hardened"));
        pool.iter().for_each(|thread| thread.does(crate::thread_idle));
        purge();
        let idle = Stats::take();
        assert_eq!(idle.sum(|row| row.cached), 0);
        let in_use: usize = idle.classes.iter().map(|row| row.in_use).sum();
        assert_eq!((in_use, idle.large_blocks), (kept.len(), 0));
        // A span for each block that is kept, at most.
        assert!(idle.spans.bytes <= kept.len() << 14, "{}", idle.spans.bytes);
        assert!(idle.dirty.bytes == 0, "{}", idle.dirty.bytes);
        // They go on, as if nothing had been.
        for thread in &pool {
            let blocks = thread.allocates(100, 1000);
            thread.frees(&blocks);
        }
        for block in kept {
            pool[0].does(move || free(block));
        }
        pool.into_iter().for_each(Other::leaves);
        purge();
        assert_eq!(Stats::take().sum(|row| row.in_use), 0);
        crate::check();
    });
}

#[test]
fn a_thread_may_be_idle_before_it_has_begun() {
    alone(|| {
        crate::thread_idle();
        free(crate::allocate(1));
        crate::thread_idle();
        crate::thread_idle();
        assert_eq!(Stats::take().sum(|row| row.in_use + row.cached), 0);
    });
}
