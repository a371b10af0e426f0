//! Owns: the only bodies of allocate, deallocate and reallocate.
//! Idea: small sizes in a few instructions; everything else falls through named cold steps.
//! Never: knows C types or errno.
//! Threads: any, at any time in a thread's life; holds nothing.
//! Checked: oracle tests (tests/oracle.rs), misuse tests of the C layer.
//! Story: docs/design/fast-paths.md

use crate::address_map::{self, OWNER_ABANDONED, OWNER_LARGE, OWNER_NONE};
use crate::block::{Block, Caches};
use crate::heap::{Heap, pool};
use crate::large::{self, Freers};
use crate::os::{self, fatal};
use crate::size_class::{self, MEDIUM_MAX, MIN_ALIGN, SMALL_MAX, SizeClass};
use crate::span::Span;
use crate::sync::Ordering;
use crate::{arena, thread};
use core::ptr::null_mut;

/// No block is larger: pointer differences must fit `isize`.
const SIZE_MAX: usize = isize::MAX as usize;

/// Slices of the freed runs that all heaps together keep, one in each: 8 MiB.
const LARGE_CACHE_SLICES: usize = 512;

/// Blocks of other threads' spans that are kept for this one's next allocation have at least this
/// size: smaller ones share a cache line with blocks that others use.
const FOREIGN_MIN: u32 = 64;

/// What an allocation does when there is no memory. A type, so that the fast paths end in a
/// tail call and need no frame.
pub trait NoMemory {
    /// Answers for the failed request.
    fn answer(size: usize, align: usize) -> *mut u8;
}

/// Answers null.
pub struct Null;

impl NoMemory for Null {
    #[inline(always)]
    fn answer(_: usize, _: usize) -> *mut u8 {
        null_mut()
    }
}

/// Allocates `size` bytes, aligned to 16; null if there is no memory. A size of 0 gives a
/// block like any other.
#[inline(always)]
pub fn allocate(size: usize) -> *mut u8 {
    allocate_or::<Null>(size)
}

/// As `allocate`, with another answer than null.
#[inline(always)]
pub fn allocate_or<F: NoMemory>(size: usize) -> *mut u8 {
    if size > SMALL_MAX {
        return allocate_medium::<F>(size);
    }
    let heap = thread::heap();
    // SAFETY: the calling thread's heap, or a stand-in, which is only read; the size is small.
    let (class, block) = unsafe {
        let class = (*heap).caches.small_class(size);
        (class, Caches::pop(&raw mut (*heap).caches, class))
    };
    if block.is_null() {
        return allocate_slow::<F>(class, size, MIN_ALIGN);
    }
    block.cast()
}

#[inline(never)]
fn allocate_medium<F: NoMemory>(size: usize) -> *mut u8 {
    if size > MEDIUM_MAX {
        return allocate_large::<F>(size, MIN_ALIGN);
    }
    allocate_class::<F>(size_class::medium_class(size), size, MIN_ALIGN)
}

#[inline(always)]
fn allocate_class<F: NoMemory>(class: SizeClass, size: usize, align: usize) -> *mut u8 {
    // SAFETY: the calling thread's heap, or a stand-in, which is only read.
    let block = unsafe { Caches::pop(&raw mut (*thread::heap()).caches, class) };
    if block.is_null() {
        return allocate_slow::<F>(class, size, align);
    }
    block.cast()
}

/// Refills the cache, which is empty.
#[cold]
#[inline(never)]
fn allocate_slow<F: NoMemory>(class: SizeClass, size: usize, align: usize) -> *mut u8 {
    // SAFETY: the calling thread's heap, or a stand-in, which has no active span.
    let mut block = unsafe { Heap::refill_short(thread::heap(), class) };
    if block.is_null() {
        block = thread::refill(class);
    }
    if block.is_null() { F::answer(size, align) } else { block.cast() }
}

#[cold]
#[inline(never)]
fn allocate_large<F: NoMemory>(size: usize, align: usize) -> *mut u8 {
    let mut block = cached_block(size, align);
    if block.is_null() {
        block = new_block(size, align).block;
    }
    if block.is_null() { F::answer(size, align) } else { block }
}

/// The run that the calling thread's heap keeps, if it will do; null if not.
#[inline(always)]
fn cached_block(size: usize, align: usize) -> *mut u8 {
    if align > large::COLOUR_STEP {
        return null_mut();
    }
    let heap = thread::heap();
    // SAFETY: the calling thread's heap, or a stand-in, which keeps nothing.
    unsafe {
        let block = large::take_cached(&(*heap).large_cache, size);
        if !block.is_null() {
            (*heap).count_large();
        }
        block
    }
}

