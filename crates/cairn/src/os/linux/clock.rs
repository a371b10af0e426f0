//! Owns: the clock.
//! Idea: the kernel puts a small library into each process whose functions read it without a system call. It is found by the
//!   address that the process was told, and the function in it by name: not by the symbol table of the process.
//! Never: reads the time of day.
//! Threads: any; holds nothing.
//! Checked: its own test; tests/interposers.rs of the C layer.
//! Story: docs/design/systems.md

use super::machine::{CLOCK, system_call};
use super::symbols::defined_in;
use crate::base::{AtomicPtr, Ordering};
use core::ffi::c_int;
use core::ptr::null_mut;
use libc::timespec;

type Read = unsafe extern "C" fn(libc::clockid_t, *mut timespec) -> c_int;

/// A `Read`, or null: then it is a system call. Relaxed: it is there from the process's start.
static READ: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Milliseconds on a clock that is cheap to read and may lag by a few.
#[inline(never)]
pub(crate) fn now_ms() -> u64 {
    let ms = clock_ns(libc::CLOCK_MONOTONIC_COARSE) / 1_000_000;
    #[cfg(test)]
    let ms = ms + SKIPPED_MS.load(Ordering::Relaxed);
    ms
}

/// So much later it is on that clock, for tests that cannot wait.
#[cfg(test)]
pub(crate) static SKIPPED_MS: crate::base::AtomicU64 = crate::base::AtomicU64::new(0);

/// Nanoseconds on an exact clock.
#[inline(never)]
pub(crate) fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds that the calling thread has been at work: a system call.
#[inline(never)]
pub(crate) fn cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut t = timespec { tv_sec: 0, tv_nsec: 0 };
    let read = READ.load(Ordering::Relaxed);
    // SAFETY: `t` is valid for writing; what is stored there is such a function.
    unsafe {
        if read.is_null() || core::mem::transmute::<*mut (), Read>(read)(clock, &raw mut t) != 0 {
            let arguments = [clock as usize, (&raw mut t).expose_provenance(), 0, 0, 0, 0];
            system_call(libc::SYS_clock_gettime, arguments);
        }
    }
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Finds the function in the library whose file begins at an address; 0: there is none.
pub(super) fn find(file: usize) {
    if file != 0 {
        // SAFETY: the kernel says that it is there; it stays as long as the process.
        let found = unsafe { defined_in(file, CLOCK) };
        let found = found.map_or(null_mut(), core::ptr::with_exposed_provenance_mut);
        READ.store(found, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_found_and_right() {
        assert!(super::super::page_size() > 0);
        // SAFETY: has no preconditions. A simulator may have no such library.
        let is_there = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } != 0;
        assert_eq!(!READ.load(Ordering::Relaxed).is_null(), is_there, "the kernel's function");
        for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_MONOTONIC_COARSE] {
            let by_system_call = || {
                let mut t = timespec { tv_sec: 0, tv_nsec: 0 };
                // SAFETY: `t` is valid for writing.
                assert_eq!(unsafe { libc::clock_gettime(clock, &mut t) }, 0);
                t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
            };
            let before = by_system_call();
            let now = clock_ns(clock);
            assert!((before..=by_system_call()).contains(&now));
        }
    }
}
