//! Owns: what a heap has in hand for its next spans: empty spans; it fills and empties the row of slices.
//! Idea: a thread that fills and empties again takes what it has had, of which no other core has a line. What
//!   threads take at the same time lies apart, for what a core fetches ahead of need is not only its own.
//! Never: keeps for long what others need: what a round of upkeep has not used goes back.
//! Threads: as `heap`.
//! Checked: tests/empty.rs; `Heap::check`.
//! Story: docs/design/heap.md

use super::{Heap, Role};
use crate::base::{HARDENED, SizeClass, shares};
use crate::heap::tuning::{EMPTY_MAX, EMPTY_WARM};
use crate::slices::{Run, arena};
use crate::spans::{Span, SpanList};
use core::ptr::null_mut;

/// What a heap has in hand.
pub(super) struct Empty {
    /// Spans of one slice, the latest first. They are `is_kept`.
    spans: SpanList,
    /// The fewest there have been in this round of upkeep.
    least: usize,
    /// So many of them, the first ones, have lists that are used again.
    warm: usize,
}

impl Heap {
    /// Whether it keeps anything for spans to come. Closed heaps are ended in one go, threads share the shared one, and
    /// hardened, guards belong to runs.
    fn is_provident(&self) -> bool {
        !HARDENED && self.role == Role::Thread
    }

    /// Keeps an empty span; false if there are enough.
    ///
    /// # Safety
    /// The heap owns `span`, which is in no list; nothing of it is in use.
    pub(super) unsafe fn keep_empty(&mut self, span: *mut Span) -> bool {
        let most = EMPTY_MAX.min(shares::empty_share());
        // SAFETY: the caller's.
        unsafe {
            let is_kept = self.is_provident()
                && (*span).class().span_slices() == 1
                && self.empty.spans.len() < most;
            if is_kept {
                (*span).set_kept();
                (*span).inherited = 0;
                self.empty.spans.push_front(span);
                self.empty.warm = (self.empty.warm + 1).min(EMPTY_WARM);
            }
            is_kept
        }
    }

    /// Whether an empty span is in hand that would do for `class`.
    pub(super) fn has_empty(&self, class: SizeClass) -> bool {
        class.span_slices() == 1 && self.empty.spans.len() > 0
    }

    /// The empty span that has been kept last, if it is one of `class`; else null.
    pub(super) fn take_empty(&mut self, class: SizeClass) -> *mut Span {
        let span = self.empty.spans.first();
        // SAFETY: null, or the first of the list, which this heap owns; nothing of it is in use.
        unsafe {
            if span.is_null() || (*span).class() != class {
                return null_mut();
            }
            if self.empty.warm == 0 {
                (*span).renew();
            }
        }
        self.pop_empty();
        span
    }

    #[inline(never)]
    fn pop_empty(&mut self) {
        let span = self.empty.spans.first();
        // SAFETY: as above.
        unsafe {
            self.empty.spans.remove(span);
            (*span).unset_kept();
        }
        self.empty.warm = self.empty.warm.saturating_sub(1);
        self.empty.least = self.empty.least.min(self.empty.spans.len());
    }

    /// A slice for a span: of an empty one of another class, or a clean one.
    pub(super) fn take_slice(&mut self) -> Option<Run> {
        let span = self.empty.spans.first();
        if !span.is_null() {
            self.pop_empty();
            // SAFETY: it was the first; this heap owns it, and nothing of it is in use.
            let index = unsafe { (*span).let_go() };
            return Some(Run { index, zero: false, dirty: 1, backed: false });
        }
        if !self.is_provident() || shares::in_use() < 2 {
            return None;
        }
        self.ahead.take().or_else(|| {
            let (run, count) = arena::take_row()?;
            self.ahead.set(run.index + 1, count - 1);
            Some(run)
        })
    }

    /// A round of upkeep is over: what it has not used goes back, the oldest first.
    pub(super) fn review_empty(&mut self) {
        self.release_empty(self.empty.least);
    }

    /// Gives everything in hand back.
    #[inline(never)]
    pub(super) fn release_in_hand(&mut self) {
        self.release_empty(usize::MAX);
        self.ahead.release();
    }

    #[inline(never)]
    fn release_empty(&mut self, count: usize) {
        for _ in 0..count.min(self.empty.spans.len()) {
            let span = self.empty.spans.last();
            // SAFETY: a member, which this heap owns; nothing of it is in use.
            unsafe {
                self.empty.spans.remove(span);
                (*span).unset_kept();
                self.release(span);
            }
        }
        // A new round begins.
        self.empty.least = self.empty.spans.len();
        self.empty.warm = self.empty.warm.min(self.empty.least);
    }

    /// The invariants of what is in hand.
    pub(super) fn check_empty(&self) {
        let Empty { spans, least, warm } = &self.empty;
        for span in spans.iter() {
            self.check_owned(span);
            assert!(span.used() == 0 && span.is_kept() && span.class().span_slices() == 1);
            assert_eq!(span.inherited, 0, "nothing is in use");
        }
        assert!(*least <= spans.len() && *warm <= spans.len().min(EMPTY_WARM));
        assert!(spans.len() == 0 || self.is_provident());
    }
}
