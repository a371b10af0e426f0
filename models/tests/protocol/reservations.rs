//! The reservation: made once, and growing while others read it.

use crate::harness::{ALL, FORKER, Model, check, finish, spawn};
use crate::map::address_map::{self, CHUNK_SLICES};
use crate::slices::reservation;
use crate::{base::sync, thread};

/// One thread grows the reservation by two chunks while others walk up to its end: what they find
/// below it is there. Two readers.
#[test]
fn what_is_committed_is_there() {
    check(Model { growth: true, ..ALL }, |_| {
        assert!(reservation::init());
        let first = address_map::committed();
        let walk = move || {
            for index in (first..address_map::committed()).step_by(CHUNK_SLICES) {
                sync::seen(address_map::slice_address(index));
            }
        };
        let readers = [spawn(walk), spawn(walk)];
        for _ in 0..2 {
            assert!(reservation::commit(CHUNK_SLICES));
        }
        finish(readers);
        assert_eq!(address_map::committed(), first + 2 * CHUNK_SLICES);
    });
}

/// Threads that start at the same time make the reservation once, and both see it whole. Three threads.
#[test]
fn the_reservation_is_made_once() {
    const START: Model = Model { preemptions: [Some(3), Some(4)], quiet: &[FORKER], growth: false };
    check(START, |_| {
        drop(thread::STARTED.lock());
        assert!(!address_map::exists());
        address_map::descriptor(core::ptr::null());
        // Nobody frees before it has allocated: the reservation's fields may be plain ones.
        let start = || {
            assert!(thread::start());
            let p = address_map::slice_address(0);
            let owner = &address_map::descriptor(p).owner;
            (&raw const *owner).addr()
        };
        let threads = [spawn(start), spawn(start)];
        let mine = start();
        assert_eq!(finish(threads), [mine, mine]);
    });
}
