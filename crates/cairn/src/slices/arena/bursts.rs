//! Owns: what bursts of frees have taught: how much of what they gave back was needed again soon.
//! Idea: a program that grows and shrinks by turns would fault the same memory in each time. So twice what was needed again
//!   may stay; what shrinks beyond that without growing again unlearns it.
//! Never: purges.
//! Threads: any; under the arena's lock.
//! Checked: tests/purges.rs
//! Story: docs/design/purging.md

use crate::os;
use crate::slices::tuning::{BURST_KEPT, BURST_MAX, BURST_SURE, REGRET_MS};

pub(super) struct Bursts {
    /// Slices that have been purged, in bursts or else.
    pub(super) purged: u64,
    /// Slices: twice what was needed again, less what was released beyond the bound and what time has taken.
    learned: usize,
    /// When a burst went last; 0: never.
    last_ms: u64,
    /// `purged` before the bursts of late, and what was needed again since: never more than `purged`.
    from: u64,
    /// Bursts in a row of which some was needed again, and whether the last one is among them. In a second all are one row.
    regrets: u32,
    is_regretted: bool,
    /// The last purge of this stroke of the clock has met locked memory alone: the next ones would, too.
    pub(super) is_refused: bool,
}

impl Bursts {
    /// A release of so many slices goes beyond the bound: a burst of them is about to go.
    pub(super) fn begin(&mut self, slices: usize) {
        let now = os::now_ms();
        if now >= self.last_ms + REGRET_MS {
            self.from = self.purged;
            self.regrets *= u32::from(self.is_regretted);
        }
        (self.last_ms, self.is_regretted) = (now, false);
        self.learned = self.learned.saturating_sub(slices);
    }

    /// So many clean slices are needed: some of them would be dirty if no burst had gone.
    pub(super) fn judge(&mut self, clean: usize) {
        let needed = clean.min((self.purged - self.from) as usize);
        if needed == 0 || os::now_ms() >= self.last_ms + REGRET_MS {
            return;
        }
        self.from += needed as u64;
        self.learned = (self.learned + 2 * needed).min(BURST_MAX);
        self.regrets += u32::from(!self.is_regretted);
        self.is_regretted = true;
    }

    /// A purge delay has passed.
    pub(super) fn fade(&mut self) {
        self.learned -= self.learned / 16;
        self.is_refused = false;
    }

    /// So many more slices may be dirty for what was learned, with so many in use.
    pub(super) fn allowed(&self, used: usize) -> usize {
        let is_sure = self.regrets >= BURST_SURE;
        self.learned.min(if is_sure { BURST_MAX } else { BURST_KEPT.max(used) })
    }
}
