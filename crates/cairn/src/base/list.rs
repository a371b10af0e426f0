//! Owns: lists of things that carry their own link, each in one list at a time.
//! Idea: what is put in last comes out first: it is warm.
//! Never: allocates, or looks at what it links.
//! Threads: the owner of the list, a lock's or a thread's.
//! Checked: by what is built on it; the models fork between two steps.
//! Story: docs/design/heap.md

use crate::base::sync::point;
use core::ptr::null_mut;

// Others are lists of another kind: those that a thread follows without their lock have atomic links (parts, large blocks, what
// waits for readers); a span leaves the middle of its list (`span_list`); blocks sign their links (`map::block`).

/// What can stand in a list.
pub(crate) trait Linked: Sized {
    /// Where its link is, a pointer, counted from its first byte.
    const LINK: usize;
}

/// A list, by its first member.
pub(crate) struct Stack<T>(*mut T);

// SAFETY: what is in a list is its owner's.
unsafe impl<T> Send for Stack<T> {}

impl<T: Linked> Stack<T> {
    /// Nothing.
    pub(crate) const EMPTY: Stack<T> = Stack(null_mut());

    /// Whether there is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_null()
    }

    /// Puts something in.
    ///
    /// # Safety
    /// It is in no list, and the list's owner's as long as it is in this one.
    pub(crate) unsafe fn push(&mut self, one: *mut T) {
        // SAFETY: the caller's.
        unsafe { *link(one) = self.0 };
        point();
        self.0 = one;
    }

    /// Takes out what was put in last; null if there is nothing.
    pub(crate) fn pop(&mut self) -> *mut T {
        let first = self.0;
        if !first.is_null() {
            // SAFETY: a member.
            self.0 = unsafe { *link(first) };
        }
        first
    }

    /// As a fork may find it.
    #[cfg(test)]
    pub(crate) fn torn() -> Stack<T> {
        Stack(core::ptr::without_provenance_mut(64))
    }
}

/// The link of a member.
fn link<T: Linked>(one: *mut T) -> *mut *mut T {
    one.wrapping_byte_add(T::LINK).cast()
}
