//! Owns: when a thread calls the program to free what it has put off.
//! Idea: at refills and large allocations, before anything of the thread's heap is under way.
//! Never: costs an instruction while nothing is registered.
//! Threads: each for itself.
//! Checked: tests/deferred.rs
//! Story: docs/design/upkeep.md

use super::{arrive_unless_gone, follow_sampling, own, refill, refill_once};
use crate::base::SizeClass;
use crate::heap::Heap;
use crate::map::Block;
use crate::samples::{Deferred, DeferredFree, Reason, deferred_frees};
use crate::store::{Caches, Store};

/// As `refill`; the program is asked to free what it has put off before the answer is null.
#[cold]
pub(crate) fn refill_or_force(class: SizeClass) -> *mut Block {
    let block = refill(class);
    match own() {
        // SAFETY: the calling thread's own.
        Some(heap) if block.is_null() && defer_in_need() => unsafe { retry(heap, class) },
        _ => block,
    }
}

/// Pops what the program has freed, or refills once more, whatever memory there is.
///
/// # Safety
/// The heap is the calling thread's own.
#[inline(never)]
pub(super) unsafe fn retry(heap: *mut Heap, class: SizeClass) -> *mut Block {
    // SAFETY: as above.
    unsafe {
        let block = Caches::pop(&raw mut (*heap).caches, class);
        if block.is_null() { refill_once(heap, class) } else { block }
    }
}

/// Calls the program for it to free what it has put off, if it wants to be called; whether it has been. Nothing of the
/// thread's heap is under way.
#[inline]
pub(crate) fn defer(reason: Reason) -> bool {
    // SAFETY: the calling thread's own.
    own().is_some_and(|heap| unsafe {
        let (deferred, beats) = (&raw const (*heap).deferred, &raw mut (*heap).own.beats);
        (*heap).sampling.defers() && Deferred::call(deferred, beats, reason)
    })
}

/// The same where there is no memory, or where all that is free is to go.
#[cold]
#[inline(never)]
pub(crate) fn defer_in_need() -> bool {
    defer(Reason::Need)
}

/// Has `call` called now and then on each thread that allocates, so that the program frees what it has put off, such as
/// objects whose last reference has gone: not all at once, which would be a long pause, but some each time. None ends that.
///
/// It is called when a thread needs new blocks of a size, after some 64 allocations, and for each block over 64 KiB. If the
/// program frees as fast as it allocates, the call comes after at most 51,200 allocations of one size class all the same.
/// With `force` it is called before an allocation fails, which is tried again after it, and at the start of `purge`
/// and `HeapId::purge`. Which allocations these are does not depend on the clock: a program with one thread
/// that does the same again has the same calls again, from the registration on (not in the hardened build).
///
/// The calling thread follows at once, others at their next slow tick: until then they may call what was registered before.
/// A thread that shares a heap because it has allocated little does not call it. It costs what the function takes, and some
/// refills more; while none is registered, nothing.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// static CALLS: AtomicUsize = AtomicUsize::new(0);
/// cairn::on_deferred_free(
///     Some(|_force, _heartbeat, _words| {
///         CALLS.fetch_add(1, Ordering::Relaxed);
///     }),
///     [0; 2],
/// );
/// let blocks: Vec<_> = (0..1000).map(|_| cairn::allocate(100)).collect();
/// # #[cfg(not(any(feature = "hardened", feature = "secure")))]
/// assert!(CALLS.load(Ordering::Relaxed) > 0);
/// cairn::on_deferred_free(None, [0; 2]);
/// # blocks.into_iter().for_each(|block| unsafe { cairn::deallocate(block) });
/// ```
pub fn on_deferred_free(call: Option<DeferredFree>, words: [usize; 2]) {
    crate::os::notice_fork();
    deferred_frees::set(call, words);
    if own().is_none() && call.is_some() {
        arrive_unless_gone();
    }
    crate::os::notify_all();
    follow_sampling();
}
