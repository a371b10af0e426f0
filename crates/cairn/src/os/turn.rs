//! Owns: whose turn it is inside a part of a shared heap: its thread's, which frees, or whoever ends the heap.
//! Idea: a thread frees into its part as into a heap of its own, and others may delete the heap meanwhile. So a free
//!   takes its turn by one atomic step; who ends the heap takes the last one.
//! Never: is asked by an allocation: nobody allocates from a heap that is being ended.
//! Threads: any.
//! Checked: the model `turns`.
//! Story: docs/design/closed-heaps.md

use crate::base::{AtomicU32, Ordering};
use crate::os::{self, tuning::TURN_LOOK_MS};

// | word   | meaning                                       | next                               |
// | ------ | --------------------------------------------- | ---------------------------------- |
// | ALONE  | no part: whoever uses the heap alone ends it  | SHUT                               |
// | OPEN   | a part, in which nobody is                    | INSIDE by its thread, SHUT         |
// | INSIDE | its thread frees into it                      | OPEN by that thread                |
// | SHUT   | it is being made or ended, or has been ended  | ALONE: the memory is a heap's, or free |

const ALONE: u32 = 0;
const OPEN: u32 = 1;
const INSIDE: u32 = 2;
const SHUT: u32 = 3;

/// The word.
pub(crate) struct Turn(AtomicU32);

/// What a free has got.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Got {
    /// It needs none.
    Alone,
    /// It has its turn, and gives it back by `leave`.
    Turn,
    /// The part is being ended.
    Nothing,
}

impl Turn {
    /// There are no turns to take.
    pub(crate) const fn alone() -> Turn {
        Turn(AtomicU32::new(ALONE))
    }

    /// There are turns from now on. By who makes the part.
    pub(crate) fn open(&self) {
        // Release: who takes a turn finds that the heap that was here has no user any more (`enter`). The fence of who
        // writes the heap over says so, too: that is for children that are forked meanwhile.
        self.0.store(OPEN, Ordering::Release);
    }

    /// There are none any more: the heap that was here has ended, and has no user; its memory is written.
    pub(crate) fn close(&self) {
        // Release: who finds this finds that, too (`enter`).
        self.0.store(ALONE, Ordering::Release);
    }

    /// A heap begins anew, in a forked child in which its thread is not.
    pub(crate) fn begin_anew(&self) {
        // Relaxed: the child has one thread.
        if self.0.load(Ordering::Relaxed) != ALONE {
            self.0.store(OPEN, Ordering::Relaxed);
        }
    }

    /// The turn of the part's thread.
    #[inline]
    pub(crate) fn enter(&self) -> Got {
        // Acquire: a part has ended, and the heap that was here has no user any more (`close`).
        if self.0.load(Ordering::Acquire) == ALONE {
            return Got::Alone;
        }
        // Acquire: whoever has made another heap of it has done so.
        match self.0.compare_exchange(OPEN, INSIDE, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Got::Turn,
            Err(_) => Got::Nothing,
        }
    }

    /// Gives the turn back.
    #[inline]
    pub(crate) fn leave(&self) {
        // Release: who takes the last turn finds the free done.
        self.0.store(OPEN, Ordering::Release);
    }

    /// Whether the heap is being ended.
    pub(crate) fn is_shut(&self) -> bool {
        self.0.load(Ordering::Relaxed) == SHUT
    }

    /// The last turn, for who ends the heap: waits for a free that is under way.
    pub(crate) fn shut(&self) {
        if self.0.load(Ordering::Relaxed) == ALONE {
            return self.0.store(SHUT, Ordering::Relaxed);
        }
        // Acquire: what its thread has done there comes before.
        while self.0.compare_exchange(OPEN, SHUT, Ordering::Acquire, Ordering::Relaxed).is_err() {
            os::wait_for(&self.0, INSIDE, TURN_LOOK_MS);
        }
    }
}
