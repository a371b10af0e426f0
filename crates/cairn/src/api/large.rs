//! Owns: allocation and deallocation of what no span holds: large blocks, mappings, and bad pointers.
//! Idea: a heap keeps one freed run for its next large block, for a thread may need the like again.
//! Never: knows C types or errno.
//! Threads: any, at any time in a thread's life; holds nothing.
//! Checked: oracle tests with contents; tests of large blocks and mappings.
//! Story: docs/design/large-blocks.md

use super::lookup::large_usable;
use super::misuse::bad_pointer;
use super::{NoMemory, SIZE_MAX, allocate_aligned, deallocate, handed_out, profiled};
use crate::api::tuning::LARGE_CACHE_SLICES;
use crate::base::{Ordering, SizeClass, shares};
use crate::heap::Role;
use crate::large::{self, Freers, Kept};
use crate::map::{Block, OWNER_LARGE, address_map};
use crate::samples::{Draw, Reason, guards};
use crate::slices::limit;
use crate::store::{Caches, FREED_TWICE, Store};
use crate::{closed, os, thread};
use core::ptr::null_mut;

#[cold]
#[inline(never)]
pub(super) fn allocate_large<F: NoMemory>(size: usize, align: usize) -> *mut u8 {
    let mut block = cached_block(size, align);
    if block.is_null() {
        block = new_block(size, align).block;
    }
    profiled::note_large(block, size);
    if block.is_null() { F::answer(size, align) } else { block }
}

/// Refills the cache of a class and pops a block, or gives a guarded one in its place if it is a sample; null if
/// there is no memory.
#[inline(always)]
pub(super) fn refill(size: usize, class: SizeClass, align: usize) -> *mut Block {
    // Asked first: then nobody has to keep the size for it.
    // SAFETY: the calling thread's heap, or a stand-in, which is only read.
    let is_watched = unsafe { (*thread::heap()).sampling.is_watched() };
    if is_watched {
        refill_watched(size, class, align)
    } else {
        ready(thread::refill(class), size, class)
    }
}

/// A block that the program gets `size` bytes of, or null.
#[inline(always)]
fn ready(block: *mut Block, size: usize, class: SizeClass) -> *mut Block {
    if !block.is_null() {
        handed_out(block, class, size);
    }
    block
}

#[cold]
#[inline(never)]
fn refill_watched(size: usize, class: SizeClass, align: usize) -> *mut Block {
    let heap = thread::heap();
    // SAFETY: the calling thread's own: no stand-in is watched. Nothing of it is under way.
    let (before, draws) = unsafe {
        let is_told = (*heap).sampling.tells() && thread::tell_of_shortage();
        if thread::defer(Reason::Turn) || is_told {
            // What the program has freed serves.
            let block = Caches::pop(&raw mut (*heap).caches, class);
            if !block.is_null() {
                return handed_out(block, class, size).cast();
            }
        }
        // What was drawn where nobody asked, as while the thread counted, is no sample.
        let _ = (*heap).sampling.takes_drawn();
        ((*heap).caches.tells(class), (*heap).sampling.draws())
    };
    let block = ready(thread::refill_or_force(class), size, class);
    if !draws {
        return block;
    }
    // SAFETY: as above.
    let is_sample = unsafe {
        let sampling = &mut (*heap).sampling;
        match sampling.draw() {
            Draw::Each => guards::is_drawn(block.cast()),
            Draw::Refills => sampling.count(class, before, (*heap).caches.tells(class)),
            Draw::Chance => sampling.takes_drawn(),
        }
    };
    if !is_sample || block.is_null() {
        return block;
    }
    // SAFETY: as above.
    let sampling = unsafe { &(*heap).sampling };
    let apart = match sampling.is_by_chance() {
        true => profiled::allocate(size, class, align, block.cast(), sampling.interval()),
        false => guards::allocate(size, align),
    };
    if apart.is_null() {
        return block;
    }
    // SAFETY: a live block that nobody has seen.
    unsafe { deallocate(block.cast()) };
    apart.cast()
}

/// The run that the calling thread's heap keeps, if it will do; null if not.
#[inline(always)]
pub(super) fn cached_block(size: usize, align: usize) -> *mut u8 {
    thread::defer(Reason::Turn);
    let heap = thread::heap();
    // SAFETY: the calling thread's heap, or a stand-in, which keeps nothing.
    unsafe {
        let block = large::take_cached(&(*heap).large_cache, size, align);
        if !block.is_null() {
            (*heap).count_large();
        }
        block
    }
}

#[inline(never)]
pub(super) fn new_block(size: usize, align: usize) -> large::Allocated {
    new_block_at(size, align, 0)
}

