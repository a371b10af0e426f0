//! The pool of heaps, and the room for full spans that all heaps share.

use crate::address_map;
use crate::harness::{ALL, FORKER, Model, Sent, Size, check, spawn};
use crate::heap::pool;
use crate::sync::touched;
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
    check(POOL, |size| {
        assert!(address_map::init());
        let first = come_and_go();
        let others = if size == Size::Full { 2 } else { 1 };
        let threads: Vec<_> = (0..others).map(|_| spawn(come_and_go)).collect();
        let mut places = vec![first.get(), come_and_go().get()];
        places.extend(threads.into_iter().map(|t| t.join().unwrap().get()));
        places.sort_unstable();
        places.dedup();
        let (in_use, made) = pool::counts();
        assert_eq!(in_use, 0);
        assert_eq!(places.len(), made, "a heap was made and never given out");
        assert!(made <= others + 1);
    });
}

/// Heaps take slices of the room for full spans and give them back, some in parts: what all
/// have together is never more than there is, and nothing is lost.
#[test]
fn the_room_for_full_spans_is_never_overdrawn() {
    const MOST: usize = pool::FULL_SLICES / 2 + 1;
    thread_local! {
        static TAKEN: Cell<usize> = const { Cell::new(0) };
    }
    fn take_and_give() {
        if pool::take_full_room(MOST) {
            TAKEN.set(TAKEN.get() + MOST);
            assert!(TAKEN.get() <= pool::FULL_SLICES, "more is taken than there is");
            TAKEN.set(TAKEN.get() - MOST);
            pool::give_full_room(1);
            pool::give_full_room(MOST - 1);
        }
    }
    check(Model { preemptions: [Some(3), Some(4)], ..ALL }, |size| {
        TAKEN.set(0);
        assert!(pool::take_full_room(1));
        pool::give_full_room(1);
        let threads: Vec<_> = (0..2).map(|_| spawn(take_and_give)).collect();
        if size == Size::Full {
            take_and_give();
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert!(pool::take_full_room(pool::FULL_SLICES), "some was lost");
        assert!(!pool::take_full_room(1), "some was made");
    });
}
