//! Owns: the clock.
//! Idea: the kernel puts a small library into each process whose functions read it without a system call. It is found by the
//!   address that the process was told, and the function in it by name: not by the symbol table of the process.
//! Never: reads the time of day.
//! Threads: any; holds nothing.
//! Checked: its own test; tests/interposers.rs of the C layer.
//! Story: docs/design/systems.md

use super::machine::{CLOCK, SHORT_HASHES, system_call};
use super::no_unload::Entry;
use crate::base::{AtomicPtr, Ordering};
use core::ffi::{CStr, c_int};
use core::ptr::{null_mut, with_exposed_provenance};
use libc::{Elf64_Ehdr, Elf64_Phdr, Elf64_Sym, timespec};

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
        let found = unsafe { search(file) };
        let found = found.map_or(null_mut(), core::ptr::with_exposed_provenance_mut);
        READ.store(found, Ordering::Relaxed);
    }
}

/// # Safety
/// A library is mapped there, as its file is.
unsafe fn search(file: usize) -> Option<usize> {
    const DT_HASH: usize = 4;
    const DT_STRTAB: usize = 5;
    const DT_SYMTAB: usize = 6;
    const DT_GNU_HASH: usize = 0x6fff_fef5;
    // SAFETY: the tables are where the file says.
    unsafe {
        let header = &*with_exposed_provenance::<Elf64_Ehdr>(file);
        let parts = with_exposed_provenance::<Elf64_Phdr>(file + header.e_phoff as usize);
        let parts = core::slice::from_raw_parts(parts, header.e_phnum.into());
        let part = |kind| parts.iter().find(|part| part.p_type == kind);
        let load = part(libc::PT_LOAD)?;
        // What is added to the addresses in the file.
        let base = (file + load.p_offset as usize).wrapping_sub(load.p_vaddr as usize);
        let section = base.wrapping_add(part(libc::PT_DYNAMIC)?.p_vaddr as usize);
        let value = |tag| Entry::find(section, tag).map(|value| base.wrapping_add(value));
        let symbols = with_exposed_provenance::<Elf64_Sym>(value(DT_SYMTAB)?);
        let strings = value(DT_STRTAB)?;
        let is_it = |nth: u32| {
            let symbol = &*symbols.add(nth as usize);
            let name = with_exposed_provenance(strings + symbol.st_name as usize);
            symbol.st_shndx != 0 && CStr::from_ptr(name) == CLOCK
        };
        let nth = match (value(DT_GNU_HASH), value(DT_HASH)) {
            (Some(table), _) => by_hash(table, is_it)?,
            (None, Some(table)) if SHORT_HASHES => {
                let count = with_exposed_provenance::<u32>(table).add(1).read();
                (0..count).find(|&nth| is_it(nth))?
            }
            _ => return None,
        };
        Some(base.wrapping_add((*symbols.add(nth as usize)).st_value as usize))
    }
}

/// The symbol of the clock's hash that `is_it`, by a table of GNU's kind.
///
/// # Safety
/// There is one.
unsafe fn by_hash(table: usize, is_it: impl Fn(u32) -> bool) -> Option<u32> {
    const HASH: u32 = hash(CLOCK.to_bytes());
    let table = with_exposed_provenance::<u32>(table);
    // SAFETY: the head says how long the parts behind it are: a filter of words, buckets, and a chain for each.
    unsafe {
        let [buckets, first, filter, _] = table.cast::<[u32; 4]>().read();
        let bucket = table.add(4 + 2 * filter as usize);
        let chains = bucket.add(buckets as usize);
        let mut nth = bucket.add(HASH.checked_rem(buckets)? as usize).read();
        loop {
            let hash = chains.add(nth.checked_sub(first)? as usize).read();
            if hash | 1 == HASH | 1 && is_it(nth) {
                return Some(nth);
            }
            if hash & 1 != 0 {
                return None;
            }
            nth += 1;
        }
    }
}

const fn hash(name: &[u8]) -> u32 {
    let (mut hash, mut rest) = (5381u32, name);
    while let [byte, more @ ..] = rest {
        hash = hash.wrapping_mul(33).wrapping_add(*byte as u32);
        rest = more;
    }
    hash
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
