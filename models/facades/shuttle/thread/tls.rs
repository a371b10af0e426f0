//! Owns: what leads to a thread's heap in the model of the whole core.
//! Idea: the model's threads share one thread of the system: the slot is the model's.
//! Never: anything else.
//! Threads: each its own.
//! Checked: as `thread`.
//! Story: docs/results/verification.md

use super::EMPTY;
use crate::heap::Heap;
use crate::whole::threads;

/// The calling thread's heap, or a stand-in.
pub(crate) fn get() -> *mut Heap {
    let heap: *mut Heap = threads::slot().cast();
    if heap.is_null() { (&raw const EMPTY.heap).cast_mut() } else { heap }
}

/// Makes `heap` the calling thread's.
pub(super) fn set(heap: *mut Heap) {
    threads::set_slot(heap.cast());
}
