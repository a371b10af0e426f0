//! What a forked child inherits: heaps, nurseries and handles of threads that it does not have.

use super::super::alone::alone;
use super::super::forks::child_does;
use super::super::heaps::{Other, free};
use super::shared;
use crate::handle::{Got, Handle};
use crate::heap::Heap;
use crate::sync::Ordering::Relaxed;
use crate::{
    HeapId, Stats, allocate, check, closed, heap_of, large, pool, purge, thread, thread_number,
};
use core::ptr::{from_ref, null_mut};
use std::collections::HashSet;
use std::vec::Vec;

/// As a fork may find a closed heap: its lists and caches are another moment's.
fn tear(heap: *mut Heap) {
    // SAFETY: nobody uses it in this process any more.
    unsafe {
        (*heap).caches = Heap::EMPTY.caches;
        (*heap).active.fill(null_mut());
        (*heap).partial = Heap::EMPTY.partial;
        (*heap).full = Heap::EMPTY.full;
        (*heap).full_slices = 0;
    }
}

/// What a thread is in the middle of when another one forks: a heap, blocks of that and of a shared one, its part there.
fn torn(parts: HeapId) -> (HeapId, Vec<*mut u8>, *mut Heap) {
    // SAFETY: heaps that are there; the owned one is this thread's.
    unsafe {
        let heap = HeapId::new_owned().expect("memory");
        let mut held: Vec<_> = (0..30).map(|_| heap.allocate(300, 16)).collect();
        heap.use_no_nursery();
        held.extend((0..500).map(|nth| heap.allocate(1000 + nth % 2 * 1000, 16)));
        let theirs = (0..500).map(|_| parts.allocate(1000, 16));
        let theirs: Vec<_> = theirs.collect();
        let spare = [(); 3].map(|()| HeapId::new_owned().expect("memory"));
        spare.iter().for_each(|heap| _ = heap.allocate(100, 16));
        spare.iter().for_each(|heap| heap.destroy());
        let name: *mut Handle<Heap> = heap.into_raw().as_ptr().cast();
        tear((*name).heap);
        (*name).tear();
        let thread = thread::own().expect("a heap");
        let part = (*thread).own.last.1;
        tear(part);
        (*thread).spares.tear();
        held.extend(theirs);
        (heap, held, part)
    }
}

/// Each handle is some new heap's, and only one's.
fn expect_handles_free() {
    let handles = pool::HANDLES.made().count();
    let again: HashSet<_> =
        (0..handles).map(|_| HeapId::new_owned().expect("memory").into_raw()).collect();
    let made = pool::HANDLES.made().count();
    assert_eq!((again.len(), made), (handles, handles), "each is free, once");
}

/// Of what another thread's heaps were in the middle of the child loses nothing: spans, nurseries, handles.
#[test]
fn a_child_believes_no_list_of_a_heap() {
    alone(|| {
        free(allocate(64));
        purge();
        let before = Stats::take();
        let (other, parts) = (Other::new(), shared());
        let (mine, spare) = (HeapId::new_owned().expect("memory"), HeapId::new_owned());
        // SAFETY: this thread's.
        let first = unsafe {
            spare.expect("memory").destroy();
            mine.allocate(100, 16)
        };
        let (heap, held, part) = other.does(move || torn(parts));
        assert!(child_does(|| {
            let late = Other::new();
            late.does(|| _ = (0..9).map(|_| free(allocate(100))).count());
            // SAFETY: a heap that no thread of this process has, and one of all threads; blocks in use.
            unsafe {
                heap.attach();
                check();
                // What this thread had is as it was; parts still have their turns.
                let name: *mut Handle<Heap> = mine.into_raw().as_ptr().cast();
                assert!(
                    (*name).user.load(Relaxed) == thread_number() && closed::is_mine(name.cast())
                );
                let second = mine.allocate(100, 16);
                assert_eq!(
                    large::nursery_around(first).map(from_ref),
                    large::nursery_around(second).map(from_ref)
                );
                mine.destroy();
                assert!((*part).member.turn.enter() == Got::Turn);
                (*part).member.turn.leave();
                assert!(held[..530].iter().all(|&block| heap_of(block) == Some(heap)));
                assert!(held[530..].iter().all(|&block| heap_of(block) == Some(parts)));
                let more: Vec<_> = (0..500).map(|_| heap.allocate(1000, 16)).collect();
                assert!(more.iter().all(|block| !held.contains(block)));
                held.iter().for_each(|block| block.write_bytes(7, 100));
                held.iter().chain(&more).copied().for_each(free);
                check();
                heap.destroy();
                parts.destroy();
            }
            assert!(held.iter().all(|&block| heap_of(block).is_none()));
            late.leaves();
            purge();
            check();
            let now = Stats::take();
            assert_eq!((now.spans.bytes, now.nurseries.bytes), (before.spans.bytes, 0));
            assert_eq!(now.heaps.0, 1);
            expect_handles_free();
        }));
        // It is torn here, too.
        core::mem::forget(other);
    });
}

/// Upkeep finds what threads had that a child does not have, nobody asking for it.
#[test]
fn a_child_salvages_by_ticks() {
    alone(|| {
        let other = Other::new();
        let held = other.allocates(1000, 100);
        assert!(child_does(|| {
            assert!(pool::has_dead());
            (0..100).for_each(|_| _ = crate::tick());
            assert!(!pool::has_dead());
            held.iter().copied().for_each(free);
            purge();
            check();
            assert!(!crate::tick(), "there is nothing more to purge");
        }));
        other.leaves();
    });
}
