//! Owns: heaps of partitions that no thread uses now.
//! Idea: a partition's blocks are a closed heap's, one for each thread that needs it. What a thread leaves, the next
//!   one takes over: the blocks never become another partition's.
//! Never: does anything in the default build, where no heap has one.
//! Threads: any; one lock.
//! Checked: tests/partitions.rs
//! Story: docs/design/policy.md

use super::{salvage, take_closed};
use crate::base::{AtomicU32, NOBODY, Ordering, PARTITIONS, Stack, fence, in_hardened};
use crate::heap::Heap;
use crate::os::{self, Lock};
use core::ptr::null_mut;

/// Milliseconds for which a thread waits for another one's turn to end: it has been preempted, or is in a function of the
/// program's.
const TURN_LOOKS: usize = 100;

/// Those that somebody is going to have give back, and those that have.
type Free = [Stack<Heap>; 2];

pub(crate) static FREE: Lock<[Free; PARTITIONS]> = Lock::new(NONE);
const NONE: [Free; PARTITIONS] = [const { [Stack::EMPTY; 2] }; PARTITIONS];

/// Takes the heap of a partition for a thread, whose heap that is; null if there is no memory for one. Where all places for heaps
/// are taken, it waits a while for another thread to give one of the partition back.
///
/// # Safety
/// The calling thread's heap.
pub(crate) unsafe fn take(partition: usize, mine: *mut Heap) -> *mut Heap {
    static NOBODY_WAKES: AtomicU32 = AtomicU32::new(0);
    let mut heap = take_at_once(partition);
    for _ in 0..TURN_LOOKS {
        if !heap.is_null() || !super::is_all_but_full() {
            break;
        }
        // Of a thread that a fork has left behind, perhaps.
        salvage::all();
        os::wait_for(&NOBODY_WAKES, 0, 1);
        heap = take_at_once(partition);
    }
    if !heap.is_null() {
        // SAFETY: the caller's now.
        unsafe { (*heap).member.set_user((*mine).thread, mine) };
    }
    heap
}

/// The same without waiting; it is nobody's yet.
fn take_at_once(partition: usize) -> *mut Heap {
    let any = |[next, done]: &mut Free| if done.is_empty() { next.pop() } else { done.pop() };
    let mut heap = FREE.lock().get_mut(partition).map_or(null_mut(), any);
    if heap.is_null() {
        heap = take_closed(null_mut());
        if !heap.is_null() {
            // SAFETY: the caller's now.
            unsafe { (*heap).partition = partition as u8 + 1 };
        }
    }
    heap
}

/// Takes the heap of a partition back.
///
/// # Safety
/// It came from `take`, and the caller does not use it any more.
#[inline(never)]
pub(crate) unsafe fn put(partition: usize, heap: *mut Heap) {
    // SAFETY: the caller's.
    unsafe {
        // What it has free goes; it goes on with the rest when it is used again.
        (*heap).give_back();
        (*heap).member.user.store(NOBODY, Ordering::Relaxed);
        if let Some(free) = FREE.lock().get_mut(partition) {
            free[1].push(heap);
        }
    }
}

/// Takes those back that a thread's heap has.
///
/// # Safety
/// The caller's heap.
pub(crate) unsafe fn put_all(of: *mut Heap) {
    // SAFETY: the caller's.
    for (partition, heap) in unsafe { &mut (*of).partitions }.iter_mut().enumerate() {
        let heap = core::mem::replace(heap, null_mut());
        if !heap.is_null() {
            // SAFETY: as above.
            unsafe { put(partition, heap) };
        }
    }
}

/// Gives back what is free in the heaps that no thread uses. They are the calling thread's meanwhile, whose heap that is.
///
/// # Safety
/// The calling thread's heap.
pub(crate) unsafe fn give_back(mine: *mut Heap) {
    for partition in 0..in_hardened(0, PARTITIONS) {
        if let Some([next, done]) = FREE.lock().get_mut(partition) {
            while !done.is_empty() {
                // SAFETY: nobody's; the list's again.
                unsafe { next.push(done.pop()) };
            }
        }
        // One at a time: another thread that needs one finds the others.
        let next = || FREE.lock().get_mut(partition).map_or(null_mut(), |[next, _]| next.pop());
        for heap in core::iter::repeat_with(next).take_while(|heap| !heap.is_null()) {
            // SAFETY: the caller's now.
            unsafe {
                (*heap).member.set_user((*mine).thread, mine);
                // A child that finds a change of it finds its user, too.
                fence(Ordering::Release);
                put(partition, heap);
            }
        }
    }
}

/// In a forked child, before it has a second thread: what another thread was changing is given up.
pub(crate) fn settle_in_child() {
    FREE.give_up_in_child(NONE);
}
