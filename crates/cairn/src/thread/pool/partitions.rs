//! Owns: heaps of partitions that no thread uses now.
//! Idea: a partition's blocks are a closed heap's, one for each thread that needs it. What a thread leaves, the next
//!   one takes over: the blocks never become another partition's.
//! Never: does anything in the default build, where no heap has one.
//! Threads: any; one lock.
//! Checked: tests/partitions.rs
//! Story: docs/design/policy.md

use super::{LEFT_FOR_GOOD, close, take_any};
use crate::base::{NOBODY, Ordering, PARTITIONS, Stack, fence, in_hardened};
use crate::heap::Heap;
use crate::os::Lock;
use core::ptr::null_mut;

/// What a partition has.
pub(crate) struct Free {
    /// Heaps that somebody is going to have give back.
    next: Stack<Heap>,
    /// Those that have.
    done: Stack<Heap>,
    /// The one for threads that find no place for theirs: no thread keeps it. Null: none yet.
    common: *mut Heap,
    /// Somebody has that one, or makes it.
    is_taken: bool,
}

// SAFETY: heaps are never unmapped, and those in here are the lock owner's.
unsafe impl Send for Free {}

pub(crate) static FREE: Lock<[Free; PARTITIONS]> = Lock::new(NONE);
const NONE: [Free; PARTITIONS] = [const {
    Free { next: Stack::EMPTY, done: Stack::EMPTY, common: null_mut(), is_taken: false }
}; PARTITIONS];

/// A heap of a partition, or null.
pub(crate) enum Taken {
    /// The thread may keep it.
    Own(*mut Heap),
    /// It is for one call.
    Common(*mut Heap),
}

/// Takes the heap of a partition for a thread, whose heap that is; null if there is no memory for one, or if places for heaps are
/// scarce, and another thread has the one that threads take turns at.
///
/// # Safety
/// The calling thread's heap.
pub(crate) unsafe fn take(partition: usize, mine: *mut Heap) -> Taken {
    let is_scarce = super::is_all_but_full();
    if let Some(free) = FREE.lock().get_mut(partition) {
        let heap = if free.done.is_empty() { free.next.pop() } else { free.done.pop() };
        if !heap.is_null() {
            // SAFETY: the caller's now. Under the lock: what is nobody's in a forked child is in the list.
            unsafe { (*heap).member.set_user((*mine).thread, mine) };
            return Taken::Own(heap);
        }
    }
    // SAFETY: as above.
    unsafe {
        let own = if is_scarce { null_mut() } else { make(partition, mine, LEFT_FOR_GOOD) };
        if own.is_null() { Taken::Common(take_common(partition, mine)) } else { Taken::Own(own) }
    }
}

/// Takes the one that threads take turns at, which is made by the first; null if another thread has it, or if there is no memory.
///
/// # Safety
/// As for `take`.
unsafe fn take_common(partition: usize, mine: *mut Heap) -> *mut Heap {
    // SAFETY: as above; the heap is the caller's.
    unsafe {
        if let Some(free) = FREE.lock().get_mut(partition) {
            if core::mem::replace(&mut free.is_taken, true) {
                return null_mut();
            }
            if let Some(heap) = free.common.as_mut() {
                heap.member.set_user((*mine).thread, mine);
                return heap;
            }
        }
        let heap = make(partition, mine, 0);
        if let Some(free) = FREE.lock().get_mut(partition) {
            free.common = heap;
            free.is_taken = !heap.is_null();
        }
        heap
    }
}

/// Makes a heap, if `spare` places are left behind it; null if not, or if there is no memory.
///
/// # Safety
/// As for `take`.
unsafe fn make(partition: usize, mine: *mut Heap, spare: usize) -> *mut Heap {
    let heap = close(take_any(spare), null_mut());
    // SAFETY: null, or the caller's.
    if let Some(heap) = unsafe { heap.as_mut() } {
        // SAFETY: the caller's.
        heap.member.set_user(unsafe { (*mine).thread }, mine);
        heap.partition = partition as u8 + 1;
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
        if let Some(free) = FREE.lock().get_mut(partition) {
            (*heap).member.user.store(NOBODY, Ordering::Relaxed);
            if free.common == heap {
                free.is_taken = false;
            } else {
                free.done.push(heap);
            }
        }
    }
}

/// Takes those back that a thread's heap has, but for those that its thread is allocating from: the program, called in there,
/// may ask for this.
///
/// # Safety
/// The caller's heap.
pub(crate) unsafe fn put_all(of: *mut Heap) {
    // SAFETY: the caller's.
    let (all, busy) = unsafe { (&mut (*of).partitions, (*of).busy_partitions) };
    let free = |(nth, _): &(usize, _)| busy >> nth & 1 == 0;
    for (partition, heap) in all.iter_mut().enumerate().filter(free) {
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
        if let Some(Free { next, done, .. }) = FREE.lock().get_mut(partition) {
            while !done.is_empty() {
                // SAFETY: nobody's; the list's again.
                unsafe { next.push(done.pop()) };
            }
        }
        // One at a time: another thread that needs one finds the others.
        while let Some(heap) = take_next(partition, mine) {
            // A child that finds a change of it finds its user, too.
            fence(Ordering::Release);
            // SAFETY: the caller's now.
            unsafe { put(partition, heap) };
        }
        // One that is being made is not looked for.
        if FREE.lock().get(partition).is_some_and(|free| !free.common.is_null()) {
            // SAFETY: as above.
            unsafe {
                let heap = take_common(partition, mine);
                fence(Ordering::Release);
                if !heap.is_null() {
                    put(partition, heap);
                }
            }
        }
    }
}

/// A heap that somebody is going to have give back, for the thread whose heap that is.
fn take_next(partition: usize, mine: *mut Heap) -> Option<*mut Heap> {
    let mut free = FREE.lock();
    let heap = free.get_mut(partition)?.next.pop();
    // SAFETY: nobody's until now.
    unsafe { heap.as_mut()?.member.set_user((*mine).thread, mine) };
    Some(heap)
}

/// In a forked child, before it has a second thread: if another thread was changing the lists, they are made anew of what is
/// nobody's. Who was making a partition's first heap is not here.
pub(crate) fn settle_in_child() {
    let is_torn = FREE.settle_in_child();
    // SAFETY: there is one thread; what it may have been doing here goes on from where it likes.
    let all = unsafe { &mut *FREE.alone() };
    // A child touches no page of them if there is nothing to change.
    let is_made = |free: &&mut Free| free.is_taken && free.common.is_null();
    let used = all.iter_mut().take(in_hardened(0, PARTITIONS)).filter(is_made);
    used.for_each(|free| free.is_taken = false);
    if is_torn {
        for free in all.iter_mut() {
            (free.next, free.done) = (Stack::EMPTY, Stack::EMPTY);
            free.is_taken = !free.common.is_null();
        }
        for heap in super::all() {
            // SAFETY: heaps that have been made, and are in no list.
            unsafe {
                let is_nobodys = || (*heap).member.user.load(Ordering::Relaxed) == NOBODY;
                let partition = usize::from((*heap).partition).wrapping_sub(1);
                if let Some(free) =
                    all.get_mut(partition).filter(|_| (*heap).is_closed() && is_nobodys())
                {
                    if free.common == heap {
                        free.is_taken = false;
                    } else {
                        free.done.push(heap);
                    }
                }
            }
        }
    }
}
