//! Owns: what `os` asks of a system, for Linux: memory, time, last words. `threads` has the rest.
//! Idea: private anonymous mappings, changed by mprotect, madvise and mremap.
//! Never: keeps state but whether huge pages are wanted, and whether there are guard pages.
//! Threads: any; holds nothing.
//! Checked: see `os`.
//! Story: docs/guide/limits.md

mod auxiliary_vector;
mod cgroup;
mod clock;
mod faults;
mod machine;
mod maps;
mod no_unload;
mod perf_map;
mod symbols;
mod threads;
mod unwind;

pub(crate) use auxiliary_vector::{
    early_address_space, entry_point, first_stack_end, page_size, seed, variable,
};
pub(crate) use cgroup::{Group, GroupUse};
#[cfg(test)]
pub(crate) use clock::SKIPPED_MS;
pub(crate) use clock::{cpu_ns, now_ms, now_ns};
pub(crate) use faults::*;
pub use machine::system_call;
pub(crate) use maps::{builds, mapped_around, mappings};
pub(crate) use no_unload::stay;
pub(crate) use perf_map::perf_map;
pub use symbols::first_defined;
pub use threads::*;
pub(crate) use unwind::{UnwindTable, find_unwind_tables, unwind_table};

use super::{Moves, Overcommit, fault};
use crate::base::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::os::tuning::{FILLED_PROBES, HUGE_PAGE_PAUSE_MAX_NS, HUGE_PAGE_SLOW_NS, PROTECTED_MAX};
use core::ffi::{CStr, c_int, c_long};
use core::ptr::null_mut;

/// Bytes in a huge page, where there are any: of x86-64, and of others with pages of 4 KiB.
pub(crate) const HUGE_PAGE: usize = 2 << 20;
/// What a huge page may take. Tests set it out of force.
pub(crate) static SLOW_NS: AtomicU64 = AtomicU64::new(HUGE_PAGE_SLOW_NS);
/// After one that took longer no others are asked for, for twice as long, and twice as long as before if it was the
/// first after a pause: until the clock says `RESUME_NS`. Relaxed: they guard nothing, and who sees them late asks for
/// one more.
pub(crate) static PAUSE_NS: AtomicU64 = AtomicU64::new(0);
pub(crate) static RESUME_NS: AtomicU64 = AtomicU64::new(0);
/// Whether a large, dense heap asks for huge pages; true from the start.
pub static HUGE_PAGES: AtomicBool = AtomicBool::new(true);

/// Runs `call`, of the C library, and puts `errno` back as it was: the C layer alone decides about it.
pub(crate) fn keeping_errno<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: errno's location is valid for the calling thread.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *location };
    let result = call();
    // SAFETY: as above.
    unsafe { *location = saved };
    result
}

/// Makes a system call about `size` bytes at an address.
///
/// # Safety
/// What it does to the memory is the caller's to allow.
unsafe fn call_about(number: c_long, at: *mut u8, size: usize, rest: [usize; 4]) -> isize {
    let [c, d, e, f] = rest;
    // SAFETY: as above.
    unsafe { system_call(number, [at.expose_provenance(), size, c, d, e, f]) }
}

/// Whether a system call that answers 0 for success succeeds.
fn done(call: impl FnOnce() -> isize) -> bool {
    !fault::hit() && call() == 0
}

/// The address that a system call answers; null if it fails.
fn address(call: impl FnOnce() -> isize) -> *mut u8 {
    match if fault::hit() { -1 } else { call() } {
        -4095..0 => null_mut(),
        at => core::ptr::with_exposed_provenance_mut(at.cast_unsigned()),
    }
}

