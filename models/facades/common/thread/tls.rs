//! What leads to a thread's heap. A model's threads share one thread of the system's: the slot is the
//! model's.

use crate::heap::{EMPTY, Heap};
use crate::os;

/// The calling thread's heap, or a stand-in.
pub(crate) fn get() -> *mut Heap {
    let heap = os::own_heap();
    if heap.is_null() { EMPTY.heap() } else { heap }
}

/// Makes `heap` the calling thread's.
pub(super) fn set(heap: *mut Heap) {
    os::set_own_heap(heap);
}
