//! The malloc family, to the letter of C23, POSIX and glibc's manual.
//!
//! No exported function calls another one: a program may define any of these names itself, over
//! `__libc_malloc` and its kind for instance, and a call by name would end up in the program. What
//! several of them do stands in functions of this file's own.

use cairn::NoMemory;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

/// What aligned requests without an alignment of their own get: `alignof(max_align_t)`.
pub(crate) const MALLOC_ALIGN: usize = 16;

/// Null, and errno says why.
pub(crate) struct Errno;

impl NoMemory for Errno {
    #[cold]
    #[inline(never)]
    fn answer(_: usize, _: usize) -> *mut u8 {
        set_errno(libc::ENOMEM);
        null_mut()
    }
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: errno's location is valid for the calling thread.
    unsafe { *libc::__errno_location() = value };
}

pub(crate) fn no_memory() -> *mut c_void {
    Errno::answer(0, 0).cast()
}

// What several names do.

#[inline]
pub(crate) fn zeroed(count: usize, size: usize) -> *mut c_void {
    cairn::allocate_zeroed_array_or::<Errno>(count, size).cast()
}

/// Always inlined: the jump would be an instruction in each `realloc` (docs/design/fast-paths.md).
///
/// # Safety
///
/// `p` is null or the start of a block that the caller gives up.
#[inline(always)]
unsafe fn resized(p: *mut c_void, size: usize) -> *mut c_void {
    if size == 0 {
        // SAFETY: the caller's contract.
        return unsafe { resized_to_nothing(p) };
    }
    // SAFETY: null or a block that nobody uses after this, as the core asks.
    match unsafe { cairn::reallocate(p.cast(), size) } {
        new if new.is_null() => no_memory(),
        new => new.cast(),
    }
}

/// Frees a block, or allocates one of no bytes. Apart: that `p` may be null is asked here alone.
///
/// # Safety
///
/// As for `resized`.
#[cold]
#[inline(never)]
unsafe fn resized_to_nothing(p: *mut c_void) -> *mut c_void {
    if p.is_null() {
        return malloc(0);
    }
    // SAFETY: it is a block, and the caller's to give up.
    unsafe { cairn::deallocate_named(p.cast(), "realloc") };
    null_mut()
}

/// # Safety
///
/// As for `resized`.
unsafe fn resized_array(p: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the same promise about `p`.
        Some(bytes) => unsafe { resized(p, bytes) },
        None => no_memory(),
    }
}

/// Rounds an alignment that is no power of two up to one, as glibc does. EINVAL if it cannot be.
pub(crate) fn whole_alignment(align: usize) -> Option<usize> {
    let align = align.max(MALLOC_ALIGN).checked_next_power_of_two();
    if align.is_none() {
        set_errno(libc::EINVAL);
    }
    align
}

fn aligned(align: usize, size: usize) -> *mut c_void {
    match whole_alignment(align) {
        Some(align) => cairn::allocate_aligned_or::<Errno>(size, align).cast(),
        None => null_mut(),
    }
}

/// posix_memalign(3) by way of `make`, from a size and an alignment.
///
/// # Safety
///
/// `out` may be written.
#[inline(always)]
pub(crate) unsafe fn placed(
    out: *mut *mut c_void,
    align: usize,
    size: usize,
    make: impl FnOnce(usize, usize) -> *mut u8,
) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let p = make(size, align);
    if p.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's contract.
    unsafe { *out = p.cast() };
    0
}

/// Ends the process if the block cannot have that size and alignment. It may have been resized. Null has any.
fn expect_size(p: *mut c_void, align: usize, size: usize) {
    if p.is_null() {
        return;
    }
    if !align.is_power_of_two()
        || !cairn::may_have_size(p.cast(), size, align, cairn::Resized::Perhaps)
    {
        cairn::bad_size("free", p.cast());
    }
}

/// As free(3), which a program may have in its place.
#[inline(never)]
unsafe fn freed(p: *mut c_void) {
    // SAFETY: the caller's contract.
    unsafe { cairn::deallocate_named(p.cast(), "free") }
}

