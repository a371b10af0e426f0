//! Owns: heaps that the program has deleted while their blocks live on, and whose memory no other heap may have: those of
//!   regions, and those whose blocks readers may use late.
//! Idea: they stay as they are. Blocks come home as ever, and who needs memory, or gives back what is free, collects them.
//! Never: allocates from one.
//! Threads: any; one lock.
//! Checked: tests/region.rs, tests/grace.rs
//! Story: docs/design/regions.md

use crate::base::{SizeClass, Stack};
use crate::heap::{Heap, handle::LEFT};
use crate::thread::pool;

/// Takes a heap that nobody uses any more, with the blocks in use.
///
/// # Safety
/// A closed heap of the caller's, which does not use it after this.
pub(crate) unsafe fn keep(heap: *mut Heap) {
    // SAFETY: the caller's, and the list's from now on.
    unsafe {
        (*heap).member.of = core::ptr::null_mut();
        LEFT.lock().push(heap);
    }
}

/// Slices of all spans of a closed heap.
pub(crate) fn slices(heap: &Heap) -> usize {
    let of_class = |class: SizeClass| {
        let is_active = !heap.active[class.index()].is_null();
        (heap.partial[class.index()].len() + usize::from(is_active)) * class.span_slices()
    };
    heap.full_slices + SizeClass::all().map(of_class).sum::<usize>()
}

/// Gives back what is free in all of them; whether that is anything.
#[cold]
#[inline(never)]
pub(crate) fn collect() -> bool {
    let mut left = LEFT.lock();
    let (mut all, mut has_given) = (core::mem::replace(&mut *left, Stack::EMPTY), false);
    while !all.is_empty() {
        let heap = all.pop();
        // SAFETY: a heap of the list, which the lock's owner uses.
        unsafe {
            let before = slices(&*heap);
            (*heap).give_back();
            let now = slices(&*heap);
            has_given |= now < before;
            if now > 0 {
                left.push(heap);
            } else {
                pool::put_closed(heap);
            }
        }
    }
    has_given
}