/// Maps `size` bytes with `prot` at `hint`; null on failure. With `exact`, only there.
#[inline(never)]
fn map_with(hint: *mut u8, size: usize, prot: i32, flags: i32) -> *mut u8 {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let arguments = [hint.expose_provenance(), size, prot as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a new private anonymous mapping that replaces nothing (never plain MAP_FIXED).
    address(|| unsafe { machine::map(arguments) })
}

/// Reserves address space without memory behind it; null on failure.
pub(crate) fn reserve(hint: *mut u8, size: usize, overcommit: Overcommit) -> *mut u8 {
    // Without the flag, what becomes writable is charged for, and checked: nothing is yet.
    let granted = overcommit == Overcommit::Granted;
    map_with(hint, size, libc::PROT_NONE, if granted { libc::MAP_NORESERVE } else { 0 })
}

/// Maps fresh zeroed memory; null on failure.
pub(crate) fn map(size: usize) -> *mut u8 {
    map_with(null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, 0)
}

/// Maps fresh zeroed memory exactly at `at`, where nothing is mapped yet, by small pages.
pub(crate) fn map_at(at: *mut u8, size: usize) -> bool {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let got = map_with(at, size, prot, libc::MAP_FIXED_NOREPLACE);
    if !got.is_null() && got != at {
        // A kernel before 4.17 takes the address for a hint.
        // SAFETY: the mapping was made just now.
        unsafe { release(got, size) };
    }
    if got == at {
        keep_small_pages(at, size);
    }
    got == at
}

#[inline(never)]
fn protect(at: *mut u8, size: usize, prot: i32) -> bool {
    // SAFETY: callers name pages of their own; who withdraws access says that nobody needs it.
    done(|| unsafe { call_about(libc::SYS_mprotect, at, size, [prot as usize, 0, 0, 0]) })
}

/// Makes reserved pages usable.
pub(crate) fn commit(at: *mut u8, size: usize) -> bool {
    protect(at, size, libc::PROT_READ | libc::PROT_WRITE)
}

/// Makes reserved pages readable, as zeros, at no charge.
pub(crate) fn make_readable(at: *mut u8, size: usize) -> bool {
    protect(at, size, libc::PROT_READ)
}

/// Makes pages inaccessible, what is in them stays.
///
/// # Safety
/// The pages are the caller's, and whoever touches them from now on does so without right.
pub(crate) unsafe fn withdraw(at: *mut u8, size: usize) -> bool {
    protect(at, size, libc::PROT_NONE)
}

#[inline(never)]
fn advise(at: *mut u8, size: usize, advice: i32) -> bool {
    // SAFETY: callers name pages of their own whose contents are dead (or, for page-size
    // advice, are kept).
    done(|| unsafe { call_about(libc::SYS_madvise, at, size, [advice as usize, 0, 0, 0]) })
}

/// Gives the pages back; they read as zeros afterwards. False (locked memory, say): they
/// keep their contents.
///
/// # Safety
/// The pages are the caller's, and what is in them is dead.
pub(crate) unsafe fn purge(at: *mut u8, size: usize) -> bool {
    advise(at, size, libc::MADV_DONTNEED)
}

/// Makes accessible pages resident, as if each had been written to, where the kernel can do that (5.14).
pub(crate) fn populate(at: *mut u8, size: usize) {
    advise(at, size, libc::MADV_POPULATE_WRITE);
}

/// Whether memory that has been purged can be used at once, and reads as zeros. Where not, it has to be
/// committed again.
#[inline(always)]
pub(crate) const fn purged_is_committed() -> bool {
    true
}

/// Makes pages inaccessible, and what is in them goes; false if the system cannot, or there are so many that it would
/// take too many mappings. No memory and no mapping where the kernel has such pages (6.13).
///
/// # Safety
/// The pages are the caller's, and nobody uses them.
pub(crate) unsafe fn guard(at: *mut u8, size: usize) -> bool {
    if !at.addr().is_multiple_of(page_size()) || !size.is_multiple_of(page_size()) {
        return false;
    }
    let known = GUARD_PAGES.load(Ordering::Relaxed);
    if known != LACKING {
        let advice = [MADV_GUARD_INSTALL as usize, 0, 0, 0];
        // SAFETY: the caller's pages.
        let install = || unsafe { call_about(libc::SYS_madvise, at, size, advice) };
        match if fault::hit() { NO_MEMORY } else { install() } {
            0 => {
                GUARD_PAGES.store(THERE, Ordering::Relaxed);
                return true;
            }
            INVALID if known == UNKNOWN => GUARD_PAGES.store(LACKING, Ordering::Relaxed),
            _ => return false,
        }
    }
    let few = PROTECTED.fetch_add(1, Ordering::Relaxed) < PROTECTED_MAX;
    // SAFETY: the caller's, and in no use.
    let is_done = few && unsafe { purge(at, size) } && protect(at, size, libc::PROT_NONE);
    if !is_done {
        PROTECTED.fetch_sub(1, Ordering::Relaxed);
    }
    is_done
}

/// Makes guarded pages accessible again; they read as zeros. False if the system refuses.
pub(crate) fn unguard(at: *mut u8, size: usize) -> bool {
    if GUARD_PAGES.load(Ordering::Relaxed) != LACKING {
        return (0..2).any(|_| advise(at, size, MADV_GUARD_REMOVE));
    }
    let is_done = commit(at, size);
    PROTECTED.fetch_sub(usize::from(is_done), Ordering::Relaxed);
    is_done
}

/// Answers of system calls.
const NO_MEMORY: isize = -(libc::ENOMEM as isize);
const INVALID: isize = -(libc::EINVAL as isize);
const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;
/// Whether the kernel has guard pages: the first answer counts, for it says how guards are taken away. Relaxed: the
/// first one is asked for by the thread that starts.
static GUARD_PAGES: AtomicUsize = AtomicUsize::new(UNKNOWN);
const UNKNOWN: usize = 0;
const THERE: usize = 1;
const LACKING: usize = 2;
/// Ranges that are mappings of their own for lack of them. Each may make two mappings more: a process may have
/// 65,530.
static PROTECTED: AtomicUsize = AtomicUsize::new(0);

/// Keeps pages from being unmapped or given another protection, for ever, where the kernel can do that (6.10).
pub(crate) fn seal(at: *mut u8, size: usize) {
    const SYS_MSEAL: c_long = 462;
    // SAFETY: the caller's pages, which stay as they are.
    done(|| unsafe { call_about(SYS_MSEAL, at, size, [0; 4]) });
}

/// Asks the kernel not to back the range by huge pages of its own accord.
pub(crate) fn keep_small_pages(at: *mut u8, size: usize) {
    advise(at, size, libc::MADV_NOHUGEPAGE);
}

/// Whether huge pages are wanted: they are switched on, and none has been slow lately.
pub(crate) fn wants_huge_pages() -> bool {
    HUGE_PAGES.load(Ordering::Relaxed) && now_ns() >= RESUME_NS.load(Ordering::Relaxed)
}

/// Puts a huge page, zero, in an aligned frame, whose contents are dead. Where the
/// kernel has none to give, a small page comes. If it takes too long, `wants_huge_pages` says no for a
/// while.
///
/// # Safety
/// The frame is the caller's, and what is in it is dead.
pub(crate) unsafe fn use_huge_page(at: *mut u8) {
    // Gone altogether, small pages have no table left that would stand in the way.
    // SAFETY: memory of the caller's, whose contents are dead.
    if !unsafe { purge(at, HUGE_PAGE) } || !advise(at, HUGE_PAGE, libc::MADV_HUGEPAGE) {
        return;
    }
    let start = now_ns();
    // SAFETY: as above, and accessible.
    unsafe { at.write_volatile(0) };
    let end = now_ns();
    let slow = end - start > SLOW_NS.load(Ordering::Relaxed);
    let longer = 2 * PAUSE_NS.load(Ordering::Relaxed).max(end - start);
    let pause = if slow { longer.min(HUGE_PAGE_PAUSE_MAX_NS) } else { 0 };
    if slow {
        RESUME_NS.store(end + pause, Ordering::Relaxed);
    }
    PAUSE_NS.store(pause, Ordering::Relaxed);
    // Asked for once: the kernel shall not fill up what is given back later.
    keep_small_pages(at, HUGE_PAGE);
}

/// Lets the kernel back the range by huge pages as the program comes to it, if they are wanted;
/// whether it may. Touches nothing: what is resident is what the program has used.
pub(crate) fn allow_huge_pages(at: *mut u8, size: usize) -> bool {
    wants_huge_pages() && advise(at, size, libc::MADV_HUGEPAGE)
}

/// Unmaps whole pages; false if the kernel refuses (a split over the mapping limit).
///
/// # Safety
/// The range is a mapping of the caller's that nothing refers to any more.
#[inline(never)]
pub(crate) unsafe fn release(at: *mut u8, size: usize) -> bool {
    // SAFETY: a mapping of the caller's that nothing refers to.
    done(|| unsafe { call_about(libc::SYS_munmap, at, size, [0; 4]) })
}

/// Resizes a whole mapping, moving its pages (never its bytes) if it must and may; null on failure,
/// with the old mapping intact.
///
/// # Safety
/// The range is a mapping of the caller's; nothing refers to it by its old address if moved.
pub(crate) unsafe fn remap(at: *mut u8, old: usize, new: usize, moves: Moves) -> *mut u8 {
    let flags = if moves == Moves::Anywhere { libc::MREMAP_MAYMOVE } else { 0 };
    // SAFETY: a mapping of the caller's; it says whether it may move.
    address(|| unsafe { call_about(libc::SYS_mremap, at, old, [new, flags as usize, 0, 0]) })
}

/// Whether the kernel may be asked what is resident. Only time and memory depend on it: where huge pages are switched
/// off nobody is asked, for a sandbox may not know the call.
pub(crate) fn may_ask() -> bool {
    HUGE_PAGES.load(Ordering::Relaxed)
}

/// Whether a range looks resident throughout: a few of its pages are.
pub(crate) fn is_filled(at: *mut u8, size: usize) -> bool {
    let page = |i: usize| at.map_addr(|at| (at + size / FILLED_PROBES * i) & !(page_size() - 1));
    may_ask() && (0..FILLED_PROBES).all(|i| resident(page(i), page_size()) > 0)
}

/// Says of each page from `at` on, a multiple of a page, whether it is resident: 1 or 0 in the lowest
/// bit. False if one of them is not mapped.
pub(crate) fn look(at: *mut u8, pages: &mut [u8]) -> bool {
    let (size, answers) = (pages.len() * page_size(), pages.as_mut_ptr().expose_provenance());
    // SAFETY: `pages` has a byte for each page of the range asked about.
    unsafe { call_about(libc::SYS_mincore, at, size, [answers, 0, 0, 0]) == 0 }
}

/// Counts the resident bytes among the pages of a range.
pub(crate) fn resident(at: *mut u8, size: usize) -> usize {
    let page = page_size();
    let mut pages = [0u8; 1024];
    let mut count = 0;
    for done in (0..size).step_by(pages.len() * page) {
        let len = (size - done).min(pages.len() * page).div_ceil(page);
        if let Some(pages) = pages.get_mut(..len)
            && look(at.wrapping_add(done), pages)
        {
            count += pages.iter().filter(|&&p| p & 1 != 0).count();
        }
    }
    count * page
}

/// The process's limit on address space, in bytes; `usize::MAX` if none.
pub(crate) fn address_space_limit() -> usize {
    limit_on(libc::RLIMIT_AS as usize)
}

/// The process's limit on locked memory, the same way.
pub(crate) fn locked_memory_limit() -> usize {
    limit_on(libc::RLIMIT_MEMLOCK as usize)
}

fn limit_on(resource: usize) -> usize {
    // If the call fails, this stays: no limit, which is `usize::MAX`.
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
    let answer = (&raw mut limit).expose_provenance();
    // SAFETY: `limit` is valid for writing.
    unsafe { system_call(libc::SYS_prlimit64, [0, resource, 0, answer, 0, 0]) };
    limit.rlim_cur as usize
}

/// What a file holds, as far as there is room: one reading, nothing if that fails; or why it cannot be opened.
fn read_file<'a>(path: &CStr, room: &'a mut [u8]) -> Result<&'a [u8], c_int> {
    let len = File::opened(path, 0)?.read(room).unwrap_or(0);
    Ok(room.get(..len).unwrap_or(&[]))
}

