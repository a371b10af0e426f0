//! Owns: the function of the program's that is told when memory runs short.
//! Idea: who is told can free what it could do without, and the allocation that was about to fail is tried again.
//! Never: knows limits, or when memory is short.
//! Threads: any, with no lock held; one is inside the function at a time.
//! Checked: tests/memory_limits.rs
//! Story: docs/guide/memory.md

use crate::base::{AtomicBool, AtomicUsize, Ordering, in_loom, in_shuttle};
use crate::os::{self, Lock};
use crate::slices::limit;
use core::sync::atomic::fence;

/// Is told that memory runs short: with 0, that a limit is near; else with the bytes of an allocation that fails at the
/// hard limit, unless enough is freed now. `words` are those that it was registered with.
///
/// It runs inside an allocation, and may allocate and free whatever it likes; it is not called inside itself, nor by two
/// threads at once. It must not panic, or end a heap that may be in use below it. It runs wherever the thread allocates, with
/// the locks and borrows that the interrupted code holds: it must not wait for one of those (try a lock instead), nor print
/// through what locks or allocates.
///
/// ```
/// let shrink_caches: cairn::LowMemory = |size, _words| {
///     let _all = size > 0;
/// };
/// cairn::on_low_memory(Some(shrink_caches), [0; 2]);
/// # cairn::on_low_memory(None, [0; 2]);
/// ```
pub type LowMemory = fn(size: usize, words: [usize; 2]);

/// What is registered.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    call: Option<LowMemory>,
    words: [usize; 2],
    /// How many calls have ended.
    ended: usize,
}

/// Milliseconds that an allocation waits, at most twice before it fails, while another thread is inside the function: the header
/// says so.
const INSIDE_LOOKS: usize = in_loom(in_shuttle(100, 2), 2);

pub(crate) static CALL: Lock<Call> = Lock::new(NO_CALL);
/// A function is being registered: in a forked child it may be half changed then. Under the lock.
static IS_REGISTERING: AtomicBool = AtomicBool::new(false);
const NO_CALL: Call = Call { call: None, words: [0; 2], ended: 0 };
/// The token of the thread that is inside the function; 0: none is. It changes under the lock. Relaxed: who asks without it is
/// told late.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Whether a thread is inside: the calling one, or another.
pub(crate) fn is_inside() -> bool {
    INSIDE.load(Ordering::Relaxed) != 0
}

/// Whether another thread is.
fn is_anothers() -> bool {
    is_inside() && INSIDE.load(Ordering::Relaxed) != os::thread_token()
}

/// Registers a function, or none, and waits until no other thread is inside the one before.
pub(crate) fn set(call: Option<LowMemory>, words: [usize; 2]) {
    let ended = {
        let mut registered = CALL.lock();
        IS_REGISTERING.store(true, Ordering::Relaxed);
        // Release, and below: a child that finds a part of the change finds this, and what it finds without this is whole.
        fence(Ordering::Release);
        (registered.call, registered.words) = (call, words);
        IS_REGISTERING.store(false, Ordering::Release);
        if !is_anothers() {
            return;
        }
        registered.ended
    };
    // The next call is of the new one.
    while is_anothers() && CALL.lock().ended == ended {
        os::rest();
    }
}

/// Calls it if it is due, which is asked when no thread is inside; false if not, or if there is none. The calling thread has a
/// heap, if it can have one: by that `leave` is called if it ends in there.
#[cold]
#[inline(never)]
pub(crate) fn call(size: usize, is_due: fn() -> bool) -> bool {
    let (call, words) = {
        // What the function has done another thread sees in it, by the lock.
        let registered = CALL.lock();
        if is_inside() || !is_due() {
            return false;
        }
        let Some(call) = registered.call else { return false };
        INSIDE.store(os::thread_token(), Ordering::Relaxed);
        (call, registered.words)
    };
    os::without_panic(|| call(size, words));
    leave();
    true
}

/// The calling thread ends, or its call has ended: it is not inside any more.
#[inline(never)]
pub(crate) fn leave() {
    if INSIDE.load(Ordering::Relaxed) == os::thread_token() {
        let mut registered = CALL.lock();
        registered.ended += 1;
        INSIDE.store(0, Ordering::Relaxed);
    }
}

/// While another thread is inside, waits a while for what it gives back; whether there was any. Without a hard limit nothing fails
/// for want of that.
#[cold]
#[inline(never)]
pub(crate) fn wait() -> bool {
    let looks = (0..INSIDE_LOOKS).take_while(|_| limit::hard() > 0 && is_anothers());
    looks.map(|_| os::rest()).count() > 0
}

/// In a forked child, before it has a second thread.
pub(crate) fn settle_in_child() {
    // If another thread was registering one, the child does without.
    if CALL.settle_in_child() && IS_REGISTERING.swap(false, Ordering::Relaxed) {
        *CALL.lock() = NO_CALL;
    }
    if is_anothers() {
        INSIDE.store(0, Ordering::Relaxed);
    }
}
