//! The pool of heaps.

use crate::base::sync::touched;
use crate::harness::{ALL, FORKER, Model, Sent, check, finish, spawn};
use crate::map::address_map;
use crate::slices::reservation;
use crate::thread::pool;
use std::cell::Cell;

/// Threads come and go: none gets a heap that another one has, and a heap that was given back
/// is given out again before a new one is made. Two threads; in full three.
#[test]
fn no_heap_is_given_twice() {
    const POOL: Model = Model { preemptions: [Some(3), Some(3)], quiet: &[FORKER], growth: false };
    fn come_and_go() -> Sent<usize> {
        let heap = pool::take();
        assert!(!heap.is_null());
        touched(heap);
        // SAFETY: taken just now.
        unsafe { pool::put(heap) };
        Sent(heap.addr())
    }
    check(POOL, |full| {
        assert!(reservation::init());
        let first = come_and_go();
        let others = if full { 2 } else { 1 };
        let threads: Vec<_> = (0..others).map(|_| spawn(come_and_go)).collect();
        let mut places = vec![first.get(), come_and_go().get()];
        places.extend(finish(threads).iter().map(Sent::get));
        places.sort_unstable();
        places.dedup();
        let (in_use, made) = pool::counts();
        assert_eq!(in_use, 0);
        assert_eq!(places.len(), made, "a heap was made and never given out");
        assert!(made <= others + 1);
    });
}
