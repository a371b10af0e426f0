//! Owns: at which line of its first page a large block begins.
//! Idea: equal parts of many blocks do not compete for the same cache sets.
//! Never: knows a block.
//! Threads: any; holds nothing.
//! Checked: tests/large.rs
//! Story: docs/design/large-blocks.md

use crate::base::{AtomicUsize, Ordering};
use crate::large::tuning::COLOUR_MIN;
use crate::os;

/// Blocks start at different lines of their first page, so that equal parts of many blocks
/// do not compete for the same cache sets.
pub(crate) const COLOUR_STEP: usize = 64;
pub(super) const COLOURS: usize = 64;

/// How far into its first page the next block starts, at most `room`.
pub(super) fn next_colour(room: usize) -> usize {
    static TURN: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: any spread will do. 25 is odd: all colours come up, neighbours lie far apart.
    let turn = TURN.fetch_add(25, Ordering::Relaxed) % COLOURS;
    (turn * COLOUR_STEP).min(room / COLOUR_STEP * COLOUR_STEP)
}

/// Bytes that a run of `size` has besides, for colour: a power of two leaves no room for it.
pub(super) fn colour_room(size: usize) -> usize {
    if size >= COLOUR_MIN { os::page_size() } else { 0 }
}
