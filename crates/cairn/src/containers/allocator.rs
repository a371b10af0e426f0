//! Owns: the trait of one version of the crate allocator-api2; that of 0.2 may be std's.
//! Idea: each call is one of the room's own. Two versions are two crates with the same trait: this file is compiled for each.
//! Never: decides anything.
//! Threads: those of the heap.
//! Checked: tests/containers.rs; the examples below.
//! Story: crates/cairn/README.md

use super::version::alloc::{AllocError, Allocator};
use crate::containers::{allocate, allocate_zeroed, deallocate, grow_zeroed, resize};
use crate::{Cairn, Heap};
use core::{alloc::Layout, ptr::NonNull};

type Got = Result<NonNull<[u8]>, AllocError>;

/// Containers live and die with a heap, `Vec<T, &Heap>` say. What has no room left within the heap's limit is refused, as where
/// there is no memory.
///
/// ```
/// use allocator_api2::{boxed::Box, vec::Vec};
/// use hashbrown::{DefaultHashBuilder, HashMap};
///
/// let heap = cairn::Heap::new().expect("memory");
/// let mut names = HashMap::with_hasher_in(DefaultHashBuilder::default(), &heap);
/// for number in 0..1000 {
///     let mut name = Vec::new_in(&heap);
///     name.extend_from_slice(b"a name");
///     names.insert(number, name);
/// }
/// assert!(heap.id().contains(names[&7].as_ptr()));
/// drop(names);
/// heap.destroy();
/// ```
///
/// What lives in it cannot outlive it:
///
/// ```compile_fail,E0505
/// let heap = cairn::Heap::new().expect("memory");
/// let numbers = allocator_api2::vec::Vec::<u8, _>::new_in(&heap);
/// heap.destroy();
/// drop(numbers);
/// ```
///
/// ```compile_fail,E0597
/// let numbers = {
///     let heap = cairn::Heap::new().expect("memory");
///     allocator_api2::vec::Vec::<u8, _>::new_in(&heap)
/// };
/// drop(numbers);
/// ```
///
/// With an owned heap it stays on its thread, with a shared one it need not:
///
/// ```compile_fail,E0277
/// let heap = cairn::Heap::new().expect("memory");
/// let numbers = allocator_api2::vec::Vec::<u8, _>::new_in(&heap);
/// std::thread::scope(|scope| {
///     scope.spawn(move || drop(numbers));
/// });
/// ```
///
/// ```
/// let heap = cairn::Heap::shared().expect("memory");
/// let mut numbers = allocator_api2::vec::Vec::new_in(&heap);
/// numbers.push(1);
/// std::thread::scope(|scope| {
///     scope.spawn(move || drop(numbers));
/// });
/// heap.destroy();
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
/// let mut numbers = allocator_api2::vec::Vec::new_in(cairn::Cairn);
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
