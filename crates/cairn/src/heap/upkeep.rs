//! Owns: what a heap does now and then on its slow path, and when its thread leaves.
//! Idea: a bounded step per visit, so that no single call pays for the others.
//! Never: is reached from a fast path.
//! Threads: as `heap`.
//! Checked: see `heap`.
//! Story: docs/design/upkeep.md

use super::{Heap, LOOK, pool, salvage};
use crate::address_map;
use crate::block::{Block, Chain};
use crate::size_class::{CLASS_COUNT, CLASSES};
use crate::span::{Span, SpanList};
use crate::sync::Ordering;
use crate::{abandoned, arena, large, os};
use core::ptr::null_mut;

/// Visits between upkeeps. Half of it reads the clock more often than a refill is long; twice
/// of it leaves batches of remote frees lying.
pub(super) const UPKEEP_TICKS: u32 = 64;
/// Large blocks for a visit: a loop over one that the heap keeps takes 10 ns, and upkeep 300.
const LARGE_TICKS: u32 = 16;
/// Slices of full spans that a heap tries to hold on to between upkeeps, if it has not paid.
const FULL_PROBE: usize = 4;
/// Classes looked at in one upkeep; a whole round takes 14.
const CLASSES_AT_ONCE: usize = 4;
/// A heap is slow if it makes fewer slow_ticks than milliseconds pass, and this many: the clock is
/// coarse. Half of it takes a few slow_ticks around the clock's step for a slow heap. Or a 16th of the
/// purge delay: where nothing is given back by time, none is slow.
const QUIET_MS: usize = 16;
/// Findings in a row, after which it looks for holes: a pause between two phases is none.
const HOLES_AFTER: u32 = 2;
/// Spans that are searched for holes in one upkeep, ...
const SWEEP: usize = 128;
/// ... unless that takes longer: a hole in a huge page may take 0.1 ms. Twice of it shows in the
/// slowest allocation of a program, half of it is the time of one such hole.
const SWEEP_NS: u64 = 200_000;

/// Asks all heaps to give back what they can at their next slow tick.
pub(crate) fn request_trim() {
    os::notify_all();
}

/// One step of upkeep by the clock: in a forked child, takes over some of what threads had that it does
/// not have; gives back what has lain idle for a purge delay, a batch of it at each call; whether there is more to give back right now. Any thread, at any time.
pub fn tick() -> bool {
    salvage::step();
    arena::tick(os::now_ms());
    arena::in_debt()
}

impl Heap {
    /// Counts a slow tick, and does upkeep when it is due.
    #[inline]
    pub(super) fn slow_tick(&mut self) {
        self.slow_ticks = self.slow_ticks.wrapping_add(1);
        if self.slow_ticks.is_multiple_of(UPKEEP_TICKS)
            || self.quiet > 0
            || arena::in_debt()
            || self.trims_seen != os::notices()
        {
            self.upkeep();
        }
    }

    /// Counts a large block that is allocated: some are slow slow_ticks.
    #[inline]
    pub(crate) fn count_large(&mut self) {
        self.large_blocks = self.large_blocks.wrapping_add(1);
        if self.large_blocks.is_multiple_of(LARGE_TICKS) {
            self.slow_tick();
        }
    }

    /// Whether the last visit was one with upkeep.
    pub(super) fn is_due(&self) -> bool {
        self.slow_ticks.is_multiple_of(UPKEEP_TICKS) || arena::in_debt()
    }

    #[cold]
    fn upkeep(&mut self) {
        os::notice_fork();
        let trims = os::settled_notices();
        if self.trims_seen != trims {
            self.trims_seen = trims;
            self.flush();
            (0..CLASS_COUNT).for_each(|class| self.settle(class, usize::MAX, false));
        }
        if self.slow_ticks.is_multiple_of(UPKEEP_TICKS) || self.quiet > 0 {
            self.flush();
            self.remote_frees /= 2;
            large::drop_cached(&self.large_cache);
            let _ = (0..LOOK).all(|_| self.has_too_many_full() && self.abandon_one_full());
            if !self.is_shared {
                self.full_limit = self.full_limit.max(FULL_PROBE);
            }
            self.judge_quiet(os::now_ms());
            if self.quiet > HOLES_AFTER && !self.is_shared {
                self.sweep();
            }
            let every = if self.quiet > 0 { 1 } else { UPKEEP_TICKS };
            let step = (self.slow_ticks / every) as usize * CLASSES_AT_ONCE;
            for class in step..step + CLASSES_AT_ONCE {
                self.review(class % CLASS_COUNT);
            }
        }
        // Others wait for the shared heap: whoever has asked for it ticks when it is free again.
        if !self.is_shared {
            tick();
        }
    }