/// Allocates a large block; whatever can help is tried before there is none.
#[inline(never)]
fn new_block_at(size: usize, align: usize, at: usize) -> large::Allocated {
    if limit::is_pending() {
        thread::tell_of_shortage();
    }
    match attempt(size, align, at) {
        got if got.block.is_null() => new_block_again(size, align, at),
        got => got,
    }
}

/// The same when that has failed.
#[cold]
#[inline(never)]
fn new_block_again(size: usize, align: usize, at: usize) -> large::Allocated {
    let attempt = || Some(attempt(size, align, at)).filter(|got| !got.block.is_null());
    thread::retry_in_shortage(size, attempt)
        .or_else(|| if thread::defer_in_need() { attempt() } else { None })
        .unwrap_or(large::Allocated::NONE)
}

/// Allocates `size` bytes so that the byte at `offset`, which may lie behind them, is at a multiple of `align`, a power
/// of two; null if there is no memory. `deallocate` and `reallocate` take the block; the latter keeps the place only
/// if it need not move it.
///
/// An offset that is a multiple of `align` costs nothing. With any other the block takes slices of 16 KiB for itself,
/// however small it is, and two locks: it is meant for few and large blocks, such as a buffer behind a header. Where
/// it needs a mapping of its own (32 MiB and more, or alignments above 16 MiB), up to `align` bytes of address space
/// stand in front of it.
///
/// ```
/// let block = cairn::allocate_aligned_at(100_000, 4096, 24);
/// assert!((block.addr() + 24).is_multiple_of(4096));
/// // SAFETY: nobody uses the block.
/// unsafe { cairn::deallocate(block) };
/// ```
pub fn allocate_aligned_at(size: usize, align: usize, offset: usize) -> *mut u8 {
    match offset.wrapping_neg() & (align - 1) {
        0 => allocate_aligned(size, align),
        at if size.checked_add(at).is_none_or(|end| end > SIZE_MAX) => null_mut(),
        at => {
            let block = new_block_at(size, align, at).block;
            profiled::note_large(block, size);
            block
        }
    }
}

#[inline]
fn attempt(size: usize, align: usize, at: usize) -> large::Allocated {
    os::notice_fork();
    let heap = thread::heap();
    // SAFETY: the calling thread's heap, or a stand-in, which is in no use.
    unsafe {
        if (*heap).role != Role::Free {
            (*heap).count_large();
        }
    }
    if size > SIZE_MAX || !align.is_power_of_two() || align > SIZE_MAX || !thread::start() {
        return large::Allocated::NONE;
    }
    let got = large::allocate_at(size, align, at);
    if thread::is_counting() {
        thread::note(counted(got.block), 0);
    }
    got
}

/// Bytes that a large block counts for; null for none.
pub(super) fn counted(p: *mut u8) -> usize {
    let is_heaps = !large::owner_of(p).is_null() || large::nursery_around(p).is_some();
    if !p.is_null() && !is_heaps { large_usable(p).unwrap_or(0) } else { 0 }
}

#[inline(never)]
pub(super) unsafe fn deallocate_large(p: *mut u8, call: &str) {
    // Asked first: the C library frees null some 30 times for each thread.
    if p.is_null() {
        return;
    }
    os::notice_fork();
    if thread::is_counting() {
        thread::note(0, counted(p));
    }
    let heap = thread::heap();
    let heaps = shares::in_use();
    // The heap keeps no slice of a small sample's for a large block.
    let is_small = profiled::end(p);
    let freers = if heaps <= 1 { Freers::One } else { Freers::Many };
    // Near a limit of memory nobody keeps one.
    let most = if limit::is_near() { 0 } else { LARGE_CACHE_SLICES / heaps.max(1) };
    // SAFETY: the calling thread's heap, or a stand-in, which is in no use.
    let keeps = unsafe { (*heap).role != Role::Free }
        && !is_small
        && address_map::descriptor(p).owner.load(Ordering::Relaxed) == OWNER_LARGE
        // SAFETY: the calling thread's heap.
        && large::cache(unsafe { &(*heap).large_cache }, p, most, freers, call);
    if !keeps && !free_large(p, call) {
        bad_pointer(call, p);
    }
}

#[cold]
fn free_large(p: *mut u8, call: &str) -> bool {
    // SAFETY: the caller's to free, if it is a block.
    match unsafe { large::keep(p, call) } {
        Kept::No => (),
        Kept::Waits => return true,
        Kept::Twice => os::fatal(call, p, FREED_TWICE),
    }
    if !address_map::contains(p) {
        return guards::free(p, call) || large::free_mapping(p, call);
    }
    address_map::descriptor(p).owner.load(Ordering::Relaxed) == OWNER_LARGE
        && (large::free(p, call) || large::free_in_nursery(p, closed::is_mine))
}
