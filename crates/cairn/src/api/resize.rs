//! Owns: how blocks change their size.
//! Idea: in place as long as half of a block stays in use; large blocks grow where they stand, or by
//!   moving pages; bytes are copied only for small ones.
//! Never: knows C types or errno.
//! Threads: any, at any time in a thread's life; holds nothing.
//! Checked: oracle tests with contents.
//! Story: docs/design/large-blocks.md

use super::large::counted;
use super::lookup::{large_usable, live_block, open_block};
use super::misuse::bad_pointer;
use super::usable::{may_keep, note_size, stays};
use super::{SIZE_MAX, allocate_aligned, deallocate, profiled};
use crate::base::{HARDENED, MEDIUM_MAX, MIN_ALIGN};
use crate::large::{Size, Sizes};
use crate::map::{Block, address_map, without_mark};
use crate::store::{Behind, Canary, FREED_TWICE, canary};
use crate::{
    closed, large, os,
    samples::guards,
    slices::{arena, limit},
    thread,
    thread::search,
};
use core::ptr::null_mut;

/// Resizes a block, in place if that is sensible; the contents are kept up to the smaller size.
/// Null if there is no memory: the old block stays as it is. A null `p` allocates.
///
/// # Safety
/// As for `deallocate`; if the result is not null, the old pointer is dead.
///
/// ```
/// let block = cairn::allocate(100);
/// // SAFETY: live blocks; the old pointer is dead after the call.
/// unsafe {
///     block.write(7);
///     let block = cairn::reallocate(block, 5000);
///     assert_eq!(block.read(), 7);
///     cairn::deallocate(block);
/// }
/// ```
#[inline]
pub unsafe fn reallocate(p: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: `p` is null or a live block's start, the caller's to resize; every block is aligned so.
    unsafe { reallocate_aligned(p, size, MIN_ALIGN) }
}

/// Resizes a block that is aligned to `align`, a power of two, and stays so.
///
/// # Safety
/// As for `reallocate`.
///
/// ```
/// let block = cairn::allocate_aligned(100, 64);
/// // SAFETY: live blocks; the old pointer is dead after the call.
/// unsafe {
///     let block = cairn::reallocate_aligned(block, 5000, 64);
///     assert!(block.addr().is_multiple_of(64));
///     cairn::deallocate(block);
/// }
/// ```
#[inline]
pub unsafe fn reallocate_aligned(p: *mut u8, size: usize, align: usize) -> *mut u8 {
    let room = open_block(p).map(canary::room);
    // SAFETY: a block starts there, and where it is free its mark.
    if room.is_some() && unsafe { Block::is_marked(p.cast()) } {
        // SAFETY: `p` is a live block's start, the caller's to resize.
        return unsafe { reallocate_marked(p, size, align) };
    }
    if room.is_some_and(|room| stays(size, room)) {
        // SAFETY: a live block, which has room for so many.
        unsafe { keep(p, size) };
        return p;
    }
    // SAFETY: `p` is null or a live block's start, the caller's to resize.
    unsafe { reallocate_elsewhere(p, size, align, room) }
}

/// What messages name.
const CALL: &str = "realloc";

/// Resizes a block that carries the mark of a free one, if it is not.
#[cold]
#[inline(never)]
unsafe fn reallocate_marked(p: *mut u8, size: usize, align: usize) -> *mut u8 {
    if search::is_free(p.cast()) {
        os::fatal(CALL, p, FREED_TWICE);
    }
    // SAFETY: it is in no list: the block is the caller's, and this number the program's own.
    unsafe {
        let second = p.cast::<usize>().add(1);
        let value = second.read();
        second.write(without_mark(value));
        let new = reallocate_aligned(p, size, align);
        let (kept, size) = if new.is_null() { (p, MIN_ALIGN) } else { (new, size) };
        let second = kept.cast::<usize>().add(1);
        let bytes = size.min(MIN_ALIGN).saturating_sub(size_of::<usize>());
        second.cast::<u8>().copy_from_nonoverlapping((&raw const value).cast(), bytes);
        new
    }
}

/// The program has `size` bytes from now on of a block that stays where it is.
///
/// # Safety
/// It is a live block's start, and may have that size.
#[inline(always)]
pub unsafe fn keep(p: *mut u8, size: usize) {
    if HARDENED {
        // SAFETY: as above.
        unsafe {
            match live_block(p) {
                Some((class, _)) => Canary::change(p, class, size, CALL),
                None => Size::ask(p, size),
            }
        }
    }
}