#[inline(never)]
fn new_block(size: usize, align: usize) -> large::Allocated {
    os::notice_fork();
    let heap = thread::heap();
    // SAFETY: the calling thread's heap, or a stand-in, which is in no use.
    unsafe {
        if (*heap).in_use {
            (*heap).count_large();
        }
    }
    if size > SIZE_MAX || align > SIZE_MAX || !thread::start() {
        return large::Allocated::NONE;
    }
    large::allocate(size, align)
}

/// Allocates `size` zeroed bytes, aligned to 16; null if there is no memory.
#[inline(always)]
pub fn allocate_zeroed(size: usize) -> *mut u8 {
    allocate_zeroed_or::<Null>(size)
}

/// As `allocate_zeroed`, with another answer than null.
#[inline(always)]
pub fn allocate_zeroed_or<F: NoMemory>(size: usize) -> *mut u8 {
    if size > SMALL_MAX {
        return allocate_zeroed_medium::<F>(size);
    }
    let heap = thread::heap();
    // SAFETY: as in `allocate_or`.
    let class = unsafe { (*heap).caches.small_class(size) };
    allocate_zeroed_class::<F>(heap, class, size)
}

#[inline(always)]
fn allocate_zeroed_class<F: NoMemory>(heap: *mut Heap, class: SizeClass, size: usize) -> *mut u8 {
    // SAFETY: as in `allocate_class`.
    unsafe {
        match Caches::pop(&raw mut (*heap).caches, class) {
            block if block.is_null() => allocate_zeroed_slow::<F>(class, size),
            block => zero(heap, class, block),
        }
    }
}

/// Zeroes a block just popped: all of it, or the link if the rest is zero anyway.
#[inline(always)]
unsafe fn zero(heap: *const Heap, class: SizeClass, block: *mut Block) -> *mut u8 {
    // SAFETY: the block is the caller's, as far as its class reaches.
    unsafe {
        let bytes =
            if (*heap).caches.is_zeroed(class) { size_of::<Block>() } else { class.block_size() };
        block.cast::<u8>().write_bytes(0, bytes);
    }
    block.cast()
}

#[cold]
#[inline(never)]
fn allocate_zeroed_slow<F: NoMemory>(class: SizeClass, size: usize) -> *mut u8 {
    let block = thread::refill(class);
    if block.is_null() {
        return F::answer(size, MIN_ALIGN);
    }
    // SAFETY: the block is ours. The heap may have come only just now; a thread without one has
    // a stand-in, which calls nothing fresh.
    unsafe { zero(thread::heap(), class, block) }
}

