//! Owns: whether a heap thins spans that others have filled.
//! Idea: who frees there mostly empties what fills again. Where the process takes few spans to fill, these are only emptied.
//! Never: goes on where what went is needed again: then all heaps pause.
//! Threads: a `Following`, as `heap`; what is measured of the process, any.
//! Checked: tests/holes/thinning.rs
//! Story: docs/design/purging.md

use crate::base::{AtomicU64, AtomicUsize, Ordering, SLICE_SIZE};
use crate::map::address_map;
use crate::os;
use crate::slices::arena;
use crate::spans::abandoned;
use crate::spans::aside::has_been_large;
use crate::spans::thinning::next_pause_ms;
use crate::spans::tuning::{SENT_EACH, SENT_SHARE, THIN_PAUSE_MS, THIN_REGRET_SHARE, WASTE_SHARE};

/// What a heap has sent to spans that nobody holds.
pub(crate) struct Following {
    /// Bytes since that was last judged.
    sent: u32,
    /// Slices that had been taken for spans by then.
    taken: u32,
    is_on: bool,
}

/// What the process has done. Relaxed: measures.
struct Process {
    /// Slices that had been taken for spans when a heap last judged, and all that had ever been in use at once.
    taken: AtomicUsize,
    most: AtomicUsize,
    /// Bytes that have been thinned since something was regretted, when, and what was needed again since.
    thinned: AtomicUsize,
    thinned_ms: AtomicU64,
    again: AtomicUsize,
    /// Nothing is thinned before then, and how long that pause is.
    paused_until_ms: AtomicU64,
    pause_ms: AtomicU64,
}

static PROCESS: Process = Process {
    taken: AtomicUsize::new(0),
    most: AtomicUsize::new(0),
    thinned: AtomicUsize::new(0),
    thinned_ms: AtomicU64::new(0),
    again: AtomicUsize::new(0),
    paused_until_ms: AtomicU64::new(0),
    pause_ms: AtomicU64::new(0),
};

impl Following {
    /// What it has found last.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// So many bytes have gone to spans that nobody holds, but others have filled. Whether these are only emptied now.
    pub(crate) fn sends(&mut self, bytes: usize) -> bool {
        self.sent += bytes as u32;
        if self.sent >= SENT_EACH {
            self.judge();
        }
        self.is_on
    }

    #[cold]
    fn judge(&mut self) {
        let taken = arena::taken().wrapping_add(abandoned::reclaimed());
        let more = (taken as u32).wrapping_sub(core::mem::replace(&mut self.taken, taken as u32));
        let sent = core::mem::take(&mut self.sent) as usize;
        let is_emptied = more as usize * SLICE_SIZE < sent / SENT_SHARE;
        self.is_on = PROCESS.may_go_on(taken) && is_emptied && has_been_large();
    }
}

/// So many bytes of such spans wait to go.
pub(crate) fn note_thinned(bytes: usize) {
    PROCESS.thinned.fetch_add(bytes, Ordering::Relaxed);
    PROCESS.thinned_ms.store(os::now_ms(), Ordering::Relaxed);
}

impl Process {
    /// So many slices have been taken for spans until now: whether more may go.
    fn may_go_on(&self, taken: usize) -> bool {
        let (now_ms, most) = (os::now_ms(), address_map::described());
        // Another heap may have judged with a later number.
        let more = taken.wrapping_sub(self.taken.swap(taken, Ordering::Relaxed)).cast_signed();
        // What goes beyond all that there has been is not in place of what has gone.
        let new = most.saturating_sub(self.most.swap(most, Ordering::Relaxed));
        let again = more.max(0).unsigned_abs().saturating_sub(new) * SLICE_SIZE;
        let until_ms = self.paused_until_ms.load(Ordering::Relaxed);
        if now_ms > self.thinned_ms.load(Ordering::Relaxed) + THIN_PAUSE_MS {
            self.forget();
            return now_ms >= until_ms;
        }
        let again = again + self.again.fetch_add(again, Ordering::Relaxed);
        let thinned = self.thinned.load(Ordering::Relaxed);
        if again * THIN_REGRET_SHARE <= thinned || thinned < most * SLICE_SIZE / WASTE_SHARE {
            return now_ms >= until_ms;
        }
        self.forget();
        let pause_ms = next_pause_ms(now_ms, until_ms, self.pause_ms.load(Ordering::Relaxed));
        self.paused_until_ms.store(now_ms + pause_ms, Ordering::Relaxed);
        self.pause_ms.store(pause_ms, Ordering::Relaxed);
        pause_ms == 0
    }

    fn forget(&self) {
        self.thinned.store(0, Ordering::Relaxed);
        self.again.store(0, Ordering::Relaxed);
    }
}
