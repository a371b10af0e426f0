//! Owns: which part of a shared heap a thread allocates from.
//! Idea: a part is a closed heap that its thread alone uses. When the thread has left, the next one that comes to the
//!   same list takes it over, with what is free in it.
//! Never: takes a part from a thread that is at work.
//! Threads: any; the pool's lock for parts, to take one and to make one.
//! Checked: tests/shared.rs
//! Story: docs/design/closed-heaps.md

use super::Name;
use crate::crowd::NOBODY;
use crate::heap::Heap;
use crate::os;
use crate::pool::{self, salvage};
use crate::sync::Ordering;
use crate::thread;
use core::ptr::null_mut;

/// Calls `then` with the calling thread's part of a shared heap, or with null if there is no memory for one.
///
/// # Safety
/// The heap is a shared one, and is not ended meanwhile.
#[inline]
pub(crate) unsafe fn of_thread<R>(shared: *mut Name, then: impl FnOnce(*mut Heap) -> R) -> R {
    let mine = thread::heap();
    // SAFETY: the calling thread's heap, or a stand-in, which has used no shared heap; theirs have serials.
    unsafe {
        let (serial, part) = (*mine).member.last;
        if serial == (*shared).serial {
            return then(part);
        }
        find(shared, then)
    }
}

/// # Safety
/// As for `of_thread`.
#[cold]
#[inline(never)]
unsafe fn find<R>(shared: *mut Name, then: impl FnOnce(*mut Heap) -> R) -> R {
    os::notice_fork();
    salvage::all();
    let number = thread::number();
    // SAFETY: parts are there as long as their heap is.
    unsafe {
        let Some(number) = number else {
            // A thread without a heap uses a part for this one call.
            let held = pool::PARTS.lock();
            let result = then(take(shared, NOBODY));
            drop(held);
            return result;
        };
        let mut part = (*shared).first(number);
        while !part.is_null() && (*part).member.user.load(Ordering::Relaxed) != number {
            part = (*part).member.next;
        }
        if part.is_null() {
            let _held = pool::PARTS.lock();
            part = take(shared, number);
        }
        if !part.is_null() {
            let last = ((*shared).serial, part);
            thread::own().into_iter().for_each(|mine| (*mine).member.last = last);
        }
        then(part)
    }
}

/// Takes a part that nobody uses any more, or makes one; null if there is no memory for it. Under the lock.
unsafe fn take(shared: *mut Name, number: usize) -> *mut Heap {
    // SAFETY: parts are there as long as their heap is; the lock says who uses one.
    unsafe {
        let mut part = (*shared).first(number);
        while !part.is_null()
            && pool::is_at_work(
                (*part).member.user_heap,
                (*part).member.user.load(Ordering::Relaxed),
            )
        {
            part = (*part).member.next;
        }
        if part.is_null() {
            part = pool::take_any(1);
            if part.is_null() {
                return null_mut();
            }
            part.write(Heap::closed());
            (*part).member.of = shared;
            (*part).head = (*shared).owned.grace.head() as u16;
            (*part).member.next = (*shared).first(number);
            (*shared).put_first(number, part);
        }
        (*part).member.user_heap = thread::own().unwrap_or(null_mut());
        // Relaxed: who finds its own number has written it.
        (*part).member.user.store(number, Ordering::Relaxed);
        part
    }
}

/// Calls `then` with each part of a shared heap.
///
/// # Safety
/// Nobody makes one meanwhile; `then` may end the part.
pub(super) unsafe fn for_each(shared: *mut Name, then: impl Fn(*mut Heap)) {
    // SAFETY: a shared heap; the next part is read before this one may go.
    unsafe {
        for first in (*shared).firsts() {
            let mut part = first;
            while !part.is_null() {
                let next = (*part).member.next;
                then(part);
                part = next;
            }
        }
    }
}
