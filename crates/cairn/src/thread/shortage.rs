//! Owns: what a thread does when memory runs short: at the hard limit, and when a limit has come near.
//! Idea: what this thread can reach goes back, then the program is told; each time the allocation is tried again.
//! Never: is reached while nobody has set a limit, but for one look on the way to failing.
//! Threads: each for itself; nothing of its heap is under way.
//! Checked: tests/memory_limits.rs
//! Story: docs/design/purging.md

use super::low_memory::{self, LowMemory};
use super::{arrive_unless_gone, own, trim};
use crate::base::{SLICE_SIZE, SizeClass};
use crate::heap::Heap;
use crate::large;
use crate::map::{Block, address_map};
use crate::os;
use crate::slices::{arena, limit};
use core::ptr::{NonNull, null_mut};

/// Tries an allocation of `size` bytes again that has failed, if that may be due to the hard limit: when all is given back
/// that can be, and when the program has been told.
#[cold]
pub(crate) fn retry<T>(size: usize, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    // What another thread's program gives back may do, and this one's is called for what fails after that.
    const STEPS: [fn(usize) -> bool; 3] =
        [gives_back, |_| low_memory::wait(), |size| tell_of(size) || low_memory::wait()];
    STEPS.iter().find_map(|step| if step(size) { attempt() } else { None })
}

/// Gives back all that the thread reaches, if there may be enough of it. Where the system refuses, what the thread keeps of a
/// large block, unless that is for a size that no run has.
#[inline(never)]
fn gives_back(size: usize) -> bool {
    if limit::hard() == 0 {
        // SAFETY: the calling thread's own.
        let kept = own().map(|heap| unsafe { &(*heap).large_cache });
        let is_any = kept.is_some_and(|kept| large::cached_run(kept).is_some());
        let is_of_use = is_any && size <= address_map::slice_limit() * SLICE_SIZE;
        kept.filter(|_| is_of_use).into_iter().for_each(large::drop_cached);
        return is_of_use;
    }
    let is_of_use = size <= limit::hard();
    if is_of_use {
        // This may come often.
        trim(os::notify_briefly);
        arena::purge_all();
    }
    is_of_use
}

/// Tells the program that an allocation fails at the hard limit, if there is one and the size is any; whether it has been
/// called.
fn tell_of(size: usize) -> bool {
    limit::hard() > 0 && size <= isize::MAX as usize && call(size.max(1), || true)
}

/// Calls the program's function. A thread without a heap gets one first: nobody would learn that it has ended in there.
#[inline(never)]
fn call(size: usize, is_due: fn() -> bool) -> bool {
    os::notice_fork();
    own().unwrap_or_else(arrive_unless_gone);
    low_memory::call(size, is_due)
}

/// Refills again where that has failed.
///
/// # Safety
/// The heap is the calling thread's own, or null: it has none.
#[cold]
#[inline(never)]
pub(super) unsafe fn refill(heap: *mut Heap, class: SizeClass) -> *mut Block {
    let attempt = || {
        // Who has none may have got one, from what the program has done when it was told.
        NonNull::new(match if heap.is_null() { own() } else { Some(heap) } {
            None => super::take_without_heap(class),
            // SAFETY: the calling thread's own.
            Some(heap) => unsafe { super::retry(heap, class) },
        })
    };
    retry(class.block_size(), attempt).map_or(null_mut(), NonNull::as_ptr)
}

/// Tells the program that a limit is near, unless somebody has; whether it has been called. Nothing of the thread's heap is
/// under way.
#[cold]
#[inline(never)]
pub(crate) fn tell() -> bool {
    // While a thread is inside, this stays to be told by who comes by when that is over.
    call(0, || {
        if let Some(heap) = own() {
            // SAFETY: the calling thread's own.
            unsafe { (*heap).sampling.has_told() };
        }
        limit::take_pending()
    })
}

/// Has `call` called when memory runs short; None ends that. There is one such function for the process.
///
/// It is called with 0 when a limit of the process or of its memory cgroup comes near: when more than 7/8 of it are in use.
/// Once, until less than some 13/16 have been. The thread that calls it is the first that comes by.
/// And it is called with a size before an allocation of so many bytes fails at the hard limit. That is tried again.
/// Two threads are not in it at once: before an allocation fails, one waits for the other, up to 0.2 s. To register
/// waits until no other thread is in the one before, so the caller must hold no lock that this takes. What it may do,
/// [`LowMemory`] says.
///
/// ```
/// use std::sync::Mutex;
///
/// static CACHE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
///
/// fn empty_cache(_size: usize, _words: [usize; 2]) {
///     // Who is interrupted may hold the lock.
///     if let Ok(mut cache) = CACHE.try_lock() {
///         cache.clear();
///     }
/// }
///
/// cairn::on_low_memory(Some(empty_cache), [0; 2]);
/// # cairn::on_low_memory(None, [0; 2]);
/// ```
pub fn on_low_memory(call: Option<LowMemory>, words: [usize; 2]) {
    os::notice_fork();
    low_memory::set(call, words);
    // Who is registered while a limit is near is told at the next look.
    limit::note_far();
}

/// Limits the memory of the process, in bytes: `hard` is what it may have, 0: whatever there is; `soft`, within which it shall
/// stay by giving back more, 0: what its memory cgroup may have, `usize::MAX`: neither that nor anything else. False, and
/// nothing is done, if `soft` is more than `hard`.
///
/// What counts is memory that can be resident: spans and large blocks with all their bytes, touched or not, and what
/// is free and has not gone back. Not the tables of the allocator's own, stacks, code, or regions.
/// An allocation that would go beyond `hard` first gives back what is free; then it fails.
///
/// ```
/// assert!(cairn::set_memory_limits(0, 2 << 30));
/// # assert!(cairn::set_memory_limits(0, 0));
/// ```
pub fn set_memory_limits(soft: usize, hard: usize) -> bool {
    os::notice_fork();
    let is_set = limit::set(soft, hard);
    if is_set && hard > 0 {
        // What heaps keep ahead counts now.
        os::notify_briefly();
    }
    is_set
}
