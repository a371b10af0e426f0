//! Owns: what is known of a span's blocks that have not been handed out yet.
//! Idea: where the system's zeros are, nothing but zeros may be when blocks are carved: whoever frees one before, or writes
//!   there, leaves a trace. A free does not see it: it would have to read how far the span is carved.
//! Never: believes memory that has been used before: it may hold anything.
//! Threads: the span's owner.
//! Checked: tests/twice.rs
//! Story: docs/why-not.md

use crate::block::{Block, overwritten};
use crate::policy::HARDENED;
use crate::span::{Span, ZERO};

impl Span {
    /// Whether `count` blocks from number `first` on are zero. Ends the process if they are said to be, and one has something
    /// where its link will stand: the program has freed it, or has written to it, and may have it already.
    #[inline(always)]
    pub(crate) fn expect_untouched(&self, first: usize, count: usize) -> bool {
        let (zero, size) = (self.flags & ZERO != 0, self.layout().size as usize);
        let mut at = self.start.wrapping_add(first * size);
        for _ in 0..if zero && !HARDENED { count } else { 0 } {
            // SAFETY: untouched blocks are the owner's.
            if !unsafe { Block::raw_link(at.cast()) }.is_null() {
                overwritten(at.cast());
            }
            at = at.wrapping_add(size);
        }
        zero
    }
}
