//! The simulated system's threads: who runs when, who sleeps, who leaves; the clock; the failures.
//! Shuttle switches threads at each `point`; no lock is held over one. A fork is a real one: the
//! child has every thread's half-done work in its memory, and only the thread that forked goes on.
//! Under Miri, and without a model, threads are real ones.

use super::held::Random;
use crate::base::sync::AtomicU32;
use crate::os::{ForkHandlers, Own, lock, thread_token};
#[cfg(not(miri))]
use std::panic::AssertUnwindSafe;
use std::ptr::from_ref;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

#[cfg(not(miri))]
use shuttle::thread;
#[cfg(miri)]
use std::thread;

pub(crate) use thread::JoinHandle;

/// Threads of one model, at most.
const THREADS: usize = 64;

static MODEL: [Own; THREADS] = [const { Own::new() }; THREADS];

std::thread_local! {
    static REAL: Own = const { Own::new() };
}

/// A model runs.
static RUNNING: AtomicBool = AtomicBool::new(false);
/// It runs in a forked child, in which there is one thread.
static ALONE: AtomicBool = AtomicBool::new(false);

/// Others may run now.
#[cfg(not(miri))]
pub(crate) fn point() {
    static POINT: shuttle::sync::atomic::AtomicBool = shuttle::sync::atomic::AtomicBool::new(false);
    let scheduled = RUNNING.load(Ordering::Relaxed) && !ALONE.load(Ordering::Relaxed);
    if scheduled && !std::thread::panicking() {
        POINTS.fetch_add(1, Ordering::Relaxed);
        POINT.load(Ordering::SeqCst);
    }
}

/// How many points there have been.
pub(crate) static POINTS: AtomicU64 = AtomicU64::new(0);

/// Nothing to do: others should run.
pub(crate) fn pause() {
    thread::yield_now();
}

/// Others run at any time.
#[cfg(miri)]
pub(crate) fn point() {}

/// What the calling thread has of its own.
pub(crate) fn with_own<T>(act: impl FnOnce(&Own) -> T) -> T {
    #[cfg(not(miri))]
    if RUNNING.load(Ordering::Relaxed) {
        return act(&MODEL[usize::from(shuttle::current::me())]);
    }
    REAL.with(act)
}

/// Begins a thread that has nothing yet.
pub(crate) fn arrive() {
    with_own(Own::clear);
}

/// Ends it, as far as the allocator hears of it.
pub(crate) use crate::os::end_thread as leave;

/// In a forked child: does what another thread does, from its beginning to its end.
#[cfg(not(miri))]
pub(crate) fn as_another_thread(body: impl FnOnce()) {
    let (heap, value) = (crate::os::own_heap(), crate::os::thread_value(0));
    arrive();
    body();
    leave();
    crate::os::set_own_heap(heap);
    crate::os::set_thread_value(0, value);
}

/// Starts a thread.
pub(crate) fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::spawn(move || {
        arrive();
        let result = body();
        leave();
        result
    })
}

/// Runs the threads' first one, which ends when they all have.
pub(crate) fn run_model(first: impl FnOnce()) {
    RUNNING.store(true, Ordering::Relaxed);
    lock(&SLEEPERS).clear();
    arrive();
    first();
    leave();
    // What is looked at afterwards is not raced for.
    RUNNING.store(false, Ordering::Relaxed);
    arrive();
}

static HANDLERS: Mutex<ForkHandlers> =
    Mutex::new(ForkHandlers { prepare: None, parent: None, child: None });

pub(crate) fn on_fork(handlers: ForkHandlers) -> bool {
    *lock(&HANDLERS) = handlers;
    true
}

/// Forks. `between` is what other libraries' handlers do, on both sides, between the allocator's
/// and the fork; `child` is what the child does then. The parent fails if the child does.
#[cfg(not(miri))]
pub(crate) fn fork(between: impl Fn(), child: impl Fn()) {
    let handlers = *lock(&HANDLERS);
    // SAFETY: the allocator has registered them.
    let handle =
        |handler: Option<unsafe extern "C" fn()>| unsafe { handler.map(|handler| handler()) };
    handle(handlers.prepare);
    between();
    // SAFETY: the child goes on where it is and ends by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            ALONE.store(true, Ordering::Relaxed);
            // SAFETY: no preconditions. A child has no alarm of its parent's.
            unsafe { libc::alarm(super::runs::HUNG_AFTER_SECONDS) };
            let done = std::panic::catch_unwind(AssertUnwindSafe(|| {
                between();
                handle(handlers.child);
                child();
            }));
            // SAFETY: has no preconditions.
            unsafe { libc::_exit(if done.is_ok() { 0 } else { 101 }) }
        }
        pid => {
            assert!(pid > 0, "no fork");
            let mut status = 0;
            // SAFETY: `status` is valid for writing.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            between();
            handle(handlers.parent);
            assert_eq!(status, 0, "the forked child has failed");
        }
    }
}

/// One that sleeps until somebody wakes it.
struct Sleeper {
    word: usize,
    token: usize,
    thread: thread::Thread,
}

static SLEEPERS: Mutex<Vec<Sleeper>> = Mutex::new(Vec::new());

/// Sleeps if the word is as expected, until it is woken.
pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    assert!(!ALONE.load(Ordering::Relaxed), "a lock is held in a forked child");
    point();
    let token = thread_token();
    {
        let mut sleepers = lock(&SLEEPERS);
        if word.at_once().load(Ordering::SeqCst) != expected {
            return;
        }
        let thread = thread::current();
        sleepers.push(Sleeper { word: from_ref(word).addr(), token, thread });
    }
    // Park may return for no reason.
    while lock(&SLEEPERS).iter().any(|sleeper| sleeper.token == token) {
        thread::park();
    }
}

/// Time goes by: others run.
pub(crate) fn wait_for(_: &AtomicU32, _: u32, _: usize) -> bool {
    assert!(
        !ALONE.load(Ordering::Relaxed),
        "a forked child waits for a thread that it does not have"
    );
    pause();
    false
}

/// Wakes one sleeper.
pub(crate) fn wake(word: &AtomicU32) {
    point();
    let sleeper = {
        let mut sleepers = lock(&SLEEPERS);
        let at = sleepers.iter().position(|sleeper| sleeper.word == from_ref(word).addr());
        at.map(|at| sleepers.remove(at))
    };
    if let Some(sleeper) = sleeper {
        sleeper.thread.unpark();
    }
}

/// A clock that goes on by a millisecond with each look.
pub(crate) fn now_ms() -> u64 {
    static NOW: AtomicU64 = AtomicU64::new(1000);
    NOW.fetch_add(1, Ordering::Relaxed)
}

/// One call of how many fails; 0: none.
pub(crate) static FAILING: AtomicUsize = AtomicUsize::new(0);

/// Whether calls may fail.
pub(crate) fn may_fail() -> bool {
    FAILING.load(Ordering::Relaxed) > 0
}

/// Whether this call is to fail.
pub(crate) fn fails() -> bool {
    static RANDOM: Mutex<Random> = Mutex::new(Random::FIRST);
    let of = FAILING.load(Ordering::Relaxed);
    of > 0 && lock(&RANDOM).below(of) == 0
}