/// A file that is open for reading, until it is dropped.
struct File(usize);

impl File {
    fn open(path: &CStr) -> Option<File> {
        File::open_with(path, 0)
    }

    fn open_with(path: &CStr, flags: c_int) -> Option<File> {
        File::opened(path, flags).ok()
    }

    /// It, or the number of the error.
    fn opened(path: &CStr, flags: c_int) -> Result<File, c_int> {
        let path = path.as_ptr().expose_provenance();
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC | flags) as usize;
        let arguments = [libc::AT_FDCWD as usize, path, flags, 0, 0, 0];
        // SAFETY: a C string; the descriptor is this function's own.
        let file = unsafe { system_call(libc::SYS_openat, arguments) };
        usize::try_from(file).map(File).map_err(|_| -file as c_int)
    }

    /// Reads; how many bytes.
    fn read(&self, room: &mut [u8]) -> Option<usize> {
        let arguments = [self.0, room.as_mut_ptr().expose_provenance(), room.len(), 0, 0, 0];
        // SAFETY: `room` is valid for writing.
        usize::try_from(unsafe { system_call(libc::SYS_read, arguments) }).ok()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this file's own.
        unsafe { system_call(libc::SYS_close, [self.0, 0, 0, 0, 0, 0]) };
    }
}

/// Writes to standard error, as much as it takes.
#[inline(always)]
pub(crate) fn write_stderr(bytes: &[u8]) {
    write_all(libc::STDERR_FILENO, bytes);
}

