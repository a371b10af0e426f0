//! Owns: what a heap does about free pages among blocks in use: while it shrinks they are set aside and wait, while it is quiet
//!   they go.
//! Idea: a span has events as it becomes thinner. Several that have had one are gone through together, each free block once.
//! Never: touches a span that the heap does not own; gives back pages while it shrinks.
//! Threads: as `heap`.
//! Checked: tests/holes/thinning.rs
//! Story: docs/design/purging.md

use super::Heap;
use crate::base::{Ordering, SizeClass, shares};
use crate::heap::tuning::{
    BATCH_AFTER, HOLES_AFTER, PARTIAL_EARNED, PARTIAL_LIMIT, SWEEP_NS, SWEEP_SPANS,
};
use crate::spans::{
    SettingAside, Span, SpanList, Step, THIN_AFTER, THIN_QUEUE, abandoned, note_thinned, waiting,
};
use crate::store::{Caches, Store};
use crate::{map::address_map, os, slices::arena, slices::limit};

impl Heap {
    /// An event of a partial span in which blocks are still in use.
    ///
    /// # Safety
    /// The heap owns the span.
    pub(super) unsafe fn thin(&mut self, span: *mut Span) {
        self.thinning.count();
        if !self.thinning.is_on() || self.thinning.is_paused() {
            // SAFETY: as above.
            return unsafe { (*span).expect_thinner(Step::Coarse) };
        }
        // SAFETY: as above.
        self.queue(unsafe { &mut *span });
        if self.thinning.begins() {
            self.begin_thinning();
        }
    }

    /// Looks at the next few spans of `partial`: those go in which others have freed all that was in use. In a quiet
    /// heap, and near a limit, free pages of the others go, too.
    pub(super) fn sweep(&mut self) {
        let is_time = self.quiet > HOLES_AFTER || limit::is_near();
        let makes_holes = is_time && !self.is_shared() && !arena::keeps();
        let end = os::now_ns() + SWEEP_NS;
        for _ in 0..SWEEP_SPANS {
            // Blocks in a cache are in no hole.
            let class = self.sweep_class;
            if Caches::IS_MIXED && makes_holes {
                self.empty_cache(class);
                // A span that goes with them is followed by a slow tick, which may sweep: on to a class whose cache is full.
                if self.sweep_class != class {
                    continue;
                }
            }
            if self.sweep_next.is_null() {
                self.sweep_class = SizeClass::in_turn(self.sweep_class.index() + 1);
                self.sweep_next = self.partial[self.sweep_class.index()].first();
                continue;
            }
            // SAFETY: invariant 5.
            unsafe {
                let span = self.sweep_next;
                self.sweep_next = SpanList::after(span);
                if (*span).word().pending() == (*span).used() && !self.member.holds(&mut *span) {
                    self.remove_partial(class, span);
                    (*span).take_in();
                    self.abandon(span);
                } else if makes_holes {
                    (*span).make_holes();
                }
            }
            if makes_holes && os::now_ns() >= end {
                break;
            }
        }
    }

    /// Whether it empties what others have filled, and has done so just now: upkeep halves the number of such frees.
    #[inline(never)]
    fn is_following(&mut self) -> bool {
        self.following.is_on() && self.remote_frees > BATCH_AFTER && !self.thinning.is_paused()
    }

    /// Whether the heap has as many partial spans of a class as it takes in while others might need them. Where such spans are
    /// only emptied, there is room: the oldest two go. Else there is more where it does not allocate and its frees empty spans.
    pub(super) fn has_no_room(&mut self, class: SizeClass) -> bool {
        let held = self.partial[class.index()].len();
        if held < PARTIAL_LIMIT || shares::in_use() <= 1 {
            return false;
        }
        if self.is_following() {
            // There may be more than the limit.
            (0..2).for_each(|_| self.list_oldest(class));
            return false;
        }
        let earns = self.refilled & class.bit() == 0 && !class.is_long();
        !earns || held >= PARTIAL_LIMIT + usize::from(self.emptied)
    }

    #[inline(never)]
    fn list_oldest(&mut self, class: SizeClass) {
        let span = self.without_held(|heap| heap.partial[class.index()].last());
        if !span.is_null() {
            // SAFETY: a member, which this heap owns.
            unsafe {
                self.remove_partial(class, span);
                self.list_thin(span);
            }
        }
    }

