//! Owns: the heaps there are: made once, used by one thread after another, never unmapped.
//! Idea: a thread that comes takes the heap that one that left has warmed.
//! Never: looks inside a heap in use.
//! Threads: any; one lock.
//! Checked: thread churn tests.
//! Story: docs/heap.md

use super::Heap;
use crate::address_map;
use crate::large;
use crate::os::{Fork, Lock};
use crate::sync::{Apart, AtomicUsize, Ordering};
use core::ptr::null_mut;

struct Pool {
    free: *mut Heap,
    made: usize,
}

// SAFETY: heaps in the pool are nobody's.
unsafe impl Send for Pool {}

static POOL: Lock<Pool> = Lock::new(Pool { free: null_mut(), made: 0 });
/// Heaps in use by threads. Relaxed: it decides only what is worth keeping; what is kept or let
/// go is right either way.
static IN_USE: Apart<AtomicUsize> = Apart(AtomicUsize::new(0));
/// Full spans that the heaps in use hold on to, in slices: 4 MiB. It is also what a thread that
/// falls idle may keep from others that come later.
pub(super) const FULL_SLICES: usize = 256;

/// Beyond so many heaps in use a thread gets one only when it has shown that it needs it: a MiB
/// of them is nothing to a program with as many threads.
pub(crate) const CROWD: usize = 256;

/// Takes a heap for a thread; null if there is no memory for one.
pub(crate) fn take() -> *mut Heap {
    let heap = take_any(1);
    if !heap.is_null() {
        IN_USE.0.fetch_add(1, Ordering::Relaxed);
    }
    heap
}

/// Takes a heap, old or new, if `spare` places are left behind it; null if not, or if there is
/// no memory. It does not count as in use: for the commons, which get the last place.
pub(crate) fn take_any(spare: usize) -> *mut Heap {
    let mut pool = POOL.lock();
    let mut heap = pool.free;
    // SAFETY: heaps in the pool are the lock holder's; a new one is nobody else's.
    unsafe {
        if heap.is_null() {
            let Some(at) = address_map::heap_address(pool.made) else { return null_mut() };
            let room = address_map::heap_address(pool.made + spare).is_some();
            if !room || !address_map::commit_heap(pool.made) {
                return null_mut();
            }
            heap = at.cast();
            heap.write(Heap::EMPTY);
            pool.made += 1;
        } else {
            pool.free = (*heap).next;
        }
        (*heap).in_use = true;
    }
    heap
}

/// Takes back a heap, and what it holds.
///
/// # Safety
/// The heap came from `take`, and the caller does not use it any more.
pub(crate) unsafe fn put(heap: *mut Heap) {
    // SAFETY: the caller's contract.
    unsafe { (*heap).abandon() };
    let mut pool = POOL.lock();
    // SAFETY: as above.
    unsafe {
        (*heap).in_use = false;
        (*heap).next = pool.free;
    }
    pool.free = heap;
    IN_USE.0.fetch_sub(1, Ordering::Relaxed);
}

/// Whether a heap waits for a thread.
pub(crate) fn has_free() -> bool {
    !POOL.lock().free.is_null()
}

/// Heaps in use by threads.
pub(crate) fn in_use() -> usize {
    IN_USE.0.load(Ordering::Relaxed)
}

/// So many slices, divided by the heaps in use.
pub(crate) fn share(slices: usize) -> usize {
    slices / in_use().max(1)
}

/// What each heap in use may hold on to of full spans, in slices: half of the room if there are two,
/// then less than its share. Threads that come one after the other and park keep what they might
/// when they came: 9 MiB at most, however many.
pub(super) fn full_share() -> usize {
    share(share(2 * FULL_SLICES)).min(FULL_SLICES)
}

/// Checks the invariants of every heap in use. No other thread may be at work.
pub(crate) fn check() {
    let pool = POOL.lock();
    for at in (0..pool.made).filter_map(address_map::heap_address) {
        let heap: *const Heap = at.cast();
        // SAFETY: made; nobody changes it, by the caller's word.
        unsafe {
            if (*heap).in_use {
                (*heap).check();
            }
        }
    }
}

/// Heaps in use, and heaps there are.
pub(crate) fn counts() -> (usize, usize) {
    (in_use(), POOL.lock().made)
}

/// Holds the lock over a fork.
pub(crate) fn at_fork(step: Fork) {
    POOL.at_fork(step);
}

/// After a fork, in the child, once no span names another heap any more: all heaps but those
/// that `keeps` names are free.
pub(crate) fn reclaim(keeps: impl Fn(*mut Heap) -> bool) {
    let mut pool = POOL.lock();
    let mut in_use = 0;
    pool.free = null_mut();
    for index in 0..pool.made {
        let Some(at) = address_map::heap_address(index) else { break };
        let heap: *mut Heap = at.cast();
        if keeps(heap) {
            // SAFETY: the calling thread's own, or the commons, which do not count.
            in_use += usize::from(unsafe { !(*heap).shared });
            continue;
        }
        // SAFETY: its thread is not in this process.
        unsafe {
            large::drop_kept(&mut (*heap).kept);
            heap.write(Heap { next: pool.free, ..Heap::EMPTY });
        }
        pool.free = heap;
    }
    IN_USE.0.store(in_use, Ordering::Relaxed);
}
