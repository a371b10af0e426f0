//! Owns: the pages inside a span that go back to the system while other blocks of it are in use.
//! Idea: a page on which no block is in use goes, when its blocks are in no list: they come back when they are carved.
//!   Hardened, a sixteenth of a span.
//! Never: makes a hole in an active span.
//! Threads: the span's owner.
//! Checked: tests/holes.rs, and `Span::check`.
//! Story: docs/design/purging.md

use crate::base::{MIN_ALIGN, SLICE_SIZE};
use crate::map::{Chain, address_map};
use crate::os;
use crate::spans::span::{Home, Keep, PIECES, Span};
use crate::spans::waiting::{Pages, first_run, pages_of};
use core::ops::Range;

impl Span {
    /// Bytes in a piece.
    pub(crate) fn piece(&self) -> usize {
        (self.layout().slices as usize * SLICE_SIZE / PIECES).max(os::page_size())
    }

    /// The numbers of the carved blocks that begin in a piece.
    pub(crate) fn blocks_of(&self, piece: usize) -> Range<usize> {
        let begun = |at: usize| {
            let at = at.saturating_sub(self.layout().slack as usize);
            at.div_ceil(self.layout().size as usize).min(usize::from(self.carved))
        };
        begun(piece * self.piece())..begun((piece + 1) * self.piece())
    }

    /// Whether a carved block is hidden: set aside, or hardened, in a hole.
    pub(crate) fn is_hidden(&self, block: usize) -> bool {
        if Home::SETS_ASIDE {
            return self.is_set_aside(block);
        }
        let holes = (0..PIECES).filter(|hole| self.holes & 1 << hole != 0);
        holes.map(|hole| self.blocks_of(hole)).any(|blocks| blocks.contains(&block))
    }

    /// How many are.
    pub(crate) fn count_hidden(&self) -> usize {
        (0..usize::from(self.carved)).filter(|&block| self.is_hidden(block)).count()
    }

    /// Gives back the pages on which no block is in use. The free ones there leave `local_free`, and come back by `carve`.
    /// Owner only; not for an active span.
    pub(crate) fn make_holes(&mut self) {
        let (used, piece) = (self.used() as u16, self.piece());
        // Where purged memory is gone, a free block would lose its part of a hole.
        if !os::purged_is_committed()
            || address_map::is_supplied(self.index())
            || self.head() > 0
            || self.used_at_sweep == used
        {
            return;
        }
        self.used_at_sweep = used;
        if self.can_set_aside() {
            self.set_aside();
            let free = self.free_among(self.pages());
            self.purge_pages(free);
        } else if !Home::SETS_ASIDE && self.free() * self.layout().size >= piece as u32 {
            self.make_pieces_holes();
        }
    }

    /// Gives back pages on which nothing is in use, or in a list; false if the system refuses one.
    pub(crate) fn purge_pages(&self, mut pages: Pages) -> bool {
        let mut done = true;
        while pages != 0 {
            let run = first_run(pages);
            pages &= !pages_of(run.clone());
            // SAFETY: pages of the owner's span.
            done &= unsafe { os::purge(self.base().wrapping_add(run.start), run.len()) };
        }
        done
    }

    /// Hardened: hands out the blocks of a hole.
    pub(super) fn fill_hole(&mut self) -> Chain {
        let hole = self.holes.trailing_zeros() as usize;
        let blocks = self.blocks_of(hole);
        self.holes &= self.holes - 1;
        self.hidden -= blocks.len() as u16;
        Home::hand_out_new(self, blocks.start, blocks.len())
    }

    /// Hardened: gives back the pieces in which no block is in use. None of them is in a cache: it would be handed out, and
    /// carved again.
    fn make_pieces_holes(&mut self) {
        debug_assert_eq!(u32::from(Home::count(self)), self.free());
        let (piece, size) = (self.piece(), self.layout().size as usize);
        let (base, start) = (self.base().addr(), self.start.addr());
        let mut is_free = [false; SLICE_SIZE / MIN_ALIGN];
        for hole in (0..PIECES).filter(|hole| self.holes & 1 << hole != 0) {
            self.blocks_of(hole).for_each(|nth| is_free[nth % is_free.len()] = true);
        }
        Home::each_unlinked(self, |nth| is_free[nth % is_free.len()] = true);
        let carved = usize::from(self.carved);
        let mut new = (2 << ((start + carved * size - 1 - base) / piece)) - 1;
        for nth in (0..carved).filter(|nth| !is_free[nth % is_free.len()]) {
            let first = start + nth * size - base;
            new &= !((2 << ((first + size - 1) / piece)) - (1 << (first / piece)));
        }
        let new = new as u16 & !self.holes;
        for nth in (0..PIECES).filter(|nth| new & 1 << nth != 0) {
            Home::hide(self, nth);
            // SAFETY: a piece of the owner's span in which no block is in use, or in a list.
            unsafe { os::purge(self.base().wrapping_add(nth * piece), piece) };
        }
    }
}
