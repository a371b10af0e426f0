//! Owns: in the hardened build, the way of free blocks from their span to a cache and back.
//! Idea: a free block carries nothing, so there is nothing in it to overwrite. What is at home is what has been carved,
//!   is not the program's (see `live`), and in no cache; and which of them come next is a matter of where one begins
//!   to look.
//! Never: does anything in the default build, whose free blocks are linked: constants fold it away.
//! Threads: as `span` and `heap`.
//! Checked: `Span::check`, `Heap::check`; tests/quarantine.rs.
//! Story: docs/design/policy.md

use crate::base::policy::HARDENED;
use crate::base::size_class::{CACHE_UNITS, ClassLayout, MIN_ALIGN, SLICE_SIZE, SizeClass};
use crate::base::sync::touched;
use crate::heap::Heap;
use crate::map::block::{Block, Chain};
use crate::os;
use crate::spans::span::Span;
use crate::spans::span_list::SpanList;
use crate::store::caches::{Caches, Limit};
use crate::store::live::{self, PLACES, came_home};
use crate::store::quarantine::{self, Filling, READY, below};
use core::ops::Range;

// Invariants
//  1. A carved block that is not the program's, in no hole and not pending is at home, or in a cache of the heap that
//     owns the span: `Span::free` counts those at home. Where a refill takes blocks from home, its cache has none of the
//     span's, or hides them.
//  2. The head of such a block is zero unless somebody has written to it (see `quarantine`).

/// Blocks of a span of one slice that are looked at one by one; those of longer spans always are.
const FEW: u16 = 32;
/// Slow ticks after which a cache is emptied when a span has been released.
const RELEASES: u32 = 8;

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
            ClassLayout { slices: 1, blocks: FEW.., .. } => self.take_many(most, filling),
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

impl Heap {
    /// Makes what has been freed ready, if that is enough, and pops a block; or null. Now and then that is a slow tick.
    #[inline]
    pub(crate) fn serve_freed(&mut self, class: SizeClass) -> *mut Block {
        if self.caches.quarantine.is_tick() {
            self.slow_tick();
            self.refilled |= class.bit();
            self.set_ordinary();
        }
        let (caches, most) = (&raw mut self.caches, self.caches.left(class));
        // SAFETY: this heap's own.
        unsafe { quarantine::turn(&raw mut (*caches).quarantine, caches.cast(), class, most) }
    }

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
            let most = quarantine::room(limit.0 / CACHE_UNITS);
            (*caches).left[class.index()] = if most > 0 { Limit(most) } else { limit };
            let quarantine = &raw mut (*caches).quarantine;
            let mut filling = quarantine::begin(quarantine, caches.cast(), class);
            quarantine::hide(quarantine, caches.cast(), class);
            (*span).take_kept(count, &mut filling);
            quarantine::show(quarantine, caches.cast(), class);
            quarantine::end(quarantine, class, filling, most);
            Caches::pop(caches, class)
        }
    }

    /// A full span that is to be abandoned, or null. In the hardened build the cache has none of its blocks then: only the
    /// owner of a span may say in the table of live blocks what becomes of them.
    pub(crate) fn full_without_held(&mut self, pick: fn(&SpanList) -> *mut Span) -> *mut Span {
        loop {
            let span = pick(&self.full);
            // SAFETY: null, or a span that this heap owns.
            let held = unsafe { span.as_ref() }.filter(|_| HARDENED);
            let Some((class, base)) = held.map(|span| (span.class(), span.base())) else {
                return span;
            };
            self.empty_quarantine_into(class, base);
            if pick(&self.full) == span {
                return span;
            }
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

    /// The caches of a class have the blocks of its spans that are neither the program's nor at home.
    pub(crate) fn check_cached(&self, class: SizeClass) {
        // SAFETY: null, or a span that this heap owns.
        let active = unsafe { self.active[class.index()].as_ref() };
        let owned = self.partial[class.index()].iter().chain(self.full.iter()).chain(active);
        let owned = owned.filter(|span| span.class() == class);
        let cached = owned.map(|span| span.kept().count() as u32 - span.free()).sum::<u32>();
        assert_eq!(self.caches.quarantine.len(class), cached);
    }

    /// Now and then when a span has been released: what waits is of any spans, and in a burst of frees each block would
    /// hold one.
    pub(crate) fn keep_little_back(&mut self, class: SizeClass) {
        if HARDENED && self.slow_ticks.is_multiple_of(RELEASES) {
            self.empty_cache(class);
        }
    }

    /// Frees all blocks of a class that are ready or wait.
    pub(crate) fn empty_quarantine(&mut self, class: SizeClass) {
        self.empty_quarantine_of(class, |_| true);
    }

    /// Frees those of them that lie in a span.
    pub(crate) fn empty_quarantine_into(&mut self, class: SizeClass, base: *mut u8) {
        let (first, bytes) = (base.addr(), class.span_slices() * SLICE_SIZE);
        self.empty_quarantine_of(class, |block| block.addr().wrapping_sub(first) < bytes);
    }

    fn empty_quarantine_of(&mut self, class: SizeClass, is_meant: impl Fn(*mut Block) -> bool) {
        let caches = &raw mut self.caches;
        loop {
            // SAFETY: this heap's own. Each is home before the next is looked for: an event may empty it, too.
            unsafe {
                let quarantine = &raw mut (*caches).quarantine;
                let block = quarantine::take_one(quarantine, caches.cast(), class, &is_meant);
                if block.is_null() {
                    return;
                }
                self.put_back(class, block);
            }
        }
    }
}
