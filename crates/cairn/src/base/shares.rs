//! Owns: how many heaps threads use, and what each of them may hold on to then.
//! Idea: what one heap keeps others may need: the more there are, the less is worth keeping.
//! Never: decides what is right: what is kept or let go is right either way.
//! Threads: any.
//! Checked: tests/heaps.rs.
//! Story: docs/design/heap.md

use crate::base::sync::{Apart, AtomicUsize, Ordering};
use crate::base::tuning::FULL_SLICES;

/// The number of no thread.
pub(crate) const NOBODY: usize = usize::MAX;
/// The number of a thread that a fork has left behind, whichever it was.
pub(crate) const LEFT_BEHIND: usize = usize::MAX - 1;

/// Heaps in use by threads. Relaxed: it decides only what is worth keeping.
static IN_USE: Apart<AtomicUsize> = Apart(AtomicUsize::new(0));

/// Heaps in use by threads.
pub(crate) fn in_use() -> usize {
    IN_USE.0.load(Ordering::Relaxed)
}

/// A thread has got a heap.
pub(crate) fn one_more() {
    IN_USE.0.fetch_add(1, Ordering::Relaxed);
}

/// A thread has given its heap back.
pub(crate) fn one_less() {
    IN_USE.0.fetch_sub(1, Ordering::Relaxed);
}

/// In a forked child: so many are in use; how many had been.
pub(crate) fn settle_in_child(in_use: usize) -> usize {
    IN_USE.0.swap(in_use, Ordering::Relaxed)
}

/// So many slices, divided by the heaps in use.
pub(crate) fn share(slices: usize) -> usize {
    slices / in_use().max(1)
}

/// What each heap in use may hold on to of full spans, in slices: half of the room if there are two,
/// then less than its share. Threads that come one after the other and park keep what they might
/// when they came: 9 MiB at most, however many.
pub(crate) fn full_share() -> usize {
    share(share(2 * FULL_SLICES)).min(FULL_SLICES)
}

/// What each heap in use may keep of empty spans, in slices: its share of 4 MiB. They go back unless its thread goes on
/// using them. With a share of a share, eight threads that fill and empty 240 KiB each take 1.1 times as long, four
/// with twice as much 1.35: half of their spans go through the arena, and to another core.
pub(crate) fn empty_share() -> usize {
    share(FULL_SLICES)
}
