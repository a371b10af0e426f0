//! Owns: how untouched blocks of a span become a list.
//! Idea: links are written ahead of need, in a row, as far as a refill pays for.
//! Never: links a block that has been handed out.
//! Threads: the owner of the span.
//! Checked: see `span`.
//! Story: docs/design/spans.md

use super::{Home, Keep, Span, ZERO, recount};
use crate::base::touched;
use crate::map::{END, FreeList};

/// Blocks that no list has held, linked.
pub(crate) struct Carved {
    pub(crate) list: FreeList,
    /// They are zero but for their links.
    pub(crate) zeroed: bool,
}

impl Carved {
    /// No blocks.
    pub(crate) const NONE: Carved = Carved { list: FreeList::EMPTY, zeroed: false };
}

impl Span {
    /// Makes all blocks of a span untouched; none is in use.
    pub(crate) fn renew(&mut self) {
        debug_assert_eq!(self.used(), 0);
        self.local_free = END;
        self.forget_aside();
        self.carved = recount(self.index(), self.class(), self.carved, 0);
        self.flags &= !ZERO;
    }

    /// Links up to `limit` blocks into a list and hands it out: those that are set aside, or untouched ones.
    pub(crate) fn carve(&mut self, limit: usize) -> Carved {
        debug_assert!(self.local_free == END);
        if self.has_aside() {
            return Carved { list: self.carve_aside(limit), zeroed: false };
        }
        touched(self);
        let (first, count) = (usize::from(self.carved), limit.min(self.untouched()));
        if count == 0 {
            return Carved::NONE;
        }
        self.carved = recount(self.index(), self.class(), self.carved, self.carved + count as u16);
        let zeroed = Home::is_untouched(self, first, count);
        Carved { list: Home::hand_out_new(self, first, count), zeroed }
    }
}
