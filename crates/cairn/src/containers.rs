//! Owns: heaps as allocators of containers: the trait of the crate allocator-api2, or std's.
//! Idea: a container borrows its heap: it cannot outlive it, and follows it onto no other thread.
//! Never: allocates by another way than `HeapId` and `api`.
//! Threads: those of the heap.
//! Checked: tests/containers.rs; the examples below, those that must not compile too.
//! Story: docs/guide/rust.md

use crate::{Cairn, Heap, HeapId, api, deallocate_as};
use allocator_api2::alloc::{AllocError, Allocator};
use core::alloc::Layout;
use core::ptr::NonNull;

type Got = Result<NonNull<[u8]>, AllocError>;

/// A block for a layout whose size is not 0, with all the bytes that it has.
fn got(block: *mut u8) -> Got {
    let start = NonNull::new(block).ok_or(AllocError)?;
    // SAFETY: a live block.
    let bytes = unsafe { api::usable_size(block) };
    Ok(NonNull::slice_from_raw_parts(start, bytes))
}

/// What stands for a block without bytes.
fn empty(layout: Layout) -> NonNull<[u8]> {
    let place = core::ptr::without_provenance_mut(layout.align());
    // SAFETY: an alignment is not 0.
    NonNull::slice_from_raw_parts(unsafe { NonNull::new_unchecked(place) }, 0)
}

fn allocate(layout: Layout, block: impl FnOnce(usize, usize) -> *mut u8) -> Got {
    match layout.size() {
        0 => Ok(empty(layout)),
        size => got(block(size, layout.align())),
    }
}

/// # Safety
/// As for `Allocator::deallocate`.
unsafe fn deallocate(block: NonNull<u8>, layout: Layout) {
    if layout.size() > 0 {
        // SAFETY: as above.
        unsafe { deallocate_as(block.as_ptr(), layout) };
    }
}

/// Resizes a block by `resize`, and zeroes what is new if `zeroes`.
///
/// # Safety
/// As for `Allocator::grow` or `shrink`; `resize` gives null, or a block with the contents of the old one, which is gone.
unsafe fn resize(
    block: NonNull<u8>,
    [old, new]: [Layout; 2],
    zeroes: bool,
    resize: impl FnOnce(*mut u8, usize, usize) -> *mut u8,
) -> Got {
    if new.size() == 0 {
        // SAFETY: as above.
        unsafe { deallocate(block, old) };
        return Ok(empty(new));
    }
    // A block without bytes is none.
    let from = if old.size() == 0 { core::ptr::null_mut() } else { block.as_ptr() };
    let got = got(resize(from, new.size(), new.align()))?;
    if zeroes {
        // SAFETY: a block of so many bytes, the caller's.
        unsafe {
            let start = got.as_ptr().cast::<u8>().add(old.size());
            start.write_bytes(0, got.len() - old.size());
        }
    }
    Ok(got)
}

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
        allocate(layout, |size, align| (**self).allocate(size, align))
    }

    #[inline]
    fn allocate_zeroed(&self, layout: Layout) -> Got {
        // What a class has beyond the layout may be other than zero: it is not told of.
        let block = allocate(layout, |size, align| (**self).allocate_zeroed(size, align))?;
        Ok(NonNull::slice_from_raw_parts(block.cast(), layout.size()))
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { deallocate(block, layout) }
    }

    unsafe fn grow(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Got {
        // SAFETY: the caller's.
        unsafe { resize(block, [old, new], false, in_heap(self.id())) }
    }

    unsafe fn grow_zeroed(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Got {
        // SAFETY: the caller's.
        unsafe { resize(block, [old, new], true, in_heap(self.id())) }
    }

    unsafe fn shrink(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Got {
        // SAFETY: the caller's.
        unsafe { resize(block, [old, new], false, in_heap(self.id())) }
    }
}

/// # Safety
/// Who calls the result has a live block of the heap, and the heap.
unsafe fn in_heap(heap: HeapId) -> impl FnOnce(*mut u8, usize, usize) -> *mut u8 {
    // SAFETY: as above.
    move |block, size, align| unsafe { heap.reallocate(block, size, align) }
}

/// Resizes a block of threads' heaps that may not have that alignment yet.
fn realign(block: *mut u8, size: usize, align: usize) -> *mut u8 {
    // SAFETY: null or a live block, the caller's to resize, by the word of `resize`'s.
    unsafe {
        if block.addr().is_multiple_of(align) {
            return api::reallocate_aligned(block, size, align);
        }
        let new = api::allocate_aligned(size, align);
        if !new.is_null() {
            new.copy_from_nonoverlapping(block, api::usable_size(block).min(size));
            api::deallocate(block);
        }
        new
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
        allocate(layout, api::allocate_aligned)
    }

    #[inline]
    fn allocate_zeroed(&self, layout: Layout) -> Got {
        let block = allocate(layout, api::allocate_zeroed_aligned)?;
        Ok(NonNull::slice_from_raw_parts(block.cast(), layout.size()))
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { deallocate(block, layout) }
    }

    unsafe fn grow(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Got {
        // SAFETY: the caller's.
        unsafe { resize(block, [old, new], false, realign) }
    }

    unsafe fn grow_zeroed(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Got {
        // SAFETY: the caller's.
        unsafe { resize(block, [old, new], true, realign) }
    }

    unsafe fn shrink(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Got {
        // SAFETY: the caller's.
        unsafe { resize(block, [old, new], false, realign) }
    }
}