fn whole_pages(size: usize) -> *mut c_void {
    let page = page_size();
    match size.max(1).checked_next_multiple_of(page) {
        Some(bytes) => aligned(page, bytes),
        None => no_memory(),
    }
}

pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

// The names.

/// malloc(3). A size of 0 gives a unique block.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn malloc(size: usize) -> *mut c_void {
    cairn::allocate_or::<Errno>(size).cast()
}

/// free(3). Leaves errno alone.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn free(p: *mut c_void) {
    // SAFETY: the caller's contract.
    unsafe { cairn::deallocate_named(p.cast(), "free") }
}

/// calloc(3).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    zeroed(count, size)
}

/// realloc(3). As in glibc, `realloc(p, 0)` with a block frees it and returns null (undefined
/// in C23); errno is left alone then.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn realloc(p: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: what realloc(3) asks of its caller is what `resized` asks.
    unsafe { resized(p, size) }
}

/// reallocarray(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn reallocarray(
    p: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    // SAFETY: as for `realloc`.
    unsafe { resized_array(p, count, size) }
}

/// posix_memalign(3). Leaves errno alone, and `*out` on failure.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn posix_memalign(
    out: *mut *mut c_void,
    align: usize,
    size: usize,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { placed(out, align, size, cairn::allocate_aligned) }
}

/// memalign(3). Rounds an alignment that is no power of two up to one, as glibc does.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    aligned(align, size)
}

/// aligned_alloc(3). An alignment that is no power of two is an error, as C23 says.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        set_errno(libc::EINVAL);
        return null_mut();
    }
    aligned(align, size)
}

/// valloc(3): page-aligned.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn valloc(size: usize) -> *mut c_void {
    aligned(page_size(), size)
}

/// pvalloc(3): page-aligned whole pages.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pvalloc(size: usize) -> *mut c_void {
    whole_pages(size)
}

/// malloc_usable_size(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn malloc_usable_size(p: *mut c_void) -> usize {
    // SAFETY: the caller's contract.
    unsafe { cairn::usable_size(p.cast()) }
}

/// free_sized (C23).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn free_sized(p: *mut c_void, size: usize) {
    if !cairn::has_class_of(p.cast(), size) {
        expect_size(p, 1, size);
    }
    // SAFETY: the caller's contract.
    unsafe { freed(p) }
}

/// free_aligned_sized (C23).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn free_aligned_sized(p: *mut c_void, align: usize, size: usize) {
    expect_size(p, align, size);
    // SAFETY: the caller's contract.
    unsafe { freed(p) }
}

/// cfree: free(3) under its old name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cfree(p: *mut c_void) {
    // SAFETY: the caller's contract.
    unsafe { cairn::deallocate_named(p.cast(), "free") }
}

// glibc's internal names, which old programs and some static ones call.

/// malloc(3).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __libc_malloc(size: usize) -> *mut c_void {
    cairn::allocate_or::<Errno>(size).cast()
}

/// free(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __libc_free(p: *mut c_void) {
    // SAFETY: as for `free`.
    unsafe { cairn::deallocate_named(p.cast(), "free") }
}

/// calloc(3).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __libc_calloc(count: usize, size: usize) -> *mut c_void {
    zeroed(count, size)
}

/// realloc(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __libc_realloc(p: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: as for `realloc`.
    unsafe { resized(p, size) }
}

/// reallocarray(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __libc_reallocarray(
    p: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    // SAFETY: as for `realloc`.
    unsafe { resized_array(p, count, size) }
}

/// memalign(3).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __libc_memalign(align: usize, size: usize) -> *mut c_void {
    aligned(align, size)
}

/// valloc(3).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __libc_valloc(size: usize) -> *mut c_void {
    aligned(page_size(), size)
}

/// pvalloc(3).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __libc_pvalloc(size: usize) -> *mut c_void {
    whole_pages(size)
}
