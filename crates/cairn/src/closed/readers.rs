//! Owns: what a heap for lock-free readers does when a block of its is freed.
//! Idea: large blocks wait in the heap's list; of small ones the links stand behind what is kept.
//! Never: asks whether anybody reads.
//! Threads: any; holds nothing.
//! Checked: tests/grace.rs
//! Story: docs/design/closed-heaps.md

use crate::heap::Handle;
use crate::large::{self, Kept};
use crate::{os, store::FREED_TWICE};

/// Whether the large block at `p`, any value at all, that is being freed now waits for its heap's readers. Ends the process if
/// it waits already.
///
/// # Safety
/// If it is a block, it is the caller's to free.
pub(crate) unsafe fn keep_large(p: *mut u8, call: &str) -> bool {
    // SAFETY: as above.
    match unsafe { large::keep(p, call) } {
        Kept::No => false,
        Kept::Waits => true,
        Kept::Twice => os::fatal(call, p, FREED_TWICE),
    }
}

/// Whether the large block at `p` has readers besides who has it: it does not move, or lose pages.
pub(crate) fn is_read_by_others(p: *mut u8) -> bool {
    // SAFETY: a heap's that is there while a block says so; handles are never unmapped.
    unsafe { large::owner_of(p).as_ref() }.is_some_and(|owned| owned.grace.is_on())
}

/// Frees the large blocks that have waited long enough for a heap's readers.
///
/// # Safety
/// The heap is there.
pub(crate) unsafe fn free_due(name: *mut Handle) {
    // SAFETY: a handle.
    large::free_due(unsafe { &(*name).owned });
}
