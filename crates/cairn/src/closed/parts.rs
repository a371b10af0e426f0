//! Owns: which part of a shared heap a thread allocates from.
//! Idea: a part is a closed heap that its thread alone uses. When the thread has left, the next one that comes to the
//!   same list takes it over, with what is free in it.
//! Never: takes a part from a thread that is at work.
//! Threads: any; the pool's lock for parts, to take one and to make one.
//! Checked: tests/shared.rs; the model `parts`
//! Story: docs/design/closed-heaps.md

use crate::base::{NOBODY, Ordering, fence};
use crate::heap::{Handle, Heap, handle};
use crate::thread::pool::{self, User, salvage};
use crate::{os, thread};
use core::ptr::{null, null_mut};

/// Calls `then` with the calling thread's part of a shared heap, or with null if there is no memory for one.
///
/// # Safety
/// The heap is a shared one, and is not ended meanwhile.
#[inline]
pub(crate) unsafe fn of_thread<R>(shared: *mut Handle, then: impl FnOnce(*mut Heap) -> R) -> R {
    let mine = thread::heap();
    // SAFETY: the calling thread's heap, or a stand-in, which has used no shared heap; theirs have serials.
    unsafe {
        let (serial, part) = (*mine).own.last;
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
unsafe fn find<R>(shared: *mut Handle, then: impl FnOnce(*mut Heap) -> R) -> R {
    os::notice_fork();
    salvage::all();
    thread::with_heap(|mine| {
        if mine.is_null() {
            return then(mine);
        }
        // SAFETY: the calling thread's heap; parts are there as long as their heap is.
        unsafe {
            let part = part_of(shared, mine);
            if !part.is_null() {
                (*mine).own.last = ((*shared).serial, part);
            }
            then(part)
        }
    })
}

/// The part of the thread whose heap that is; null if there is no memory for it.
///
/// # Safety
/// The calling thread's heap.
unsafe fn part_of(shared: *mut Handle, mine: *mut Heap) -> *mut Heap {
    // SAFETY: parts are there as long as their heap is.
    unsafe {
        let number = (*mine).thread;
        let mut part = (*shared).first(number);
        while !part.is_null() && (*part).member.user.load(Ordering::Relaxed) != number {
            part = (*part).member.next;
        }
        if part.is_null() {
            let _held = handle::PARTS.lock();
            part = take(shared, mine);
        }
        part
    }
}

/// Takes a part whose thread has ended, or makes one; null if there is no memory for it. Under the lock.
unsafe fn take(shared: *mut Handle, mine: *mut Heap) -> *mut Heap {
    // SAFETY: parts are there as long as their heap is; the lock says who uses one.
    unsafe {
        let number = (*mine).thread;
        let mut part = (*shared).first(number);
        while !part.is_null() && !is_free(part) {
            part = (*part).member.next;
        }
        if part.is_null() {
            part = pool::take_closed(shared);
            if part.is_null() {
                return null_mut();
            }
            (*part).member.turn.open();
            (*part).head = (*shared).owned.grace.head() as u16;
            (*part).member.next = (*shared).first(number);
            (*shared).put_first(number, part);
        }
        (*part).member.set_user(number, mine);
        part
    }
}

/// Whether a part is no thread's any more. Under the lock.
unsafe fn is_free(part: *mut Heap) -> bool {
    // SAFETY: as above.
    let (user, user_heap) =
        unsafe { ((*part).member.user.load(Ordering::Relaxed), (*part).member.user_heap) };
    user == NOBODY || pool::find_user(user_heap, user) == User::Gone
}

/// Gives back what is free in the parts of threads that have ended. Each is the calling thread's meanwhile.
///
/// # Safety
/// As for `of_thread`.
pub(super) unsafe fn give_back_left(shared: *mut Handle) {
    thread::with_heap(|mine| {
        // SAFETY: null, or the calling thread's heap.
        let Some(number) = (unsafe { mine.as_ref() }).map(|mine| mine.thread) else { return };
        // SAFETY: parts are there as long as their heap is; the lock says who uses one.
        let give_back = |part: *mut Heap| unsafe {
            let held = handle::PARTS.lock();
            let is_left = is_free(part);
            if is_left {
                (*part).member.set_user(number, mine);
            }
            drop(held);
            if is_left {
                // A child that finds a change of the part finds its user, too.
                fence(Ordering::Release);
                (*part).give_back();
                // A child that finds no user finds all that was changed. Under the lock: so does who takes it next.
                fence(Ordering::Release);
                let _held = handle::PARTS.lock();
                (*part).member.set_user(NOBODY, null());
            }
        };
        // SAFETY: as above.
        unsafe { for_each(shared, give_back) };
    });
}

/// Calls `then` with each part of a shared heap.
///
/// # Safety
/// The heap is there; `then` may end the part if nobody makes one meanwhile.
pub(super) unsafe fn for_each(shared: *mut Handle, then: impl Fn(*mut Heap)) {
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
