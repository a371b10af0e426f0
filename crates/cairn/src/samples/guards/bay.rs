//! Owns: what is known of each bay, and the steps from one state to the next.
//! Idea: one atomic word says what a bay is and since when; whoever changes it to a passing state has the bay.
//! Never: waits for another thread: what a fork has left in a passing state stays so.
//! Threads: any, in a signal's handler too.
//! Checked: tests/guards.rs; a loom model of the word.
//! Story: docs/guide/guards.md

use crate::base::{AtomicUsize, Ordering};
use crate::os;
use crate::stacks::{Calls, FRAMES};

// The word of a bay: the state in the lowest three bits, above them the ticket of its last change.
//
//   UNUSED -> TAKING -> LIVE -> FREEING -> FREED -> TAKING ...
//                TAKING goes back to what it was if there is no memory.

/// What a bay is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum State {
    /// It has had no block.
    Unused,
    /// A thread is about to put a block there.
    Taking,
    /// It has a block that the program uses.
    Live,
    /// A thread is about to free the block.
    Freeing,
    /// Its block is freed, and inaccessible.
    Freed,
}

const STATES: [State; 5] =
    [State::Unused, State::Taking, State::Live, State::Freeing, State::Freed];
const STATE_BITS: u32 = 3;

/// A stack, and whose.
pub(crate) struct Trace {
    thread: AtomicUsize,
    calls: [AtomicUsize; FRAMES],
}

impl Trace {
    /// Keeps the calling thread's.
    #[inline(never)]
    pub(super) fn keep(&self, calls: &Calls) {
        self.thread.store(os::thread_id(), Ordering::Relaxed);
        self.calls.iter().zip(calls).for_each(|(kept, &call)| kept.store(call, Ordering::Relaxed));
    }

    /// Whose it is, and the stack.
    #[inline(never)]
    pub(super) fn look(&self) -> (usize, Calls) {
        let mut calls = [0; FRAMES];
        let kept = self.calls.iter().map(|call| call.load(Ordering::Relaxed));
        calls.iter_mut().zip(kept).for_each(|(call, kept)| *call = kept);
        (self.thread.load(Ordering::Relaxed), calls)
    }
}

/// What is known of a bay. Memory of zeros is an unused one. Relaxed but for the word: whoever has seen the
/// word sees what was there before it changed.
pub(crate) struct Bay {
    word: AtomicUsize,
    /// The block's first byte.
    start: AtomicUsize,
    /// What was asked for.
    size: AtomicUsize,
    pub(super) allocated: Trace,
    pub(super) freed: Trace,
}

impl Bay {
    fn word(&self) -> usize {
        // Acquire: what is known of the bay is what it was when it got that state.
        self.word.load(Ordering::Acquire)
    }

    pub(crate) fn state(&self) -> State {
        STATES.get(self.word() & 7).copied().unwrap_or(State::Taking)
    }

    /// The block, if it is or was there: its first byte, and its size.
    pub(crate) fn block(&self) -> (usize, usize) {
        (self.start.load(Ordering::Relaxed), self.size.load(Ordering::Relaxed))
    }

    /// Since when the bay can be taken; None if it cannot.
    pub(crate) fn free_since(&self) -> Option<usize> {
        matches!(self.state(), State::Unused | State::Freed).then(|| self.word() >> STATE_BITS)
    }

    /// Takes the bay, if it is as free as it was then. What it was, to put it back.
    pub(crate) fn take(&self, since: usize) -> Option<State> {
        let was = self.state();
        let from = since << STATE_BITS | was as usize;
        let can = matches!(was, State::Unused | State::Freed);
        (can && self.step(from, State::Taking)).then_some(was)
    }

    /// Begins to free the block that starts there; false if it is not there any more, or somebody else frees it.
    pub(crate) fn begin_to_free(&self, start: usize) -> bool {
        let from = self.word();
        let is_it = from & 7 == State::Live as usize && self.block().0 == start;
        // If the word is what it was, so is the block.
        is_it && self.step(from, State::Freeing)
    }

    fn step(&self, from: usize, to: State) -> bool {
        let to = from & !7 | to as usize;
        self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Says what the bay, which the caller has, is from now on.
    pub(crate) fn settle(&self, state: State, ticket: usize) {
        // Release: who sees the state sees the rest.
        self.word.store(ticket << STATE_BITS | state as usize, Ordering::Release);
    }

    /// Says which block the bay, which the caller has, is going to hold.
    pub(crate) fn describe(&self, start: usize, size: usize) {
        self.start.store(start, Ordering::Relaxed);
        self.size.store(size, Ordering::Relaxed);
    }
}
