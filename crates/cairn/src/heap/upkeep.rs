//! Owns: what a heap does now and then on its slow path, and when its thread leaves.
//! Idea: a bounded step per slow tick, so that no single call pays for the others.
//! Never: is reached from a fast path.
//! Threads: as `heap`.
//! Checked: see `heap`.
//! Story: docs/design/upkeep.md

use super::{Heap, Role};
use crate::base::{Ordering, SizeClass, shares};
use crate::heap::tuning::{
    CLASSES_AT_ONCE, FULL_PROBE, HOLES_AFTER, LARGE_TICKS, LOOK_SPANS, QUIET_MS, SWEEP_SPANS,
    UPKEEP_TICKS,
};
use crate::map::{Block, Chain, END, address_map};
use crate::slices::{arena, limit};
use crate::spans::{Span, SpanList};
use crate::store::Store;
use crate::{heap::process_upkeep, large, os, samples};

/// What becomes of partial spans when what others have freed in them has been collected.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Keep,
    Abandon,
}

/// A pause that says something, in milliseconds.
fn pause_ms() -> usize {
    QUIET_MS.max(arena::purge_delay_ms() / 16)
}

impl Heap {
    // slow_tick          each refill, some large blocks, batches that leave
    //   upkeep           each 64th; each one of a quiet heap; when somebody wants a purge, or a tool outside samples
    //     answer_trim    somebody has asked for a purge, or memory is scarce: batches leave, empty spans go
    //     turn           batches leave, full spans that do not pay go, four classes are looked at
    //       judge_quiet  the pace by the clock
    //       sweep        a quiet heap: holes; another: partial spans that others have emptied
    //       review       one class: what it does not need is let go
    //     tick           the arena's part: purges what has lain idle

    /// Counts a slow tick, and does upkeep when it is due.
    #[inline]
    pub(crate) fn slow_tick(&mut self) {
        self.slow_ticks = self.slow_ticks.wrapping_add(1);
        if self.is_due() || self.trims_seen != os::notices() {
            self.upkeep();
        }
    }

    /// Counts a large block that is allocated: some are slow ticks.
    #[inline]
    pub(crate) fn count_large(&mut self) {
        self.large_blocks = self.large_blocks.wrapping_add(1);
        if self.large_blocks.is_multiple_of(LARGE_TICKS) {
            self.slow_tick();
        }
    }

