//! Owns: the function of the program's that is called now and then inside an allocation, to free what it has put off.
//! Idea: a slow path is where a thread has time. Which one comes by it is decided by counts alone, not by the clock.
//! Never: knows heaps, or when a slow path is due.
//! Threads: `set` any; a `Deferred` its thread.
//! Checked: tests/deferred.rs
//! Story: docs/design/upkeep.md

use crate::base::{AtomicBool, AtomicUsize, Ordering};
use crate::os::{self, Lock};
use core::sync::atomic::fence;

/// Frees what the program has put off: a bounded part of it, or, with `force`, all that can go. `heartbeat` counts the calls on
/// this thread, from 1 on. `words` are those that it was registered with.
///
/// It runs on the thread that allocates, inside the allocation, and may allocate and free whatever it likes; it
/// is not called inside itself. It must not panic, or end a heap that may be in use below it. It runs wherever the thread
/// allocates, with the locks and borrows that the interrupted code holds: it must not wait for one of those (try a lock
/// instead), nor print through what locks or allocates.
///
/// ```
/// let free_some: cairn::DeferredFree = |force, _heartbeat, _words| {
///     let _most = if force { usize::MAX } else { 100 };
/// };
/// cairn::on_deferred_free(Some(free_some), [0; 2]);
/// # cairn::on_deferred_free(None, [0; 2]);
/// ```
pub type DeferredFree = fn(force: bool, heartbeat: u64, words: [usize; 2]);

/// What is registered.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    call: Option<DeferredFree>,
    words: [usize; 2],
}

pub(crate) static CALL: Lock<Call> = Lock::new(NO_CALL);
const NO_CALL: Call = Call { call: None, words: [0; 2] };
/// That changes: in a forked child it may be half changed then. Under the lock.
static IS_REGISTERING: AtomicBool = AtomicBool::new(false);
/// How often that has changed. Relaxed: who sees it late follows late.
static CHANGES: AtomicUsize = AtomicUsize::new(0);

/// Registers a function, or none. Threads follow when they look at it next.
pub(crate) fn set(call: Option<DeferredFree>, words: [usize; 2]) {
    let mut registered = CALL.lock();
    IS_REGISTERING.store(true, Ordering::Relaxed);
    // Release, and below: a child that finds a part of the change finds this, and what it finds without this is whole.
    fence(Ordering::Release);
    *registered = Call { call, words };
    IS_REGISTERING.store(false, Ordering::Release);
    drop(registered);
    CHANGES.fetch_add(1, Ordering::Relaxed);
}

/// What a heap knows of it. All zeros: nothing is registered.
#[derive(Clone, Copy)]
pub(crate) struct Deferred {
    call: Call,
    seen: usize,
}

/// A thread's calls. All zeros: there has been none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Beats {
    count: u64,
    is_inside: bool,
}

impl Beats {
    pub(crate) const NONE: Beats = Beats { count: 0, is_inside: false };

    /// As a call does that does not return.
    #[cfg(test)]
    pub(crate) fn begin(&mut self) {
        self.is_inside = true;
    }
}

/// Why the program is called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It is its turn.
    Turn,
    /// An allocation is about to fail, or everything shall go back.
    Need,
}

impl Deferred {
    /// Does as is registered now; whether something else is than before.
    pub(crate) fn follow(&mut self) -> bool {
        let changes = CHANGES.load(Ordering::Relaxed);
        let is_new = changes != self.seen;
        if is_new {
            (self.call, self.seen) = (*CALL.lock(), changes);
        }
        is_new
    }

    /// Whether there is somebody to call.
    pub(crate) fn is_on(&self) -> bool {
        self.call.call.is_some()
    }

    /// Calls it; false if there is nobody to call, or if the call comes from inside.
    ///
    /// # Safety
    /// The calling thread's, of whose heap nothing is borrowed or under way.
    pub(crate) unsafe fn call(this: *const Deferred, beats: *mut Beats, reason: Reason) -> bool {
        // SAFETY: as above. Nothing is borrowed while the function runs, which comes here again.
        unsafe {
            let Call { call: Some(call), words } = (*this).call else { return false };
            if (*beats).is_inside {
                return false;
            }
            (*beats).is_inside = true;
            (*beats).count += 1;
            os::without_panic(|| call(reason == Reason::Need, (*beats).count, words));
            (*beats).is_inside = false;
        }
        true
    }
}

/// In a forked child, before it has a second thread.
pub(crate) fn settle_in_child() {
    // If another thread was registering one, the child does without.
    if CALL.settle_in_child() && IS_REGISTERING.swap(false, Ordering::Relaxed) {
        *CALL.lock() = NO_CALL;
    }
}
