//! Calls beyond the malloc family, for language runtimes, databases and engines: include/cairn.h has their
//! contracts.

use crate::family::{self, MALLOC_ALIGN};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;

/// The most bytes that cost no more than `size`; 0 if a request for `size` cannot succeed.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_good_size(size: usize) -> usize {
    cairn::good_size(size)
}

/// How many size classes there are.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_class_count() -> c_uint {
    cairn::class_sizes().len() as c_uint
}

/// Bytes in a block of a class; 0 beyond the last one.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_class_size(class: c_uint) -> usize {
    cairn::class_sizes().nth(class as usize).unwrap_or(0)
}

/// Makes the block at least `size` bytes long where it stands; 0 if it cannot.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_try_expand(block: *mut c_void, size: usize) -> c_int {
    // SAFETY: the caller's contract.
    c_int::from(unsafe { cairn::try_expand(block.cast(), size) })
}

/// Null and errno, or a block; and its length.
unsafe fn at_least(align: usize, size: usize, usable: *mut usize) -> *mut c_void {
    let (block, bytes) = cairn::allocate_at_least(size, align);
    // SAFETY: the caller's contract.
    unsafe { *usable = bytes };
    if block.is_null() { family::no_memory() } else { block.cast() }
}

/// malloc, and how many bytes the block has.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_malloc_at_least(
    size: usize,
    usable: *mut usize,
) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { at_least(MALLOC_ALIGN, size, usable) }
}

/// aligned_alloc, and how many bytes the block has.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_aligned_alloc_at_least(
    align: usize,
    size: usize,
    usable: *mut usize,
) -> *mut c_void {
    if !align.is_power_of_two() {
        // SAFETY: the caller's contract.
        unsafe { *usable = 0 };
        family::set_errno(libc::EINVAL);
        return null_mut();
    }
    // SAFETY: as above.
    unsafe { at_least(align.max(MALLOC_ALIGN), size, usable) }
}

/// A block whose byte `offset` is at a multiple of `align`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_aligned_alloc_at(
    align: usize,
    offset: usize,
    size: usize,
) -> *mut c_void {
    if !align.is_power_of_two() {
        family::set_errno(libc::EINVAL);
        return null_mut();
    }
    match cairn::allocate_aligned_at(size, align, offset) {
        block if block.is_null() => family::no_memory(),
        block => block.cast(),
    }
}

/// Fills `blocks` with blocks of `size` bytes; how many.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_malloc_batch(
    size: usize,
    count: usize,
    blocks: *mut *mut c_void,
) -> usize {
    if count == 0 {
        return 0;
    }
    // SAFETY: the caller's contract.
    let places = unsafe { core::slice::from_raw_parts_mut(blocks.cast(), count) };
    let filled = cairn::allocate_batch(size, places);
    if filled < count {
        family::no_memory();
    }
    filled
}

/// Frees all of `blocks`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_free_batch(blocks: *const *mut c_void, count: usize) {
    if count > 0 {
        // SAFETY: the caller's contract.
        unsafe { cairn::deallocate_batch(core::slice::from_raw_parts(blocks.cast(), count)) }
    }
}

/// recallocarray(3) of OpenBSD: what a block gains is zero, and what it loses, or leaves behind, is wiped.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_recallocarray(
    block: *mut c_void,
    old_count: usize,
    count: usize,
    size: usize,
) -> *mut c_void {
    if block.is_null() {
        return family::zeroed(count, size);
    }
    let Some(old) = old_count.checked_mul(size) else {
        family::set_errno(libc::EINVAL);
        return null_mut();
    };
    let Some(new) = count.checked_mul(size) else { return family::no_memory() };
    // SAFETY: the caller's contract; a block that has `old` bytes.
    unsafe {
        if old > cairn::room(block.cast()) {
            cairn::bad_size("cairn_recallocarray", block.cast());
        }
        let block = block.cast();
        let fits = cairn::try_expand(block, new.max(old));
        // As with realloc: a block stays only where its size can be told from it.
        let stays = fits && cairn::may_stay(block, new, 1);
        let place = if stays { block } else { cairn::allocate(new) };
        if place.is_null() {
            return family::no_memory();
        }
        if new > old {
            place.add(old).write_bytes(0, new - old);
        }
        if stays {
            // The compiler may not leave it out.
            libc::explicit_bzero(block.add(new.min(old)).cast(), old.saturating_sub(new));
            // What a large block need not keep goes back.
            let _ = cairn::try_expand(block, new);
            cairn::keep(block, new);
        } else {
            place.copy_from_nonoverlapping(block, old.min(new));
            libc::explicit_bzero(block.cast(), old);
            cairn::deallocate(block);
        }
        place.cast()
    }
}

/// The calling thread is going to wait: what it holds free goes to where others find it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_thread_idle() {
    cairn::thread_idle();
}

/// 1 if memory would be gained if the block were moved.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_should_move(block: *const c_void) -> c_int {
    c_int::from(cairn::should_move(block.cast()))
}

/// Begins to count what the calling thread allocates and frees, or ends it; 0 without memory.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_count(on: c_int) -> c_int {
    c_int::from(cairn::count(on != 0))
}

/// Bytes that the calling thread has allocated while it counted.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_thread_allocated() -> usize {
    cairn::thread_counts().allocated as usize
}

/// Bytes that the calling thread has freed while it counted.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_thread_freed() -> usize {
    cairn::thread_counts().freed as usize
}

/// Where the calling thread counts: allocated and freed; null if it does not.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_thread_counts() -> *const u64 {
    cairn::thread_counts_place().cast()
}

/// Milliseconds that free memory lies idle before it goes back.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_purge_delay_ms() -> usize {
    cairn::purge_delay_ms()
}

/// Sets them.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_set_purge_delay_ms(ms: usize) {
    cairn::set_purge_delay_ms(ms);
}

/// Starts the purge thread, once; 0 if it cannot be.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_start_purge_thread() -> c_int {
    c_int::from(cairn::start_purge_thread())
}

/// 1 if there is a purge thread.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_has_purge_thread() -> c_int {
    c_int::from(cairn::has_purge_thread())
}
