//! Owns: which free blocks of a span are set aside: in no list, a bit each outside of the span.
//! Idea: whoever shrinks writes down once which blocks are free; a page on which nothing else is can go at that very moment,
//!   and no list leads there.
//! Never: decides when a page goes.
//! Threads: the span's owner; `is_set_aside_at` any.
//! Checked: tests/holes.rs, tests/holes/thinning.rs, and `Span::check`.
//! Story: docs/design/purging.md

use crate::base::{SLICE_SIZE, SizeClass};
use crate::map::{Block, END, FreeList, address_map};
use crate::os;
use crate::slices::arena;
use crate::spans::span::{Home, Keep, Span};
use crate::spans::tuning::{THIN_BLOCKS, THIN_FIRST_STEP, THIN_SLICES, THIN_STEP};
use crate::spans::waiting::{self, Pages, bytes_of, first_run, pages_of};
use crate::store::{FREED_TWICE, Known, Live};
use core::ops::Range;
use core::ptr::null_mut;
use core::sync::atomic::{Ordering, fence};

// Invariants
//  1. If `hidden` is not 0, the bits of a span's blocks are 1 exactly of those that are set aside: so many, carved, free, and
//     in no list. Else they mean nothing: who sets the first one aside makes all others 0.
//  2. Pages wait (`waiting`) only while `hidden` is not 0, and only such that `is_free_page` is true of.

/// Bytes of the smallest blocks that are set aside: of smaller ones hundreds would have to be free on one page.
const LEAST: usize = 32;

/// How far frees go until a span's next event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Half of what is in use: nobody shrinks.
    Coarse,
    /// A part of it that leaves few pages unseen.
    Fine,
}

impl Span {
    /// A word of its bits.
    fn word_of(&self, nth: usize) -> *mut u64 {
        address_map::aside(self.index(), self.layout().slices.into(), nth / 64)
    }

    /// Whether its blocks may be set aside: where purged memory is gone, a free block would lose a part of itself, and a
    /// page larger than the span is not its own.
    pub(crate) fn can_set_aside(&self) -> bool {
        os::purged_is_committed()
            && self.layout().size as usize >= LEAST
            && os::page_size() <= self.bytes()
            && self.head() == 0
            && !address_map::is_supplied(self.index())
    }

    /// Whether any block is set aside.
    #[inline]
    pub(crate) fn has_aside(&self) -> bool {
        self.hidden > 0
    }

    /// Whether a block is set aside.
    pub(crate) fn is_set_aside(&self, nth: usize) -> bool {
        // SAFETY: the bits of a block of this span.
        self.hidden > 0 && unsafe { peek(self.word_of(nth), nth) }
    }

