//! Owns: in the hardened build, which free blocks of a span are at home, and which of them come next.
//! Idea: a free block carries nothing, so there is nothing in it to overwrite. What is at home is what has been carved,
//!   is not the program's (see `live`), and in no cache; and which of them come next is a matter of where one begins
//!   to look.
//! Never: does anything in the default build, whose free blocks are linked.
//! Threads: the owner of the span.
//! Checked: `Span::check`; tests/quarantine.rs.
//! Story: docs/design/policy.md

use super::Span;
use crate::base::size_class::{ClassLayout, MIN_ALIGN};
use crate::base::sync::touched;
use crate::map::block::{Block, Chain};
use crate::os;
use crate::spans::tuning::FEW_BLOCKS;
use crate::store::filling::{Filling, below};
use crate::store::live::{self, PLACES, came_home};
use crate::store::quarantine;
use core::ops::Range;

// Invariants
//  1. A carved block that is not the program's, in no hole and not pending is at home, or in a cache of the heap that
//     owns the span: `Span::free` counts those at home. Where a refill takes blocks from home, its cache has none of the
//     span's, or hides them.
//  2. The head of such a block is zero unless somebody has written to it (see `quarantine`).

impl Span {
    /// Some that no list has held are at home.
    pub(crate) fn keep_new(&mut self, blocks: Range<usize>) -> Chain {
        let first = self.start.wrapping_add(blocks.start * self.layout().size as usize);
        // Where their memory is zero already, too: `malloc` reads first, and a page that is read before it is
        // written to takes the kernel two steps.
        // SAFETY: untouched blocks are the owner's.
        unsafe { quarantine::zero(first.cast(), self.class(), blocks.len()) };
        Chain::at_home(blocks.len() as u32)
    }

    /// The numbers of the carved blocks that are not the program's, those in caches among them.
    pub(crate) fn kept(&self) -> impl Iterator<Item = usize> {
        let (start, size) = (self.start, self.layout().size as usize);
        // SAFETY: a block of this span.
        let is_free = move |nth: &usize| unsafe { !live::is_live(start.wrapping_add(nth * size)) };
        (0..usize::from(self.carved)).filter(is_free).filter(|&nth| !self.is_hidden(nth))
    }

    /// A piece of the span is going to be a hole: its blocks are not at home any more.
    pub(crate) fn hide(&mut self, piece: usize) {
        let blocks = self.blocks_of(piece);
        if !blocks.is_empty() {
            self.holes |= 1 << piece;
            self.hidden += blocks.len() as u16;
        }
    }

    /// Hands `count` of them out, as many as there are at least. Which, chance decides.
    #[inline]
    pub(crate) fn take_kept(&mut self, count: u32, filling: &mut Filling) {
        touched(self);
        debug_assert!(count <= self.free());
        let most = filling.count + count as usize;
        match self.layout() {
            ClassLayout { slices: 1, blocks: FEW_BLOCKS.., .. } => self.take_many(most, filling),
            _ => self.take_few(most, filling),
        }
        if filling.count < most {
            os::broken("a span has fewer free blocks than it counts");
        }
        self.until_event += count;
    }

    /// Takes some of one slice, until there are `most`.
    fn take_many(&self, most: usize, filling: &mut Filling) {
        let (base, layout) = (self.base(), self.layout());
        let carved = usize::from(self.carved) * layout.size as usize;
        let places = (layout.slack as usize + carved) / MIN_ALIGN;
        let words = places.div_ceil(PLACES);
        let random = filling.random;
        let mut take = |at: usize, mut allowed: u64| {
            if at + 1 == words {
                allowed &= !0 >> (words * PLACES - places);
            }
            let offset = at * PLACES * MIN_ALIGN;
            if self.holes != 0 && self.holes >> (offset / self.piece()) & 1 != 0 {
                return false;
            }
            // SAFETY: the owner's.
            let found = unsafe { live::free_of(base, at) } & allowed;
            // SAFETY: free blocks of this span, and the caller's from here on.
            found != 0 && unsafe { filling.add_each(base.wrapping_add(offset), found, most) }
        };
        let first = below(random, words);
        // In the first word it begins anywhere, too: what is in front comes last.
        let behind = !0 << (random >> 26 & (PLACES as u64 - 1));
        if take(first, behind) || (first + 1..words).any(|at| take(at, !0)) {
            return;
        }
        let _ = (0..first).any(|at| take(at, !0)) || take(first, !behind);
    }

    /// The same where blocks are few, and their bits far apart.
    fn take_few(&self, most: usize, filling: &mut Filling) {
        let (carved, size) = (usize::from(self.carved), self.layout().size as usize);
        let mut nth = below(filling.random, carved);
        for _ in 0..carved {
            let block = self.start.wrapping_add(nth * size);
            // SAFETY: a block of this span; if it is free and in no hole, the caller's from here on.
            unsafe {
                if !live::is_live(block) && (self.holes == 0 || !self.is_hidden(nth)) {
                    filling.add(block.cast());
                    if filling.count == most {
                        return;
                    }
                }
            }
            nth = if nth + 1 == carved { 0 } else { nth + 1 };
        }
    }

    /// Takes home what others have freed, pending until now. Ends the process if one of these has come home before.
    pub(crate) fn come_home(&mut self, chain: Chain) {
        let mut count = 0;
        came_home(chain, |block| {
            // SAFETY: it is this span's, and free.
            unsafe { Block::unmark(block) };
            count += 1;
        });
        // The active span has no event; another's is not due before all have come.
        let after = self.used_after_event.min(0);
        let used = self.used().wrapping_sub(count);
        self.set_used(used.wrapping_add_signed(-i32::from(after)), after);
    }

    /// What others have freed is at home, and with it what else is.
    pub(crate) fn take_pending(&mut self, pending: Chain) -> Chain {
        self.come_home(pending);
        self.take_local()
    }

    /// The same with what is in the word.
    pub(crate) fn take_collected(&mut self) -> Chain {
        let pending = self.collect();
        self.take_pending(pending)
    }
}
