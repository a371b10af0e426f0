//! Owns: what a heap gives back around survivors while it shrinks.
//! Idea: a thread that frees much and refills nothing is emptying its spans. Each free block is written down once; the pages on
//!   which nothing lives wait a little, for the rest of their span may go, too; then they go.
//! Never: does anything for a heap that refills as it frees; gives back again what was needed again at once.
//! Threads: as `heap`.
//! Checked: tests/thinning.rs; the lab's rows of survivors.
//! Story: docs/design/purging.md

use super::Heap;
use crate::base::policy::in_hardened;
use crate::base::size_class::SizeClass;
use crate::base::sync::Ordering;
use crate::heap::tuning::{
    THIN_AFTER, THIN_PAUSE_MAX_MS, THIN_PAUSE_MS, THIN_REGRET_SHARE, THIN_RUNS, THIN_SLICES,
};
use crate::map::address_map::{self, HEAP_BYTES, HEAP_SIZE};
use crate::os;
use crate::slices::arena;
use crate::spans::aside::{Pages, Step, between};
use crate::spans::span::Span;
use crate::spans::span_list::SpanList;

/// Pages in a row that wait: those of the span that begins at a slice, from the first one on.
#[derive(Clone, Copy)]
struct Run {
    span: u32,
    first: u16,
    /// 0: there is none.
    count: u16,
}

/// What a heap that shrinks has under way.
pub(crate) struct Thinning {
    /// Events of its spans since its last refill.
    events: u32,
    /// Where the next run goes in, and the oldest stands, in what is behind the heap.
    next: u32,
    /// When pages went last; how many bytes since that was last judged, and how many have come back.
    purged_ms: u64,
    purged: usize,
    needed: usize,
    /// Bytes of spans that have become empty after pages of them went.
    emptied: usize,
    /// Nothing goes before then, for what went was needed; how long that is.
    paused_until_ms: u64,
    pause_ms: u64,
}

/// Events of a heap that has given back what it held for allocations.
const BEGUN: u32 = 1 << 30;

const _: () =
    assert!(HEAP_BYTES + size_of::<[Run; THIN_RUNS]>() <= in_hardened(HEAP_SIZE, usize::MAX));

impl Heap {
    /// A refill: nobody shrinks.
    #[inline(always)]
    pub(super) fn end_thinning(&mut self) {
        self.thinning.events = 0;
    }

    /// A span is thinner than before: a step on the way.
    pub(super) fn count_thinning(&mut self) {
        self.thinning.events = self.thinning.events.saturating_add(1);
    }

    /// Whether it shrinks.
    pub(super) fn is_thinning(&self) -> bool {
        self.thinning.events >= THIN_AFTER
    }

    /// Puts a span into its list of partial ones: in front if it has a list of free blocks.
    ///
    /// # Safety
    /// The heap owns the span, which is in no list.
    pub(super) unsafe fn list_partial(&mut self, span: *mut Span) {
        // SAFETY: as above.
        unsafe {
            let partial = &mut self.partial[(*span).class().index()];
            if (*span).has_local_free() {
                partial.push_front(span)
            } else {
                partial.push_back(span)
            }
            self.expect_thinner(span, Step::Coarse);
        }
    }

    /// Has an event come when the span is thinner: in a process that has been large, if the heap has allocated from the span.
    /// Who frees what others allocate shrinks nothing.
    ///
    /// # Safety
    /// The heap owns the span, which has no event.
    pub(super) unsafe fn expect_thinner(&self, span: *mut Span, step: Step) {
        // SAFETY: as above.
        let span = unsafe { &mut *span };
        let is_large = address_map::described() >= THIN_SLICES;
        if is_large && !self.is_shared && [0, self.owner()].contains(&span.let_go_by) {
            span.expect_thinner(step);
        }
    }

    /// An event of a partial span in which blocks are still in use.
    ///
    /// # Safety
    /// The heap owns the span.
    pub(super) unsafe fn thin(&mut self, span: *mut Span) {
        self.count_thinning();
        if !self.is_thinning() || self.is_thinning_paused() {
            // SAFETY: as above.
            return unsafe {
                (*span).clear_event();
                self.expect_thinner(span, Step::Coarse);
            };
        }
        self.write_down(span);
        if self.thinning.events < BEGUN {
            self.thinning.events = BEGUN;
            self.begin_thinning();
        }
    }

    /// Sets aside what is free in a partial span.
    fn write_down(&mut self, span: *mut Span) {
        // SAFETY: this heap owns it.
        let span = unsafe { &mut *span };
        span.clear_event();
        let pages = span.set_aside();
        let free = span.free_among(pages);
        span.expect_thinner(Step::Fine);
        self.add_runs(span.index(), free);
    }

    /// What it holds for allocations to come holds pages, too; and there are the spans whose events have led here.
    fn begin_thinning(&mut self) {
        self.flush();
        let mut left = THIN_AFTER;
        for class in SizeClass::all() {
            self.empty_cache(class);
            self.deactivate(class);
            let mut at = self.partial[class.index()].first();
            // SAFETY: this heap owns the members, which stay.
            while let Some(span) = unsafe { at.as_mut() }.filter(|_| left > 0) {
                if span.has_local_free() && span.can_set_aside() {
                    self.write_down(at);
                    left -= 1;
                }
                // SAFETY: as above.
                at = unsafe { SpanList::after(at) };
            }
        }
    }