    /// A span of a class has become empty, and goes.
    #[inline(always)]
    pub(super) fn earn_room(&mut self, class: SizeClass) {
        if self.refilled & class.bit() == 0 {
            self.emptied = (self.emptied + 1).min(PARTIAL_EARNED);
        }
    }

    /// Blocks have gone to the span at a slice, which was listed. If such spans are only emptied now, what is free there is set
    /// aside.
    #[inline(never)]
    pub(super) fn thin_listed(&mut self, index: usize, count: u32) {
        // The span may be gone, and another's class stand there: one that it has not is not taken.
        let class = address_map::descriptor_at(index).class();
        if self.following.sends(count as usize * class.block_size())
            && let Some((span, pending)) = abandoned::take_thinner(index, class)
        {
            // SAFETY: this thread holds it now, and it is in no list.
            unsafe {
                (*span).absorb(pending);
                self.list_thin(span);
            }
        }
    }

    /// Lists a span, or gives it back; if what others have filled is only emptied now, all that is free there is set aside.
    ///
    /// # Safety
    /// The caller holds the span, which is in no list.
    #[inline(never)]
    pub(super) unsafe fn list_thin(&mut self, span: *mut Span) {
        // SAFETY: the caller's.
        unsafe {
            if self.is_following() && (*span).can_set_aside() {
                let pages = (*span).set_aside();
                let free = (*span).free_among(pages);
                note_thinned(waiting::bytes_of(free));
                self.thinning.add((*span).index(), free);
            }
            abandoned::list_or_release(span);
        }
    }

    /// Puts a partial span of its own into the queue, and goes through that if it is full.
    fn queue(&mut self, span: &mut Span) {
        span.expect_thinner(Step::Fine);
        if self.thinning.queue(span.index()) {
            self.go_through_queue();
        }
    }

    /// Sets aside what is free in the spans that are queued, a block of each in turn.
    #[inline(never)]
    fn go_through_queue(&mut self) {
        let owner = self.owner;
        let (spans, count) = self.thinning.take_queue();
        // What is in a cache is not free; upkeep may have let it take in some. All of it goes home first: a span may end by that.
        for &index in &spans[..count] {
            let class = address_map::descriptor_at(index as usize).class();
            self.empty_quarantine_into(class, address_map::slice_address(index as usize));
        }
        let mut ways = [const { SettingAside::NONE }; THIN_QUEUE];
        let ways = &mut ways[..count];
        for (way, &index) in ways.iter_mut().zip(&spans) {
            let (span, d) =
                (address_map::slot(index as usize), address_map::descriptor_at(index as usize));
            // One that has become empty may be another heap's by now. None is active, or full: that takes a refill.
            let is_own = d.owner.load(Ordering::Relaxed) == owner;
            if is_own && d.slot.load(Ordering::Relaxed) == span {
                // SAFETY: a span that names this heap is its own.
                *way = unsafe { SettingAside::begin(span.cast()) };
            }
        }
        let mut steps = 1;
        while steps > 0 {
            steps = ways.iter_mut().map(|way| usize::from(way.step())).sum();
        }
        for &mut SettingAside { span, pages, .. } in ways {
            if pages != 0 {
                // SAFETY: as above.
                let span = unsafe { &*span };
                self.thinning.add(span.index(), span.free_among(pages));
            }
        }
    }

    /// What it holds for allocations to come holds pages, too; and there are the spans whose events have led here.
    #[cold]
    #[inline(never)]
    fn begin_thinning(&mut self) {
        self.flush();
        let (owner, mut left) = (self.owner, THIN_AFTER);
        // First: what goes home may end spans of any class.
        SizeClass::all().for_each(|class| self.empty_cache(class));
        SizeClass::all().for_each(|class| self.deactivate(class));
        for class in SizeClass::all() {
            let mut at = self.partial[class.index()].first();
            // SAFETY: this heap owns the members, which stay.
            while let Some(span) = unsafe { at.as_mut() }.filter(|_| left > 0) {
                if span.has_local_free() && span.may_thin(owner) && span.can_set_aside() {
                    self.queue(span);
                    left -= 1;
                }
                // SAFETY: as above.
                at = unsafe { SpanList::after(at) };
            }
        }
    }
}
