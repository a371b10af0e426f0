//! Owns: which free blocks of a span are set aside: in no list, a bit each outside of the span.
//! Idea: whoever shrinks writes down once which blocks are free; a page on which nothing else is can go at that very moment,
//!   and no list leads there.
//! Never: decides when, or gives a page back; does anything in the hardened build, whose free blocks are in no list.
//! Threads: the span's owner; `is_set_aside_at` any.
//! Checked: tests/holes.rs, tests/holes/thinning.rs, and `Span::check`.
//! Story: docs/design/purging.md

use crate::base::size_class::SizeClass;
use crate::map::address_map;
use crate::map::block::{Block, Chain, END};
use crate::os;
use crate::spans::span::{Home, Keep, Span};
use crate::spans::tuning::{THIN_BLOCKS, THIN_SLICES, THIN_STEP};
use crate::store::live::FREED_TWICE;
use core::ops::Range;
use core::sync::atomic::{Ordering, fence};

// Invariants
//  1. If `hidden` is not 0, the bits of a span's blocks are 1 exactly of those that are set aside: so many, carved, free, and
//     in no list. Else they mean nothing: who sets the first one aside makes all others 0.

/// Bytes of the smallest blocks that are set aside: of smaller ones hundreds would have to be free on one page.
const LEAST: usize = 32;

/// Pages of a span, a bit each.
pub(crate) type Pages = u128;

/// The pages from one to another.
pub(crate) fn between(first: usize, last: usize) -> Pages {
    Pages::MAX >> (Pages::BITS as usize - 1 - last) & Pages::MAX << first
}

/// How far frees go until a span's next event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Half of what is in use: nobody shrinks.
    Coarse,
    /// A part of it that leaves few pages unseen.
    Fine,
}

impl Span {
    fn bits(&self) -> *mut u64 {
        address_map::aside(self.index())
    }

    /// Whether its blocks may be set aside: where purged memory is gone, a free block would lose a part of itself, and a
    /// page larger than the span is not its own.
    pub(crate) fn can_set_aside(&self) -> bool {
        Home::SETS_ASIDE
            && os::purged_is_committed()
            && self.layout().size as usize >= LEAST
            && os::page_size() <= self.bytes()
            && self.head() == 0
            && !address_map::is_supplied(self.index())
    }

    /// Whether any block is set aside.
    #[inline]
    pub(crate) fn has_aside(&self) -> bool {
        Home::SETS_ASIDE && self.hidden > 0
    }

    /// Whether a block is set aside.
    pub(crate) fn is_set_aside(&self, nth: usize) -> bool {
        // SAFETY: the bits of a block of this span.
        self.hidden > 0 && unsafe { peek(self.bits(), nth) }
    }

    /// Whether the block at `p` is set aside, as far as anybody can tell: the span's owner may be at work.
    ///
    /// # Safety
    /// A block of a span of that class starts there.
    pub(crate) unsafe fn is_set_aside_at(p: *const u8, class: SizeClass) -> bool {
        if !Home::SETS_ASIDE || class.block_size() < LEAST {
            return false;
        }
        let index = address_map::span_index(p, class);
        let (span, base) =
            (address_map::slot(index).cast::<Span>(), address_map::slice_address(index));
        let nth = (p.addr() - base.addr() - class.layout().slack as usize) / class.block_size();
        // SAFETY: a span's slices are committed. Volatile: see `peek`. A block behind a head is never set aside.
        if unsafe { (&raw const (*span).hidden).read_volatile() } == 0 {
            return false;
        }
        // Acquire: pairs with `set_aside`.
        fence(Ordering::Acquire);
        // SAFETY: as above.
        unsafe { peek(address_map::aside(index), nth) }
    }

    /// Sets aside what is in `local_free`. The pages that have a part of these blocks.
    pub(crate) fn set_aside(&mut self) -> Pages {
        let (bits, page, mut pages) = (self.bits(), os::page_size(), 0);
        if self.hidden == 0 {
            // SAFETY: the bits of this span, whose owner this is.
            unsafe { bits.write_bytes(0, usize::from(self.carved).div_ceil(64)) };
            // Release: who sees that some are set aside sees no bit of what was here before: it would accuse a legal free.
            fence(Ordering::Release);
        }
        let mut at = core::mem::replace(&mut self.local_free, END);
        while at != END {
            let block = at;
            // SAFETY: free blocks are the owner's; and so are the bits.
            unsafe {
                at = Block::next(block);
                let nth = self.number(block.cast());
                if *bits.add(nth / 64) >> (nth % 64) & 1 != 0 {
                    os::fatal("free", block.cast(), FREED_TWICE);
                }
                *bits.add(nth / 64) |= 1 << (nth % 64);
            }
            self.hidden += 1;
            let from = block.addr() - self.base().addr();
            let last = from + self.layout().size as usize - 1;
            pages |= between(from / page, last / page);
        }
        pages
    }

