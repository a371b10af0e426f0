//! The slot that leads to a thread's heap, one for each of loom's threads.

use super::EMPTY;
use crate::heap::Heap;
use std::cell::Cell;

loom::thread_local! {
    static SLOT: Cell<*mut Heap> = Cell::new((&raw const EMPTY.heap).cast_mut());
}

/// The calling thread's heap, or a stand-in.
pub(crate) fn get() -> *mut Heap {
    SLOT.with(Cell::get)
}

/// Makes `heap` the calling thread's.
pub(super) fn set(heap: *mut Heap) {
    SLOT.with(|slot| slot.set(heap));
}