    /// Whether the last slow tick was one with upkeep. What a tool outside asks for `process_upkeep` does.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        let tick = self.slow_ticks;
        tick & self.upkeep_mask == 0 || arena::in_debt() || samples::hears_at(tick)
    }

    #[cold]
    fn upkeep(&mut self) {
        os::notice_fork();
        let _inside = self.presence.enter();
        self.answer_trim();
        if self.slow_ticks & self.upkeep_mask == 0 {
            self.turn();
        }
        // Others wait for the shared heap: whoever has asked for it ticks when it is free again.
        if !self.is_shared() {
            process_upkeep::tick();
        }
    }

    fn answer_trim(&mut self) {
        let before = core::mem::replace(&mut self.trims_seen, os::settled_notices());
        if before != self.trims_seen {
            self.follow_sampling();
            self.flush();
            self.release_in_hand();
            large::drop_cached(&self.large_cache);
            if !os::are_thorough(before, self.trims_seen) {
                self.collect_full(SWEEP_SPANS);
                return self.sweep();
            }
            self.collect_full(usize::MAX);
            SizeClass::all().for_each(|class| self.collect_partial(class, usize::MAX, Then::Keep));
        }
    }

    /// Does as `sampling` and `deferred` say now. What the caches hold has not been counted: it goes back.
    pub(crate) fn follow_sampling(&mut self) {
        let defers = self.deferred.follow();
        self.sampling.set_defers(self.deferred.is_on() && !self.is_shared());
        self.sampling.set_tells(limit::is_pending() && !self.is_shared());
        if defers {
            // What comes now is the same in each run of a program.
            (self.quiet, self.slow_ticks, self.upkeep_mask) = (0, 0, UPKEEP_TICKS - 1);
        }
        if !self.is_shared() && (self.sampling.follow(!self.is_closed()) || defers) {
            SizeClass::all().for_each(|class| self.empty_cache(class));
            self.set_ordinary();
        }
    }

    fn turn(&mut self) {
        self.flush();
        self.remote_frees /= 2;
        self.emptied /= 2;
        large::drop_cached(&self.large_cache);
        let _ = (0..LOOK_SPANS).all(|_| self.has_too_many_full() && self.abandon_one_full());
        self.collect_earned();
        if !self.is_shared() {
            self.full_limit = self.full_limit.max(FULL_PROBE);
        }
        self.judge_quiet();
        // Where the program is called, the clock has no say in which allocations do that.
        let is_due = self.quiet > HOLES_AFTER || self.sampling.defers() || self.is_time_to_sweep();
        if is_due && !self.is_shared() && !arena::keeps() {
            self.sweep();
        }
        let step = (self.slow_ticks / (self.upkeep_mask + 1)) as usize * CLASSES_AT_ONCE;
        if SizeClass::in_turn(step).index() == 0 {
            self.review_empty();
        }
        for class in step..step + CLASSES_AT_ONCE {
            self.review(SizeClass::in_turn(class));
        }
    }

    /// Finds out whether the heap is quiet: then each allocation is a slow tick, and has time for
    /// what only the owner of a span can give back.
    pub(super) fn judge_quiet(&mut self) {
        let (since, before) = self.judged;
        let now_ms = os::now_ms();
        let ms = (now_ms as u32).wrapping_sub(since);
        let ticks = self.slow_ticks.wrapping_sub(before);
        let is_quiet = ms as usize > ticks as usize + pause_ms() && !self.sampling.defers();
        if is_quiet || ticks >= UPKEEP_TICKS / 2 {
            self.quiet = if is_quiet && since > 0 { self.quiet.saturating_add(1) } else { 0 };
            self.upkeep_mask = if self.is_quiet() { 0 } else { UPKEEP_TICKS - 1 };
            self.judged = (now_ms as u32, self.slow_ticks);
        }
        self.set_ordinary();
    }

    /// Whether a pause has passed since this last answered true: near a limit, any time by the clock.
    fn is_time_to_sweep(&mut self) -> bool {
        let since = (self.judged.0 as u16).wrapping_sub(self.swept);
        let pause = if limit::is_near() { 1 } else { pause_ms() };
        let is_time = usize::from(since) >= pause.min(usize::from(u16::MAX / 2));
        self.swept = self.swept.wrapping_add(if is_time { since } else { 0 });
        is_time
    }

    /// Whether it was found quiet when it was last judged.
    pub(super) fn is_quiet(&self) -> bool {
        self.quiet > 0
    }

    /// Whether its refills are not like others: it is quiet, sampled, closed, or the program is called.
    pub(super) fn is_careful(&self) -> bool {
        self.is_quiet() || self.sampling.is_careful() || self.is_closed()
    }

    /// Whether a refill would be an ordinary one, were it not for samples drawn by chance.
    #[cold]
    pub(super) fn is_only_sampled(&self, class: SizeClass) -> bool {
        self.sampling.is_by_chance()
            && self.refilled & class.bit() != 0
            && !(self.sampling.defers() || self.is_quiet() || self.is_closed())
    }

    /// Says which refills are ordinary ones.
    pub(crate) fn set_ordinary(&mut self) {
        self.ordinary = if self.is_careful() { 0 } else { self.refilled };
    }

    /// Looks at a few spans of a class; lets them go if the class has not been needed for a round
    /// and other threads might need it.
    fn review(&mut self, class: SizeClass) {
        let is_cold = self.refilled & class.bit() == 0;
        self.refilled &= !class.bit();
        self.ordinary &= self.refilled;
        if is_cold {
            self.empty_cache(class);
        }
        let leave = is_cold && shares::in_use() > 1 && !self.is_closed() && !self.thinning.is_on();
        self.collect_partial(class, LOOK_SPANS, if leave { Then::Abandon } else { Then::Keep });
    }

    /// Frees the blocks of a class's cache into their spans, which they keep alive; it takes in no
    /// more until the class is refilled.
    pub(crate) fn empty_cache(&mut self, class: SizeClass) {
        let _inside = self.presence.enter();
        let list = self.caches.take_all(class);
        self.put_all_back(class, list);
        self.empty_quarantine(class);
    }

    /// Frees the blocks of a list into their spans.
    pub(super) fn put_all_back(&mut self, class: SizeClass, mut list: *mut Block) {
        while list != END {
            // SAFETY: invariant 1: the blocks are this heap's; the link is read first.
            unsafe {
                let next = Block::next(list);
                self.put_back(class, list);
                list = next;
            }
        }
    }

    /// Frees a block of the cache into its span.
    ///
    /// # Safety
    /// The block is this heap's, out of the cache of `class`.
    #[inline(always)]
    pub(crate) unsafe fn put_back(&mut self, class: SizeClass, block: *mut Block) {
        let d = address_map::descriptor(block.cast());
        let span: *mut Span = d.slot.load(Ordering::Relaxed).cast();
        // SAFETY: the block is this heap's to free; a span that names this heap is its own.
        unsafe {
            if d.owner.load(Ordering::Relaxed) != self.owner {
                let index = address_map::span_index(block.cast(), class);
                self.push(index, Chain::one(block), None);
            } else if (*span).push_local(block) {
                self.span_event(span);
            }
        }
    }

    /// Collects what others have freed in the first `most` spans of `partial`; releases those that
    /// are empty, and perhaps abandons the others.
    pub(crate) fn collect_partial(&mut self, class: SizeClass, most: usize, then: Then) {
        let mut at = self.partial[class.index()].first();
        for _ in 0..most.min(self.partial[class.index()].len()) {
            // SAFETY: this heap owns the members of `partial`; the next one is read before this
            // one may go.
            unsafe {
                let span = at;
                at = SpanList::after(span);
                // To touch what is free already costs: only who wants all does.
                if most == usize::MAX || !(*span).has_local_free() {
                    (*span).take_in();
                }
                if (*span).used() == 0 && !self.member.holds(&mut *span) || then == Then::Abandon {
                    self.remove_partial(class, span);
                    self.abandon(span);
                } else if (*span).used_after_event == 0 && self.role != Role::Shared {
                    (*span).expect_thinner_of(self.owner);
                }
            }
        }
    }

    /// Gives everything up: the blocks in the caches, too, and the large one.
    pub(crate) fn abandon_all(&mut self) {
        let _inside = self.presence.enter();
        self.thinning.leave();
        if self.role == Role::Thread {
            self.thinning.leave_after_others();
        }
        SizeClass::all().for_each(|class| self.empty_cache(class));
        large::drop_cached(&self.large_cache);
        self.flush();
        self.abandon_spans(usize::MAX);
        self.remote_frees = 0;
    }

    /// Gives up so many spans, beside the active and empty ones; whether that is all. No batch is under way.
    pub(super) fn abandon_spans(&mut self, mut left: usize) -> bool {
        SizeClass::all().for_each(|class| self.deactivate(class));
        self.release_in_hand();
        // Before `partial`: what others have just freed into goes there.
        while left > 0 && self.abandon_one_full() {
            left -= 1;
        }
        for class in SizeClass::all() {
            // Most have none, and each thread that ends asks all.
            while self.partial[class.index()].len() > 0 && self.abandon_partial(class, &mut left) {}
        }
        left > 0
    }

    /// Abandons one span of the full list; false if there is none.
    fn abandon_one_full(&mut self) -> bool {
        let span = self.without_held(|heap| heap.full.first());
        // SAFETY: it is in that list, and owned by this heap.
        !span.is_null()
            && unsafe {
                self.unlist(span);
                self.abandon(span);
                true
            }
    }

    /// Gives up so many partial spans of a class, and counts them down; whether there was any.
    pub(super) fn abandon_partial(&mut self, class: SizeClass, left: &mut usize) -> bool {
        let spans = self.partial[class.index()].len().min(*left);
        self.collect_partial(class, spans, Then::Abandon);
        *left -= spans;
        spans > 0
    }
}
