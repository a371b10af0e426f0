//! Owns: the function of the program's that is told when memory runs short.
//! Idea: who is told can free what it could do without, and the allocation that was about to fail is tried again.
//! Never: knows limits, or when memory is short.
//! Threads: any, with no lock held; one is inside the function at a time.
//! Checked: tests/memory_limits.rs
//! Story: docs/guide/memory.md

use crate::base::{AtomicUsize, Ordering};
use crate::os::{self, Lock};

/// Is told that memory runs short: with 0, that a limit is near; else with the bytes of an allocation that fails at the
/// hard limit, unless enough is freed now. `words` are those that it was registered with.
///
/// It runs inside an allocation, and may allocate and free whatever it likes; it is not called inside itself, nor by two
/// threads at once. It must not panic, or end a heap that may be in use below it.
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
struct Call {
    call: Option<LowMemory>,
    words: [usize; 2],
}

static CALL: Lock<Call> = Lock::new(NO_CALL);
const NO_CALL: Call = Call { call: None, words: [0; 2] };
/// The token of the thread that is inside the function; 0: none is.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Registers a function, or none.
pub(crate) fn set(call: Option<LowMemory>, words: [usize; 2]) {
    *CALL.lock() = Call { call, words };
}

/// Calls it; false if there is none, or if a thread is inside.
#[cold]
pub(crate) fn call(size: usize) -> bool {
    let registered = *CALL.lock();
    let Call { call: Some(call), words } = registered else { return false };
    // Acquire, Release: what the function has done the next thread sees in it.
    let (order, token) = (Ordering::Acquire, os::thread_token());
    if INSIDE.compare_exchange(0, token, order, Ordering::Relaxed).is_err() {
        return false;
    }
    os::without_panic(|| call(size, words));
    INSIDE.store(0, Ordering::Release);
    true
}

/// In a forked child, before it has a second thread.
pub(crate) fn settle_in_child() {
    // If another thread was registering one, the child does without.
    CALL.give_up_in_child(NO_CALL);
    if INSIDE.load(Ordering::Relaxed) != os::thread_token() {
        INSIDE.store(0, Ordering::Relaxed);
    }
}
