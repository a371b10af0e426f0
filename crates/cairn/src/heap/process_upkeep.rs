//! Owns: what upkeep does for all heaps together: the arena's part, and what comes besides.
//! Idea: whichever heap is due does it; nobody waits for a thread of its own.
//! Never: looks inside a heap.
//! Threads: any.
//! Checked: tests/purges.rs, tests/forks.rs
//! Story: docs/design/upkeep.md

use crate::base::{AtomicPtr, Ordering};
use crate::samples::{guards, profile};
use crate::{os, slices::arena, spans::waiting};
use core::ptr::null_mut;

/// Asks all heaps to give back what they can at their next slow tick.
pub(crate) fn request_trim() {
    os::notify_all();
}

/// What upkeep does besides, a function without arguments, or null. Relaxed: who sees it late does it late.
static BESIDES: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Says what upkeep of all heaps does besides from now on.
pub(crate) fn set_besides(step: Option<fn()>) {
    BESIDES.store(step.map_or(null_mut(), |step| step as *mut ()), Ordering::Relaxed);
}

/// Once per purge delay: near a limit of memory, idle caches had better go, too.
pub(crate) fn follow_limits() {
    if arena::follow_limits() {
        request_trim();
    }
}

/// The arena's part of upkeep, and what comes besides.
pub(crate) fn tick() {
    let besides = BESIDES.load(Ordering::Relaxed);
    if !besides.is_null() {
        // SAFETY: stored by `set_besides` out of such a function.
        unsafe { core::mem::transmute::<*mut (), fn()>(besides)() };
    }
    if arena::tick(os::now_ms()) {
        if !arena::keeps() {
            waiting::sweep_part();
        }
        follow_limits();
    }
    guards::follow();
    profile::follow();
}
