//! Owns: free nurseries and handles that a thread keeps for its next heaps of the program's.
//! Idea: two short lists. What stands in one says so itself, by the address of the `Spares`: a forked child
//!   believes no list of a thread that it does not have, and finds what they had by that.
//! Never: keeps more than two heaps' worth.
//! Threads: the one whose they are; `salvage` in a forked child.
//! Checked: tests/nursery.rs, tests/hand_over.rs
//! Story: docs/design/closed-heaps.md

use super::{FREE, Handle, all};
use crate::base::{Ordering, Stack};
use crate::heap::tuning::SPARES_MAX;
use crate::large::{self, Care, Nurse, Nursery};
use core::ptr::from_mut;

/// What a thread keeps. All zeros: nothing.
pub(crate) struct Spares {
    nurseries: (*mut Nursery, usize),
    handles: (Stack<Handle>, usize),
}

impl Spares {
    /// Gives all of them up.
    pub(crate) fn give(&mut self) {
        while let Some(nursery) = self.pop_nursery() {
            large::put_nursery(nursery);
        }
        while let Some(handle) = self.pop_handle() {
            all::put(handle);
        }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.nurseries.0.is_null() && self.handles.0.is_empty()
    }

    /// As a fork may find them: the ends of the lists are there, their counts and firsts are another moment's.
    #[cfg(test)]
    pub(crate) fn tear(&mut self) {
        self.nurseries = (core::ptr::null_mut(), SPARES_MAX);
        self.handles = (Stack::torn(), SPARES_MAX);
    }

    pub(super) fn pop_handle(&mut self) -> Option<*mut Handle> {
        let (handles, count) = &mut self.handles;
        let first = handles.pop();
        *count -= usize::from(!first.is_null());
        (!first.is_null()).then_some(first)
    }

    /// Keeps a free handle; false if there are enough.
    pub(super) fn push_handle(&mut self, handle: *mut Handle) -> bool {
        let here = from_mut(self).addr();
        let (handles, count) = &mut self.handles;
        if *count == SPARES_MAX {
            return false;
        }
        // SAFETY: the caller's, which no heap has.
        unsafe {
            (*handle).keeper.store(here, Ordering::Relaxed);
            handles.push(handle);
        }
        *count += 1;
        true
    }

    pub(super) fn pop_nursery(&mut self) -> Option<*mut Nursery> {
        let (first, count) = self.nurseries;
        if first.is_null() {
            return None;
        }
        let mut place = &raw mut self.nurseries.0;
        // SAFETY: a list of this thread's, so long.
        unsafe {
            for _ in 0..Nurse::chance(first, count) {
                place = &raw mut (**place).next;
            }
            let nursery = *place;
            *place = (*nursery).next;
            self.nurseries.1 = count - 1;
            Some(nursery)
        }
    }

    /// Keeps a nursery in which nothing is in use, or gives it back if there are enough.
    pub(super) fn push_nursery(&mut self, nursery: *mut Nursery) {
        let here = from_mut(self).addr();
        let (first, count) = self.nurseries;
        if count == SPARES_MAX {
            return large::put_nursery(nursery);
        }
        // SAFETY: the caller's, in which nothing is in use.
        unsafe {
            Nurse::reset(nursery);
            (*nursery).set_keeper(here);
            (*nursery).next = first;
        }
        self.nurseries = (nursery, count + 1);
    }
}

/// In a forked child: gives back what `Spares` kept whose thread it does not have, as `is_dead` says of their addresses. What
/// such a thread was just taking or putting aside may be lost.
pub(crate) fn salvage(is_dead: impl Fn(usize) -> bool) {
    large::salvage_nurseries(&is_dead);
    for handle in all::made() {
        // SAFETY: handles are never unmapped; one that a dead thread keeps is nobody else's.
        let (kind, keeper) = unsafe { (&(*handle).kind, &(*handle).keeper) };
        let keeper = keeper.load(Ordering::Relaxed);
        if kind.load(Ordering::Relaxed) == FREE && keeper != 0 && is_dead(keeper) {
            all::put(handle);
        }
    }
}
