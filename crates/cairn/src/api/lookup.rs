//! Owns: what an address says: the block around it, and its size.
//! Idea: a span's class is in the descriptor; runs and mappings are looked up.
//! Never: believes an address: any value is answered.
//! Threads: any; holds nothing.
//! Checked: oracle tests; misuse tests of the C layer.
//! Story: docs/design/layout.md

use super::misuse::bad_pointer;
use super::resize::stays;
use crate::base::policy::HARDENED;
use crate::base::size_class::{self, MEDIUM_MAX, MIN_ALIGN, SLICE_SIZE, SMALL_MAX, SizeClass};
use crate::base::sync::Ordering;
use crate::map::address_map::{self, OWNER_CLOSED, OWNER_LARGE, OWNER_NONE};
use crate::store::live;
use crate::{closed, large, os, samples::guards, store::canary};

/// The class of the span block that starts at `p`, any value at all, and its span's owner; None if none does, or,
/// in the hardened build, if the program does not have it.
#[inline(always)]
pub(super) fn live_block(p: *const u8) -> Option<(SizeClass, u32)> {
    // SAFETY: it points into a span.
    address_map::span_block(p).filter(|_| !HARDENED || unsafe { live::is_live(p) })
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

/// Bytes usable from `p`, the start of a live block, at least what was asked for; 0 for null.
/// Aborts on any other pointer.
///
/// # Safety
/// `p` is null or the start of a live block of this allocator.
///
/// ```
/// let block = cairn::allocate(100);
/// // SAFETY: a live block, which nobody uses after this.
/// unsafe {
///     assert!(cairn::usable_size(block) >= 100);
///     cairn::deallocate(block);
/// }
/// ```
#[inline]
pub unsafe fn usable_size(p: *const u8) -> usize {
    let p = p.cast_mut();
    match live_block(p) {
        // SAFETY: a live block.
        Some((class, _)) => unsafe { canary::grant(p, class, USABLE) },
        None => usable_elsewhere(p),
    }
}

/// What a message about a bad pointer names.
const USABLE: &str = "malloc_usable_size";

#[inline(never)]
fn usable_elsewhere(p: *mut u8) -> usize {
    if p.is_null() {
        return 0;
    }
    let Some(usable) = large_usable(p) else { bad_pointer(USABLE, p) };
    // SAFETY: a live block.
    unsafe { large::grant(p, usable, USABLE) };
    usable
}

/// Whether `p`, any value at all, points into a span of the class of that size: then a free that names the
/// size is right about it, if `p` starts a block. False says nothing.
#[inline(always)]
#[must_use]
pub fn has_class_of(p: *const u8, size: usize) -> bool {
    size <= SMALL_MAX && address_map::descriptor(p).class() == size_class::small_class(size)
}

/// Whether a block may have had another size before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Resized {
    /// It is as it was allocated.
    Never,
    /// It may have been resized in its place.
    Perhaps,
}

/// Whether the block that starts at `p` can be one of `size` bytes at a multiple of `align`; also true if no block
/// starts there. A block that was resized in its place may be twice as large.
#[must_use]
pub fn may_have_size(p: *const u8, size: usize, align: usize, resized: Resized) -> bool {
    let p = p.cast_mut();
    let Some((class, owner)) = address_map::span_block(p) else {
        if let Some(asked) = guards::usable_size(p) {
            return size == asked && p.addr().is_multiple_of(align);
        }
        if let Some(usable) = large::nursery_usable(p) {
            let is_fresh = size.max(1).next_multiple_of(MIN_ALIGN) == usable;
            return p.addr().is_multiple_of(align)
                && (is_fresh || resized == Resized::Perhaps && stays(size, usable));
        }
        let is_large = size > MEDIUM_MAX || align > SLICE_SIZE;
        // Where there is no room for a span, small blocks have slices of their own, too.
        let fits = |usable| (is_large || usable <= MEDIUM_MAX) && size <= usable;
        return large_usable(p).is_none_or(|usable| fits(usable) && p.addr().is_multiple_of(align));
    };
    let is_fresh = size_class::class_of_aligned(size, align.max(MIN_ALIGN)) == Some(class);
    // Blocks of some heaps are made larger than asked for.
    let resized =
        resized == Resized::Perhaps || owner & OWNER_CLOSED != 0 && closed::head_at(p) > 0;
    is_fresh || resized && p.addr().is_multiple_of(align) && stays(size, canary::room(class))
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
