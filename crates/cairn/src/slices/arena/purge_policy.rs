//! Owns: how long free memory lies idle before it goes back; whether any goes; whether blocks may have mappings of their
//!   own.
//! Idea: a real-time program has touched all that it needs before its work begins: whatever goes back, or comes from
//!   the system anew, is a page fault in the middle of it.
//! Never: gives back itself, or keeps what somebody asks for.
//! Threads: any; holds nothing.
//! Checked: tests/keeping.rs; tests/real_time.rs of the C layer
//! Story: docs/guide/real-time.md

use crate::base::{Apart, AtomicBool, AtomicUsize, Ordering};
use crate::slices::tuning::PURGE_DELAY_MS;
use crate::{os, slices::reservation};

/// Milliseconds that memory lies idle before it is given back. Relaxed, like the others: who sees a change late does it
/// late.
static DELAY_MS: AtomicUsize = AtomicUsize::new(PURGE_DELAY_MS);
/// When the next tick of the purge clock is due.
pub(super) static NEXT_TICK_MS: Apart<AtomicUsize> = Apart(AtomicUsize::new(0));
/// The program has asked for no trimming, whatever the delay.
static KEEPS: AtomicBool = AtomicBool::new(false);
/// The program wants no mappings.
static IN_ONE: AtomicBool = AtomicBool::new(false);

/// Sets how many milliseconds free memory lies idle before it is given back; `usize::MAX`: nothing is given back, unless
/// somebody calls `purge`, and large blocks have no mappings of their own.
///
/// ```
/// cairn::set_purge_delay_ms(5000);
/// assert_eq!(cairn::purge_delay_ms(), 5000);
/// ```
pub fn set_purge_delay_ms(ms: usize) {
    DELAY_MS.store(ms, Ordering::Relaxed);
    follow();
}

/// Milliseconds that free memory lies idle before it is given back; `usize::MAX`: for ever.
///
/// ```
/// assert_eq!(cairn::purge_delay_ms(), cairn::Settings::DEFAULT.purge_delay_ms);
/// ```
pub fn purge_delay_ms() -> usize {
    if KEEPS.load(Ordering::Relaxed) { usize::MAX } else { DELAY_MS.load(Ordering::Relaxed) }
}

/// Milliseconds between two strokes of the purge clock: each of them looks at all, if briefly.
pub(crate) fn stroke_ms() -> usize {
    purge_delay_ms().max(PURGE_DELAY_MS / 8)
}

/// Says that nothing is given back, or that all is as the delay says: `M_TRIM_THRESHOLD`.
#[doc(hidden)]
pub fn keep_memory(on: bool) {
    KEEPS.store(on, Ordering::Relaxed);
    follow();
}

/// Says that no block has a mapping of its own while there is room elsewhere, or that large ones may: `M_MMAP_MAX`.
#[doc(hidden)]
pub fn map_nothing_apart(on: bool) {
    IN_ONE.store(on, Ordering::Relaxed);
}

/// Has the others do as it is said now.
fn follow() {
    reservation::keep_resident(keeps());
    if keeps() {
        // The first look at a clock touches pages of the kernel's.
        let _ = (os::now_ms(), os::now_ns());
    }
    NEXT_TICK_MS.0.store(0, Ordering::Relaxed);
}

/// Whether nothing is given back unasked.
pub(crate) fn keeps() -> bool {
    purge_delay_ms() == usize::MAX
}

/// Whether large blocks may have mappings of their own while the reservation has room: what goes with a mapping comes
/// from the system anew.
pub(crate) fn maps_apart() -> bool {
    !IN_ONE.load(Ordering::Relaxed) && !keeps()
}
