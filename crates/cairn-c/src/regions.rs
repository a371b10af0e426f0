//! Memory that the program supplies: `cairn_region_*`. What a region is, the core says; here are arguments and errno.

use crate::family::set_errno;
use crate::heaps::{Handle, made};
use cairn::{RegionCalls, RegionError, RegionId, RegionStats};
use core::ffi::{c_int, c_void};
use core::num::NonZeroUsize;
use core::ptr::{null_mut, without_provenance_mut};

/// `cairn_region *`: a number, from which nothing is read.
type Region = *mut c_void;

/// The region of a handle. The core ends the process if there is none of that name.
fn region(of: Region) -> RegionId {
    RegionId::from_raw(NonZeroUsize::new(of.addr()).unwrap_or(NonZeroUsize::MAX))
}

/// Makes a region of `bytes` bytes at `start`. Null, and errno, if that cannot be.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_region_new(
    start: *mut c_void,
    bytes: usize,
    calls: *const RegionCalls,
) -> Region {
    // SAFETY: the caller's contract: null, or calls of that kind.
    let calls = unsafe { calls.as_ref() }.copied().unwrap_or_default();
    // SAFETY: the caller's contract.
    let made = unsafe { RegionId::new(start.cast(), bytes, calls) };
    let reason = match made {
        Ok(region) => return without_provenance_mut(region.into_raw().get()),
        Err(RegionError::Invalid) => libc::EINVAL,
        Err(RegionError::PlaceInUse) => libc::EADDRINUSE,
        Err(RegionError::NoMemory) => libc::ENOMEM,
        Err(RegionError::Hardened) => libc::ENOTSUP,
    };
    set_errno(reason);
    null_mut()
}

/// Makes an owned heap in a region, attached to the calling thread. Null and ENOMEM if there is no memory.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_heap_new_in(of: Region) -> Handle {
    made(region(of).new_owned())
}

/// Makes a shared heap in a region. Null and ENOMEM if there is no memory.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_heap_new_shared_in(of: Region) -> Handle {
    made(region(of).new_shared())
}

/// What a region has, as far as there is room for it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_region_get_stats(of: Region, out: *mut usize, room: usize) {
    let RegionStats { bytes, used } = region(of).stats();
    let figures = [bytes, used];
    let known = room.min(size_of_val(&figures));
    // SAFETY: the caller's contract: that many bytes. What this version does not know is 0.
    unsafe {
        out.cast::<u8>().write_bytes(0, room);
        out.cast::<u8>().copy_from_nonoverlapping(figures.as_ptr().cast(), known);
    }
}

/// Has the program take the memory that is free in a region: how many bytes it has taken.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_region_purge(of: Region) -> usize {
    region(of).purge()
}

/// Ends a region. 0 and EBUSY if something of it is in use. Null is fine.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_region_end(of: Region) -> c_int {
    let done = of.is_null() || region(of).end();
    if !done {
        set_errno(libc::EBUSY);
    }
    c_int::from(done)
}
