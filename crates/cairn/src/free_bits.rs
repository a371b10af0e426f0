//! Owns: in the hardened build, which free blocks are at home in their span, a bit for each; and their way from
//!   there to a cache and back.
//! Idea: a free block carries nothing, so there is nothing in it to overwrite; and which of them come next is a
//!   matter of where one begins to look.
//! Never: is asked in the default build, whose free blocks are linked.
//! Threads: as `span` and `heap`.
//! Checked: `Span::check`; tests/quarantine.rs.
//! Story: docs/design/policy.md

use crate::block::{Block, Chain};
use crate::caches::{Caches, Limit};
use crate::heap::Heap;
use crate::live::came_home;
use crate::os;
use crate::quarantine::{self, Filling, READY};
use crate::size_class::{CACHE_UNITS, SizeClass};
use crate::span::Span;
use crate::sync::touched;
use core::ops::Range;

// Invariants
//  1. A bit is set exactly if its block is at home: carved, free, in no cache and no hole, and not pending. Their
//     number is `Span::free`.
//  2. The head of such a block is zero unless somebody has written to it (see `quarantine`).

const BITS: usize = u64::BITS as usize;

impl Span {
    /// The word of the bit of a block.
    #[inline(always)]
    fn word_of(&mut self, nth: usize) -> &mut u64 {
        debug_assert!(nth < usize::from(self.layout().blocks));
        // SAFETY: there is a bit for each block; in the default build nobody asks.
        unsafe { self.bits.get_unchecked_mut(nth / BITS) }
    }

    /// A block is at home.
    ///
    /// # Safety
    /// It is the caller's, and one of this span.
    #[inline(always)]
    pub(crate) unsafe fn keep(&mut self, block: *mut Block) {
        touched(self);
        let layout = self.layout();
        let offset = (block.addr() - self.start.addr()) as u64;
        let nth = (offset.wrapping_mul(layout.inverse) >> layout.size.trailing_zeros()) as usize;
        let word = self.word_of(nth);
        debug_assert_eq!(*word & 1 << (nth % BITS), 0);
        *word |= 1 << (nth % BITS);
    }

    /// Some that no list has held are at home.
    pub(crate) fn keep_new(&mut self, blocks: Range<usize>) -> Chain {
        let count = blocks.len() as u32;
        for nth in blocks {
            let block = self.start.wrapping_add(nth * self.layout().size as usize);
            // Where its memory is zero already, too: `malloc` reads first, and a page that is read before it is
            // written to takes the kernel two steps.
            // SAFETY: untouched blocks are the owner's.
            unsafe { quarantine::zero(block.cast(), self.class()) };
            *self.word_of(nth) |= 1 << (nth % BITS);
        }
        Chain::at_home(count)
    }

    /// The numbers of those that are.
    pub(crate) fn kept(&self) -> impl Iterator<Item = usize> {
        let is_kept = |nth: &usize| self.bits[nth / BITS] >> (nth % BITS) & 1 != 0;
        (0..usize::from(self.carved)).filter(is_kept)
    }

    /// A piece of the span is going to be a hole: its blocks are not at home any more.
    pub(crate) fn hide(&mut self, piece: usize) {
        let blocks = self.blocks_of(piece);
        if !blocks.is_empty() {
            self.holes |= 1 << piece;
            self.hidden += blocks.len() as u16;
            blocks.for_each(|nth| *self.word_of(nth) &= !(1 << (nth % BITS)));
        }
    }

    /// Hands `count` of them out, as many as there are at least. Which, chance decides.
    #[inline]
    pub(crate) fn take_kept(&mut self, count: u32, filling: &mut Filling) {
        touched(self);
        debug_assert!(count <= self.free());
        let (size, start) = (self.layout().size as usize, self.start);
        let used_words = usize::from(self.carved).div_ceil(BITS);
        let random = filling.random;
        let mut at = ((random >> 32) as usize * used_words) >> 32;
        let mut left = count;
        // In the first word it begins anywhere, too: what is in front comes last.
        let mut allowed = !0 << (random >> 26 & (BITS as u64 - 1));
        // Each word once, and the first one again for what is in front.
        for _ in 0..=used_words {
            let word = self.word_of(at * BITS);
            let (stay, mut found) = (*word & !allowed, *word & allowed);
            while found != 0 && left > 0 {
                let nth = at * BITS + found.trailing_zeros() as usize;
                found &= found - 1;
                // SAFETY: a free block of this span, and the caller's from here on.
                unsafe { filling.add(start.wrapping_add(nth * size).cast()) };
                left -= 1;
            }
            *word = stay | found;
            if left == 0 {
                break;
            }
            at = if at + 1 == used_words { 0 } else { at + 1 };
            allowed = !0;
        }
        if left > 0 {
            os::broken("a span has fewer free blocks than it counts");
        }
        self.until_event += count;
    }

    /// Takes home what others have freed, pending until now. Ends the process if one of these has come home before.
    pub(crate) fn come_home(&mut self, chain: Chain) {
        let mut count = 0;
        came_home(chain, |block| {
            // SAFETY: it is this span's, and free.
            unsafe {
                Block::unmark(block);
                self.keep(block);
            }
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

impl Heap {
    /// Fills the cache of a class, in which no block is ready, with some that the active span has at home; pops one.
    pub(crate) fn fill_from_home(
        &mut self,
        class: SizeClass,
        count: u32,
        limit: Limit,
    ) -> *mut Block {
        debug_assert!((1..=READY).contains(&count));
        let (caches, span) = (&raw mut self.caches, self.active[class.index()]);
        // SAFETY: this heap's own. What is taken from home is its own, too.
        unsafe {
            (*caches).left[class.index()] = Limit((limit.0 / CACHE_UNITS).min(READY as i32));
            let quarantine = &raw mut (*caches).quarantine;
            let mut filling = quarantine::begin(quarantine, caches.cast(), class);
            (*span).take_kept(count, &mut filling);
            quarantine::end(quarantine, class, filling);
            Caches::pop(caches, class)
        }
    }

    /// Before a refill: lets a full span go if there are too many. They are more than in the default build, so before
    /// the heap takes a new one it looks for others' frees in them.
    pub(crate) fn keep_fewer_full(&mut self, class: SizeClass) {
        if self.has_too_many_full() {
            self.drop_oldest_full();
        }
        self.collect_before_growing(class);
    }

    /// Frees a block that has waited for a while; some of these are slow ticks.
    ///
    /// # Safety
    /// As for `put_back`.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn take_home(&mut self, class: SizeClass, block: *mut Block) {
        let is_tick = self.caches.quarantine.is_tick();
        // SAFETY: the block is this heap's.
        unsafe { self.put_back(class, block) };
        if is_tick {
            self.slow_tick();
        }
    }

    /// Frees all blocks of a class that are ready or wait.
    pub(crate) fn empty_quarantine(&mut self, class: SizeClass) {
        let caches = &raw mut self.caches;
        loop {
            // SAFETY: this heap's own. Each is home before the next is looked for: an event may empty it, too.
            unsafe {
                let quarantine = &raw mut (*caches).quarantine;
                let block = quarantine::take_one(quarantine, caches.cast(), class);
                if block.is_null() {
                    return;
                }
                self.put_back(class, block);
            }
        }
    }
}
