//! Owns: the system as the model of the whole core has it: the real file's functions.
//! Idea: memory whose pages know what may be done to them, threads that are scheduled at random,
//!   a clock that goes on when it is read. Each call is a place where others may run, before it
//!   and after it, and may fail if the model wants that.
//! Never: keeps state; `whole::memory` and `whole::threads` do.
//! Threads: any; holds nothing.
//! Checked: `whole::memory` asserts that each call is legal.
//! Story: docs/results/verification.md

mod absent;

pub use absent::*;

use crate::sync::AtomicU32;
use crate::whole::memory;
use crate::whole::threads::{self, point};
use core::ffi::c_void;
use core::ptr::null_mut;

/// One call; `failed` is its answer if it fails.
fn call<T>(failed: T, act: impl FnOnce() -> T) -> T {
    point();
    let answer = if threads::fails() { failed } else { act() };
    point();
    answer
}

pub(crate) fn reserve(hint: *mut u8, size: usize) -> *mut u8 {
    call(null_mut(), || memory::reserve(hint, size))
}

pub(crate) fn map(size: usize) -> *mut u8 {
    call(null_mut(), || memory::map(size))
}

pub(crate) fn map_at(at: *mut u8, size: usize) -> bool {
    call(false, || memory::map_at(at, size))
}

pub(crate) fn commit(at: *mut u8, size: usize) -> bool {
    call(false, || memory::commit(at, size))
}

pub(crate) fn make_readable(at: *mut u8, size: usize) -> bool {
    call(false, || memory::make_readable(at, size))
}

/// # Safety
/// As for the real one: this one checks it.
pub(crate) unsafe fn purge(at: *mut u8, size: usize) -> bool {
    call(false, || memory::purge(at, size))
}

pub(crate) const HUGE_PAGE: usize = 2 << 20;

pub(crate) fn purged_is_committed() -> bool {
    memory::purged_is_committed()
}

/// There is nothing to switch off.
pub static HUGE_PAGES: () = ();

pub(crate) fn keep_small_pages(_at: *mut u8, _size: usize) {}

/// A system that decommits has none.
pub(crate) fn wants_huge_pages() -> bool {
    memory::purged_is_committed()
}

/// What was there is gone: it was dead.
///
/// # Safety
/// As for the real one.
pub(crate) unsafe fn use_huge_page(at: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe { purge(at, HUGE_PAGE) };
}

pub(crate) fn allow_huge_pages(_at: *mut u8, size: usize) -> bool {
    point();
    size.is_multiple_of(3)
}

pub(crate) fn is_filled(_at: *mut u8, size: usize) -> bool {
    point();
    size.is_multiple_of(32)
}

/// # Safety
/// As for the real one: this one checks it.
pub(crate) unsafe fn release(at: *mut u8, size: usize) -> bool {
    call(false, || memory::release(at, size))
}

/// # Safety
/// As for the real one: this one checks it.
pub(crate) unsafe fn remap(at: *mut u8, old: usize, new: usize, moves: super::Moves) -> *mut u8 {
    match moves {
        super::Moves::Anywhere => call(null_mut(), || memory::remap(at, old, new)),
        super::Moves::Nowhere => call(null_mut(), null_mut),
    }
}

pub(crate) fn look(at: *mut u8, pages: &mut [u8]) -> bool {
    for (nth, page) in pages.iter_mut().enumerate() {
        let at = at.wrapping_add(nth * memory::page_size());
        *page = u8::from(memory::committed(at, memory::page_size()) > 0);
    }
    true
}

pub(crate) fn page_size() -> usize {
    memory::page_size()
}

pub(crate) fn address_space_limit() -> usize {
    memory::limit()
}

pub(crate) fn now_ms() -> u64 {
    threads::now_ms()
}

pub(crate) fn now_ns() -> u64 {
    threads::now_ms() * 1_000_000
}

/// The same in each run: addresses are, then.
pub(crate) fn seed() -> usize {
    0
}

/// There is no `errno` to keep.
pub(crate) fn keeping_errno<T>(call: impl FnOnce() -> T) -> T {
    call()
}

pub(crate) fn thread_token() -> usize {
    threads::token()
}

#[cfg(not(miri))]
pub(crate) fn process_id() -> u32 {
    std::process::id()
}

/// Miri has no forks.
#[cfg(miri)]
pub(crate) fn process_id() -> u32 {
    1
}

pub(crate) use threads::{ForkHandlers, on_fork, set_thread_value, thread_key, thread_value};

pub(crate) const STATIC_KEYS: u32 = 32;

pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    threads::wait(word, expected);
}

pub(crate) fn wake(word: &AtomicU32) {
    threads::wake(word);
}

/// The last words become a panic's, in `abort`.
pub(crate) fn write_stderr(bytes: &[u8]) {
    threads::say(bytes);
}

pub(crate) fn abort() -> ! {
    panic!("{}", threads::said().trim_end());
}
