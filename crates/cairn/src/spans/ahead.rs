//! Owns: clean slices in a row that a heap has taken for its next spans.
//! Idea: one word, so that whoever reads it at any time finds a row that is whole.
//! Never: decides when slices are taken, or how many.
//! Threads: the heap's; a forked child reads those of heaps whose threads it does not have.
//! Checked: tests/empty.rs; the whole core's models
//! Story: docs/design/heap.md

use crate::base::{AtomicUsize, Ordering};
use crate::slices::{AHEAD, Memory, Run, arena};

/// Slices in a row that a heap has taken from the arena, and made no span of; nothing is resident there. One word, which
/// names only slices that are in no use at all, whenever a fork comes: the number of the first, times `AHEAD`, plus how
/// many there are.
pub(crate) struct Ahead(AtomicUsize);

impl Ahead {
    /// Index and number of the slices.
    pub(crate) fn run(&self) -> (usize, usize) {
        let word = self.0.load(Ordering::Relaxed);
        (word / AHEAD, word % AHEAD)
    }

    /// They are these from now on.
    pub(crate) fn set(&self, index: usize, count: usize) {
        debug_assert!(count < AHEAD);
        // Release: who sees it in a child sees that the arena has given them.
        self.0.store(index * AHEAD + count, Ordering::Release);
    }

    /// Takes the first slice.
    pub(crate) fn take(&self) -> Option<Run> {
        let (index, count) = self.run();
        let left = count.checked_sub(1)?;
        // Before the slice is described, whose owner is stored with Release.
        self.set(index + 1, left);
        Some(Run { index, zero: true, dirty: 0, backed: false })
    }

    /// Gives all back to the arena.
    pub(crate) fn release(&self) {
        let (index, count) = self.run();
        if count > 0 {
            // First: who sees in a child that the arena has them back, its lock let go, sees this, too.
            self.set(0, 0);
            arena::release(index, count, Memory::Clean);
        }
    }
}
