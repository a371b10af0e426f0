//! Owns: allocation in partitions, which keep objects of one kind away from those of others.
//! Idea: a thread has a closed heap for each partition that it needs.
//! Never: knows C types or errno.
//! Threads: any, at any time in a thread's life; holds nothing.
//! Checked: tests/partitions.rs
//! Story: docs/design/policy.md

use crate::api::lookup::large_usable;
use crate::api::tuning::TURN_LOOKS;
use crate::base::{HARDENED, MEDIUM_MAX, MIN_ALIGN, SLICE_SIZE};
use crate::heap::Heap;
use crate::map::address_map;
use crate::thread::pool::{
    self,
    partitions::{Taken, put_all, take},
};
use crate::{closed, large, thread};
use core::ptr::null_mut;

/// How many partitions there are.
///
/// ```
/// assert!(cairn::PARTITIONS >= 16);
/// ```
pub const PARTITIONS: usize = crate::base::PARTITIONS;

/// Allocates `size` bytes at a multiple of `align`, a power of two, in a partition, a number that counts modulo
/// `PARTITIONS`; null if there is no memory.
///
/// In the hardened build the memory of a block of up to 64 KiB belongs to its partition for ever: once it is freed, no
/// other partition gets it, and no allocation without one. So an object of one type is not taken for one of another
/// type that has come to its place. Frees are as always; a block that `reallocate` moves leaves its partition.
/// The default build has no partitions. Any thread, at any time.
///
/// ```
/// let block = cairn::allocate_in(3, 100, 16);
/// assert!(!block.is_null());
/// // SAFETY: nobody uses the block.
/// unsafe { cairn::deallocate(block) };
/// ```
pub fn allocate_in(partition: usize, size: usize, align: usize) -> *mut u8 {
    if !HARDENED || size > MEDIUM_MAX || align > SLICE_SIZE {
        return super::allocate_aligned(size, align);
    }
    let (partition, align) = (partition % PARTITIONS, align.max(MIN_ALIGN));
    for _ in 0..TURN_LOOKS {
        // What others were refused while this one waited does not count.
        let refused = pool::refused();
        if let Some(block) = thread::with_heap(|mine| allocate_of(mine, partition, size, align)) {
            return block;
        }
        // No turn brings memory for a heap. What else there was not may be there now: places, where another thread has ended.
        if !address_map::exists() || pool::refused() != refused {
            break;
        }
        pool::wait_for_turn();
    }
    null_mut()
}

// Each has its bit in `busy_partitions`.
const _: () = assert!(PARTITIONS <= u16::BITS as usize);

/// From the heap for a partition of the calling thread, whose heap that is, or null. None if there is no such heap, or no turn at
/// one.
fn allocate_of(mine: *mut Heap, partition: usize, size: usize, align: usize) -> Option<*mut u8> {
    if mine.is_null() {
        return None;
    }
    // SAFETY: the calling thread's heap, which has a place for each partition.
    unsafe {
        let place = (&raw mut (*mine).partitions).cast::<*mut Heap>().add(partition);
        let busy = 1 << partition;
        if (*mine).busy_partitions & busy != 0 {
            // The program has been called in there.
            return Some(closed::allocate(*place, size, align));
        }
        let mut is_lent = false;
        if (*place).is_null() {
            *place = match take(partition, mine) {
                Taken::Own(heap) => heap,
                Taken::Common(heap) => {
                    is_lent = true;
                    heap
                }
            };
        }
        if (*place).is_null() {
            // Who waits for this thread's may have the one that it waits for.
            put_all(mine);
            return None;
        }
        (*mine).busy_partitions |= busy;
        let block = closed::allocate(*place, size, align);
        (*mine).busy_partitions &= !busy;
        // Where places are scarce, threads keep none.
        if is_lent || pool::is_all_but_full() {
            put_all(mine);
        }
        Some(block)
    }
}

/// As `allocate_zeroed_aligned`, from a partition. Large blocks have pages of their own, which the
/// core knows to be zeros.
///
/// ```
/// let block = cairn::allocate_zeroed_in(3, 100, 16);
/// // SAFETY: a live block, which nobody uses after this.
/// unsafe {
///     assert_eq!(*block.add(99), 0);
///     cairn::deallocate(block);
/// }
/// ```
pub fn allocate_zeroed_in(partition: usize, size: usize, align: usize) -> *mut u8 {
    if size > MEDIUM_MAX {
        return super::allocate_zeroed_aligned(size, align);
    }
    let p = allocate_in(partition, size, align);
    if !p.is_null() {
        // SAFETY: a new block of at least so many bytes.
        unsafe { p.write_bytes(0, size) };
    }
    p
}

/// As `reallocate_aligned`; a small block that cannot stay where it is moves to the partition.
///
/// # Safety
/// As for `reallocate_aligned`.
///
/// ```
/// let block = cairn::allocate_in(3, 100, 16);
/// // SAFETY: live blocks; `block` is dead after the call.
/// unsafe {
///     let block = cairn::reallocate_in(3, block, 5000, 16);
///     assert!(cairn::usable_size(block) >= 5000);
///     cairn::deallocate(block);
/// }
/// ```
pub unsafe fn reallocate_in(partition: usize, p: *mut u8, size: usize, align: usize) -> *mut u8 {
    if p.is_null() {
        return allocate_in(partition, size, align);
    }
    // What may stay does, and between large blocks pages move. Bad pointers and sizes go there, too. A small block of no
    // span would be copied there, to no partition.
    let apart = || large_usable(p).is_some() && large::nursery_usable(p).is_none();
    let stays = super::may_stay(p, size, 1) && (size > MEDIUM_MAX || !apart());
    // SAFETY: `p` is a live block's start.
    let is_large = size > MEDIUM_MAX
        && unsafe { size > isize::MAX as usize || super::usable_size(p) > MEDIUM_MAX };
    if stays || is_large {
        // SAFETY: `p` is a live block's start, the caller's to resize.
        return unsafe { super::reallocate_aligned(p, size, align) };
    }
    let new = allocate_in(partition, size, align);
    // SAFETY: `p` is a live block's start, the caller's to resize; both are apart, and have that many bytes.
    unsafe {
        let has = super::usable_size(p);
        if new.is_null() {
            return super::keep_or_null(p, has, size, align);
        }
        new.copy_from_nonoverlapping(p, has.min(size));
        super::deallocate_named(p, "realloc");
    }
    new
}
