//! Owns: what upkeep does for all heaps together: the arena's part, and what comes besides.
//! Idea: whichever heap is due does it; nobody waits for a thread of its own.
//! Never: looks inside a heap.
//! Threads: any.
//! Checked: tests/purges.rs, tests/forks.rs
//! Story: docs/design/upkeep.md

use crate::base::{AtomicPtr, Ordering};
use crate::samples::{guards, profile};
use crate::{os, slices::arena, spans::waiting};

/// What upkeep does besides, a function without arguments, or null. Relaxed: who sees it late does it late.
static BESIDES: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Says what upkeep of all heaps does besides from now on.
pub(crate) fn set_besides(step: fn()) {
    BESIDES.store(step as *mut (), Ordering::Relaxed);
}

/// The arena's part of upkeep, and what comes besides.
pub(crate) fn tick() {
    let besides = BESIDES.load(Ordering::Relaxed);
    if !besides.is_null() {
        // SAFETY: stored by `set_besides` out of such a function.
        unsafe { core::mem::transmute::<*mut (), fn()>(besides)() };
    }
    strike();
    guards::follow();
    profile::follow();
}

/// What the purge clock's stroke brings, if it is time for one.
pub(crate) fn strike() {
    if arena::tick(os::now_ms()) {
        if !arena::keeps() {
            waiting::sweep_part();
        }
        // Near a limit of memory, idle caches had better go, too.
        if arena::follow_limits() {
            os::notify_briefly();
        }
    }
}