/// Resizes what has to move, is large, a closed heap's, or null. `room` is what a block of another heap's span has.
#[inline(never)]
unsafe fn reallocate_elsewhere(
    p: *mut u8,
    size: usize,
    align: usize,
    room: Option<usize>,
) -> *mut u8 {
    if p.is_null() {
        return allocate_aligned(size, align);
    }
    if size > SIZE_MAX {
        return null_mut();
    }
    // SAFETY: `p` is a live block's start, the caller's to resize; a span's block if `room` says what it has.
    unsafe {
        match room {
            Some(room) => move_small(p, room, size, align),
            None => reallocate_apart(p, size, align),
        }
    }
}

/// The same of a block of a closed heap's span, or of none.
///
/// # Safety
/// `p` is a live block's start, the caller's to resize.
#[cold]
#[inline(never)]
unsafe fn reallocate_apart(p: *mut u8, size: usize, align: usize) -> *mut u8 {
    // SAFETY: as above.
    unsafe {
        let Some((class, _)) = live_block(p) else { return reallocate_large(p, size, align) };
        let room = canary::room(class);
        expect_in_use(p, CALL);
        if stays(size, room) {
            keep(p, size);
            return p;
        }
        move_small(p, room, size, align)
    }
}

/// The same of a span's block that moves.
///
/// # Safety
/// As for `reallocate_apart`; it has so much room.
#[inline(always)]
unsafe fn move_small(p: *mut u8, room: usize, size: usize, align: usize) -> *mut u8 {
    // SAFETY: as above.
    unsafe {
        let has = match HARDENED.then(|| live_block(p)).flatten() {
            Some((class, _)) => Canary::size_of(p, class, CALL),
            None => room,
        };
        copy_to_new(p, has, size, align)
    }
}

#[cold]
unsafe fn reallocate_large(p: *mut u8, size: usize, align: usize) -> *mut u8 {
    let Some(usable) = large_usable(p) else { bad_pointer(CALL, p) };
    if stays(size, usable) && large::nursery_usable(p).is_some() {
        return p;
    }
    let has = Size::asked(p, CALL).unwrap_or(usable);
    // SAFETY: the start of a live large block, the caller's to resize; it has so many bytes.
    unsafe {
        resize_or_give_back(p, size, align).unwrap_or_else(|| {
            let room = large::with_room(size, has);
            if room > size {
                let new = copy_to_new(p, has, room, align);
                if !new.is_null() {
                    Size::ask(new, size);
                    return new;
                }
            }
            copy_to_new(p, has, size, align)
        })
    }
}

/// As `resize_large`; a mapping that the hard limit keeps from growing once more when what is free has gone, and when the program
/// has been told and called: in its place it needs less than beside it. Null if that does not help, either.
///
/// # Safety
/// As for `resize_large`.
pub(crate) unsafe fn resize_or_give_back(p: *mut u8, size: usize, align: usize) -> Option<*mut u8> {
    // SAFETY: as above.
    let resize = || unsafe { resize_large(p, size, align) };
    resize().or_else(|| {
        let more = size.saturating_sub(large_usable(p)?);
        let is_short =
            || limit::hard() > 0 && arena::counted().saturating_add(more) > limit::hard();
        let is_mapping = !address_map::contains(p) && guards::usable_size(p).is_none();
        if more == 0 || !is_mapping || large::is_read_by_others(p) || !is_short() {
            return None;
        }
        thread::retry_in_shortage(more, resize)
            .or_else(|| if thread::defer_in_need() { resize() } else { None })
            .or_else(|| is_short().then_some(null_mut()))
    })
}

/// Resizes a large block in place, or by moving its pages; null if there is no memory. None: copying is due.
///
/// # Safety
/// `p` is the start of a live block over `MEDIUM_MAX`, the caller's to resize.
#[inline(never)]
unsafe fn resize_large(p: *mut u8, size: usize, align: usize) -> Option<*mut u8> {
    let before = counted_before(p);
    let paused = profiled::pause(p);
    let resized = if guards::usable_size(p).is_some() || large::is_read_by_others(p) {
        None
    } else if !address_map::contains(p) {
        large::reallocate_mapping(p, size, align)
    } else if size > MEDIUM_MAX && align <= os::HUGE_PAGE {
        // SAFETY: the start of a live large block, the caller's to resize.
        unsafe { large::reallocate(p, size) }
    } else {
        None
    };
    if let Some(new) = resized.filter(|new| !new.is_null()) {
        // SAFETY: the caller's, and of that size.
        unsafe { Size::ask(new, size) };
    }
    count_resized(resized, before);
    profiled::resume(resized, p, size, paused);
    resized
}

