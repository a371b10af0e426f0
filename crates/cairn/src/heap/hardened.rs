//! Owns: in the hardened build, the way of free blocks from their span to a cache and back.
//! Idea: what has been freed waits in the cache's quarantine. Before it goes home nothing of a span may be looked for
//!   there, so whoever lets a span go empties the cache of that span's blocks first.
//! Never: does anything in the default build, whose caches are lists.
//! Threads: as `heap`.
//! Checked: `Heap::check`; tests/quarantine.rs.
//! Story: docs/design/policy.md

use crate::base::{SLICE_SIZE, SizeClass};
use crate::heap::Heap;
use crate::heap::tuning::RELEASE_TICKS;
use crate::map::Block;
use crate::spans::Span;
use crate::store::{Caches, Store};

impl Heap {
    /// Makes what has been freed ready, if that is enough, and pops a block; or null. Now and then that is a slow tick.
    #[inline]
    pub(crate) fn serve_freed(&mut self, class: SizeClass) -> *mut Block {
        if self.caches.is_tick() {
            self.slow_tick();
            self.refilled |= class.bit();
            self.set_ordinary();
        }
        // SAFETY: this heap's own.
        unsafe { Caches::turn(&raw mut self.caches, class) }
    }

    /// A span that is to be abandoned, or null. In the hardened build the cache has none of its blocks then: only the owner of
    /// a span may say in the table of live blocks what becomes of them. `&mut`: its thread may be outside (`Heap::_read`).
    pub(crate) fn without_held(&mut self, pick: impl Fn(&mut Heap) -> *mut Span) -> *mut Span {
        loop {
            let span = pick(self);
            // SAFETY: null, or a span that this heap owns.
            let Some(held) = (unsafe { span.as_ref() }) else { return span };
            self.empty_quarantine_into(held.class(), held.base());
            if pick(self) == span {
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
        // SAFETY: this heap's own.
        assert_eq!(unsafe { Caches::peek_len(&raw const self.caches, class) }, cached as usize);
    }

    /// Now and then when a span has been released: what waits is of any spans, and in a burst of frees each block would
    /// hold one.
    pub(crate) fn keep_little_back(&mut self, class: SizeClass) {
        if Caches::IS_MIXED && self.slow_ticks.is_multiple_of(RELEASE_TICKS) {
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
        loop {
            // SAFETY: this heap's own. Each is home before the next is looked for: an event may empty it, too.
            unsafe {
                let block = Caches::take_one(&raw mut self.caches, class, &is_meant);
                if block.is_null() {
                    return;
                }
                self.put_back(class, block);
            }
        }
    }
}
