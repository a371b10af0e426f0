//! Owns: how many bytes the program has of a block, and whether a size that it names can be the block's.
//! Idea: a span's class says it; large and guarded blocks know it.
//! Never: believes a size that the program names.
//! Threads: any; holds nothing.
//! Checked: oracle tests; misuse tests of the C layer.
//! Story: docs/design/layout.md

use super::lookup::{large_usable, live_block};
use super::misuse::bad_pointer;
use crate::base::{
    AtomicBool, MEDIUM_MAX, MIN_ALIGN, Ordering, SLICE_SIZE, SMALL_MAX, holds_at, size_class,
};
use crate::map::{Descriptor, OWNER_HEAP_MIN, address_map};
use crate::store::{Behind, Canary, canary};
use crate::{closed, large, samples::guards};
use core::mem::offset_of;

/// Bytes usable from `p`, the start of a live block, at least what was asked for; 0 for null.
/// Aborts on any other pointer. But a freed block that is small, or waits for readers of its heap, may be answered; in the
/// hardened build it aborts, too.
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
        Some((class, _)) => unsafe { Canary::grant(p, class, USABLE) },
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
    const CLASS: usize = offset_of!(Descriptor, class);
    if size > SMALL_MAX {
        return false;
    }
    let (d, class) = (address_map::descriptor(p), size_class::small_class(size).number());
    // What is no span has the smallest class.
    // SAFETY: the word of the class stands there.
    let is_class = unsafe { holds_at::<CLASS>((&raw const *d).cast(), class) };
    is_class && d.owner.load(Ordering::Relaxed) >= OWNER_HEAP_MIN
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
    let has_kept = || resized == Resized::Perhaps && HAS_KEPT.load(Ordering::Relaxed);
    matches(p.cast_mut(), size, align, resized)
        || (is_made_larger(p) || has_kept())
            && p.addr().is_multiple_of(align)
            && size <= room(p.cast_mut())
}

/// Whether a block starts at `p`, any value at all, of a heap that makes its blocks larger than asked for. The heap may be
/// deleted.
fn is_made_larger(p: *const u8) -> bool {
    address_map::span_block(p).is_some() && closed::head_at(p) > 0
}

/// A block has stayed larger than others of its size: for want of memory for a smaller one, or as the program wanted it where it
/// stood. Relaxed: who frees it has seen that.
static HAS_KEPT: AtomicBool = AtomicBool::new(false);

/// The program shrinks a block, and there is no memory for a smaller one: it may stay as it is. Whether it may: if it has so many
/// bytes, and that alignment.
#[cold]
pub(super) fn may_keep(p: *mut u8, has: usize, size: usize, align: usize) -> bool {
    let may = size <= has && p.addr().is_multiple_of(align);
    if may {
        HAS_KEPT.store(true, Ordering::Relaxed);
    }
    may
}

/// The block at `p` stays where it is with so many bytes, however few.
pub(super) fn note_size(p: *const u8, size: usize) {
    if !may_stay(p, size, 1) {
        HAS_KEPT.store(true, Ordering::Relaxed);
    }
}

/// Bytes that the block at `p`, any value at all, has room for; the program has no more of it than before. 0 if no block
/// starts there.
#[cold]
#[must_use]
pub fn room(p: *mut u8) -> usize {
    match address_map::span_block(p) {
        Some((class, _)) => canary::room(class),
        None => large_usable(p).unwrap_or(0),
    }
}

/// Whether a block may stay where it is for `size` bytes at a multiple of `align`.
pub fn may_stay(p: *const u8, size: usize, align: usize) -> bool {
    matches(p.cast_mut(), size, align, Resized::Perhaps)
}

fn matches(p: *mut u8, size: usize, align: usize, resized: Resized) -> bool {
    let Some((class, _)) = address_map::span_block(p) else {
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
    let resized = resized == Resized::Perhaps;
    is_fresh || resized && p.addr().is_multiple_of(align) && stays(size, canary::room(class))
}

/// Whether a block of `usable` bytes is kept for `size`: while at least half of it is used; the
/// smallest always.
#[inline(always)]
pub(super) fn stays(size: usize, usable: usize) -> bool {
    size <= usable && (size >= usable / 2 || usable <= 64)
}
