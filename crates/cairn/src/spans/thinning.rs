//! Owns: which pages of a heap's spans wait to go while it shrinks, and whether any may.
//! Idea: a thread that frees much and refills nothing is emptying its spans. Each free block is written down once; the pages on
//!   which nothing lives wait a little, for the rest of their span may go, too; then they go.
//! Never: does anything for a heap that refills as it frees; gives back again what was needed again at once.
//! Threads: as `heap`.
//! Checked: tests/holes/thinning.rs; tests/memory.rs of the C layer.
//! Story: docs/design/purging.md

use crate::os;
use crate::slices::arena;
use crate::spans::abandoned;
use crate::spans::tuning::{THIN_AFTER, THIN_PAUSE_MS, THIN_QUEUE, THIN_REGRET_SHARE};
use crate::spans::waiting::{self, Pages};

/// What a heap that shrinks has under way.
pub(crate) struct Thinning {
    /// Events of its spans since its last refill.
    events: u32,
    /// Spans that have had one since then, and what is free in them has not been set aside.
    queued: u32,
    queue: [u32; THIN_QUEUE],
    /// When pages came to wait last; how many bytes since that was last judged, and how many are needed again.
    waited_ms: u64,
    waited: usize,
    needed: usize,
    /// Bytes of spans that have become empty after pages of them waited.
    emptied: usize,
    /// Nothing goes before then, for what went was needed, twice in a row at least; how long that is.
    paused_until_ms: u64,
    pause_ms: u64,
}

/// No pause is longer: five times twice as long.
const PAUSE_MAX_MS: u64 = THIN_PAUSE_MS << 5;

/// How long the pause is that begins now, after one that ended then.
pub(crate) fn next_pause_ms(now_ms: u64, last_until_ms: u64, last_ms: u64) -> u64 {
    // Once may be another phase of the program, which shrinks in its turn.
    let again = now_ms < last_until_ms + 2 * last_ms.max(THIN_PAUSE_MS);
    if again { (2 * last_ms).clamp(THIN_PAUSE_MS, PAUSE_MAX_MS) } else { 0 }
}

/// Events of a heap that has given back what it held for allocations.
const BEGUN: u32 = 1 << 30;

impl Thinning {
    /// A refill: nobody shrinks.
    #[inline(always)]
    pub(crate) fn end(&mut self) {
        (self.events, self.queued) = (0, 0);
    }

    /// A span is thinner than before: a step on the way.
    pub(crate) fn count(&mut self) {
        self.events = self.events.saturating_add(1);
    }

    /// Whether it shrinks.
    pub(crate) fn is_on(&self) -> bool {
        self.events >= THIN_AFTER
    }

    pub(crate) fn is_paused(&self) -> bool {
        let until = self.paused_until_ms;
        until > 0 && os::now_ms() < until || arena::keeps()
    }

    /// Puts a span into the queue, of which the index is given. True if that is full.
    pub(crate) fn queue(&mut self, index: usize) -> bool {
        self.queue[self.queued as usize % THIN_QUEUE] = index as u32;
        self.queued += 1;
        self.queued as usize >= THIN_QUEUE
    }

    /// What is in it; it is empty then.
    pub(crate) fn take_queue(&mut self) -> ([u32; THIN_QUEUE], usize) {
        (self.queue, core::mem::take(&mut self.queued) as usize % (THIN_QUEUE + 1))
    }

    /// True once, when it has just begun: the heap gives up what it holds for allocations.
    pub(crate) fn begins(&mut self) -> bool {
        self.events < BEGUN && {
            self.events = BEGUN;
            true
        }
    }

    /// Pages of a span wait from now on.
    pub(crate) fn add(&mut self, index: usize, pages: Pages) {
        if pages == 0 {
            return;
        }
        self.waited += waiting::bytes_of(pages);
        self.waited_ms = os::now_ms();
        if waiting::add(index, pages) {
            abandoned::thin_next();
            if !waiting::sweep_part() {
                // Locked memory, say.
                self.pause(PAUSE_MAX_MS);
            }
        }
    }

    /// The thread leaves: of what waits a part is its spans'.
    pub(crate) fn leave(&self) {
        if self.waited_ms > 0 {
            waiting::sweep();
        }
    }

    /// The same after whoever has been sweeping, for that may have passed by. Not for a heap for which others may be waiting.
    pub(crate) fn leave_after_others(&self) {
        if self.waited_ms > 0 && waiting::bytes() > arena::may_wait() {
            waiting::sweep_after_others();
        }
    }

    /// A span in which blocks are set aside has become empty.
    pub(crate) fn count_emptied(&mut self, bytes: usize) {
        self.emptied += bytes;
    }

    /// The heap takes a new span of so many bytes: perhaps in place of one that has become empty.
    #[inline]
    pub(crate) fn judge_growth(&mut self, bytes: usize) {
        if self.emptied > 0 {
            let again = bytes.min(self.emptied);
            self.emptied -= again;
            self.judge(again);
        }
    }

    /// So many bytes are needed again, of which some had gone.
    #[cold]
    pub(crate) fn judge(&mut self, bytes: usize) {
        let now_ms = os::now_ms();
        if now_ms > self.waited_ms + THIN_PAUSE_MS {
            (self.waited, self.needed, self.emptied) = (0, 0, 0);
            return;
        }
        self.needed += bytes;
        if self.waited > 0 && self.needed * THIN_REGRET_SHARE > self.waited {
            self.pause(next_pause_ms(now_ms, self.paused_until_ms, self.pause_ms));
        }
    }

    fn pause(&mut self, ms: u64) {
        (self.waited, self.needed, self.emptied) = (0, 0, 0);
        self.pause_ms = ms;
        self.paused_until_ms = os::now_ms() + ms;
    }
}