    /// The number of the block that starts there.
    fn number(&self, block: *mut u8) -> usize {
        (block.addr() - self.start.addr()) / self.layout().size as usize
    }

    /// The pages on which a carved block of those is, if nothing there is in use or in a list.
    pub(crate) fn free_among(&self, pages: Pages) -> Pages {
        let (mut left, mut free) = (pages, 0);
        while left != 0 {
            let nth = left.trailing_zeros();
            left &= left - 1;
            free |= Pages::from(self.is_free_page(nth as usize)) << nth;
        }
        free
    }

    /// Whether all carved blocks that have a part on a page are set aside, and there is one.
    fn is_free_page(&self, nth: usize) -> bool {
        let mut blocks = self.blocks_on(nth);
        !blocks.is_empty() && blocks.all(|nth| self.is_set_aside(nth))
    }

    /// The carved blocks that have a part on a page.
    fn blocks_on(&self, nth: usize) -> Range<usize> {
        let (slack, size) = (self.layout().slack as usize, self.layout().size as usize);
        let (from, to) = (nth * os::page_size(), (nth + 1) * os::page_size());
        let last = to.saturating_sub(slack).div_ceil(size);
        from.saturating_sub(slack) / size..last.min(self.carved.into())
    }

    /// All its pages.
    pub(crate) fn pages(&self) -> Pages {
        between(0, self.bytes() / os::page_size() - 1)
    }

    /// Links up to `limit` of the blocks that are set aside, and hands them out.
    pub(crate) fn carve_aside(&mut self, limit: usize) -> Chain {
        let mut chain = Chain::EMPTY;
        let words = usize::from(self.carved).div_ceil(64);
        for nth in 0..words {
            // SAFETY: the bits of this span, whose owner this is.
            let word = unsafe { &mut *self.bits().add(nth) };
            while *word != 0 && (chain.count as usize) < limit {
                let block = nth * 64 + word.trailing_zeros() as usize;
                *word &= *word - 1;
                let block = self.start.wrapping_add(block * self.layout().size as usize);
                // SAFETY: free, in no list, and the owner's.
                unsafe { chain.push(block.cast()) };
            }
        }
        self.hidden -= chain.count as u16;
        self.until_event += chain.count;
        chain
    }

    /// Has an event come when the span is thinner: in a process that has been large, if its heap, of that tag, has allocated
    /// from it. Who frees what others allocate shrinks nothing.
    #[inline(never)]
    pub(crate) fn expect_thinner_of(&mut self, owner: u32) {
        if self.may_thin(owner) {
            self.expect_thinner(Step::Coarse);
        }
    }

    /// Whether that is so.
    #[inline(never)]
    pub(crate) fn may_thin(&self, owner: u32) -> bool {
        Home::SETS_ASIDE
            && address_map::described() >= THIN_SLICES
            && [0, owner].contains(&self.let_go_by)
    }

    /// Has an event come before nothing is in use: when so few are that whole pages may be free, and then step by step.
    pub(crate) fn expect_thinner(&mut self, step: Step) {
        let (used, blocks) = (self.used(), u32::from(self.layout().blocks));
        let pages = (self.bytes() / os::page_size()) as u32;
        let first = (THIN_BLOCKS * pages).min(blocks - blocks / 4);
        let after = match step {
            _ if !self.can_set_aside() => 0,
            _ if used > first => first,
            Step::Coarse => used / 2,
            Step::Fine => used - used.div_ceil(THIN_STEP),
        };
        self.set_used(used - after, after as i16);
    }
}

/// Volatile: others than the owner look, too.
unsafe fn peek(bits: *const u64, nth: usize) -> bool {
    // SAFETY: the caller's.
    unsafe { bits.add(nth / 64).read_volatile() >> (nth % 64) & 1 != 0 }
}
