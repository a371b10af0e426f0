//! Owns: in the hardened build, the way of free blocks from their span to a cache and back.
//! Idea: what has been freed waits in the cache's quarantine. Before it goes home nothing of a span may be looked for
//!   there, so whoever lets a span go empties the cache of that span's blocks first.
//! Never: does anything in the default build: constants fold it away.
//! Threads: as `heap`.
//! Checked: `Heap::check`; tests/quarantine.rs.
//! Story: docs/design/policy.md

use crate::base::policy::HARDENED;
use crate::base::size_class::{SLICE_SIZE, SizeClass};
use crate::base::tuning::CACHE_UNITS;
use crate::heap::Heap;
use crate::heap::tuning::RELEASE_TICKS;
use crate::map::block::Block;
use crate::spans::span::Span;
use crate::spans::span_list::SpanList;
use crate::store::caches::{Caches, Limit};
use crate::store::quarantine::{self, READY};

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
        if HARDENED && self.slow_ticks.is_multiple_of(RELEASE_TICKS) {
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