    /// Whether the block at `p` is set aside, as far as anybody can tell: the span's owner may be at work.
    ///
    /// # Safety
    /// A block of a span of that class starts there.
    pub(crate) unsafe fn is_set_aside_at(p: *const u8, class: SizeClass) -> bool {
        if Live::IS_KNOWN || class.block_size() < LEAST {
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
        unsafe { peek(address_map::aside(index, class.span_slices(), nth / 64), nth) }
    }

    /// How many blocks are set aside, by their bits.
    pub(crate) fn count_aside(&self) -> usize {
        (0..self.carved.into()).filter(|&nth| self.is_set_aside(nth)).count()
    }

    /// Sets aside what is free here, none of which is in a cache. The pages that have a part of these blocks.
    #[inline(never)]
    pub(crate) fn set_aside(&mut self) -> Pages {
        // SAFETY: this span.
        let mut way = unsafe { SettingAside::begin(self) };
        while way.step() {}
        way.pages
    }

    /// The number of the block that starts there.
    fn number(&self, block: *mut u8) -> usize {
        (block.addr() - self.start.addr()) / self.layout().size as usize
    }

    /// Sets the bit of a block; the pages that have a part of it. Ends the process if it is set.
    ///
    /// # Safety
    /// The caller owns the span. `hidden` does not count the block yet.
    unsafe fn put_aside(&self, nth: usize) -> Pages {
        let (word, size) = (self.word_of(nth), self.layout().size as usize);
        let block = self.start.wrapping_add(nth * size);
        // SAFETY: the caller's.
        unsafe {
            if *word >> (nth % 64) & 1 != 0 {
                os::fatal("free", block, FREED_TWICE);
            }
            *word |= 1 << (nth % 64);
        }
        let from = block.addr() - self.base().addr();
        pages_of(from..from + size)
    }

    /// Those of some pages on which a carved block is, and nothing that is in use or in a list.
    #[inline(never)]
    pub(crate) fn free_among(&self, pages: Pages) -> Pages {
        let (mut left, mut free) = (pages, 0);
        while left != 0 {
            let first = first_run(left).start;
            let page = pages_of(first..first + 1);
            left &= !page;
            if self.is_free_page(first..first + os::page_size()) {
                free |= page;
            }
        }
        free
    }

    /// Whether all carved blocks that have a part on a page are set aside, and there is one.
    fn is_free_page(&self, bytes: Range<usize>) -> bool {
        let (slack, size) = (self.layout().slack as usize, self.layout().size as usize);
        let last = bytes.end.saturating_sub(slack).div_ceil(size);
        let blocks = bytes.start.saturating_sub(slack) / size..last.min(self.carved.into());
        !blocks.is_empty() && self.hidden > 0 && self.are_set_aside(blocks)
    }

    /// Whether all these blocks are, where any is.
    fn are_set_aside(&self, blocks: Range<usize>) -> bool {
        let mut nth = blocks.start;
        while nth < blocks.end {
            let count = (64 - nth % 64).min(blocks.end - nth);
            let bits = u64::MAX >> (64 - count) << (nth % 64);
            // SAFETY: the bits of this span, whose owner this is.
            if unsafe { *self.word_of(nth) } & bits != bits {
                return false;
            }
            nth += count;
        }
        true
    }

    /// All its pages.
    pub(crate) fn pages(&self) -> Pages {
        pages_of(0..self.bytes())
    }

    /// No page waits any more. Those on which nothing is in use or in a list: what waited, and what has gone.
    #[inline(never)]
    pub(crate) fn recall_free(&mut self) -> (Pages, Pages) {
        if !self.has_aside() {
            return (0, 0);
        }
        let free = self.free_among(self.pages());
        let waited = waiting::recall(self.index(), self.layout().slices.into());
        debug_assert_eq!(waited & !free, 0, "invariant 2: what waits is free");
        (waited, free & !waited)
    }

    /// Nothing is set aside any more: all that was is in use, or nothing is.
    pub(crate) fn forget_aside(&mut self) {
        if self.has_aside() {
            self.end_aside();
        }
        self.hidden = 0;
    }

    #[inline(never)]
    fn end_aside(&mut self) {
        let (_, gone) = self.recall_free();
        arena::fill_holes(bytes_of(gone));
    }

    /// Hands out up to `limit` of the blocks that are set aside.
    pub(crate) fn carve_aside(&mut self, limit: usize) -> FreeList {
        let (waited, gone) = self.recall_free();
        let mut list = FreeList::EMPTY;
        let words = usize::from(self.carved).div_ceil(64);
        for nth in 0..words {
            // SAFETY: the bits of this span, whose owner this is.
            let word = unsafe { &mut *self.word_of(64 * nth) };
            while *word != 0 && (list.count as usize) < limit {
                let block = nth * 64 + word.trailing_zeros() as usize;
                *word &= *word - 1;
                let block = self.start.wrapping_add(block * self.layout().size as usize);
                // SAFETY: free, in no list, and the owner's.
                unsafe { Home::hand_out_aside(self, block.cast(), &mut list) };
            }
        }
        self.hidden -= list.count as u16;
        if waited | gone != 0 {
            let free = self.free_among(waited | gone);
            waiting::add(self.index(), free & waited);
            arena::fill_holes(bytes_of(gone & !free));
        }
        list
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
        has_been_large() && [0, owner].contains(&self.let_go_by)
    }

    /// Has an event come before nothing is in use: when so few are that whole pages may be free, and then step by step.
    pub(crate) fn expect_thinner(&mut self, step: Step) {
        let used = self.used();
        let after = if self.can_set_aside() { thinner(self.class(), used, step) } else { 0 };
        self.set_used(used - after, after as i16);
    }
}

/// Whether the process has used as much at once as makes it worth looking for pages around survivors.
pub(crate) fn has_been_large() -> bool {
    address_map::described() >= THIN_SLICES
}

/// Blocks in use in a span with so many when it is to be looked at again.
pub(super) fn thinner(class: SizeClass, used: u32, step: Step) -> u32 {
    let blocks = u32::from(class.layout().blocks);
    let pages = (class.span_slices() * SLICE_SIZE / os::page_size()) as u32;
    let first = (THIN_BLOCKS * pages).min(blocks - blocks / 4);
    match step {
        _ if used > first => first,
        Step::Coarse => used / 2,
        Step::Fine => used - used.div_ceil(if used > pages { THIN_FIRST_STEP } else { THIN_STEP }),
    }
}

/// A span whose free blocks are being set aside, one after the other: each one tells the next. Who goes through several in
/// turn waits for their blocks' cache lines together.
pub(crate) struct SettingAside {
    pub(crate) span: *mut Span,
    next: *mut Block,
    /// Those that have a part of the blocks up to here.
    pub(crate) pages: Pages,
}

impl SettingAside {
    /// No span.
    pub(crate) const NONE: SettingAside = SettingAside { span: null_mut(), next: END, pages: 0 };

    /// Takes what is free; where no links lead there, all at once.
    ///
    /// # Safety
    /// The span is the caller's, and stays until the last step.
    #[inline(never)]
    pub(crate) unsafe fn begin(span: *mut Span) -> SettingAside {
        // SAFETY: the caller's.
        let this = unsafe { &mut *span };
        if this.hidden == 0 {
            // SAFETY: the bits of this span, whose owner this is.
            (0..this.carved.into()).step_by(64).for_each(|nth| unsafe { *this.word_of(nth) = 0 });
            // Release: who sees that some are set aside sees no bit of what was here before: it would accuse a legal free.
            fence(Ordering::Release);
        }
        let (next, mut pages, mut count) = (Home::unlink(this), 0, 0);
        Home::each_unlinked(this, |nth| {
            // SAFETY: the bits of this span, whose owner this is.
            pages |= unsafe { this.put_aside(nth) };
            count += 1;
        });
        this.hidden += count;
        SettingAside { span, next, pages }
    }

    /// Whether there was another block.
    pub(crate) fn step(&mut self) -> bool {
        if self.next == END {
            return false;
        }
        let block = self.next;
        // SAFETY: free blocks are the owner's, and so are the bits; the span stays meanwhile.
        unsafe {
            self.next = Block::next(block);
            let span = &mut *self.span;
            self.pages |= span.put_aside(span.number(block.cast()));
            span.hidden += 1;
        }
        true
    }
}

/// The bit of a block in its word. Volatile: others than the owner look, too.
unsafe fn peek(word: *const u64, nth: usize) -> bool {
    // SAFETY: the caller's.
    unsafe { word.read_volatile() >> (nth % 64) & 1 != 0 }
}
