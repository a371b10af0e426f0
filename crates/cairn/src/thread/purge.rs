//! Owns: the one thread of the library's own that gives memory back, if the program asks for it.
//! Idea: it lets time pass where nobody allocates, and gives back before the process's memory cgroup
//!   is full. It ends with the thread that has started it: the C library ends a process with its last
//!   thread, and that must not be ours.
//! Never: allocates in the thread, or takes a signal there.
//! Threads: starts from any, once; a forked child's only one starts the child's.
//! Checked: tests/purge_thread.rs, here and in the C layer.
//! Story: docs/design/purging.md

use super::fork::FORKS_SEEN;
use super::{see_forks, trim};
use crate::base::{AtomicU32, AtomicUsize, Ordering};
use crate::os::GroupUse;
use crate::slices::arena;
use crate::slices::limit::{self, Why};
use crate::spans::waiting;
use crate::thread::tuning::{
    CLOCK_LAG_MS, GROUP_FILL, GROUP_LOOK_MS, GROUP_NEAR, GROUP_REST, GROUP_WORTHWHILE,
    KEPT_LOOK_MS, LOOK_DELAYS, PURGE_PAUSE_MS, PURGE_STACK_BYTES,
};
use crate::{os, thread::pool};
use core::ffi::c_void;
use core::ptr::null_mut;

/// What the thread sleeps on. 1: it shall end.
static ENDING: AtomicU32 = AtomicU32::new(0);
/// The thread; 0: there is none.
static THREAD: AtomicUsize = AtomicUsize::new(0);
/// Its destructor tells that the thread which has started ours leaves.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Whether the program has asked for the thread.
static STATE: AtomicU32 = AtomicU32::new(UNASKED);
const UNASKED: u32 = 0;
const ASKED: u32 = 1;
const FAILED: u32 = 2;

/// Starts a thread that gives memory back while the program is idle, and before its memory cgroup is
/// full; false if it cannot.
///
/// Without it, time passes for the allocator only when a thread allocates or frees. The thread
/// (`cairn-purge`) is one more in this process and in every child that it forks. All signals are
/// blocked in it, it allocates nothing, and it ends with the thread that has called this.
/// docs/guide/memory.md says what else it changes for a program.
///
/// Call it once, at the start of `main`. Any thread may call it, at any time. A second call changes
/// nothing and answers as the first one: `true`, if that has not failed. One that comes while the
/// first is under way answers `true`, too.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: cairn::Cairn = cairn::Cairn;
///
/// fn main() {
///     if !cairn::start_purge_thread() {
///         eprintln!("no purge thread");
///     }
/// }
/// ```
pub fn start_purge_thread() -> bool {
    // Relaxed: what follows is done by one thread, once.
    let order = Ordering::Relaxed;
    if let Err(state) = STATE.compare_exchange(UNASKED, ASKED, order, order) {
        return state == ASKED;
    }
    let begun = begin();
    if !begun {
        STATE.store(FAILED, order);
    }
    begun
}

/// Whether there is such a thread in this process.
pub fn has_purge_thread() -> bool {
    THREAD.load(Ordering::Relaxed) != 0
}

fn begin() -> bool {
    // Handlers in the child run in the order in which they were registered: the allocator's before ours.
    see_forks();
    if !FORKS_SEEN.load(Ordering::Relaxed) {
        return false;
    }
    let Some(key) = os::thread_key(end) else { return false };
    KEY.store(key, Ordering::Relaxed);
    let handlers = os::ForkHandlers { prepare: None, parent: None, child: Some(begin_in_child) };
    os::on_fork(handlers) && start()
}

extern "C" fn begin_in_child() {
    // The parent's is not here, and the thread that forks is the first one. Without memory for
    // another the child goes on without.
    if STATE.load(Ordering::Relaxed) == ASKED {
        start();
    }
}

/// Starts the thread.
fn start() -> bool {
    ENDING.store(0, Ordering::Relaxed);
    THREAD.store(0, Ordering::Relaxed);
    let key = KEY.load(Ordering::Relaxed);
    // Any value but null. First, because the thread must not be without who ends it.
    if !os::set_thread_value(key, (&raw const ENDING).cast()) {
        return false;
    }
    let thread = os::start_small_thread(PURGE_STACK_BYTES, run);
    THREAD.store(thread.unwrap_or(0), Ordering::Relaxed);
    thread.is_some()
}

/// The thread that has started ours leaves; the process goes on without both. Waiting for it makes
/// the C library see its own last thread, with which it ends the process.
extern "C" fn end(_: *mut c_void) {
    let thread = THREAD.swap(0, Ordering::Relaxed);
    if thread == 0 {
        return;
    }
    ENDING.store(1, Ordering::Relaxed);
    os::wake(&ENDING);
    // It ends: the word says so.
    os::join_thread(thread);
}

/// The thread's body. Nothing in here allocates.
extern "C" fn run(_: *mut c_void) -> *mut c_void {
    os::name_thread(c"cairn-purge");
    let mut next_look = 0;
    while ENDING.load(Ordering::Relaxed) == 0 {
        let more = pool::tick();
        if os::Presence::IS_ASKED && os::now_ms() >= next_look && !arena::keeps() {
            pool::let_go_of_others();
            let pause = arena::stroke_ms().saturating_mul(LOOK_DELAYS);
            next_look = os::now_ms().saturating_add(pause as u64);
        }
        let ms =
            if more { PURGE_PAUSE_MS } else { arena::stroke_ms().saturating_add(CLOCK_LAG_MS) };
        // Nothing is given back; somebody may say otherwise.
        let most = if arena::keeps() { KEPT_LOOK_MS } else { relieve() };
        if !os::wait_for(&ENDING, 0, ms.min(most)) {
            break;
        }
    }
    null_mut()
}

/// Gives back all there is if the group is near its limit; how long it cannot be full after that, in
/// milliseconds.
pub(crate) fn relieve() -> usize {
    let found =
        limit::may_have_group().then(|| limit::look(arena::counted(), Why::Watch)).flatten();
    let Some(GroupUse { used, limit }) = found else { return usize::MAX };
    let left = limit.saturating_sub(used);
    let in_vain = left < limit / GROUP_NEAR && purge(os::notify_briefly) < GROUP_WORTHWHILE;
    let least = if in_vain { GROUP_LOOK_MS * GROUP_REST } else { GROUP_LOOK_MS };
    usize::try_from(left / GROUP_FILL).unwrap_or(usize::MAX).max(least)
}

/// All there is, as `crate::purge` does, but for what other threads give back at the notice; bytes given back.
pub(crate) fn purge(notify: fn()) -> usize {
    let before = waiting::given_back();
    trim(notify);
    let gone = arena::purge_all();
    gone.max((waiting::given_back() - before) as usize)
}