    fn is_thinning_paused(&self) -> bool {
        let until = self.thinning.paused_until_ms;
        until > 0 && os::now_ms() < until || arena::keeps()
    }

    /// Pages of a span wait from now on.
    fn add_runs(&mut self, index: usize, mut pages: Pages) {
        while pages != 0 {
            let first = pages.trailing_zeros();
            let count = (pages >> first).trailing_ones();
            pages &= !between(first as usize, (first + count) as usize - 1);
            self.add_run(Run { span: index as u32, first: first as u16, count: count as u16 });
        }
    }

    fn add_run(&mut self, run: Run) {
        let next = self.thinning.next as usize;
        let Some(last) = self.waiting(next.wrapping_sub(1)) else { return };
        // SAFETY: this heap's own, as below.
        let Run { span, first, count } = unsafe { last.read() };
        let meets = first + count == run.first || run.first + run.count == first;
        if count > 0 && span == run.span && meets {
            let run = Run { span, first: first.min(run.first), count: count + run.count };
            // SAFETY: as above.
            return unsafe { last.write(run) };
        }
        let Some(place) = self.waiting(next) else { return };
        // SAFETY: as above; what stands there is the oldest.
        unsafe {
            if (*place).count > 0 {
                self.purge_waiting(THIN_RUNS / 4);
            }
            place.write(run);
        }
        self.thinning.next = self.thinning.next.wrapping_add(1);
    }

    /// Where the `nth` run waits: behind the heap, on a page that is touched when it shrinks. Zero, or written here.
    fn waiting(&self, nth: usize) -> Option<*mut Run> {
        let runs: *mut Run = address_map::behind_heap(self.owner())?.cast();
        Some(runs.wrapping_add(nth % THIN_RUNS))
    }

    /// Gives back all that wait.
    pub(super) fn end_waiting(&mut self) {
        if self.thinning.next > 0 {
            self.purge_waiting(THIN_RUNS);
        }
    }

    /// Gives back the oldest runs that wait, as far as they are free still.
    fn purge_waiting(&mut self, runs: usize) {
        for nth in 0..runs {
            let Some(place) = self.waiting(self.thinning.next as usize + nth) else { return };
            // SAFETY: this heap's own.
            let run = unsafe { place.replace(Run { span: 0, first: 0, count: 0 }) };
            if run.count > 0 {
                self.purge_run(run);
            }
        }
        self.thinning.purged_ms = os::now_ms();
    }

    fn purge_run(&mut self, Run { span: index, first, count }: Run) {
        let span: *mut Span = address_map::slot(index as usize).cast();
        let d = address_map::descriptor_at(index as usize);
        let is_head = d.slot.load(Ordering::Relaxed).cast() == span;
        if d.owner.load(Ordering::Relaxed) != self.owner() || !is_head {
            return;
        }
        // SAFETY: a span that names this heap is its own.
        let span = unsafe { &*span };
        let pages = between(first.into(), (first + count - 1).into()) & span.pages();
        let free = span.free_among(pages);
        let bytes = free.count_ones() as usize * os::page_size();
        if span.purge_pages(free) {
            self.thinning.purged += bytes;
            arena::count_holes(bytes);
        } else {
            // Locked memory, say.
            self.pause_thinning(THIN_PAUSE_MAX_MS);
        }
    }

    /// A span in which blocks are set aside has become empty.
    pub(super) fn count_emptied(&mut self, bytes: usize) {
        self.thinning.emptied += bytes;
    }

    /// The heap takes a new span of so many bytes: perhaps in place of one that has become empty.
    #[inline]
    pub(super) fn judge_growth(&mut self, bytes: usize) {
        if self.thinning.emptied > 0 {
            let again = bytes.min(self.thinning.emptied);
            self.thinning.emptied -= again;
            self.judge_thinning(again);
        }
    }

    /// So many bytes are needed again, of which some had gone.
    #[cold]
    pub(super) fn judge_thinning(&mut self, bytes: usize) {
        arena::fill_holes(bytes);
        let now_ms = os::now_ms();
        let thinning = &mut self.thinning;
        if now_ms > thinning.purged_ms + THIN_PAUSE_MS {
            (thinning.purged, thinning.needed, thinning.emptied) = (0, 0, 0);
            return;
        }
        thinning.needed += bytes;
        if thinning.needed * THIN_REGRET_SHARE > thinning.purged {
            let again = now_ms < thinning.paused_until_ms + 2 * thinning.pause_ms;
            let pause_ms = if again { 2 * thinning.pause_ms } else { 0 };
            self.pause_thinning(pause_ms.clamp(THIN_PAUSE_MS, THIN_PAUSE_MAX_MS));
        }
    }

    fn pause_thinning(&mut self, ms: u64) {
        let thinning = &mut self.thinning;
        (thinning.purged, thinning.needed, thinning.emptied) = (0, 0, 0);
        thinning.pause_ms = ms;
        thinning.paused_until_ms = os::now_ms() + ms;
    }
}
