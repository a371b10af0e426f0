//! A system for models: one reservation of zeroed memory, futexes that loom schedules, and one key with
//! a destructor. Nobody forks. What is unsafe asks for what it asks for in production.

mod shared;

pub use shared::*;

use crate::base::sync::{AtomicU32, touched};
use core::ptr::null_mut;
use loom::thread::{Thread, current, park};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};

/// The size of the smallest reservation, and what is in front of it.
const WINDOW: usize = (256 << 20) + (32 << 20);
/// Room for mappings behind it.
const MAPPINGS: usize = 1 << 20;
const PAGE: usize = 4096;

thread_local! {
    /// Each of the test's threads has a reservation of its own.
    static MEMORY: Cell<*mut u8> = const { Cell::new(null_mut()) };
    /// How much of what is behind it has been given out.
    static MAPPED: Cell<usize> = const { Cell::new(0) };
    static SLEEPERS: RefCell<HashMap<usize, VecDeque<Thread>>> = RefCell::default();
}

loom::thread_local! {
    static OWN: Own = Own::new();
}

pub(crate) fn with_own<T>(act: impl FnOnce(&Own) -> T) -> T {
    OWN.with(act)
}

/// Begins an execution: all memory is zero, and nobody sleeps.
pub(crate) fn start() {
    SLEEPERS.with_borrow_mut(HashMap::clear);
    if MEMORY.get().is_null() {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, with room for an aligned reservation; it stays until the end.
        let p = unsafe { libc::mmap(null_mut(), 2 * WINDOW, prot, flags, -1, 0) };
        assert_ne!(p, libc::MAP_FAILED);
        let p: *mut u8 = p.cast();
        let reservation = p.wrapping_add(p.addr().wrapping_neg() & (HUGE_PAGE - 1));
        // SAFETY: inside that mapping.
        unsafe { libc::madvise(reservation.cast(), WINDOW, libc::MADV_NOHUGEPAGE) };
        MEMORY.set(reservation);
    }
    MAPPED.set(0);
    let bytes = WINDOW + MAPPINGS;
    // SAFETY: the reservation and the mappings; what the last execution left there is dead.
    assert_eq!(unsafe { libc::madvise(MEMORY.get().cast(), bytes, libc::MADV_DONTNEED) }, 0);
}

pub(crate) fn reserve(_: *mut u8, size: usize, _: super::Overcommit) -> *mut u8 {
    if size == WINDOW { MEMORY.get() } else { null_mut() }
}

/// Watched: whoever uses what stands at `at` must know that it is there.
pub(crate) fn commit(at: *mut u8, _: usize) -> bool {
    touched(at);
    true
}

pub(crate) fn make_readable(_: *mut u8, _: usize) -> bool {
    true
}

pub(crate) fn purged_is_committed() -> bool {
    true
}

pub(crate) unsafe fn use_huge_page(_: *mut u8) {}

pub(crate) fn allow_huge_pages(_: *mut u8, _: usize) -> bool {
    false
}

pub(crate) fn may_ask() -> bool {
    false
}

pub(crate) fn is_filled(_: *mut u8, _: usize) -> bool {
    false
}

/// Watched: whoever uses a page, before or after, must know.
pub(crate) unsafe fn purge(at: *mut u8, size: usize) -> bool {
    (0..size).step_by(PAGE).for_each(|from| touched(at.wrapping_add(from)));
    // SAFETY: callers name pages of their own whose contents are dead.
    unsafe { at.write_bytes(0, size) };
    true
}

pub(crate) unsafe fn release(_: *mut u8, _: usize) -> bool {
    unreachable!("the models have no mappings")
}

/// Behind the reservation there is some room; it is never given back.
pub(crate) fn map(bytes: usize) -> *mut u8 {
    let at = MAPPED.replace(MAPPED.get() + bytes);
    if at + bytes > MAPPINGS { null_mut() } else { MEMORY.get().wrapping_add(WINDOW + at) }
}

pub(crate) fn map_at(_: *mut u8, _: usize) -> bool {
    false
}

pub(crate) unsafe fn remap(_: *mut u8, _: usize, _: usize, _: super::Moves) -> *mut u8 {
    null_mut()
}

pub(crate) fn look(_: *mut u8, pages: &mut [u8]) -> bool {
    pages.fill(1);
    true
}

pub(crate) fn page_size() -> usize {
    PAGE
}

pub(crate) fn locked_memory_limit() -> usize {
    usize::MAX
}

pub(crate) fn populate(_: *mut u8, _: usize) {}

pub(crate) fn address_space_limit() -> usize {
    usize::MAX
}

pub(crate) fn now_ms() -> u64 {
    1
}

pub(crate) fn on_fork(_: ForkHandlers) -> bool {
    true
}

/// Sleeps while `*word == expected`, or returns at once if it is not. Nothing comes between the
/// look and the sleep: loom switches threads before an operation on a word, never after it.
pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    if word.newest() == expected {
        let key = (&raw const *word).addr();
        SLEEPERS.with_borrow_mut(|all| all.entry(key).or_default().push_back(current()));
        park();
    }
}

/// Time goes by: others run.
pub(crate) fn wait_for(_: &AtomicU32, _: u32, _: usize) -> bool {
    loom::thread::yield_now();
    false
}

/// Wakes one sleeper on `word`. It looks at the word only to tell loom that the order of this
/// and a `wait` matters.
pub(crate) fn wake(word: &AtomicU32) {
    word.newest();
    let key = (&raw const *word).addr();
    let sleeper = SLEEPERS.with_borrow_mut(|all| all.get_mut(&key).and_then(VecDeque::pop_front));
    if let Some(sleeper) = sleeper {
        sleeper.unpark();
    }
}
