//! Owns: which pages of a heap's spans wait to go while it shrinks, and whether any may.
//! Idea: a thread that frees much and refills nothing is emptying its spans. Each free block is written down once; the pages on
//!   which nothing lives wait a little, for the rest of their span may go, too; then they go.
//! Never: does anything for a heap that refills as it frees; gives back again what was needed again at once.
//! Threads: as `heap`.
//! Checked: tests/holes/thinning.rs; tests/memory.rs of the C layer.
//! Story: docs/design/purging.md

use crate::base::policy::in_hardened;
use crate::base::sync::Ordering;
use crate::heap::tuning::{THIN_AFTER, THIN_PAUSE_MS, THIN_REGRET_SHARE, THIN_RUNS};
use crate::map::address_map::{self, HEAP_BYTES, HEAP_SIZE};
use crate::os;
use crate::slices::arena;
use crate::spans::aside::{Pages, between};
use crate::spans::span::{Home, Keep, Span};

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
    /// Nothing goes before then, for what went was needed, twice in a row at least; how long that is.
    paused_until_ms: u64,
    pause_ms: u64,
}

/// No pause is longer: five times twice as long.
const PAUSE_MAX_MS: u64 = THIN_PAUSE_MS << 5;
/// Events of a heap that has given back what it held for allocations.
const BEGUN: u32 = 1 << 30;

const _: () =
    assert!(HEAP_BYTES + size_of::<[Run; THIN_RUNS]>() <= in_hardened(HEAP_SIZE, usize::MAX));

impl Thinning {
    /// A refill: nobody shrinks.
    #[inline(always)]
    pub(super) fn end(&mut self) {
        self.events = 0;
    }

    /// A span is thinner than before: a step on the way.
    pub(super) fn count(&mut self) {
        self.events = self.events.saturating_add(1);
    }

    /// Whether it shrinks.
    pub(super) fn is_on(&self) -> bool {
        self.events >= THIN_AFTER
    }

    pub(super) fn is_paused(&self) -> bool {
        let until = self.paused_until_ms;
        until > 0 && os::now_ms() < until || arena::keeps()
    }

    /// True once, when it has just begun: the heap gives up what it holds for allocations.
    pub(super) fn begins(&mut self) -> bool {
        self.events < BEGUN && {
            self.events = BEGUN;
            true
        }
    }

    /// Pages of a span wait from now on. `owner` is the heap's, here as below.
    pub(super) fn add(&mut self, owner: u32, index: usize, mut pages: Pages) {
        while pages != 0 {
            let first = pages.trailing_zeros();
            let count = (pages >> first).trailing_ones();
            pages &= !between(first as usize, (first + count) as usize - 1);
            self.add_run(
                owner,
                Run { span: index as u32, first: first as u16, count: count as u16 },
            );
        }
    }

    fn add_run(&mut self, owner: u32, run: Run) {
        let next = self.next as usize;
        let Some(last) = waiting(owner, next.wrapping_sub(1)) else { return };
        // SAFETY: this heap's own, as below.
        let Run { span, first, count } = unsafe { last.read() };
        let meets = first + count == run.first || run.first + run.count == first;
        if count > 0 && span == run.span && meets {
            let run = Run { span, first: first.min(run.first), count: count + run.count };
            // SAFETY: as above.
            return unsafe { last.write(run) };
        }
        let Some(place) = waiting(owner, next) else { return };
        // SAFETY: as above; what stands there is the oldest.
        unsafe {
            if (*place).count > 0 {
                self.purge_waiting(owner, THIN_RUNS / 4);
            }
            place.write(run);
        }
        self.next = self.next.wrapping_add(1);
    }

    /// Gives back all that wait.
    pub(super) fn end_waiting(&mut self, owner: u32) {
        if Home::SETS_ASIDE && self.next > 0 {
            self.purge_waiting(owner, THIN_RUNS);
        }
    }

    /// Gives back the oldest runs that wait, as far as they are free still.
    fn purge_waiting(&mut self, owner: u32, runs: usize) {
        for nth in 0..runs {
            let Some(place) = waiting(owner, self.next as usize + nth) else { return };
            // SAFETY: this heap's own.
            let run = unsafe { place.replace(Run { span: 0, first: 0, count: 0 }) };
            if run.count > 0 {
                self.purge_run(owner, run);
            }
        }
        self.purged_ms = os::now_ms();
    }

    fn purge_run(&mut self, owner: u32, Run { span: index, first, count }: Run) {
        let span: *mut Span = address_map::slot(index as usize).cast();
        let d = address_map::descriptor_at(index as usize);
        let is_head = d.slot.load(Ordering::Relaxed).cast() == span;
        if d.owner.load(Ordering::Relaxed) != owner || !is_head {
            return;
        }
        // SAFETY: a span that names this heap is its own.
        let span = unsafe { &*span };
        let pages = between(first.into(), (first + count - 1).into()) & span.pages();
        let free = span.free_among(pages);
        let bytes = free.count_ones() as usize * os::page_size();
        if span.purge_pages(free) {
            self.purged += bytes;
            arena::count_holes(bytes);
        } else {
            // Locked memory, say.
            self.pause(PAUSE_MAX_MS);
        }
    }

    /// A span in which blocks are set aside has become empty.
    pub(super) fn count_emptied(&mut self, bytes: usize) {
        self.emptied += bytes;
    }

    /// The heap takes a new span of so many bytes: perhaps in place of one that has become empty.
    #[inline]
    pub(super) fn judge_growth(&mut self, bytes: usize) {
        if Home::SETS_ASIDE && self.emptied > 0 {
            let again = bytes.min(self.emptied);
            self.emptied -= again;
            self.judge(again);
        }
    }

    /// So many bytes are needed again, of which some had gone.
    #[cold]
    pub(super) fn judge(&mut self, bytes: usize) {
        arena::fill_holes(bytes);
        let now_ms = os::now_ms();
        if now_ms > self.purged_ms + THIN_PAUSE_MS {
            (self.purged, self.needed, self.emptied) = (0, 0, 0);
            return;
        }
        self.needed += bytes;
        if self.purged > 0 && self.needed * THIN_REGRET_SHARE > self.purged {
            // Once may be another phase of the program, which shrinks in its turn.
            let again = now_ms < self.paused_until_ms + 2 * self.pause_ms.max(THIN_PAUSE_MS);
            let pause_ms = (2 * self.pause_ms).clamp(THIN_PAUSE_MS, PAUSE_MAX_MS);
            self.pause(if again { pause_ms } else { 0 });
        }
    }

    fn pause(&mut self, ms: u64) {
        (self.purged, self.needed, self.emptied) = (0, 0, 0);
        self.pause_ms = ms;
        self.paused_until_ms = os::now_ms() + ms;
    }
}

/// Where the `nth` run waits: behind the heap, on a page that is touched when it shrinks. Zero, or written here.
fn waiting(owner: u32, nth: usize) -> Option<*mut Run> {
    let runs: *mut Run = address_map::behind_heap(owner)?.cast();
    Some(runs.wrapping_add(nth % THIN_RUNS))
}
