//! Owns: the pages inside a span that go back to the system while other blocks of it are in use.
//! Idea: a sixteenth of a span in which no block is in use is a hole: its blocks leave the list, and come
//!   back when they are carved.
//! Never: makes one in an active span.
//! Threads: the span's owner.
//! Checked: tests/holes.rs, and `Span::check`.
//! Story: docs/design/purging.md

use crate::base::size_class::{MIN_ALIGN, SLICE_SIZE};
use crate::map::address_map;
use crate::map::block::{Block, END};
use crate::os;
use crate::spans::span::{Home, Keep, PIECES, Span};
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

    /// Whether a carved block is in a hole.
    pub(crate) fn is_hidden(&self, block: usize) -> bool {
        let holes = (0..PIECES).filter(|hole| self.holes & 1 << hole != 0);
        holes.map(|hole| self.blocks_of(hole)).any(|blocks| blocks.contains(&block))
    }

    /// Gives back the pieces in which no block is in use. The free ones that begin there leave
    /// `local_free`, and come back by `carve`. Owner only; not for an active span.
    pub(crate) fn make_holes(&mut self) {
        let (used, piece, size) = (self.used() as u16, self.piece(), self.layout().size as usize);
        // Where purged memory is gone, a free block would lose its part of a hole.
        if !os::purged_is_committed()
            || address_map::is_supplied(self.index())
            || self.head() > 0
            || self.used_at_sweep == used
            || self.free() as usize * size < piece
        {
            return;
        }
        self.used_at_sweep = used;
        let (base, start) = (self.base().addr(), self.start.addr());
        let mut is_free = [false; SLICE_SIZE / MIN_ALIGN];
        for hole in (0..PIECES).filter(|hole| self.holes & 1 << hole != 0) {
            self.blocks_of(hole).for_each(|nth| is_free[nth % is_free.len()] = true);
        }
        Home::each_unlinked(self, |nth| is_free[nth % is_free.len()] = true);
        let mut at = self.local_free;
        while at != END {
            is_free[(at.addr() - start) / size % is_free.len()] = true;
            // SAFETY: free blocks are the owner's.
            at = unsafe { Block::next(at) };
        }
        let carved = usize::from(self.carved);
        let mut new = (2 << ((start + carved * size - 1 - base) / piece)) - 1;
        for nth in (0..carved).filter(|nth| !is_free[nth % is_free.len()]) {
            let first = start + nth * size - base;
            new &= !((2 << ((first + size - 1) / piece)) - (1 << (first / piece)));
        }
        let new = new as u16 & !self.holes;
        let mut at = core::mem::replace(&mut self.local_free, END);
        while at != END {
            // SAFETY: as above; the link is read before the block moves or goes.
            unsafe {
                let next = Block::next(at);
                let bit = new & 1 << ((at.addr() - base) / piece);
                self.holes |= bit;
                self.hidden += u16::from(bit != 0);
                if bit == 0 {
                    Block::set_next(at, self.local_free);
                    self.local_free = at;
                }
                at = next;
            }
        }
        for nth in (0..PIECES).filter(|nth| new & 1 << nth != 0) {
            Home::hide(self, nth);
            // SAFETY: a piece of the owner's span in which no block is in use, or in a list.
            unsafe { os::purge(self.base().wrapping_add(nth * piece), piece) };
        }
    }
}
