//! Limits of the process's memory, what counts, and who is told: include/cairn.h has their contracts.

use crate::family::set_errno;
use core::ffi::{c_int, c_void};

/// Limits the process's memory. 0 and EINVAL if the soft limit is more than the hard one.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_set_memory_limits(soft: usize, hard: usize) -> c_int {
    let done = cairn::set_memory_limits(soft, hard);
    if !done {
        set_errno(libc::EINVAL);
    }
    c_int::from(done)
}

/// What counts, and what limits it, as far as there is room for it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_get_memory(out: *mut usize, bytes: usize) {
    let memory = cairn::MemoryUse::take();
    let group = memory.group.map(|group| [group.used, group.limit]).unwrap_or_default();
    let [used, limit] = group.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let figures = [memory.counted, memory.soft_limit, memory.hard_limit, used, limit];
    let known = bytes.min(size_of_val(&figures));
    // SAFETY: the caller's contract: that many bytes. What this version does not know is 0.
    unsafe {
        out.cast::<u8>().write_bytes(0, bytes);
        out.cast::<u8>().copy_from_nonoverlapping(figures.as_ptr().cast(), known);
    }
}

/// `void (*)(size_t size, void *argument)`.
type Call = unsafe extern "C" fn(usize, *mut c_void);

fn call(size: usize, [call, argument]: [usize; 2]) {
    // SAFETY: `cairn_on_low_memory` has put a function there, and what it is to be given.
    unsafe {
        let call: Call = core::mem::transmute(core::ptr::with_exposed_provenance::<()>(call));
        call(size, core::ptr::with_exposed_provenance_mut(argument));
    }
}

/// Has a function told when memory runs short, or none if it is null.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_on_low_memory(function: Option<Call>, argument: *mut c_void) {
    let words = [function.map_or(0, |function| function as usize), argument.expose_provenance()];
    let registered: Option<cairn::LowMemory> = function.map(|_| call as _);
    cairn::on_low_memory(registered, words);
}
