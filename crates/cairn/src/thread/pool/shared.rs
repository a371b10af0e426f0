//! Owns: the heap that threads share for what they need little of.
//! Idea: spans of one's own cost a touched page per class and thread; the first few blocks of a
//!   class come from shared ones, and so does all that a thread without a heap needs.
//! Never: is asked again once a thread has shown that it needs a class.
//! Threads: any; one lock, inside which the heap's own locks are taken.
//! Checked: the idle thread and late allocation tests.
//! Story: docs/design/tls.md

use crate::base::shares::in_use;
use crate::base::{HARDENED, SizeClass};
use crate::heap::Heap;
use crate::map::{Block, FreeList};
use crate::os::{self, Lock};
use crate::store::{Caches, Store};
use crate::thread::pool;
use crate::thread::tuning::{CROWD, SHARED_BYTES};
use core::ptr::null_mut;

/// The heap, or null.
pub(crate) struct SharedHeap(*mut Heap);

// SAFETY: reached under the lock only.
unsafe impl Send for SharedHeap {}

pub(crate) static SHARED: Lock<SharedHeap> = Lock::new(SharedHeap(null_mut()));

/// Takes up to `count` blocks; none if there is no memory, or if the thread is inside.
pub(crate) fn take(class: SizeClass, count: usize) -> FreeList {
    os::notice_fork();
    let Some(mut shared) = SHARED.lock_unless_inside() else { return FreeList::EMPTY };
    if shared.0.is_null() {
        shared.0 = make();
        if shared.0.is_null() {
            return FreeList::EMPTY;
        }
    }
    let heap = shared.0;
    let mut list = FreeList::EMPTY;
    for _ in 0..count {
        // SAFETY: the lock makes this thread the heap's; the blocks are the caller's then.
        unsafe {
            let mut block = Caches::pop(&raw mut (*heap).caches, class);
            if block.is_null() {
                block = (*heap).refill(class);
            }
            if block.is_null() {
                break;
            }
            list.push(block);
        }
    }
    // SAFETY: as above.
    let due = unsafe { (*heap).is_due() };
    drop(shared);
    if due {
        super::tick();
    }
    list
}

/// Makes the shared heap; null if there is no memory. Apart: a heap on the stack is a page for each thread that comes by.
#[cold]
#[inline(never)]
fn make() -> *mut Heap {
    let heap = pool::take_shared();
    if !heap.is_null() {
        // SAFETY: ours alone. It has the fork's count already.
        unsafe { Heap::write_over(heap, Heap::shared()) };
    }
    heap
}

/// The first few blocks of a class come from shared spans, if there is somebody to share with: one, two,
/// four; in a crowd twice as many, for its thread has had some before it came. Fills the heap's cache and pops a
/// block; null if the class has had its share, or if there is no memory. Hardened, one by one: what a cache has is of spans
/// of its own.
#[cold]
#[inline(never)]
pub(crate) fn refill(heap: &mut Heap, class: SizeClass) -> *mut Block {
    let most = (SHARED_BYTES / class.block_size()).max(1);
    let wanted = 1 << heap.ask_shared(class) << usize::from(in_use() > CROWD);
    if HARDENED {
        // None of these counts as a sample.
        if heap.sampling.is_on() {
            return null_mut();
        }
        let list = take(class, 1);
        heap.slow_tick();
        // The block may not be zero, whatever the last refill found.
        heap.caches.take_all(class);
        return unlisted(list);
    }
    let list = take(class, most.min(wanted));
    if list.count == 0 { null_mut() } else { heap.refill_with(class, list) }
}

/// The block of a list of one, or null.
pub(crate) fn unlisted(list: FreeList) -> *mut Block {
    if !list.head.is_null() {
        // SAFETY: the caller's.
        unsafe { Block::unmark(list.head) };
    }
    list.head
}

/// Gives back what the shared heap holds free.
pub(crate) fn trim() {
    let Some(mut shared) = SHARED.lock_unless_inside() else { return };
    if !shared.0.is_null() {
        // SAFETY: the lock makes this thread the heap's.
        unsafe { (*shared.0).abandon_all() };
    }
}

/// The shared heap, or null.
#[cfg(test)]
pub(crate) fn heap() -> *mut Heap {
    SHARED.lock().0
}

/// In a forked child, before it has a second thread: the shared heap, or null. If another thread was
/// inside, it is given up like that thread's own.
pub(crate) fn settle_in_child() -> *mut Heap {
    let torn = SHARED.settle_in_child();
    let place = SHARED.alone();
    // SAFETY: there is one thread, and what it may have been doing here it does not do now.
    unsafe {
        if torn {
            (*place).0 = null_mut();
            super::forget_shared();
            super::begin_salvage();
        }
        (*place).0
    }
}
