//! Owns: the pages in front of a long span's blocks, and behind them, that nobody can touch; in the hardened build.
//! Idea: what runs over the end of such a span meets a page that is not there, and so does what runs up to one.
//! Never: takes memory; or mappings, where the kernel has guard pages.
//! Threads: the span's owner.
//! Checked: tests/quarantine.rs; the attacks of the C layer.
//! Story: docs/design/policy.md

use crate::size_class::{SLICE_SIZE, guards};
use crate::sync::{AtomicUsize, Ordering};
use crate::{live, os};

/// Slices that are in no use any more because the system has not taken their guards away. Relaxed: a number.
pub(crate) static LOST: AtomicUsize = AtomicUsize::new(0);

/// The flags of a span that says which guards it has.
const FLAGS: [u8; 2] = [4, 8];

/// Where guards may be: the flag of each, its place and its length.
fn places(span: *mut u8, slices: usize) -> [(u8, *mut u8, usize); 2] {
    let [before, after] = guards(slices);
    let end = span.wrapping_add(slices * SLICE_SIZE - after);
    [(FLAGS[0], span, before), (FLAGS[1], end, after)]
}

/// Puts guards into a run of slices, of which the program has no block; the flags of those that are there.
///
/// # Safety
/// The run is the caller's, and no block is there.
pub(crate) unsafe fn put(span: *mut u8, slices: usize) -> u8 {
    // SAFETY: the caller's.
    unsafe { live::forget(span, slices) };
    let places = places(span, slices).into_iter().filter(|place| place.2 > 0);
    // SAFETY: the caller's, and in no block.
    places.filter(|&(_, at, bytes)| unsafe { os::guard(at, bytes) }).map(|place| place.0).sum()
}

/// Takes those away that the flags name; false if the system has not.
pub(crate) fn remove(span: *mut u8, slices: usize, flags: u8) -> bool {
    let mut there = places(span, slices).into_iter().filter(|place| place.0 & flags != 0);
    let is_done = there.all(|(_, at, bytes)| os::unguard(at, bytes));
    if !is_done {
        LOST.fetch_add(slices, Ordering::Relaxed);
    }
    is_done
}
