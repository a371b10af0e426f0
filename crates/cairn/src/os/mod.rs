//! Owns: every call to the system: address space, page access, purging, time, threads, last words.
//! Idea: one contract of small functions that report failure by value and leave `errno` alone, and one
//!   folder for each system that keeps it.
//! Never: knows spans, heaps or any allocator state.
//! Threads: any; holds nothing.
//! Checked: tests fail each call in turn (`fault`), in the workspace's tests; the models keep the
//!   contract in a simulated system, in which a wrong call panics.
//! Story: docs/design/systems.md

use crate::base::AtomicU32;

mod linux;
mod lock;
mod message;
mod presence;
mod tuning;
mod turn;

pub use linux::*;
pub(crate) use lock::{
    Guard, Lock, are_thorough, begin_fork, end_fork, forget_forkers, notice_fork, notices,
    notify_all, notify_briefly, settled_notices,
};
pub(crate) use message::{Message, broken, fatal, without_panic};
pub(crate) use presence::{Presence, Round, may_look};
pub(crate) use turn::{Got, Turn};

/// Where a mapping may go when it is resized.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moves {
    /// To any multiple of a page.
    Anywhere,
    /// It stays where it is.
    Nowhere,
}

/// Whether the system, where it may choose, has a reservation commit more than there is memory for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overcommit {
    /// Always.
    Granted,
    /// As it would map so much.
    Checked,
}

/// Rounds up to a multiple of `to`, a power of two.
#[inline(always)]
pub(crate) const fn round_up(n: usize, to: usize) -> usize {
    (n + to - 1) & !(to - 1)
}

/// Reserves `size` bytes at a multiple of `align`, a power of two of at least a page; null on
/// failure. The sum of both does not overflow: requests above `isize::MAX` fail long before.
pub(crate) fn reserve_aligned(size: usize, align: usize, overcommit: Overcommit) -> *mut u8 {
    let whole = reserve(core::ptr::null_mut(), size + align, overcommit);
    if whole.is_null() {
        return whole;
    }
    let lead = whole.addr().wrapping_neg() & (align - 1);
    // SAFETY: the two ends of what was reserved just now.
    unsafe {
        if lead > 0 {
            release(whole, lead);
        }
        release(whole.wrapping_add(lead + size), align - lead);
    }
    whole.wrapping_add(lead)
}

/// Gives back pieces of memory of so many bytes, up to 128 of them, as `purge` does, but for those that are not `wanted`, a bit
/// each: which of these have gone. Where one page is locked the kernel takes none of a range: then its halves are tried.
///
/// # Safety
/// As for `purge`.
pub(crate) unsafe fn purge_pieces(at: *mut u8, pieces: usize, bytes: usize, wanted: u128) -> u128 {
    // SAFETY: the caller's, as are parts of it.
    unsafe {
        if wanted == 0 || purge(at, pieces * bytes) {
            return wanted;
        }
        let half = round_up(pieces / 2, (page_size() / bytes).max(1));
        if half == 0 || half >= pieces {
            return 0;
        }
        let (lower, upper) = (wanted & !(u128::MAX << half), wanted >> half);
        let rest = at.wrapping_add(half * bytes);
        purge_pieces(at, half, bytes, lower)
            | purge_pieces(rest, pieces - half, bytes, upper) << half
    }
}

/// Sleeps for a millisecond: for who waits for what others do not wake it for.
#[cold]
#[inline(never)]
pub(crate) fn rest() {
    static NOBODY_WAKES: AtomicU32 = AtomicU32::new(0);
    wait_for(&NOBODY_WAKES, 0, 1);
}

/// Failing system calls on purpose, in tests only.
#[cfg(test)]
pub(crate) mod fault {
    use std::cell::Cell;

    std::thread_local! {
        static COUNTDOWN: Cell<usize> = const { Cell::new(usize::MAX) };
        static STICKY: Cell<bool> = const { Cell::new(false) };
        static FAILED: Cell<usize> = const { Cell::new(0) };
    }

    /// Fails this thread's `nth` call from now (from 0); all later ones too if `sticky`.
    pub(crate) fn arm(nth: usize, sticky: bool) {
        COUNTDOWN.with(|c| c.set(nth));
        STICKY.with(|s| s.set(sticky));
    }

    /// Stops failing; whether the call that was to fail was reached.
    pub(crate) fn disarm() -> bool {
        let reached = COUNTDOWN.with(|c| c.replace(usize::MAX)) == usize::MAX - 1;
        STICKY.with(|s| s.set(false));
        reached
    }

    /// How many calls of this thread have failed so.
    pub(crate) fn failed() -> usize {
        FAILED.with(Cell::get)
    }

    /// Whether this call is to fail.
    pub(crate) fn hit() -> bool {
        let is_hit = counts_down();
        FAILED.with(|f| f.set(f.get() + usize::from(is_hit)));
        is_hit
    }

    fn counts_down() -> bool {
        COUNTDOWN.with(|c| match c.get() {
            usize::MAX => false,
            left if left == usize::MAX - 1 => STICKY.with(Cell::get),
            0 => {
                c.set(usize::MAX - 1);
                true
            }
            left => {
                c.set(left - 1);
                false
            }
        })
    }
}

/// No faults outside tests.
#[cfg(not(test))]
pub(crate) mod fault {
    #[inline(always)]
    pub(crate) fn hit() -> bool {
        false
    }
}
