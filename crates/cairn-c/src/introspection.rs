//! What programs may ask and tell: glibc's mallinfo and friends, and cairn's own calls.

use crate::account;
use crate::report::{self, Stream};
use cairn::Stats;
use core::ffi::{c_char, c_int, c_void};

/// malloc_trim(3): gives back all free memory. 1 if any went back. The pad is ignored: what a
/// program wants to keep, it can allocate.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn malloc_trim(_pad: usize) -> c_int {
    c_int::from(cairn::purge() > 0)
}

/// The C library's `struct mallinfo2`, by its layout: not every C library has it.
#[repr(C)]
#[derive(Default)]
#[allow(dead_code, reason = "it is read by C programs")]
pub(crate) struct MallInfo2 {
    arena: usize,
    ordblks: usize,
    smblks: usize,
    hblks: usize,
    hblkhd: usize,
    usmblks: usize,
    fsmblks: usize,
    uordblks: usize,
    fordblks: usize,
    keepcost: usize,
}

/// The C library's `struct mallinfo`.
#[repr(C)]
#[derive(Default)]
#[allow(dead_code, reason = "it is read by C programs")]
pub(crate) struct MallInfo {
    arena: c_int,
    ordblks: c_int,
    smblks: c_int,
    hblks: c_int,
    hblkhd: c_int,
    usmblks: c_int,
    fsmblks: c_int,
    uordblks: c_int,
    fordblks: c_int,
    keepcost: c_int,
}

/// mallinfo2(3), from the statistics. `ordblks`: free blocks; `keepcost`: dirty bytes.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mallinfo2() -> MallInfo2 {
    wide()
}

// Three names lead here: once is enough.
#[inline(never)]
fn wide() -> MallInfo2 {
    let stats = Stats::count();
    let free =
        stats.sum(|c| c.free + c.cached + c.untouched) + stats.nurseries.bytes - stats.nursery_used;
    MallInfo2 {
        arena: stats.spans.bytes + stats.large.bytes + stats.nurseries.bytes + stats.dirty.bytes,
        ordblks: stats.classes.iter().map(|c| c.free + c.cached).sum(),
        hblks: stats.mapping_blocks,
        hblkhd: stats.mappings.bytes,
        uordblks: stats.sum(|c| c.in_use) + stats.large.bytes + stats.nursery_used,
        fordblks: free + stats.dirty.bytes,
        keepcost: stats.dirty.bytes,
        ..MallInfo2::default()
    }
}

/// mallinfo(3): as mallinfo2, cut to int as in glibc.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mallinfo() -> MallInfo {
    narrow()
}

#[inline(never)]
fn narrow() -> MallInfo {
    let wide = wide();
    MallInfo {
        arena: wide.arena as c_int,
        ordblks: wide.ordblks as c_int,
        hblks: wide.hblks as c_int,
        hblkhd: wide.hblkhd as c_int,
        uordblks: wide.uordblks as c_int,
        fordblks: wide.fordblks as c_int,
        keepcost: wide.keepcost as c_int,
        ..MallInfo::default()
    }
}

/// mallinfo(3) under glibc's internal name.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __libc_mallinfo() -> MallInfo {
    narrow()
}

/// malloc_info(3): the statistics as XML. Options must be 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn malloc_info(options: c_int, stream: *mut libc::FILE) -> c_int {
    if options != 0 {
        return libc::EINVAL;
    }
    match report::write_xml(&mut Stream(stream)) {
        Ok(()) => 0,
        Err(_) => -1,
    }
}

/// malloc_stats(3): the account on standard error.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn malloc_stats() {
    account::print();
}

/// mallopt(3). A negative `M_TRIM_THRESHOLD`: nothing is given back. `M_MMAP_MAX` 0: nothing is mapped apart. The others
/// of glibc's parameters tune what cairn does not have: they change nothing, 1 as for success. 0 for parameters that do
/// not exist.
fn set_option(parameter: c_int, value: c_int) -> c_int {
    const M_MXFAST: c_int = 1;
    const M_TRIM_THRESHOLD: c_int = -1;
    const M_MMAP_MAX: c_int = -4;
    const M_ARENA_MAX: c_int = -8;
    match parameter {
        M_TRIM_THRESHOLD => {
            cairn::keep_memory(value < 0);
            // What a thread's first block takes it has from now on.
            // SAFETY: a block that nobody uses, or null.
            unsafe { cairn::deallocate(cairn::allocate(1)) };
        }
        M_MMAP_MAX => cairn::map_nothing_apart(value == 0),
        _ => {}
    }
    c_int::from(matches!(parameter, M_MXFAST | M_ARENA_MAX..=M_TRIM_THRESHOLD))
}

/// mallopt(3).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mallopt(parameter: c_int, value: c_int) -> c_int {
    set_option(parameter, value)
}

/// mallopt(3) under glibc's internal name.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __libc_mallopt(parameter: c_int, value: c_int) -> c_int {
    set_option(parameter, value)
}

/// Usable bytes of the block that starts at `p`; 0 for null.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_usable_size(p: *const c_void) -> usize {
    // SAFETY: the caller's contract.
    unsafe { cairn::usable_size(p.cast()) }
}

/// The start of the block that `p` points to or into; null if it is none of cairn's.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_base(p: *const c_void) -> *mut c_void {
    cairn::base(p.cast()).map_or(core::ptr::null_mut(), |start| start.cast())
}

/// The version, as a C string.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The account on standard error.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_stats_print() {
    account::print();
}

/// Gives back all free memory.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_purge() {
    cairn::purge();
}

/// Guards one allocation in every so many bytes; 0 bytes: none. 0 if there is no memory for it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_guard_every(bytes: usize) -> c_int {
    c_int::from(cairn::guard_every(bytes))
}

/// 1: this is how a program can tell that it runs on cairn.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_is_active() -> c_int {
    1
}
