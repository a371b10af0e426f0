//! Owns: allocation of zeroed blocks.
//! Idea: memory that is known to be zero is not zeroed again: spans and runs know whether it is.
//! Never: knows C types or errno.
//! Threads: any, at any time in a thread's life; holds nothing.
//! Checked: oracle tests with contents.
//! Story: docs/design/fast-paths.md

use super::lookup::is_apart;
use super::{NoMemory, Null, cached_block, handed_out, new_block, profiled, refill};
use crate::base::{MEDIUM_MAX, MIN_ALIGN, SMALL_MAX, SizeClass, size_class};
use crate::heap::Heap;
use crate::map::Block;
use crate::store::{Caches, Store};
use crate::{large, thread};

/// Allocates `size` zeroed bytes, aligned to 16; null if there is no memory.
///
/// ```
/// let block = cairn::allocate_zeroed(100);
/// // SAFETY: a live block, which nobody uses after this.
/// unsafe {
///     assert_eq!(*block.add(99), 0);
///     cairn::deallocate(block);
/// }
/// ```
#[inline(always)]
pub fn allocate_zeroed(size: usize) -> *mut u8 {
    allocate_zeroed_or::<Null>(size)
}

/// As `allocate_zeroed`, with another answer than null.
#[inline(always)]
pub fn allocate_zeroed_or<F: NoMemory>(size: usize) -> *mut u8 {
    allocate_zeroed_array_or::<F>(1, size)
}

/// Allocates `count` times `size` zeroed bytes, aligned to 16. If that is too much, or there is no memory, the
/// answer is `F`'s.
#[inline(always)]
pub fn allocate_zeroed_array_or<F: NoMemory>(count: usize, size: usize) -> *mut u8 {
    let Some(bytes) = count.checked_mul(size) else { return F::answer(usize::MAX, MIN_ALIGN) };
    if bytes > SMALL_MAX {
        return allocate_zeroed_medium::<F>(bytes);
    }
    let class = size_class::small_class(bytes);
    allocate_zeroed_class::<F>(thread::heap(), [count, size], class, MIN_ALIGN)
}

/// The size in two factors: the registers of both are free anyway, one for the product would be an instruction
/// more.
#[inline(always)]
fn allocate_zeroed_class<F: NoMemory>(
    heap: *mut Heap,
    [count, size]: [usize; 2],
    class: SizeClass,
    align: usize,
) -> *mut u8 {
    // SAFETY: as in `allocate_class`.
    unsafe {
        match Caches::pop(&raw mut (*heap).caches, class) {
            block if block.is_null() => allocate_zeroed_slow::<F>(count, size, class, align),
            block => zero(heap, class, count * size, block),
        }
    }
}

/// Zeroes a block just popped, unless it is zero anyway.
#[inline(always)]
unsafe fn zero(heap: *const Heap, class: SizeClass, size: usize, block: *mut Block) -> *mut u8 {
    // SAFETY: the block is the caller's, as far as its class reaches.
    unsafe {
        if !(*heap).caches.is_zeroed(class) {
            block.cast::<u8>().write_bytes(0, class.block_size());
        }
    }
    handed_out(block, class, size)
}

#[cold]
#[inline(never)]
fn allocate_zeroed_slow<F: NoMemory>(
    count: usize,
    size: usize,
    class: SizeClass,
    align: usize,
) -> *mut u8 {
    let size = count * size;
    let block = refill(size, class, align);
    if block.is_null() {
        return F::answer(size, align);
    }
    if is_apart(block.cast()) {
        // SAFETY: the block has `size` bytes and is ours.
        unsafe { block.cast::<u8>().write_bytes(0, size) };
        return block.cast();
    }
    // SAFETY: the block is ours. The heap may have come only just now; a thread without one has
    // a stand-in, which calls nothing fresh.
    unsafe { zero(thread::heap(), class, size, block) }
}

#[inline(never)]
fn allocate_zeroed_medium<F: NoMemory>(size: usize) -> *mut u8 {
    if size <= MEDIUM_MAX {
        let class = size_class::medium_class(size);
        return allocate_zeroed_class::<F>(thread::heap(), [1, size], class, MIN_ALIGN);
    }
    allocate_zeroed_large::<F>(size, MIN_ALIGN)
}

#[cold]
#[inline(never)]
fn allocate_zeroed_large<F: NoMemory>(size: usize, align: usize) -> *mut u8 {
    let (mut block, mut zero) = (cached_block(size, align), false);
    if block.is_null() {
        let new = new_block(size, align);
        (block, zero) = (new.block, new.zero);
    }
    if block.is_null() {
        return F::answer(size, align);
    }
    profiled::note_large(block, size);
    if !zero {
        // SAFETY: the block has `size` bytes and is ours.
        unsafe { large::zero(block, size) };
    }
    block
}

/// Allocates `size` zeroed bytes at a multiple of `align`, a power of two; null if there is no memory.
///
/// ```
/// let block = cairn::allocate_zeroed_aligned(100, 256);
/// assert!(block.addr().is_multiple_of(256));
/// # unsafe { cairn::deallocate(block) };
/// ```
#[inline]
pub fn allocate_zeroed_aligned(size: usize, align: usize) -> *mut u8 {
    if align <= MIN_ALIGN {
        return allocate_zeroed(size);
    }
    debug_assert!(align.is_power_of_two());
    match size_class::class_of_aligned(size, align) {
        Some(class) => allocate_zeroed_class::<Null>(thread::heap(), [1, size], class, align),
        None => allocate_zeroed_large::<Null>(size, align),
    }
}
