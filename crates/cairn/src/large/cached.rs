//! Owns: the freed run that a heap keeps for its next large block.
//! Idea: to the arena it is in use still, and to everybody else nothing: no lock is taken to free it, or to have it again.
//! Never: keeps more than one.
//! Threads: the heap's own.
//! Checked: tests/large.rs, tests/forks.rs
//! Story: docs/design/large-blocks.md

use super::{COLOUR_STEP, Freers, Large, Size, Sizes, at, end, is_supplied, run_of};
use crate::base::{AtomicPtr, Ordering, SLICE_SIZE};
use crate::map::{OWNER_LARGE, address_map};
use core::ptr::null_mut;

/// Keeps the block at `p`, which is being freed, in `kept`, a place for one that the caller
/// alone fills, for the one there; false if none starts there, if it has more than `most` slices,
/// belongs to a closed heap, is in a region, or starts where another block would not.
/// To the arena it is in use still, to everybody else nothing. Ends the process if somebody has written beyond its end: a
/// message names `call`.
pub(crate) fn cache(
    kept: &AtomicPtr<Large>,
    p: *mut u8,
    most: usize,
    freers: Freers,
    call: &str,
) -> bool {
    let is_bound = |large: &Large| large.link.is_owned() || is_supplied(p);
    if at(p).is_none_or(is_bound) || !p.addr().is_multiple_of(COLOUR_STEP) {
        return false;
    }
    let Some(large) = end(p, most, freers) else { return false };
    // SAFETY: its life has just ended.
    unsafe { large.expect_whole(call) };
    if !kept.load(Ordering::Relaxed).is_null() {
        drop_cached(kept);
    }
    kept.store(core::ptr::from_ref(large).cast_mut(), Ordering::Relaxed);
    true
}

/// Allocates `size` bytes at a multiple of `align`, a power of two, out of `kept`, the caller's; null if there is none, if it
/// begins elsewhere, or if they do not fit, or too loosely.
pub(crate) fn take_cached(kept: &AtomicPtr<Large>, size: usize, align: usize) -> *mut u8 {
    // SAFETY: a slot, or null; slots are never unmapped, and what is kept is the caller's.
    let Some(large) = (unsafe { kept.load(Ordering::Relaxed).as_ref() }) else { return null_mut() };
    let usable = large.usable();
    let (start, _) = large.run();
    let is_elsewhere = start.addr() & align.wrapping_sub(1) != 0;
    if size > usable || usable - size > SLICE_SIZE + size / 8 || is_elsewhere {
        return null_mut();
    }
    kept.store(null_mut(), Ordering::Relaxed);
    // SAFETY: the caller's, with room for so many.
    unsafe { Size::set(large, size) };
    address_map::descriptor(start).owner.store(OWNER_LARGE, Ordering::Relaxed);
    start
}

/// Gives what the caller keeps in `kept` to the arena.
pub(crate) fn drop_cached(kept: &AtomicPtr<Large>) {
    // Before the arena's lock is taken: a child that is forked when the arena has the run does not
    // find it here, too.
    let large = kept.load(Ordering::Relaxed);
    kept.store(null_mut(), Ordering::Relaxed);
    // SAFETY: a slot, or null; slots are never unmapped, and what is kept is the caller's.
    if let Some(large) = unsafe { large.as_ref() } {
        large.give_back();
    }
}

/// The run in `kept`, any heap's: (address, bytes).
pub(crate) fn cached_run(kept: &AtomicPtr<Large>) -> Option<(*mut u8, usize)> {
    // SAFETY: a slot, or null; slots are never unmapped.
    unsafe { kept.load(Ordering::Relaxed).as_ref() }.and_then(run_of)
}
