//! Owns: what a thread has allocated and freed while it counts.
//! Idea: a thread that counts points at a stand-in, which has nothing and owns nothing: each of its allocations and
//!   frees takes a slow path, where its heap is found and the block is counted. The others do not pay.
//! Never: costs an instruction of a fast path.
//! Threads: each for itself.
//! Checked: tests/counts.rs
//! Story: docs/guide/statistics.md

use super::{KEY, outside, own, own_heap, tls};
use crate::base::{CANARY_BYTES, Ordering, SizeClass};
use crate::heap::{COUNTING, Heap};
use crate::map::{Block, address_map};
use crate::os;
use crate::samples::Reason;
use crate::samples::ThreadCounts;
use crate::store::{Caches, Known, Live, Store, canary};
use crate::thread::tuning::TICKS_WITHOUT_HEAP;
use core::ptr::null_mut;

// Why not the caches: their limits tell of each block that is taken or kept, but a free that finds the cache full
// goes into its span without a trace of who freed.

/// Begins to count what the calling thread allocates and frees, or ends it; false if there is no memory for the
/// thread's heap.
///
/// The counts are exact: each block by its usable size; one that changes its size in place as if it were freed
/// and allocated. Blocks of a closed heap do not count as long as the heap is there, nor, in the hardened build, those of
/// partitions. While it is on, a malloc or free takes some 120 instructions more, and nothing the thread allocates
/// is sampled or guarded. Other threads pay nothing, nor this one when it is off. The thread may end while it counts.
///
/// ```
/// assert!(cairn::count(true));
/// let before = cairn::thread_counts();
/// // SAFETY: a block that nobody uses.
/// unsafe { cairn::deallocate(cairn::allocate(100)) };
/// let (after, size) = (cairn::thread_counts(), cairn::good_size(100) as u64);
/// assert_eq!((after.allocated - before.allocated, after.freed - before.freed), (size, size));
/// cairn::count(false);
/// ```
pub fn count(on: bool) -> bool {
    let heap = own_heap();
    let heap = if heap.is_null() { super::arrive_unless_gone() } else { heap };
    if heap.is_null() {
        return !on;
    }
    tls::set(if on { COUNTING.heap() } else { heap });
    true
}

/// What the calling thread has counted.
///
/// ```
/// cairn::count(true);
/// let block = cairn::allocate(100);
/// assert!(cairn::thread_counts().allocated >= 100);
/// # cairn::count(false);
/// # unsafe { cairn::deallocate(block) };
/// ```
#[must_use]
pub fn thread_counts() -> ThreadCounts {
    // SAFETY: the calling thread's own.
    own().map_or(ThreadCounts::default(), |heap| unsafe { (*heap).own.counts })
}

/// Where the calling thread counts, until it ends; null if it does not count.
#[must_use]
pub fn thread_counts_place() -> *const ThreadCounts {
    let heap = own().filter(|_| is_counting());
    // SAFETY: the calling thread's own.
    heap.map_or(core::ptr::null(), |heap| unsafe { &raw const (*heap).own.counts })
}

/// Whether the calling thread counts.
#[inline(always)]
pub(crate) fn is_counting() -> bool {
    tls::get() == COUNTING.heap()
}

/// The heap of the calling thread, which counts, or is about to.
#[cold]
#[inline(never)]
pub(super) fn heap_behind() -> *mut Heap {
    let key = KEY.load(Ordering::Acquire);
    let heap = if key == 0 { null_mut() } else { outside(|| os::thread_value(key - 1)) };
    if heap.addr() <= TICKS_WITHOUT_HEAP { null_mut() } else { heap.cast() }
}

/// Counts bytes of the calling thread's, if it does.
pub(crate) fn note(allocated: usize, freed: usize) {
    if is_counting()
        && let Some(heap) = own()
    {
        // SAFETY: the calling thread's own.
        let counts = unsafe { &mut (*heap).own.counts };
        counts.allocated += allocated as u64;
        counts.freed += freed as u64;
    }
}

/// Pops a block of the calling thread's, which counts; null if there is no memory.
///
/// # Safety
/// Its heap.
pub(super) unsafe fn refill(heap: *mut Heap, class: SizeClass) -> *mut Block {
    // SAFETY: the calling thread's own.
    unsafe {
        let mut block = Caches::pop(&raw mut (*heap).caches, class);
        if block.is_null() {
            super::defer(Reason::Turn);
            block = super::retry(heap, class);
        }
        if block.is_null() {
            block = super::shortage::refill(heap, class);
        }
        if block.is_null() && super::defer_in_need() {
            block = super::retry(heap, class);
        }
        if !block.is_null() {
            (*heap).own.counts.allocated += canary::room(class) as u64;
        }
        block
    }
}

/// Counts a block that the calling thread frees. If its span is the thread's own, it is freed: true.
///
/// # Safety
/// The thread's heap; the block, `size` bytes with its canary, is the caller's to free.
pub(super) unsafe fn free(heap: *mut Heap, block: *mut Block, size: u32) -> bool {
    let d = address_map::descriptor(block.cast());
    // SAFETY: the calling thread's own, and a span that names it, too.
    unsafe {
        (*heap).own.counts.freed += u64::from(size) - CANARY_BYTES as u64;
        // Hardened, the block has been taken for another's: it is not looked at twice.
        if Live::IS_KNOWN || d.owner.load(Ordering::Relaxed) != Heap::tag(heap) {
            return false;
        }
        let slot = d.slot.load(Ordering::Relaxed);
        let mut is_home = true;
        if !Caches::push(&raw mut (*heap).caches, d.class(), block).is_null() {
            Heap::free_home(heap, slot.cast(), block, || is_home = false);
        }
        is_home
    }
}
