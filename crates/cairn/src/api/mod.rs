//! Owns: the only bodies of allocate, deallocate and reallocate.
//! Idea: small sizes in a few instructions; everything else falls through named cold steps.
//! Never: knows C types or errno.
//! Threads: any, at any time in a thread's life; holds nothing.
//! Checked: oracle tests (tests/oracle.rs), misuse tests of the C layer.
//! Story: docs/design/fast-paths.md

mod batch;
mod large;
mod lookup;
mod misuse;
mod partition;
mod profiled;
mod resize;
mod sizes;
mod tuning;
mod usable;
mod zeroed;

pub use large::allocate_aligned_at;
use large::{allocate_large, cached_block, deallocate_large, new_block, refill};
pub use lookup::base;
use lookup::live_block;
pub use misuse::bad_size;
pub(crate) use resize::{expect_in_use, keep_or_null, resize_or_give_back};
pub use usable::{Resized, has_class_of, may_have_size, may_stay, room, usable_size};
pub use {batch::*, partition::*, resize::*, sizes::*, zeroed::*};

use crate::api::tuning::FOREIGN_MIN;
use crate::base::{CACHE_UNITS, MEDIUM_MAX, MIN_ALIGN, SMALL_MAX, SizeClass, size_class};
use crate::heap::Heap;
use crate::map::{Block, OWNER_ABANDONED, OWNER_CLOSED, address_map};
use crate::store::{Behind, Caches, Canary, FREED_TWICE, Known, Live, Store};
use crate::{closed, os, thread, thread::search};
use core::ptr::null_mut;

/// No block is larger: pointer differences must fit `isize`.
const SIZE_MAX: usize = isize::MAX as usize;

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
///
/// ```
/// let block = cairn::allocate(100);
/// assert!(!block.is_null() && block.addr().is_multiple_of(16));
/// # unsafe { cairn::deallocate(block) };
/// ```
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
        let class = size_class::small_class(size);
        (class, Caches::pop(&raw mut (*heap).caches, class))
    };
    if block.is_null() {
        return allocate_slow::<F>(size, class, MIN_ALIGN);
    }
    handed_out(block, class, size)
}

/// A block that the program gets `size` bytes of.
#[inline(always)]
pub(crate) fn handed_out(block: *mut Block, class: SizeClass, size: usize) -> *mut u8 {
    // SAFETY: a free block of the class, the caller's, which serves so many bytes.
    unsafe { Canary::write(block.cast(), class, size) };
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
        return allocate_slow::<F>(size, class, align);
    }
    handed_out(block, class, size)
}

/// Refills the cache, which is empty.
#[cold]
#[inline(never)]
fn allocate_slow<F: NoMemory>(size: usize, class: SizeClass, align: usize) -> *mut u8 {
    let block = refill(size, class, align);
    if block.is_null() { F::answer(size, align) } else { block.cast() }
}

/// Allocates `size` bytes at a multiple of `align`, a power of two; null if there is no memory.
///
/// ```
/// let page = cairn::allocate_aligned(100, 4096);
/// assert!(!page.is_null() && page.addr().is_multiple_of(4096));
/// # unsafe { cairn::deallocate(page) };
/// ```
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

/// Frees a block; null is fine. Anything but a block's start, as far as the metadata shows it,
/// ends the process with a message.
///
/// # Safety
/// `p` is null or the start of a live block of this allocator; nobody uses the block any more.
///
/// ```
/// let block = cairn::allocate(100);
/// // SAFETY: nobody uses the block.
/// unsafe { cairn::deallocate(block) };
/// ```
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
            // Hardened, nothing of the block is read unless the program has it: a guard may stand there.
            Some(at) if (*caches).is_start(at.class, at.number) && Live::take_back(p) => {
                if Block::is_marked(p.cast()) {
                    Live::undo(p);
                    return deallocate_marked(p, call);
                }
                Canary::expect(p, at.class, call);
                if !Caches::push(caches, at.class, p.cast()).is_null() {
                    let elsewhere = || deallocate_looked_at(p, call);
                    Heap::free_home(heap, at.slot().cast(), p.cast(), elsewhere);
                }
            }
            _ => {
                seldom();
                deallocate_elsewhere(p, call)
            }
        }
    }
}

/// Says that a branch is the rarer one: its code stands apart.
#[cold]
#[inline]
fn seldom() {}

// What sends a free down here:
//
//     an abandoned span  into the cache, as a block of an own span; if that is full, as another's
//     a closed heap's    closed::deallocate: home at once
//     another's span     into the cache up to half its limit; else into a batch, or thread::send
//     a large block      into the large cache, in place of what is there; a mapping back to the system
//     null               nothing to do
//     the rest           a large block, a mapping, or a bad pointer
#[inline(never)]
unsafe fn deallocate_elsewhere(p: *mut u8, call: &str) {
    let Some((class, owner)) = live_block(p) else {
        // SAFETY: `p` starts no block of a span: it is null or the start of a live large block.
        return unsafe { deallocate_large(p, call) };
    };
    if owner & OWNER_CLOSED != 0 {
        // SAFETY: the block is the caller's to free, and of that heap, or of what has become of it.
        return unsafe { deallocate_closed(p, class, owner, call) };
    }
    // SAFETY: it starts there.
    if unsafe { Block::is_marked(p.cast()) } {
        // SAFETY: the block is the caller's to free.
        return unsafe { deallocate_marked(p, call) };
    }
    let (heap, layout, is_abandoned) = (thread::heap(), class.layout(), owner == OWNER_ABANDONED);
    let least =
        if is_abandoned { 0 } else { layout.cache_limit.midpoint(CACHE_UNITS as u32) as i32 };
    // SAFETY: the block is the caller's to free. The heap is the calling thread's, or a stand-in,
    // which has no room and gathers nothing.
    unsafe {
        Canary::expect(p, class, call);
        if !Live::IS_KNOWN
            && (is_abandoned || layout.size >= FOREIGN_MIN)
            && (*heap).caches.left(class) > least
            && !(is_abandoned && Heap::is_probe(heap))
            && Caches::push(&raw mut (*heap).caches, class, p.cast()).is_null()
        {
            return;
        }
        Caches::prepare(p.cast(), class);
        let span = address_map::span_index(p, class);
        if !Heap::batch_push(heap, span, layout.size, p.cast()) {
            thread::send(span, layout.size, p.cast());
        }
    }
}

/// Frees a block of a closed heap's span. Apart, so that other blocks' way keeps nothing on the stack.
#[inline(never)]
unsafe fn deallocate_closed(p: *mut u8, class: SizeClass, owner: u32, call: &str) {
    // SAFETY: the block is the caller's to free, and of that heap, or of what has become of it.
    unsafe {
        if !closed::deallocate(p, class, owner, call) {
            deallocate_elsewhere(p, call);
        }
    }
}

/// Frees a block of a span that was the thread's, and may be another's by now.
#[cold]
#[inline(never)]
unsafe fn deallocate_looked_at(p: *mut u8, call: &str) {
    let heap = thread::heap();
    // SAFETY: the calling thread's heap; the block is the caller's to free.
    unsafe {
        drop((*heap).presence.enter());
        deallocate_elsewhere(p, call);
    }
}

/// Frees a block of a span that carries the mark of a free one, if it is not.
#[cold]
#[inline(never)]
unsafe fn deallocate_marked(p: *mut u8, call: &str) {
    if search::is_free(p.cast()) {
        os::fatal(call, p, FREED_TWICE);
    }
    // SAFETY: it is in no list: the block is the caller's to free.
    unsafe {
        Block::deface(p.cast());
        deallocate_named(p, call);
    }
}
