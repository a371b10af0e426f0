//! Owns: what a heap gives back around survivors while it shrinks.
//! Idea: a thread that frees much and refills nothing is emptying its spans. Each free block is written down once; the pages on
//!   which nothing lives wait a little, for the rest of their span may go, too; then they go.
//! Never: does anything for a heap that refills as it frees; gives back again what was needed again at once.
//! Threads: as `heap`.
//! Checked: tests/thinning.rs; the lab's rows of survivors.
//! Story: docs/design/purging.md

use super::Heap;
use crate::base::policy::in_hardened;
use crate::base::size_class::{SLICE_SIZE, SizeClass};
use crate::base::sync::Ordering;
use crate::heap::tuning::{
    THIN_AFTER, THIN_PAUSE_MAX_MS, THIN_PAUSE_MS, THIN_REGRET_SHARE, THIN_RUN_PAGES, THIN_RUNS,
};
use crate::map::address_map::{self, HEAP_BYTES, HEAP_SIZE};
use crate::map::block::Chain;
use crate::os;
use crate::slices::arena;
use crate::spans::aside::{Pages, Step, between};
use crate::spans::span::Span;

/// Pages in a row that wait: the first one, counted from the reservation's first, and how many.
#[derive(Clone, Copy)]
struct Run {
    page: u32,
    count: u32,
}

/// What a heap that shrinks has under way.
pub(crate) struct Thinning {
    /// Events of its spans since its last refill.
    events: u32,
    /// Where the next run goes in, and the oldest stands, in what is behind the heap.
    next: u32,
    /// When pages went last, and how many since they were last judged; blocks of bytes of these that came back.
    purged_ms: u64,
    purged: usize,
    needed: usize,
    /// Nothing goes before then, for what went was needed; how long that is.
    paused_until_ms: u64,
    pause_ms: u64,
}

/// Events of a heap that has given back what it held for allocations.
const BEGUN: u32 = 1 << 30;

const _: () = assert!(HEAP_BYTES + size_of::<[Run; THIN_RUNS]>() <= in_hardened(HEAP_SIZE, usize::MAX));

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
            if (*span).has_local_free() { partial.push_front(span) } else { partial.push_back(span) }
            if !self.is_shared {
                (*span).expect_thinner(Step::Coarse);
            }
        }
    }

    /// An event of a partial span in which blocks are still in use.
    ///
    /// # Safety
    /// The heap owns the span.
    pub(super) unsafe fn thin(&mut self, span: *mut Span) {
        // SAFETY: as above.
        let span = unsafe { &mut *span };
        span.clear_event();
        self.count_thinning();
        if !self.is_thinning() || self.is_thinning_paused() {
            return span.expect_thinner(Step::Coarse);
        }
        let pages = span.set_aside();
        let free = span.free_among(pages);
        let first = span.index() * (SLICE_SIZE / os::page_size().min(SLICE_SIZE));
        span.expect_thinner(Step::Fine);
        self.add_runs(first, free);
        if self.thinning.events < BEGUN {
            self.thinning.events = BEGUN;
            // What it holds for allocations to come holds pages, too.
            self.flush();
            for class in SizeClass::all() {
                self.empty_cache(class);
                self.deactivate(class);
            }
        }
    }

    fn is_thinning_paused(&mut self) -> bool {
        let until = self.thinning.paused_until_ms;
        if until > 0 && os::now_ms() >= until {
            self.thinning.paused_until_ms = 0;
        }
        self.thinning.paused_until_ms > 0 || arena::keeps()
    }

    /// Pages of the span that begins at page `first` are free.
    fn add_runs(&mut self, first: usize, mut free: Pages) {
        while free != 0 {
            let page = free.trailing_zeros() as usize;
            let count = (free >> page).trailing_ones();
            free &= !between(page, page + count as usize - 1);
            self.add_run(Run { page: (first + page) as u32, count });
        }
    }

    fn add_run(&mut self, run: Run) {
        let next = self.thinning.next as usize;
        let Some(last) = self.waiting(next.wrapping_sub(1)) else { return };
        // SAFETY: this heap's own, as below.
        let Run { page, count } = unsafe { last.read() };
        if count > 0 && count + run.count <= THIN_RUN_PAGES {
            if page + count == run.page || run.page + run.count == page {
                // SAFETY: as above.
                unsafe { last.write(Run { page: page.min(run.page), count: count + run.count }) };
                return;
            }
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

    /// Gives back the oldest runs that wait, as far as they are free still.
    pub(super) fn purge_waiting(&mut self, runs: usize) {
        for nth in 0..runs {
            let Some(place) = self.waiting(self.thinning.next as usize + nth) else { return };
            // SAFETY: this heap's own.
            let Run { page, count } = unsafe { place.replace(Run { page: 0, count: 0 }) };
            let (mut page, end) = (page as usize, (page + count) as usize);
            while page < end {
                page = self.purge_pages(page, end);
            }
        }
        self.thinning.purged_ms = os::now_ms();
    }

    /// Gives back what is free of these pages, up to the end of the first one's span; where that is.
    fn purge_pages(&mut self, from: usize, end: usize) -> usize {
        let in_slice = SLICE_SIZE / os::page_size().min(SLICE_SIZE);
        let d = address_map::descriptor_at(from / in_slice);
        if d.owner.load(Ordering::Relaxed) != self.owner() {
            return from / in_slice * in_slice + in_slice;
        }
        let span: *mut Span = d.slot.load(Ordering::Relaxed).cast();
        // SAFETY: a span that names this heap is its own.
        let span = unsafe { &mut *span };
        let first = span.index() * in_slice;
        let last = end.min(first + usize::from(span.layout().slices) * in_slice);
        let free = span.free_among(between(from - first, last - first - 1));
        if span.purge_pages(free) {
            self.thinning.purged += free.count_ones() as usize;
            arena::count_holes(free.count_ones() as usize * os::page_size());
        } else {
            // Locked memory, say.
            self.pause_thinning(THIN_PAUSE_MAX_MS);
        }
        last
    }

    /// Blocks have come back that were set aside.
    #[cold]
    pub(super) fn judge_thinning(&mut self, list: &Chain, size: usize) {
        arena::fill_holes(list.count as usize * size);
        let now_ms = os::now_ms();
        let thinning = &mut self.thinning;
        if now_ms > thinning.purged_ms + THIN_PAUSE_MS {
            (thinning.purged, thinning.needed) = (0, 0);
            return;
        }
        thinning.needed += list.count as usize * size;
        if thinning.needed * THIN_REGRET_SHARE > thinning.purged * os::page_size() {
            let again = now_ms < thinning.paused_until_ms + 2 * thinning.pause_ms;
            let pause_ms = if again { 2 * thinning.pause_ms } else { 0 };
            self.pause_thinning(pause_ms.clamp(THIN_PAUSE_MS, THIN_PAUSE_MAX_MS));
        }
    }

    fn pause_thinning(&mut self, ms: u64) {
        let thinning = &mut self.thinning;
        (thinning.purged, thinning.needed) = (0, 0);
        thinning.pause_ms = ms;
        thinning.paused_until_ms = os::now_ms() + ms;
    }
}
