//! Owns: heaps as allocators of containers: the traits of two versions of the crate allocator-api2, or std's.
//! Idea: a container borrows its heap: it cannot outlive it, and follows it onto no other thread.
//! Never: allocates by another way than `HeapId` and `api`.
//! Threads: those of the heap.
//! Checked: tests/containers.rs; the examples of both traits, those that must not compile too.
//! Story: crates/cairn/README.md

use crate::{Cairn, Heap, api, deallocate_as};
use core::{alloc::Layout, ptr::NonNull};

/// A block with all the bytes that it has; None where the traits have an error, each its own.
pub(crate) type Got = Option<NonNull<[u8]>>;

/// Where blocks come from: sizes are not 0.
pub(crate) trait Source {
    fn get(&self, size: usize, align: usize) -> *mut u8;
    fn get_zeroed(&self, size: usize, align: usize) -> *mut u8;

    /// Gives null, or a block with the contents of the old one, which is gone.
    ///
    /// # Safety
    /// The block is null, or a live one of this source; the caller's to resize.
    unsafe fn resized(&self, block: *mut u8, size: usize, align: usize) -> *mut u8;
}

impl<Kind> Source for Heap<Kind> {
    #[inline]
    fn get(&self, size: usize, align: usize) -> *mut u8 {
        self.allocate(size, align)
    }

    #[inline]
    fn get_zeroed(&self, size: usize, align: usize) -> *mut u8 {
        self.allocate_zeroed(size, align)
    }

    unsafe fn resized(&self, block: *mut u8, size: usize, align: usize) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { self.id().reallocate(block, size, align) }
    }
}

impl Source for Cairn {
    #[inline]
    fn get(&self, size: usize, align: usize) -> *mut u8 {
        api::allocate_aligned(size, align)
    }

    #[inline]
    fn get_zeroed(&self, size: usize, align: usize) -> *mut u8 {
        api::allocate_zeroed_aligned(size, align)
    }

    /// The block may not have that alignment yet.
    unsafe fn resized(&self, block: *mut u8, size: usize, align: usize) -> *mut u8 {
        // SAFETY: null or a live block, the caller's to resize.
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
}

/// A block for a layout whose size is not 0, with all the bytes that it has.
fn got(block: *mut u8) -> Got {
    let start = NonNull::new(block)?;
    // SAFETY: a live block.
    let bytes = unsafe { api::usable_size(block) };
    Some(NonNull::slice_from_raw_parts(start, bytes))
}

/// What stands for a block without bytes.
fn empty(layout: Layout) -> NonNull<[u8]> {
    let place = core::ptr::without_provenance_mut(layout.align());
    // SAFETY: an alignment is not 0.
    NonNull::slice_from_raw_parts(unsafe { NonNull::new_unchecked(place) }, 0)
}

#[inline]
pub(crate) fn allocate(source: &impl Source, layout: Layout) -> Got {
    match layout.size() {
        0 => Some(empty(layout)),
        size => got(source.get(size, layout.align())),
    }
}

#[inline]
pub(crate) fn allocate_zeroed(source: &impl Source, layout: Layout) -> Got {
    match layout.size() {
        0 => Some(empty(layout)),
        size => {
            // What a class has beyond the layout may be other than zero: it is not told of.
            let start = NonNull::new(source.get_zeroed(size, layout.align()))?;
            Some(NonNull::slice_from_raw_parts(start, size))
        }
    }
}

/// # Safety
/// As for `Allocator::deallocate`.
#[inline]
pub(crate) unsafe fn deallocate(block: NonNull<u8>, layout: Layout) {
    if layout.size() > 0 {
        // SAFETY: as above.
        unsafe { deallocate_as(block.as_ptr(), layout) };
    }
}

/// Resizes a block.
///
/// # Safety
/// As for `Allocator::grow` or `shrink`.
pub(crate) unsafe fn resize(
    source: &impl Source,
    block: NonNull<u8>,
    old: Layout,
    new: Layout,
) -> Got {
    if new.size() == 0 {
        // SAFETY: as above.
        unsafe { deallocate(block, old) };
        return Some(empty(new));
    }
    // A block without bytes is none.
    let from = if old.size() == 0 { core::ptr::null_mut() } else { block.as_ptr() };
    // SAFETY: null, or the caller's.
    got(unsafe { source.resized(from, new.size(), new.align()) })
}

/// Resizes a block, and zeroes what is new.
///
/// # Safety
/// As for `Allocator::grow_zeroed`.
pub(crate) unsafe fn grow_zeroed(
    source: &impl Source,
    block: NonNull<u8>,
    old: Layout,
    new: Layout,
) -> Got {
    // SAFETY: the caller's.
    let got = unsafe { resize(source, block, old, new) }?;
    // SAFETY: a block of so many bytes, the caller's.
    unsafe {
        let start = got.as_ptr().cast::<u8>().add(old.size());
        start.write_bytes(0, got.len() - old.size());
    }
    Some(got)
}
