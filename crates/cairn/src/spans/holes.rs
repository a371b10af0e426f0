//! Owns: the pages inside a span that go back to the system while other blocks of it are in use.
//! Idea: a page on which no block is in use goes, when its blocks are in no list: they come back when they are carved.
//! Never: makes a hole in an active span.
//! Threads: the span's owner.
//! Checked: tests/holes.rs, and `Span::check`.
//! Story: docs/design/purging.md

use crate::os;
use crate::spans::span::Span;
use crate::spans::waiting::{Pages, count_gone, first_run, pages_of};

impl Span {
    /// Gives back the pages on which no block is in use. What is free is set aside, and what has gone does
    /// not go again. Owner only; not for an active span; none of its free blocks is in a cache.
    pub(crate) fn make_holes(&mut self) {
        let used = self.used() as u16;
        if self.can_set_aside() && self.used_at_sweep != used {
            self.used_at_sweep = used;
            let (_, gone) = self.recall_free();
            self.set_aside();
            let free = self.free_among(self.pages());
            self.purge_pages(free & !gone);
        }
    }

    /// Gives back pages on which nothing is in use, or in a list, if the system takes them.
    fn purge_pages(&self, mut pages: Pages) {
        while pages != 0 {
            let run = first_run(pages);
            pages &= !pages_of(run.clone());
            // SAFETY: pages of the owner's span.
            if unsafe { os::purge(self.base().wrapping_add(run.start), run.len()) } {
                count_gone(run.len());
            }
        }
    }
}
