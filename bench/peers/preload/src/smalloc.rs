//! smalloc 7.6.13, in Rust: its crate has no C interface, so this is one on its `GlobalAlloc`.
//!
//! A block's size class is a part of its address, so that `free` needs no layout; `realloc` and
//! `malloc_usable_size` read the class's size there. As in the project's own C interface, a
//! pointer that is not its own is looked for, here to be let go. What is not here is in `missing.c`.

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::c_void;
use core::ptr::null_mut;

use libc::ENOMEM;
use smmalloc::{Smalloc, ptr_to_sc};

static SMALLOC: Smalloc = Smalloc::new();

/// What `malloc` guarantees for blocks that can hold so much.
const ALIGNMENT: usize = 1;

#[cold]
fn out_of_memory() -> *mut c_void {
    // SAFETY: a thread's errno may always be written.
    unsafe { *libc::__errno_location() = ENOMEM };
    null_mut()
}

type Make = unsafe fn(&Smalloc, Layout) -> *mut u8;

#[inline(always)]
fn allocate(size: usize, alignment: usize, make: Make) -> *mut c_void {
    let Ok(layout) = Layout::from_size_align(size.max(1), alignment) else {
        return out_of_memory();
    };
    // SAFETY: `make` is one of the allocator's own; the size is not zero.
    let block = unsafe { make(&SMALLOC, layout) };
    if block.is_null() { out_of_memory() } else { block.cast() }
}

#[inline(always)]
fn is_ours(block: *mut c_void) -> bool {
    !block.is_null() && SMALLOC.inner().is_smalloc_ptr(block.addr())
}

#[inline(always)]
fn block_size(block: *mut c_void) -> usize {
    1 << ptr_to_sc(block.addr())
}

#[unsafe(no_mangle)]
extern "C" fn malloc(size: usize) -> *mut c_void {
    allocate(size, ALIGNMENT, Smalloc::alloc)
}

#[unsafe(no_mangle)]
extern "C" fn free(block: *mut c_void) {
    if is_ours(block) {
        SMALLOC.inner().dealloc(block.addr());
    }
}

#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        Some(total) => allocate(total, ALIGNMENT, Smalloc::alloc_zeroed),
        None => out_of_memory(),
    }
}

#[unsafe(no_mangle)]
extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if !is_ours(block) {
        return malloc(size);
    }
    if size == 0 {
        free(block);
        return null_mut();
    }
    if size > isize::MAX as usize {
        return out_of_memory();
    }
    // SAFETY: a class's size with alignment 1 is a layout.
    let layout = unsafe { Layout::from_size_align_unchecked(block_size(block), ALIGNMENT) };
    // SAFETY: the block is ours, with room for its class's size.
    let block = unsafe { SMALLOC.realloc(block.cast(), layout, size) };
    if block.is_null() { out_of_memory() } else { block.cast() }
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    allocate(size, alignment, Smalloc::alloc)
}

#[unsafe(no_mangle)]
extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    if is_ours(block) { block_size(block) } else { 0 }
}