/// Signals that a write may send to its thread: nobody reads any more; the file is as large as it may be. Numbers count from 1.
const OF_WRITES: u64 = 1 << (libc::SIGPIPE - 1) | 1 << (libc::SIGXFSZ - 1);

/// Changes what the calling thread has blocked of `signals`; which of them it had before. Where that cannot be, all.
fn change_blocked(how: c_int, signals: u64) -> u64 {
    let mut before = signals;
    let [at, old] =
        [(&raw const signals).expose_provenance(), (&raw mut before).expose_provenance()];
    // SAFETY: two of the kernel's sets, the second one valid for writing.
    unsafe {
        system_call(libc::SYS_rt_sigprocmask, [how as usize, at, old, size_of::<u64>(), 0, 0])
    };
    before & signals
}

/// Writes bytes to a descriptor; false if that fails. What a signal has interrupted is begun again, but not for ever.
/// No signal comes of it, but where the program has that blocked: it stays pending, as after writes of its own.
#[inline(never)]
pub fn write_all(descriptor: c_int, bytes: &[u8]) -> bool {
    let blocked = OF_WRITES & !change_blocked(libc::SIG_BLOCK, OF_WRITES);
    let answer = write_blocked(descriptor, bytes);
    if [libc::EPIPE, libc::EFBIG].contains(&answer) {
        let (at, zero) = ((&raw const blocked).expose_provenance(), [0u64; 2]);
        let zero = zero.as_ptr().expose_provenance();
        // SAFETY: one of the kernel's sets, and a time that is over: nobody waits.
        unsafe { system_call(libc::SYS_rt_sigtimedwait, [at, 0, zero, size_of::<u64>(), 0, 0]) };
    }
    change_blocked(libc::SIG_UNBLOCK, blocked);
    answer == 0
}

/// Writes bytes; 0, or the error.
fn write_blocked(descriptor: c_int, mut bytes: &[u8]) -> c_int {
    /// More signals than that while one write waits are a fault.
    const AGAIN: u32 = 100;
    let mut again = AGAIN;
    while !bytes.is_empty() {
        let at = bytes.as_ptr().expose_provenance();
        // SAFETY: the slice is valid for reading.
        let n = unsafe {
            system_call(libc::SYS_write, [descriptor as usize, at, bytes.len(), 0, 0, 0])
        };
        match usize::try_from(n) {
            Ok(more) if more > 0 => bytes = bytes.get(more..).unwrap_or(&[]),
            Err(_) if n == -(libc::EINTR as isize) && again > 0 => again -= 1,
            Err(_) => return -n as c_int,
            _ => return libc::EIO,
        }
    }
    0
}

/// Ends the process with SIGABRT.
pub(crate) fn abort() -> ! {
    // SAFETY: abort has no preconditions.
    unsafe { libc::abort() }
}
