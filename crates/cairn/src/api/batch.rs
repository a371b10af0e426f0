//! Owns: allocation and deallocation of many blocks in one call.
//! Idea: what is the same for all of them is found once; what the short way does not serve goes the way of one.
//! Never: knows C types or errno.
//! Threads: any, at any time in a thread's life; holds nothing.
//! Checked: tests/batches.rs
//! Story: docs/design/fast-paths.md

use super::{allocate, deallocate_looked_at, deallocate_named, handed_out, refill};
use crate::base::{MEDIUM_MAX, MIN_ALIGN, size_class};
use crate::heap::Heap;
use crate::map::{Block, address_map};
use crate::store::{Caches, Known, Live, Store};
use crate::thread;

/// Allocates a block of `size` bytes into each place of `blocks`; how many it has filled, the first ones: fewer than
/// there are only without memory. The other places are left as they are.
///
/// ```
/// let mut blocks = [core::ptr::null_mut(); 100];
/// assert_eq!(cairn::allocate_batch(48, &mut blocks), 100);
/// // SAFETY: nobody uses the blocks.
/// unsafe { cairn::deallocate_batch(&blocks) };
/// ```
#[must_use]
pub fn allocate_batch(size: usize, blocks: &mut [*mut u8]) -> usize {
    let mut places = blocks.iter_mut();
    let class = (size <= MEDIUM_MAX).then(|| size_class::class_of(size));
    let mut filled = 0;
    let mut heap = thread::heap();
    for place in &mut places {
        let block = match class {
            None => allocate(size),
            // SAFETY: the calling thread's heap, or a stand-in, which is only read.
            Some(class) => unsafe {
                let block = Caches::pop(&raw mut (*heap).caches, class);
                if block.is_null() {
                    let block = refill(size, class, MIN_ALIGN);
                    // It may have come only just now.
                    heap = thread::heap();
                    block.cast()
                } else {
                    handed_out(block, class, size)
                }
            },
        };
        if block.is_null() {
            break;
        }
        *place = block;
        filled += 1;
    }
    filled
}

/// Frees all of `blocks`; null is fine. They may be of any sizes, and of any threads.
///
/// # Safety
/// As for `deallocate`, for each of them; no block stands there twice.
///
/// ```
/// let blocks = [cairn::allocate(10), cairn::allocate(1000), std::ptr::null_mut()];
/// // SAFETY: nobody uses the blocks.
/// unsafe { cairn::deallocate_batch(&blocks) };
/// ```
pub unsafe fn deallocate_batch(blocks: &[*mut u8]) {
    let mut heap = thread::heap();
    for &p in blocks {
        // SAFETY: as in `deallocate_named`, which does the rest.
        unsafe {
            let caches = &raw mut (*heap).caches;
            match address_map::owned_block(p, Heap::tag(heap)) {
                Some(at)
                    if !Live::IS_KNOWN
                        && (*caches).is_start(at.class, at.number)
                        && !Block::is_marked(p.cast()) =>
                {
                    if !Caches::push(caches, at.class, p.cast()).is_null() {
                        let elsewhere = || deallocate_looked_at(p, "free");
                        Heap::free_home(heap, at.slot().cast(), p.cast(), elsewhere);
                    }
                }
                _ => {
                    deallocate_named(p, "free");
                    heap = thread::heap();
                }
            }
        }
    }
}
