//! Owns: lists of spans, by links in their metadata.
//! Idea: a span is in at most one list at a time, so its links are enough.
//! Never: looks at a span's blocks.
//! Threads: the owner of the spans, or of the lock of the list.
//! Checked: the tests of spans compare with a plain deque.
//! Story: docs/design/spans.md

use crate::base::point;
use crate::spans::span::Span;
use core::ptr::null_mut;

/// A doubly linked list of spans, by their own links.
pub(crate) struct SpanList {
    first: *mut Span,
    last: *mut Span,
    len: usize,
}

impl SpanList {
    /// No spans.
    pub(crate) const EMPTY: SpanList = SpanList { first: null_mut(), last: null_mut(), len: 0 };

    /// How many spans.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first span, or null.
    pub(crate) fn first(&self) -> *mut Span {
        self.first
    }

    /// The last span, or null.
    pub(crate) fn last(&self) -> *mut Span {
        self.last
    }

    /// The span after `span`, or null.
    ///
    /// # Safety
    /// `span` is in a list that the caller may touch.
    pub(crate) unsafe fn after(span: *mut Span) -> *mut Span {
        // SAFETY: a member, whose links the caller may touch.
        unsafe { (*span).next }
    }

    /// The spans, first to last; for checks, while nobody changes the list.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Span> {
        // SAFETY: list members are valid.
        core::iter::successors(unsafe { self.first.as_ref() }, |s| unsafe { s.next.as_ref() })
    }

    /// Puts `span` in front.
    ///
    /// # Safety
    /// `span` is in no list; its links are the caller's.
    pub(crate) unsafe fn push_front(&mut self, span: *mut Span) {
        // SAFETY: `span` is in no list, and `first` a member or null.
        unsafe { self.insert(null_mut(), span, self.first) };
    }

    /// Puts `span` at the end.
    ///
    /// # Safety
    /// As for `push_front`.
    pub(crate) unsafe fn push_back(&mut self, span: *mut Span) {
        // SAFETY: `span` is in no list, and `last` a member or null.
        unsafe { self.insert(self.last, span, null_mut()) };
    }

    unsafe fn insert(&mut self, prev: *mut Span, span: *mut Span, next: *mut Span) {
        // SAFETY: the links of `span` are the caller's; its neighbours are members or null.
        unsafe {
            (*span).prev = prev;
            (*span).next = next;
            self.join(prev, span);
            self.join(span, next);
        }
        self.len += 1;
    }

    /// Makes `next` follow `prev`; null stands for the list's ends.
    unsafe fn join(&mut self, prev: *mut Span, next: *mut Span) {
        point();
        // SAFETY: list members are valid.
        unsafe {
            match prev.is_null() {
                true => self.first = next,
                false => (*prev).next = next,
            }
            match next.is_null() {
                true => self.last = prev,
                false => (*next).prev = prev,
            }
        }
    }

    /// Takes `span` out.
    ///
    /// # Safety
    /// `span` is in this list.
    pub(crate) unsafe fn remove(&mut self, span: *mut Span) {
        // SAFETY: a member; its neighbours are members or null.
        unsafe {
            self.join((*span).prev, (*span).next);
            (*span).next = null_mut();
            (*span).prev = null_mut();
        }
        self.len -= 1;
    }
}
