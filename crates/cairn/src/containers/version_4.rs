//! Owns: the trait of version 0.4 of the crate allocator-api2.
//! Idea: each call is one of the room's own.
//! Never: decides anything.
//! Threads: those of the heap.
//! Checked: tests/containers.rs; the examples below.
//! Story: crates/cairn/README.md

use crate::containers::{allocate, allocate_zeroed, deallocate, grow_zeroed, resize};
use crate::{Cairn, Heap};
use allocator_api2_04::alloc::{AllocError, Allocator};
use core::alloc::Layout;
use core::ptr::NonNull;

type Got = Result<NonNull<[u8]>, AllocError>;

/// As with version 0.2 of the crate.
///
/// ```
/// use allocator_api2_04::{boxed::Box, vec::Vec};
///
/// let heap = cairn::Heap::shared().expect("memory");
/// let mut numbers = Vec::new_in(&heap);
/// numbers.push(Box::new_in(7, &heap));
/// assert!(heap.id().contains((&raw const *numbers[0]).cast()));
/// drop(numbers);
/// heap.destroy();
/// ```
///
/// ```compile_fail,E0505
/// let heap = cairn::Heap::new().expect("memory");
/// let numbers = allocator_api2_04::vec::Vec::<u8, _>::new_in(&heap);
/// heap.destroy();
/// drop(numbers);
/// ```
// SAFETY: a block is valid until it is freed, or the heap is destroyed, which takes the heap itself: no reference is left by
// then. References to one heap are equal.
unsafe impl<Kind> Allocator for &Heap<Kind> {
    #[inline]
    fn allocate(&self, layout: Layout) -> Got {
        allocate(*self, layout).ok_or(AllocError)
    }

    #[inline]
    fn allocate_zeroed(&self, layout: Layout) -> Got {
        allocate_zeroed(*self, layout).ok_or(AllocError)
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { deallocate(block, layout) }
    }

    unsafe fn grow(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Got {
        // SAFETY: the caller's.
        unsafe { resize(*self, block, old, new) }.ok_or(AllocError)
    }

    unsafe fn grow_zeroed(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Got {
        // SAFETY: the caller's.
        unsafe { grow_zeroed(*self, block, old, new) }.ok_or(AllocError)
    }

    unsafe fn shrink(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Got {
        // SAFETY: the caller's.
        unsafe { resize(*self, block, old, new) }.ok_or(AllocError)
    }
}

/// The heaps of threads, as `allocate` has them.
///
/// ```
/// let mut numbers = allocator_api2_04::vec::Vec::new_in(cairn::Cairn);
/// numbers.extend(0..100);
/// assert_eq!(numbers[99], 99);
/// ```
// SAFETY: blocks are valid until they are freed.
unsafe impl Allocator for Cairn {
    #[inline]
    fn allocate(&self, layout: Layout) -> Got {
        allocate(self, layout).ok_or(AllocError)
    }

    #[inline]
    fn allocate_zeroed(&self, layout: Layout) -> Got {
        allocate_zeroed(self, layout).ok_or(AllocError)
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { deallocate(block, layout) }
    }

    unsafe fn grow(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Got {
        // SAFETY: the caller's.
        unsafe { resize(self, block, old, new) }.ok_or(AllocError)
    }

    unsafe fn grow_zeroed(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Got {
        // SAFETY: the caller's.
        unsafe { grow_zeroed(self, block, old, new) }.ok_or(AllocError)
    }

    unsafe fn shrink(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Got {
        // SAFETY: the caller's.
        unsafe { resize(self, block, old, new) }.ok_or(AllocError)
    }
}