#[inline(never)]
fn allocate_zeroed_medium<F: NoMemory>(size: usize) -> *mut u8 {
    if size <= MEDIUM_MAX {
        let class = size_class::medium_class(size);
        return allocate_zeroed_class::<F>(thread::heap(), class, size);
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
    if !zero {
        // SAFETY: the block has `size` bytes and is ours.
        unsafe { block.write_bytes(0, size) };
        large::forget(block);
    }
    block
}

/// Allocates `size` bytes at a multiple of `align`, a power of two; null if there is no memory.
#[inline]
pub fn allocate_aligned(size: usize, align: usize) -> *mut u8 {
    allocate_aligned_or::<Null>(size, align)
}

/// As `allocate_aligned`, with another answer than null.
#[inline]
pub fn allocate_aligned_or<F: NoMemory>(size: usize, align: usize) -> *mut u8 {
    if align <= MIN_ALIGN {
        return allocate_or::<F>(size);
    }
    debug_assert!(align.is_power_of_two());
    match size_class::class_of_aligned(size, align) {
        Some(class) => allocate_class::<F>(class, size, align),
        None => allocate_large::<F>(size, align),
    }
}

/// Allocates `size` zeroed bytes at a multiple of `align`, a power of two; null if there is no memory.
#[inline]
pub fn allocate_zeroed_aligned(size: usize, align: usize) -> *mut u8 {
    if align <= MIN_ALIGN {
        return allocate_zeroed(size);
    }
    debug_assert!(align.is_power_of_two());
    match size_class::class_of_aligned(size, align) {
        Some(class) => allocate_zeroed_class::<Null>(thread::heap(), class, size),
        None => allocate_zeroed_large::<Null>(size, align),
    }
}

/// Frees a block; null is fine. Anything but a block's start, as far as the metadata shows it,
/// ends the process with a message.
///
/// # Safety
/// `p` is null or the start of a live block of this allocator; nobody uses the block any more.
#[inline(always)]
pub unsafe fn deallocate(p: *mut u8) {
    // SAFETY: `p` is null or a live block's start, and nobody uses the block any more.
    unsafe { deallocate_named(p, "free") };
}

/// As `deallocate`; a message about a bad pointer names `call`.
///
/// # Safety
/// As for `deallocate`.
#[inline(always)]
pub unsafe fn deallocate_named(p: *mut u8, call: &str) {
    let heap = thread::heap();
    // SAFETY: `p` is null or a live block's start, and nobody uses the block any more. The heap is the
    // calling thread's, or a stand-in, which owns nothing.
    unsafe {
        let caches = &raw mut (*heap).caches;
        match address_map::owned_block(p, Heap::tag(heap)) {
            Some(at) if (*caches).is_start(at.class, at.number) => {
                if !Caches::push(caches, at.class, p.cast()) {
                    let span: *mut Span = at.slot().cast();
                    if (*span).push_local(p.cast()) {
                        (*heap).span_event(span);
                    }
                }
            }
            _ => deallocate_elsewhere(p, call),
        }
    }
}

/// The bytes of the span block that starts at `p`, any value at all; None if none does.
#[inline(always)]
fn span_block_size(p: *mut u8) -> Option<usize> {
    address_map::span_block(p).map(|(class, _)| class.block_size())
}

// What sends a free down here:
//
//     nobody's span   kept for the next allocation, as a block of its own span is
//     another's span  the same, within half the bound; else gathered in a batch, or thread::send
//     a large block   kept for the next one, if this thread keeps none yet
//     null            nothing to do
//     the rest        a large block, a mapping, or a bad pointer
#[inline(never)]
unsafe fn deallocate_elsewhere(p: *mut u8, call: &str) {
    let Some((class, owner)) = address_map::span_block(p) else {
        // SAFETY: `p` starts no block of a span: it is null or the start of a live large block.
        return unsafe { deallocate_large(p, call) };
    };
    let (heap, layout, is_abandoned) = (thread::heap(), class.layout(), owner == OWNER_ABANDONED);
    let least = if is_abandoned { 0 } else { (layout.cache_limit / 2) as i32 };
    // SAFETY: the block is the caller's to free. The heap is the calling thread's, or a stand-in,
    // which has no room and gathers nothing.
    unsafe {
        if (is_abandoned || layout.size >= FOREIGN_MIN) && (*heap).caches.left(class) > least {
            Caches::push(&raw mut (*heap).caches, class, p.cast());
            return;
        }
        let span = address_map::span_index(p, class);
        if is_abandoned || !Heap::batch_push(heap, span, layout.size, p.cast()) {
            thread::send(span, layout.size, p.cast(), is_abandoned);
        }
    }
}

#[inline(never)]
unsafe fn deallocate_large(p: *mut u8, call: &str) {
    os::notice_fork();
    let heap = thread::heap();
    let heaps = pool::in_use();
    let freers = if heaps <= 1 { Freers::One } else { Freers::Many };
    let most = LARGE_CACHE_SLICES / heaps.max(1);
    // SAFETY: the calling thread's heap, or a stand-in, which is in no use.
    let keeps = unsafe { (*heap).in_use }
        && address_map::descriptor(p).owner.load(Ordering::Relaxed) == OWNER_LARGE
        // SAFETY: the calling thread's heap.
        && large::cache(unsafe { &(*heap).large_cache }, p, most, freers);
    if !keeps && !p.is_null() && !free_large(p) {
        bad_pointer(call, p);
    }
}

#[cold]
fn free_large(p: *mut u8) -> bool {
    if !address_map::contains(p) {
        return large::free_mapping(p);
    }
    address_map::descriptor(p).owner.load(Ordering::Relaxed) == OWNER_LARGE && large::free(p)
}

/// Says what is wrong with `p` and aborts.
#[cold]
#[inline(never)]
fn bad_pointer(call: &str, p: *mut u8) -> ! {
    let reason = match base(p) {
        Some(block) if block.addr() == p.addr() => "the block is being freed twice",
        Some(_) => "the pointer is inside a block, not at its start",
        None if address_map::contains(p) => "no block is here: freed already, or never allocated",
        None => "the pointer is not from this allocator",
    };
    fatal(call, p, reason)
}

/// Resizes a block, in place if that is sensible; the contents are kept up to the smaller size.
/// Null if there is no memory: the old block stays as it is. A null `p` allocates.
///
/// # Safety
/// As for `deallocate`; if the result is not null, the old pointer is dead.
#[inline]
pub unsafe fn reallocate(p: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: `p` is null or a live block's start, the caller's to resize; every block is aligned so.
    unsafe { reallocate_aligned(p, size, MIN_ALIGN) }
}

/// Resizes a block that is aligned to `align`, a power of two, and stays so.
///
/// # Safety
/// As for `reallocate`.
#[inline]
pub unsafe fn reallocate_aligned(p: *mut u8, size: usize, align: usize) -> *mut u8 {
    let usable = span_block_size(p);
    if usable.is_some_and(|usable| stays(size, usable)) {
        return p;
    }
    // SAFETY: `p` is null or a live block's start, the caller's to resize.
    unsafe { reallocate_elsewhere(p, size, align, usable) }
}

/// Whether a block of `usable` bytes is kept for `size`: while at least half of it is used; the
/// smallest always.
#[inline(always)]
fn stays(size: usize, usable: usize) -> bool {
    size <= usable && (size >= usable / 2 || usable <= 64)
}

#[inline(never)]
unsafe fn reallocate_elsewhere(
    p: *mut u8,
    size: usize,
    align: usize,
    usable: Option<usize>,
) -> *mut u8 {
    if p.is_null() {
        return allocate_aligned(size, align);
    }
    if size > SIZE_MAX {
        return null_mut();
    }
    // SAFETY: `p` is a live block's start, the caller's to resize; `usable` is its size.
    unsafe {
        match usable {
            Some(usable) => copy_to_new(p, usable, size, align),
            None => reallocate_large(p, size, align),
        }
    }
}

#[cold]
unsafe fn reallocate_large(p: *mut u8, size: usize, align: usize) -> *mut u8 {
    let Some(usable) = large_usable(p) else { bad_pointer("realloc", p) };
    let resized = if !address_map::contains(p) {
        large::reallocate_mapping(p, size, align)
    } else if size > MEDIUM_MAX && align <= os::HUGE_PAGE {
        // SAFETY: the start of a live large block, the caller's to resize.
        unsafe { large::reallocate(p, size) }
    } else {
        None
    };
    // SAFETY: as above; it has `usable` bytes.
    resized.unwrap_or_else(|| unsafe { copy_to_new(p, usable, size, align) })
}

unsafe fn copy_to_new(p: *mut u8, usable: usize, size: usize, align: usize) -> *mut u8 {
    let new = allocate_aligned(size, align);
    if !new.is_null() {
        // SAFETY: both blocks are live and apart, and have that many bytes.
        unsafe {
            new.copy_from_nonoverlapping(p, usable.min(size));
            deallocate(p);
        }
    }
    new
}

fn large_usable(p: *mut u8) -> Option<usize> {
    os::notice_fork();
    if !address_map::contains(p) {
        return large::mapping_usable_size(p);
    }
    let d = address_map::descriptor(p);
    (d.owner.load(Ordering::Relaxed) == OWNER_LARGE).then(|| large::usable_size(p))?
}

/// Bytes usable from `p`, the start of a live block, at least what was asked for; 0 for null.
/// Aborts on any other pointer.
///
/// # Safety
/// `p` is null or the start of a live block of this allocator.
#[inline]
pub unsafe fn usable_size(p: *const u8) -> usize {
    let p = p.cast_mut();
    span_block_size(p).unwrap_or_else(|| usable_elsewhere(p))
}

#[inline(never)]
fn usable_elsewhere(p: *mut u8) -> usize {
    if p.is_null() {
        return 0;
    }
    large_usable(p).unwrap_or_else(|| bad_pointer("malloc_usable_size", p))
}

/// The start of the block that `p` points to or into; None if it is none of this allocator's.
/// Free blocks of a span count: the metadata does not tell them apart.
pub fn base(p: *const u8) -> Option<*mut u8> {
    block_around(p).map(|(start, _)| start)
}

/// The block that `p` points to or into: (start, usable bytes).
pub(crate) fn block_around(p: *const u8) -> Option<(*mut u8, usize)> {
    os::notice_fork();
    if !address_map::contains(p) {
        return large::mapping_base(p);
    }
    let index = address_map::slice_of(p);
    if index < address_map::first_slice() || index >= address_map::committed() {
        return None;
    }
    let d = address_map::descriptor(p);
    let owner = d.owner.load(Ordering::Relaxed);
    if owner == OWNER_NONE || owner == OWNER_LARGE {
        return large::block_around(p);
    }
    let class = d.class();
    let layout = class.layout();
    let first = address_map::slice_address(address_map::span_index(p, class))
        .wrapping_add(layout.slack as usize);
    let offset = p.addr().checked_sub(first.addr())?;
    let size = layout.size as usize;
    Some((first.wrapping_add(offset / size * size), size))
}

/// Gives back to the system all memory that is free, in every tier that this thread can reach
/// at once; other threads' follow at their next slow tick. The number of bytes given back
/// at once.
pub fn purge() -> usize {
    thread::trim();
    arena::purge_all()
}

/// Walks all heaps and the arena and asserts their invariants. Not for use while other threads
/// allocate or free.
pub fn check() {
    pool::check();
    arena::check();
}
