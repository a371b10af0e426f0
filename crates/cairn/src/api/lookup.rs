//! Owns: what an address says: the block around it, and its size.
//! Idea: a span's class is in the descriptor; runs and mappings are looked up.
//! Never: believes an address: any value is answered.
//! Threads: any; holds nothing.
//! Checked: oracle tests; misuse tests of the C layer.
//! Story: docs/design/layout.md

use crate::base::{Ordering, SizeClass};
use crate::map::{HEAP_BYTES, OWNER_ABANDONED, OWNER_CLOSED, OWNER_LARGE, OWNER_NONE, address_map};
use crate::store::{Known, Live};
use crate::{large, os, samples::guards};

/// The class of the span block that starts at `p`, any value at all, and its span's owner; None if none does, or,
/// in the hardened build, if the program does not have it.
#[inline(always)]
pub(super) fn live_block(p: *const u8) -> Option<(SizeClass, u32)> {
    // SAFETY: it points into a span.
    address_map::span_block(p).filter(|_| unsafe { Live::is_live(p) })
}

/// The class of the same block; None also if its span is a closed heap's.
#[inline(always)]
pub(super) fn open_block(p: *const u8) -> Option<SizeClass> {
    // SAFETY: as above.
    let block = address_map::block_of(p, is_open).filter(|_| unsafe { Live::is_live(p) });
    block.map(|(class, _)| class)
}

/// Whether an owner has spans and is no closed heap. One comparison tells: all owners rotated, closed heaps and large blocks
/// are above, what is abandoned is the last below, and nobody wraps.
const fn is_open(owner: u32) -> bool {
    const BITS: u32 = OWNER_CLOSED.ilog2() + 1;
    owner.rotate_right(BITS).wrapping_sub(1) < OWNER_ABANDONED.rotate_right(BITS)
}

const _: () = assert!(is_open(OWNER_ABANDONED) && !is_open(OWNER_NONE) && !is_open(OWNER_LARGE));
const _: () = assert!(is_open(HEAP_BYTES as u32) && is_open((HEAP_BYTES as u32).wrapping_neg()));
const _: () = assert!(!is_open(HEAP_BYTES as u32 | OWNER_CLOSED) && !is_open(u32::MAX));

/// Whether a live block, which a refill has given, is of no span: a sample.
pub(super) fn is_apart(p: *const u8) -> bool {
    !address_map::contains(p)
        || address_map::descriptor(p).owner.load(Ordering::Relaxed) == OWNER_LARGE
}

pub(super) fn large_usable(p: *mut u8) -> Option<usize> {
    os::notice_fork();
    if !address_map::contains(p) {
        return guards::usable_size(p).or_else(|| large::mapping_usable_size(p));
    }
    let d = address_map::descriptor(p);
    let is_large = d.owner.load(Ordering::Relaxed) == OWNER_LARGE;
    is_large.then(|| large::usable_size(p).or_else(|| large::nursery_usable(p)))?
}

/// The start of the block that `p` points to or into; None if it is none of this allocator's.
/// Free blocks of a span count: the metadata does not tell them apart.
///
/// ```
/// let block = cairn::allocate(100);
/// assert_eq!(cairn::base(block.wrapping_add(99)), Some(block));
/// assert_eq!(cairn::base(&0), None);
/// # unsafe { cairn::deallocate(block) };
/// ```
pub fn base(p: *const u8) -> Option<*mut u8> {
    block_around(p).map(|(start, _)| start)
}

/// The block that `p` points to or into: (start, usable bytes).
pub(crate) fn block_around(p: *const u8) -> Option<(*mut u8, usize)> {
    os::notice_fork();
    if !address_map::contains(p) {
        return guards::block_around(p).or_else(|| large::mapping_base(p));
    }
    let index = address_map::slice_of(p);
    if index >= address_map::committed() && !address_map::is_supplied(index) {
        return None;
    }
    let d = address_map::descriptor(p);
    let owner = d.owner.load(Ordering::Relaxed);
    if owner == OWNER_NONE || owner == OWNER_LARGE {
        return large::block_around(p).or_else(|| large::nursery_block(p));
    }
    let class = d.class();
    let layout = class.layout();
    let first = address_map::slice_address(address_map::span_index(p, class))
        .wrapping_add(layout.slack as usize);
    let offset = p.addr().checked_sub(first.addr())?;
    let size = layout.size as usize;
    let is_block = offset / size < usize::from(layout.blocks);
    is_block.then(|| (first.wrapping_add(offset / size * size), size))
}
