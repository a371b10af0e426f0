//! Owns: what a forked child does with the spans of threads that it does not have.
//! Idea: nothing, until it shows that it goes on: a child that calls exec or exits pays nothing. Then a
//!   piece of the reservation at a time, beside whatever the child's threads do. Closed heaps keep theirs (`bury`).
//! Never: believes a list of a thread that may have been anywhere in its work.
//! Threads: any; one at a time, by the lock, inside which those of `abandoned` and `arena` are taken.
//! Checked: the fork tests; the models fork at every step.
//! Story: docs/design/fork.md

use crate::map::{OWNER_CLOSED, OWNER_HEAP_MIN, OWNER_LARGE, address_map, heads_from};
use crate::os::Lock;
use crate::spans::{Span, abandoned};
use crate::thread::pool;
use crate::thread::tuning::SALVAGE_SLICES;

/// Where the search goes on, a slice; 0: at the beginning.
pub(crate) static NEXT: Lock<usize> = Lock::new(0);

/// In a forked child, before it has a second thread: all is to be looked at.
pub(crate) fn settle_in_child() {
    NEXT.settle_in_child();
    // SAFETY: there is one thread; what it may have been doing here goes on from where it likes.
    unsafe { *NEXT.alone() = 0 };
}

/// Salvages what a few slices hold.
pub(crate) fn step() {
    some(SALVAGE_SLICES);
}

/// Salvages all there is: the heaps of dead threads are free then.
pub(crate) fn all() {
    some(usize::MAX);
}

fn some(slices: usize) {
    if !pool::has_dead() {
        return;
    }
    let Some(mut next) = NEXT.lock_unless_inside() else { return };
    let from = *next;
    let end = from.saturating_add(slices);
    for (index, owner, _) in heads_from(from).take_while(|head| head.0 < end) {
        *next = index + 1;
        let is_threads = (OWNER_HEAP_MIN..).contains(&owner) && owner & OWNER_CLOSED == 0;
        if is_threads && pool::is_dead_owner(owner) {
            // SAFETY: the span's owner is not in this process; the lock makes this thread the only one
            // that takes its place.
            unsafe { salvage(address_map::slot(index).cast()) };
        }
    }
    // Beyond the last one that is in use there is nothing.
    if heads_from(end.max(*next)).next().is_none() {
        *next = 0;
        if pool::has_dead() {
            pool::bury::bury();
        }
    } else {
        *next = end;
    }
}

/// Takes a span over and lets go of it.
///
/// # Safety
/// The caller has taken the place of its owner.
unsafe fn salvage(span: *mut Span) {
    // SAFETY: the caller holds the span. Others may free into it at any time, by its word.
    unsafe {
        debug_assert!((*span).word().is_owned(), "whose descriptors name a heap, it holds");
        // One that has not been carved may have been in the making, with descriptors that are not written yet.
        if (*span).is_kept() || (*span).carved == 0 {
            (*span).set_used(0, 0);
            return abandoned::list_or_release(span);
        }
        (*span).forget_lists();
        loop {
            if !(*span).has_local_free() {
                (*span).take_in();
            }
            if (*span).used() == 0 || (*span).has_local_free() {
                abandoned::list_or_release(span);
                return;
            }
            // Full, and nobody's until the next free, unless one has come in.
            (*span).disown();
            if (*span).word().abandon() {
                return;
            }
        }
    }
}

const _: () = assert!(OWNER_LARGE < OWNER_HEAP_MIN);
