//! Owns: how a thread without a heap, such as one in a late destructor, works on an owned heap.
//! Idea: a heap is lent to it for each call: by the number of that one a forked child knows that the thread was at work.
//!   Between the calls the owned heap is no thread's, and has nothing ready, so that each allocation comes here.
//! Never: is asked by a thread with a heap.
//! Threads: the one that uses the owned heap.
//! Checked: tests/hand_over/heirs.rs
//! Story: docs/design/fork.md

use super::{allocate, own_heap, set_user};
use crate::base::{NOBODY, Ordering, SizeClass, fence};
use crate::heap::{EMPTY, Handle, OWNED};
use crate::thread;
use core::ptr::null_mut;

/// Whether it is an owned heap, and no thread's.
///
/// # Safety
/// It has been a heap of the program's.
pub(super) unsafe fn is_nobodys(name: *mut Handle) -> bool {
    // SAFETY: handles are never unmapped.
    let (kind, user) = unsafe { (&(*name).kind, &(*name).user) };
    kind.load(Ordering::Relaxed) == OWNED && user.load(Ordering::Relaxed) == NOBODY
}

/// Sees to it that an owned heap of a thread that has no heap has nothing ready.
///
/// # Safety
/// As for `closed::attach`.
#[cold]
#[inline(never)]
pub(super) unsafe fn attach_to_nobody(name: *mut Handle) {
    // SAFETY: as above.
    unsafe {
        set_user(name, NOBODY);
        on_loan(name, &mut || ());
    }
}

/// Makes an owned heap that is no thread's the calling thread's for a call; does nothing if there is no memory for that.
///
/// # Safety
/// It is an owned heap, and no thread's; no other one uses it.
#[cold]
#[inline(never)]
pub(super) unsafe fn on_loan(name: *mut Handle, call: &mut dyn FnMut()) {
    thread::with_heap(|mine| {
        // SAFETY: null, or the calling thread's; as above.
        unsafe {
            let Some(mine) = mine.as_ref() else { return };
            set_user(name, mine.thread);
            // A child that finds a change of the heap finds its user, too.
            fence(Ordering::Release);
            call();
            (*name).use_no_nursery();
            if (*name).heap != EMPTY.heap() {
                SizeClass::all().for_each(|class| (*(*name).heap).empty_cache(class));
            }
            // A child that finds no user finds all that was changed.
            fence(Ordering::Release);
            set_user(name, NOBODY);
        }
    });
}

/// Allocates from an owned heap that is no thread's; null from any other.
///
/// # Safety
/// As for `closed::allocate`.
#[cold]
#[inline(never)]
pub(crate) unsafe fn allocate_on_loan(name: *mut Handle, size: usize, align: usize) -> *mut u8 {
    let mut block = null_mut();
    // SAFETY: as above; the heap is the calling thread's, if there is one.
    unsafe {
        if is_nobodys(name) {
            on_loan(name, &mut || {
                let heap = own_heap(name);
                if !heap.is_null() {
                    block = allocate(heap, size, align);
                }
            });
        }
    }
    block
}
