//! Owns: the guess whether a large block will be filled from end to end.
//! Idea: one block whose pages were not resident is remembered, and looked at when the next one is allocated.
//! Never: decides more than whether huge pages pay.
//! Threads: any; holds nothing.
//! Checked: tests/huge.rs
//! Story: docs/design/huge-pages.md

use crate::base::{AtomicUsize, Ordering, SLICE_SIZE};
use crate::large::tuning::{CREDIT_MAX, LOOKED_AT_EACH, MOVE_MIN};
use crate::os;

/// The last block whose use is evidence: none of its pages was resident before the program came to it.
/// Where it is, as a note, if it is there still, and its size.
static LAST: AtomicUsize = AtomicUsize::new(0);
static LAST_SIZE: AtomicUsize = AtomicUsize::new(0);
/// The size of the largest block seen filled since one was seen that was not.
static FILLED: AtomicUsize = AtomicUsize::new(0);
/// How many blocks may have huge pages put there before one is looked at again that has not.
static CREDIT: AtomicUsize = AtomicUsize::new(0);

/// What is noted of a block. A tool that searches memory for pointers does not find the block by it: one that the program has
/// lost would not be told as lost.
fn noted(p: *mut u8) -> usize {
    !p.addr()
}

/// Whether a block of `size` will be filled from end to end, as far as others tell: then it may
/// have huge pages. What is used here and there must not become resident as a whole.
pub(super) fn will_be_filled(size: usize) -> bool {
    // Relaxed: a guess.
    let (note, len) = (LAST.load(Ordering::Relaxed), LAST_SIZE.load(Ordering::Relaxed));
    let last = !note;
    if note != 0 && (size >= MOVE_MIN || (last / SLICE_SIZE).is_multiple_of(LOOKED_AT_EACH)) {
        let filled = os::is_filled(core::ptr::without_provenance_mut(last), len);
        if filled {
            has_been_filled(len);
        } else {
            FILLED.store(0, Ordering::Relaxed);
        }
    }
    size / 2 <= FILLED.load(Ordering::Relaxed)
}

/// A block of `size` has been filled.
fn has_been_filled(size: usize) {
    FILLED.fetch_max(size, Ordering::Relaxed);
    CREDIT.store(CREDIT_MAX, Ordering::Relaxed);
}

/// The pages of the block at `p` tell nothing: it is gone, or elsewhere, or cairn has written them.
pub(crate) fn forget(p: *mut u8) {
    if LAST.load(Ordering::Relaxed) == noted(p) {
        LAST.store(0, Ordering::Relaxed);
    }
}

/// What grows has been filled, whatever others are.
pub(super) fn grown(usable: usize) {
    LAST.store(0, Ordering::Relaxed);
    has_been_filled(usable);
}

/// The block at `p` is the one whose use is evidence from now on.
pub(super) fn remember(p: *mut u8, size: usize) {
    LAST.store(noted(p), Ordering::Relaxed);
    LAST_SIZE.store(size, Ordering::Relaxed);
}

/// Whether a block may have huge pages put there.
pub(super) fn has_credit() -> bool {
    CREDIT.load(Ordering::Relaxed) > 0
}

/// One has. Two threads may take the same.
pub(super) fn use_credit() {
    CREDIT.store(CREDIT.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
}