/// Ends the process if it is a span's block and free.
///
/// # Safety
/// A block starts there.
pub(crate) unsafe fn expect_in_use(p: *mut u8, call: &str) {
    if live_block(p).is_none() {
        return;
    }
    let block = p.wrapping_add(closed::head_at(p)).cast();
    // SAFETY: as above.
    if unsafe { Block::is_marked(block) } && search::is_free(block) {
        os::fatal(call, p, FREED_TWICE);
    }
}

/// Makes a block at least `size` bytes long without moving it; false, and nothing is done, if that cannot be. Null
/// stays null: false.
///
/// A small block has the room of its class. A large one grows into free memory behind it, a mapping by a system
/// call if the addresses behind it are free. A smaller size is fine, too: a large block gives back what
/// `reallocate` would give back in place. Who names a size to free the block names the one that it has been given last.
///
/// # Safety
/// `p` is null or the start of a live block of this allocator, the caller's to resize.
///
/// ```
/// let block = cairn::allocate(100);
/// // SAFETY: a live block, and nobody uses it after this.
/// unsafe {
///     assert!(cairn::try_expand(block, cairn::good_size(100)));
///     assert!(!cairn::try_expand(block, cairn::good_size(100) + 1));
///     cairn::deallocate(block);
/// }
/// ```
#[must_use]
pub unsafe fn try_expand(p: *mut u8, size: usize) -> bool {
    // SAFETY: as above, and not null.
    let has = !p.is_null() && size <= SIZE_MAX && unsafe { expand(p, size) };
    if has {
        note_size(p, size);
    }
    has
}

/// # Safety
/// `p` is the start of a live block, the caller's to resize.
unsafe fn expand(p: *mut u8, size: usize) -> bool {
    if let Some((class, _)) = live_block(p) {
        // SAFETY: a block starts there.
        unsafe { expect_in_use(p, EXPAND) };
        let fits = size <= canary::room(class);
        if fits {
            // SAFETY: a live block, which has room for so many.
            unsafe {
                let least = Canary::size_of(p, class, EXPAND);
                Canary::change(p, class, size.max(least), EXPAND);
            }
        }
        return fits;
    }
    let Some(usable) = large_usable(p) else { bad_pointer(EXPAND, p) };
    if large::waits(p) {
        os::fatal(EXPAND, p, FREED_TWICE);
    }
    let stays = guards::usable_size(p).is_some()
        || large::nursery_usable(p).is_some()
        || size <= usable && large::is_read_by_others(p);
    if stays {
        return size <= usable;
    }
    let had = Size::asked(p, EXPAND);
    let before = counted_before(p);
    let fits = if address_map::contains(p) {
        // SAFETY: the start of a live large block, the caller's to resize.
        unsafe { large::expand(p, size) }
    } else {
        // No mapping is aligned to so much: it stays where it is, or does not grow.
        let resized = large::reallocate_mapping(p, size, usize::MAX);
        resized.map_or(size <= usable, |now| now == p)
    };
    if fits
        && let Some(had) = had
        && let Some(usable) = large_usable(p)
    {
        // SAFETY: the caller's. What has not been given back is the program's still.
        unsafe { Size::ask(p, had.max(size).min(usable)) };
    }
    count_resized(fits.then_some(p), before);
    fits
}

/// What a large block counts for that may change its size, if the thread counts.
fn counted_before(p: *mut u8) -> Option<usize> {
    thread::is_counting().then(|| counted(p))
}

/// Counts a large block that has changed its size without a copy.
fn count_resized(resized: Option<*mut u8>, before: Option<usize>) {
    if let (Some(p), Some(before)) = (resized, before) {
        thread::note(counted(p), before);
    }
}

/// What messages about a bad pointer name.
const EXPAND: &str = "cairn_try_expand";

unsafe fn copy_to_new(p: *mut u8, has: usize, size: usize, align: usize) -> *mut u8 {
    let new = allocate_aligned(size, align);
    // SAFETY: the caller's; both blocks are live and apart, and have that many bytes.
    unsafe {
        if new.is_null() {
            return keep_or_null(p, has, size, align);
        }
        new.copy_from_nonoverlapping(p, has.min(size));
        deallocate(p);
    }
    new
}

/// For want of another one, the block at `p`, which has `has` bytes, if the program wants no more; it has `size` of them from now
/// on. Null if it does, or wants another alignment.
///
/// # Safety
/// A live block's start, the caller's to resize.
#[cold]
#[inline(never)]
pub(crate) unsafe fn keep_or_null(p: *mut u8, has: usize, size: usize, align: usize) -> *mut u8 {
    if !may_keep(p, has, size, align) {
        return null_mut();
    }
    // SAFETY: the caller's, which has room for so many.
    unsafe { keep(p, size) };
    p
}
