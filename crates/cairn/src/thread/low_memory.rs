//! Owns: the function of the program's that is told when memory runs short.
//! Idea: who is told can free what it could do without, and the allocation that was about to fail is tried again.
//! Never: knows limits, or when memory is short.
//! Threads: any, with no lock held; one is inside the function at a time.
//! Checked: tests/memory_limits.rs
//! Story: docs/guide/memory.md

use crate::base::{AtomicUsize, Ordering, in_loom, in_shuttle};
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

/// Milliseconds that an allocation waits before it fails while another thread is inside the function: the header promises a tenth
/// of a second.
const INSIDE_LOOKS: usize = in_loom(in_shuttle(100, 2), 2);

static CALL: Lock<Call> = Lock::new(NO_CALL);
const NO_CALL: Call = Call { call: None, words: [0; 2] };
/// The token of the thread that is inside the function; 0: none is.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Whether a thread is inside: the calling one, or another.
pub(crate) fn is_inside() -> bool {
    INSIDE.load(Ordering::Relaxed) != 0
}

/// Registers a function, or none, and waits until no other thread is inside the one before.
pub(crate) fn set(call: Option<LowMemory>, words: [usize; 2]) {
    *CALL.lock() = Call { call, words };
    let is_inside = |inside| inside != 0 && inside != os::thread_token();
    // Acquire: what it has done is over.
    while is_inside(INSIDE.load(Ordering::Acquire)) {
        os::rest();
    }
}

/// Calls it; false if there is none, or if a thread is inside. Before an allocation fails, it waits for that one a while: what
/// is being given back may be enough.
#[cold]
pub(crate) fn call(size: usize) -> bool {
    let token = os::thread_token();
    for _ in 0..INSIDE_LOOKS {
        if CALL.lock().call.is_none() {
            return false;
        }
        // Acquire, Release: what the function has done the next thread sees in it.
        match INSIDE.compare_exchange(0, token, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => {
                // Now: who has taken one back knows when it is over.
                let Call { call, words } = *CALL.lock();
                call.into_iter().for_each(|call| os::without_panic(|| call(size, words)));
                INSIDE.store(0, Ordering::Release);
                return call.is_some();
            }
            Err(inside) if inside == token || size == 0 => return false,
            Err(_) => os::rest(),
        }
    }
    false
}

/// In a forked child, before it has a second thread.
pub(crate) fn settle_in_child() {
    // If another thread was registering one, the child does without.
    CALL.give_up_in_child(NO_CALL);
    if INSIDE.load(Ordering::Relaxed) != os::thread_token() {
        INSIDE.store(0, Ordering::Relaxed);
    }
}
