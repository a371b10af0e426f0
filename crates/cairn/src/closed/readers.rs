//! Owns: what a heap for lock-free readers does when a block of its is freed.
//! Idea: large blocks wait in the heap's list; of small ones the links stand behind what is kept.
//! Never: asks whether anybody reads.
//! Threads: any; holds nothing.
//! Checked: tests/grace.rs
//! Story: docs/design/closed-heaps.md

use super::Name;
use crate::heap::Heap;
use crate::{address_map, large, live, os};

/// Bytes at the head of a free block that the heap keeps as they are that a descriptor names as owner.
pub(crate) fn head_of(owner: u32) -> usize {
    let heap = address_map::heap_of_owner(owner).and_then(address_map::heap_address);
    // SAFETY: a heap that has been made; constant while it has a span.
    heap.map_or(0, |heap| unsafe { (*heap.cast::<Heap>()).head.into() })
}

/// Whether the large block at `p`, any value at all, that is being freed now waits for its heap's readers. Ends the process if
/// it waits already.
///
/// # Safety
/// If it is a block, it is the caller's to free.
pub(crate) unsafe fn keep_large(p: *mut u8, call: &str) -> bool {
    // SAFETY: a heap's that is there while a block says so; handles are never unmapped.
    let Some(grace) = (unsafe { large::owner_of(p).as_ref() }).map(|owned| &owned.grace) else {
        return false;
    };
    if !grace.is_on() {
        return false;
    }
    // SAFETY: the caller's to free.
    if !unsafe { grace.keep(p) } {
        os::fatal(call, p, live::FREED_TWICE);
    }
    if !grace.is_on() {
        // The heap has ended meanwhile.
        grace.take_due(free_large);
    }
    true
}

/// Whether the large block at `p` has readers besides who has it: it does not move, or lose pages.
pub(crate) fn is_read_by_others(p: *mut u8) -> bool {
    // SAFETY: as above.
    unsafe { large::owner_of(p).as_ref() }.is_some_and(|owned| owned.grace.is_on())
}

fn free_large(p: *mut u8) {
    let _ = large::free(p) || large::free_mapping(p);
}

/// Frees the large blocks that have waited long enough for a heap's readers.
///
/// # Safety
/// The heap is there.
pub(crate) unsafe fn free_due(name: *mut Name) {
    // SAFETY: a handle.
    unsafe { &(*name).owned.grace }.take_due(free_large);
}
