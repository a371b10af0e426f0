//! Freed memory that waits for readers: it goes once, and not before the last reader that may have seen it.
//! The hardened build has none.
#![cfg(not(feature = "hardened"))]

use crate::address_map::{self, slice_address};
use crate::grace::Grace;
use crate::harness::{ALL, Model, check, spawn};
use crate::reservation;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};

/// Three threads.
const FEW: Model = Model { preemptions: [Some(2), Some(4)], ..ALL };

/// No epoch: a thread that does not read.
const NONE: usize = usize::MAX;

/// What a reader reads, and who gets the memory writes.
struct Contents(UnsafeCell<u32>);

// SAFETY: loom checks each access.
unsafe impl Send for Contents {}
// SAFETY: as above.
unsafe impl Sync for Contents {}

/// A heap's, in memory of zeros.
fn made() -> &'static Grace {
    assert!(reservation::init() && reservation::commit(address_map::CHUNK_SLICES));
    let at: *mut Grace = slice_address(0).cast();
    // SAFETY: committed memory of zeros, which nobody else uses.
    unsafe {
        (*at).begin(16);
        // Before there is another thread: here loom gets to know all of it.
        (*at).take_due(|_| ());
        (*at).set(1, 0);
        &*at
    }
}

/// A thread unlinks a block and frees it, one reads what it finds, and one counts epochs.
#[test]
fn a_reader_keeps_what_it_has_found() {
    check(FEW, |_| {
        let grace = made();
        let contents = Arc::new(Contents(UnsafeCell::new(0)));
        let [link, epoch, reads] = [1, 1, NONE].map(|first| Arc::new(AtomicUsize::new(first)));
        let freer = spawn({
            let link = link.clone();
            move || {
                link.swap(0, Ordering::AcqRel);
                // SAFETY: a block that nobody else frees.
                assert!(unsafe { grace.keep(slice_address(1)) });
            }
        });
        let reader = spawn({
            let (link, epoch, reads, contents) =
                (link, epoch.clone(), reads.clone(), contents.clone());
            move || {
                reads.swap(epoch.load(Ordering::Acquire), Ordering::AcqRel);
                // Steps that write read the latest: what a fence would do for a real reader.
                if link.fetch_add(0, Ordering::AcqRel) == 1 {
                    // SAFETY: loom checks it.
                    contents.0.with(|contents| unsafe { *contents });
                }
                reads.swap(NONE, Ordering::AcqRel);
            }
        });
        let given = |safe| {
            grace.set(safe, safe.min(reads.fetch_add(0, Ordering::AcqRel)));
            epoch.store(safe, Ordering::Release);
            grace.take_due(|_| {
                // SAFETY: loom checks it.
                contents.0.with_mut(|contents| unsafe { *contents += 1 });
            });
        };
        given(2);
        given(3);
        freer.join().expect("a thread");
        reader.join().expect("a thread");
        given(4);
        given(5);
        // SAFETY: all others have ended.
        contents.0.with(|contents| assert_eq!(unsafe { *contents }, 1));
    });
}

/// Two threads free blocks while a third one takes those that have waited long enough.
#[test]
fn what_waits_goes_once() {
    check(FEW, |_| {
        let grace = made();
        let gone = [1, 2, 3].map(|_| Arc::new(Contents(UnsafeCell::new(0))));
        grace.set(3, 0);
        grace.set(1, 2);
        // SAFETY: a block that nobody else frees; the same below.
        assert!(unsafe { grace.keep(slice_address(1)) });
        let free = |slice: usize| {
            // SAFETY: as above.
            spawn(move || assert!(unsafe { grace.keep(slice_address(slice)) }))
        };
        let frees = [free(2), free(3)];
        let take = || {
            grace.take_due(|p| {
                let slice = address_map::slice_of(p);
                // SAFETY: loom checks it.
                gone[slice - 1].0.with_mut(|times| unsafe { *times += 1 });
            });
        };
        take();
        // From here on nothing is safe that is free: it is put back.
        grace.set(1, 0);
        take();
        frees.into_iter().for_each(|thread| thread.join().expect("a thread"));
        grace.set(3, 0);
        grace.set(4, 2);
        take();
        for times in &gone {
            // SAFETY: all others have ended.
            times.0.with(|times| assert_eq!(unsafe { *times }, 1));
        }
    });
}
