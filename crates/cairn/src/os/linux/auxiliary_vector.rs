//! Owns: what the kernel tells a process at its start: the page size, random bytes, where its clock is.
//! Idea: it is asked for once, by the C library. Who comes here meanwhile, because somebody stands before the C library
//!   and allocates, asks the kernel.
//! Never: holds a lock, or waits.
//! Threads: any; to be called first when no lock is held.
//! Checked: tests/interposers.rs of the C layer.
//! Story: docs/design/systems.md

use super::machine::{PAGE_MAX, early_asked, system_call};
use super::{clock, keeping_errno, read_file};
use crate::base::{AtomicBool, AtomicUsize, Ordering};
use crate::os::tuning::AUXILIARY_ENTRIES;
use core::ffi::{CStr, c_ulong};
use core::ptr::{null_mut, with_exposed_provenance};

/// Bytes in a page; 0: nothing is known yet. Stored last, with Release: who finds it finds the others.
static PAGE_SIZE: AtomicUsize = AtomicUsize::new(0);
static SEED: AtomicUsize = AtomicUsize::new(0);
static ENTRY_POINT: AtomicUsize = AtomicUsize::new(0);
static FIRST_STACK: AtomicUsize = AtomicUsize::new(0);
static IS_SECURE: AtomicBool = AtomicBool::new(true);
/// Whether somebody has begun to ask the C library.
static IS_ASKED: AtomicBool = AtomicBool::new(false);

/// Bytes in an OS page.
pub(crate) fn page_size() -> usize {
    match PAGE_SIZE.load(Ordering::Acquire) {
        0 => learn(),
        bytes => bytes,
    }
}

/// A number that differs from run to run, from the kernel's start-up data: no system call. The C library
/// makes its canaries of the same.
pub(crate) fn seed() -> usize {
    page_size();
    SEED.load(Ordering::Relaxed)
}

/// Where the program begins to run: an address in its code.
pub(crate) fn entry_point() -> usize {
    page_size();
    ENTRY_POINT.load(Ordering::Relaxed)
}

/// An address above all that the program's first thread calls, on its stack; 0: not known. The system keeps all other memory 128 MiB
/// and more below it, unless somebody asks for these very addresses.
pub(crate) fn first_stack_end() -> usize {
    page_size();
    FIRST_STACK.load(Ordering::Relaxed)
}

/// Whether the program runs with other rights than its caller.
fn is_secure() -> bool {
    page_size();
    IS_SECURE.load(Ordering::Relaxed)
}

/// Bytes that the C layer wants reserved at most, though its constructor has not run yet; 0: as usual, or there is no such layer,
/// or the program runs with other rights than its caller. The C library is asked for nothing, if the page size has been: a lock
/// is held.
#[cold]
#[inline(never)]
pub(crate) fn early_address_space() -> usize {
    type Asked = unsafe extern "C" fn() -> usize;
    let asked = if is_secure() { 0 } else { early_asked() };
    // SAFETY: the C layer's function has this type.
    unsafe { core::mem::transmute::<usize, Option<Asked>>(asked).map_or(0, |asked| asked()) }
}

/// A variable of the environment; None, too, in a program that runs with other rights than its caller. Nobody changes the
/// environment meanwhile.
pub(crate) fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: a string, which the environment keeps.
    let value = if is_secure() { null_mut() } else { unsafe { libc::getenv(name.as_ptr()) } };
    // SAFETY: as above.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

/// Asks; bytes in a page.
#[cold]
#[inline(never)]
fn learn() -> usize {
    // Relaxed: who comes second finds the same, in another way.
    if IS_ASKED.swap(true, Ordering::Relaxed) {
        let mut room = [0; VECTOR_BYTES];
        keep(vector(&mut room));
    } else {
        // SAFETY: getauxval has no preconditions.
        let entry = |kind| keeping_errno(|| unsafe { libc::getauxval(kind) });
        keep(Some(entry));
    }
    PAGE_SIZE.load(Ordering::Acquire)
}

/// Keeps what a vector's entries say. Without one, what holds in any case.
fn keep(entry: Option<impl Fn(c_ulong) -> c_ulong>) {
    let mut page = PAGE_MAX;
    if let Some(entry) = entry {
        IS_SECURE.store(entry(libc::AT_SECURE) != 0, Ordering::Relaxed);
        let random = entry(libc::AT_RANDOM) as usize;
        SEED.store(words(random), Ordering::Relaxed);
        // It stands on that stack, above what the program begins with.
        FIRST_STACK.store(random, Ordering::Relaxed);
        ENTRY_POINT.store(entry(libc::AT_ENTRY) as usize, Ordering::Relaxed);
        clock::find(entry(libc::AT_SYSINFO_EHDR) as usize);
        page = entry(libc::AT_PAGESZ) as usize;
    }
    // The first answer counts.
    let _ = PAGE_SIZE.compare_exchange(0, page, Ordering::Release, Ordering::Relaxed);
}

fn words(random: usize) -> usize {
    if random == 0 {
        return 0;
    }
    // SAFETY: AT_RANDOM points at 16 bytes that live as long as the process.
    let [low, high]: [usize; 2] =
        unsafe { with_exposed_provenance::<[usize; 2]>(random).read_unaligned() };
    low ^ high.rotate_left(32)
}

/// Room for the vector.
const VECTOR_BYTES: usize = AUXILIARY_ENTRIES * ENTRY_BYTES;
const ENTRY_BYTES: usize = 16;

/// The kernel's vector, by a call that it has from 6.4 on, or as a file; None if there is neither.
fn vector(room: &mut [u8; VECTOR_BYTES]) -> Option<impl Fn(c_ulong) -> c_ulong> {
    const PR_GET_AUXV: usize = 0x4155_5856;
    let arguments = [PR_GET_AUXV, room.as_mut_ptr().expose_provenance(), VECTOR_BYTES, 0, 0, 0];
    // SAFETY: `room` is valid for writing.
    let len = match unsafe { system_call(libc::SYS_prctl, arguments) } {
        ..=0 => read_file(c"/proc/self/auxv", room).ok().filter(|text| !text.is_empty())?.len(),
        len => len.unsigned_abs(),
    };
    let room: &[u8; VECTOR_BYTES] = room;
    Some(move |kind: c_ulong| {
        let mut entries = room.get(..len).unwrap_or(room).chunks_exact(ENTRY_BYTES);
        let value = entries.find_map(|entry| {
            let (number, value) = entry.split_first_chunk()?;
            (c_ulong::from_ne_bytes(*number) == kind).then_some(value.first_chunk()?)
        });
        value.map_or(0, |value| c_ulong::from_ne_bytes(*value))
    })
}