    /// Finds out whether the heap is slow: then it makes a visit with each allocation, and has time
    /// for what only the owner of a span can give back.
    pub(super) fn judge_quiet(&mut self, now_ms: u64) {
        let ms = (now_ms as u32).wrapping_sub(self.judged.0);
        let slow_ticks = self.slow_ticks.wrapping_sub(self.judged.1);
        let slow = ms as usize > slow_ticks as usize + QUIET_MS.max(arena::purge_delay_ms() / 16);
        if slow || slow_ticks >= UPKEEP_TICKS / 2 {
            self.quiet = if slow && self.judged.0 > 0 { self.quiet.saturating_add(1) } else { 0 };
            self.judged = (now_ms as u32, self.slow_ticks);
        }
    }

    /// Makes holes in the next few spans of `partial`.
    fn sweep(&mut self) {
        let end = os::now_ns() + SWEEP_NS;
        for _ in 0..SWEEP {
            if self.sweep_next.is_null() {
                self.sweep_class = (self.sweep_class + 1) % CLASS_COUNT;
                self.sweep_next = self.partial[self.sweep_class].first();
                continue;
            }
            // SAFETY: invariant 5.
            unsafe {
                (*self.sweep_next).make_holes();
                self.sweep_next = SpanList::after(self.sweep_next);
            }
            if os::now_ns() >= end {
                break;
            }
        }
    }

    /// Looks at a few spans of a class; lets them go if the class has not been needed for a round
    /// and other threads might need it.
    fn review(&mut self, class: usize) {
        let cold = self.refilled & 1 << class == 0;
        self.refilled &= !(1 << class);
        if cold {
            self.empty_cache(class);
        }
        self.settle(class, LOOK, cold && pool::in_use() > 1);
    }

    /// Frees the blocks of a class's allocation list into their spans, which they keep alive; it
    /// takes in no more until the class is refilled.
    pub(super) fn empty_cache(&mut self, class: usize) {
        self.cache_left[class] = 0;
        let mut block = core::mem::replace(&mut self.cache[class], null_mut());
        while !block.is_null() {
            // SAFETY: invariant 1: the blocks are this heap's; the link is read first.
            unsafe {
                let next = Block::next(block);
                self.put_back(class, block);
                block = next;
            }
        }
    }

    /// Collects what others have freed in the first `most` spans of `partial`; releases those that
    /// are empty, and lets go of all if `leave`.
    fn settle(&mut self, class: usize, most: usize, leave: bool) {
        let mut at = self.partial[class].first();
        for _ in 0..most {
            if at.is_null() {
                break;
            }
            // SAFETY: members of `partial` are held by this heap; the next one is read before
            // this one may go.
            unsafe {
                let span = at;
                at = SpanList::after(span);
                if !(*span).has_local_free() {
                    (*span).absorb((*span).collect());
                }
                if (*span).used() == 0 || leave {
                    self.take_out(class, span);
                    self.abandon(span);
                }
            }
        }
    }

    /// Gives everything up: the blocks in hand, the batches under way, all spans.
    pub(crate) fn abandon_all(&mut self) {
        (0..CLASS_COUNT).for_each(|class| self.empty_cache(class));
        self.flush();
        large::drop_cached(&self.large_cache);
        self.remote_frees = 0;
        (0..CLASS_COUNT).for_each(|class| self.deactivate(class));
        // Before `partial`: what others have just freed into goes there.
        while self.abandon_one_full() {}
        for class in 0..CLASS_COUNT {
            while self.partial[class].len() > 0 {
                self.settle(class, usize::MAX, true);
            }
        }
    }

    /// Lets go of one span of the full list; false if there is none.
    fn abandon_one_full(&mut self) -> bool {
        let span = self.full.first();
        if !span.is_null() {
            // SAFETY: it is in that list, and held by this heap.
            unsafe {
                let class = (*span).class() % CLASS_COUNT;
                self.unlist(class, span);
                self.abandon(span);
            }
        }
        !span.is_null()
    }

    /// Frees a block of the allocation list into its span.
    unsafe fn put_back(&mut self, class: usize, block: *mut Block) {
        let d = address_map::descriptor(block.cast());
        let span: *mut Span = d.slot.load(Ordering::Relaxed).cast();
        // SAFETY: the block is this heap's to free; a span that names this heap is its own.
        unsafe {
            if d.owner.load(Ordering::Relaxed) != Heap::tag(self) {
                let slices = CLASSES[class].slices as usize;
                let index = address_map::slice_of(block.cast()) & !(slices - 1);
                self.push(index, Chain::one(block));
            } else if (*span).push_local(block) {
                self.span_event(span);
            }
        }
    }

    /// Gives up a held span that is in no list.
    unsafe fn abandon(&mut self, span: *mut Span) {
        // SAFETY: the caller holds the span.
        unsafe {
            if !(*span).has_local_free() {
                (*span).absorb((*span).collect());
            }
            if (*span).used() == 0 || (*span).has_blocks() {
                // If it cannot be left, nothing is in use any more.
                if (*span).used() == 0 || !abandoned::list(span) {
                    (*span).empty();
                    (*span).release();
                }
            } else if !self.abandon_full(span) {
                self.partial[(*span).class() % CLASS_COUNT].push_back(span);
            }
        }
    }
}
