//! The account at the arrival of a signal that ends the process, if `CAIRN_STATS_AT_SIGNAL` asks.
//!
//! A handler may interrupt the allocator while it holds a lock that the account needs. So the
//! handler only wakes a thread of this library's; that one writes the account and then has the
//! process die of the signal. The interrupted thread waits for its end in the handler, though not
//! for ever: it may be the one that holds the lock.
//!
//! docs/guide/statistics.md says what it changes for a program.

use crate::report::identity;
use crate::settings::Signals;
use crate::stats;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The account's stats and buffers, and small frames.
const STACK_SIZE: usize = 128 << 10;
/// How long an interrupted thread waits for the end before it goes on.
const WAIT_MS: usize = 200;
/// How long the thread waits for somebody else's account: more than that one may wait here.
const WRITE_MS: usize = 2000;

/// What the thread sleeps on: `NOTHING`, the number of a signal, or `ENDING`.
static WORD: AtomicU32 = AtomicU32::new(NOTHING);
const NOTHING: u32 = 0;
const ENDING: u32 = u32::MAX;
/// The process that has the thread, which a forked child has not; 0: none.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The thread.
static THREAD: AtomicUsize = AtomicUsize::new(0);
/// Its destructor tells that the thread which has started ours leaves.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Starts the thread and listens to these signals, those that would end the process now; false if
/// it cannot.
pub(crate) fn begin(signals: Signals) -> bool {
    let mut key = 0;
    // SAFETY: `key` is valid for writing; any value but null is for the destructor to be called.
    unsafe {
        if libc::pthread_key_create(&mut key, Some(end)) != 0 {
            return false;
        }
        KEY.store(key, Ordering::Relaxed);
        if libc::pthread_setspecific(key, (&raw const WORD).cast()) != 0 || !start() {
            return false;
        }
    }
    OWNER.store(identity(), Ordering::Relaxed);
    if signals.term {
        listen(libc::SIGTERM);
    }
    if signals.int {
        listen(libc::SIGINT);
    }
    true
}

/// At the process's end.
pub(crate) fn at_exit() {
    // A process that is about to die of a signal does not get past it by ending.
    if stats::is_wanted() {
        if is_dying() || !stats::write_once() {
            wait_for_the_end();
        }
        wake();
        // One that has come meanwhile is for the thread, which has waited for the account.
        wait_for_the_end();
    }
}

/// Starts the thread.
fn start() -> bool {
    let thread = cairn::start_small_thread(STACK_SIZE, run);
    THREAD.store(thread.unwrap_or(0), Ordering::Relaxed);
    thread.is_some()
}

/// Has the signal handled here if the process would die of it now.
fn listen(signal: c_int) {
    if disposition(signal) == libc::SIG_DFL {
        // Calls that the system can go on with are not cut short; a program may have a stack for
        // signals because its own ones are small.
        dispose(signal, heard as *const () as usize, libc::SA_RESTART | libc::SA_ONSTACK);
    }
}

fn disposition(signal: c_int) -> usize {
    // SAFETY: zero is a value of the struct, which is valid for writing; nothing is changed.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        libc::sigaction(signal, null(), &mut action);
        action.sa_sigaction
    }
}

fn dispose(signal: c_int, handler: usize, flags: c_int) {
    // SAFETY: zero is a value of the struct, with an empty mask; the handler is `SIG_DFL` or a
    // function of this library, which stays loaded, and does only what a handler may.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaction(signal, &action, null_mut());
    }
}

/// The handler. In a process without the thread, a forked child for instance, the signal does what
/// it would have done: it is sent again, and arrives when the handler is left.
extern "C" fn heard(signal: c_int) {
    // SAFETY: errno's location is the thread's.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    let number = signal.unsigned_abs();
    let is_here = OWNER.load(Ordering::Relaxed) == identity();
    let order = Ordering::Relaxed;
    if is_here && WORD.compare_exchange(NOTHING, number, order, order).is_ok() {
        wake();
    }
    if is_here && is_dying() {
        sleep_while(WORD.load(Ordering::Relaxed), Some(WAIT_MS));
    } else {
        dispose(signal, libc::SIG_DFL, 0);
        // SAFETY: raise has no preconditions.
        unsafe { libc::raise(signal) };
    }
    // SAFETY: as above.
    unsafe { *errno = saved };
}

/// Whether a signal has arrived of which this process will die.
pub(crate) fn is_dying() -> bool {
    let word = WORD.load(Ordering::Relaxed);
    word != NOTHING && word != ENDING && OWNER.load(Ordering::Relaxed) == identity()
}

/// Returns when no signal has arrived, or the system does not let the process die.
pub(crate) fn wait_for_the_end() {
    while is_dying() {
        sleep_while(WORD.load(Ordering::Relaxed), None);
    }
}

/// The thread's body. Nothing in here allocates.
extern "C" fn run(_: *mut c_void) -> *mut c_void {
    let name = c"cairn-signal".as_ptr().expose_provenance();
    // SAFETY: a C string of less than 16 bytes.
    unsafe { cairn::system_call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name, 0, 0, 0, 0]) };
    loop {
        match WORD.load(Ordering::Relaxed) {
            ENDING => return null_mut(),
            NOTHING => sleep_while(NOTHING, None),
            number => {
                // Or the thread that ends the process is at it, and wakes this one.
                if !stats::write_once() && !stats::is_written() {
                    sleep_while(number, Some(WRITE_MS));
                }
                let signal = number.cast_signed();
                die_of(signal);
                // The first process of a container does not die of what it does not handle.
                stats::begin_anew();
                listen(signal);
                WORD.store(NOTHING, Ordering::Relaxed);
                wake();
            }
        }
    }
}

/// Ends the process by the signal, sent to this very thread: others may have it blocked by now.
fn die_of(signal: c_int) {
    dispose(signal, libc::SIG_DFL, 0);
    // SAFETY: the set is valid for writing, and a set from the first call on.
    unsafe {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), null_mut());
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), null_mut());
    }
}

/// The thread that has started ours leaves; the process goes on without both. Waiting for it makes
/// the C library see its own last thread, with which it ends the process.
extern "C" fn end(_: *mut c_void) {
    let order = Ordering::Relaxed;
    if OWNER.load(order) != identity() {
        return;
    }
    if WORD.compare_exchange(NOTHING, ENDING, order, order).is_err() {
        return;
    }
    wake();
    for signal in [libc::SIGTERM, libc::SIGINT] {
        if disposition(signal) == heard as *const () as usize {
            dispose(signal, libc::SIG_DFL, 0);
        }
    }
    // SAFETY: the thread is joined by nobody else, and it ends: the word says so.
    unsafe { libc::pthread_join(THREAD.load(order) as libc::pthread_t, null_mut()) };
}

/// Wakes all that sleep on the word.
fn wake() {
    futex(libc::FUTEX_WAKE, c_int::MAX.unsigned_abs(), null());
}

/// Sleeps while the word is this, or for so long; less where the system wants.
fn sleep_while(word: u32, ms: Option<usize>) {
    let time = ms.map(|ms| libc::timespec {
        tv_sec: (ms / 1000) as _,
        tv_nsec: (ms % 1000 * 1_000_000) as _,
    });
    futex(libc::FUTEX_WAIT, word, time.as_ref().map_or(null(), core::ptr::from_ref));
}

fn futex(operation: c_int, value: u32, time: *const libc::timespec) {
    let operation = (operation | libc::FUTEX_PRIVATE_FLAG) as usize;
    let (at, time) = (WORD.as_ptr().expose_provenance(), time.expose_provenance());
    // SAFETY: the word is a static, the time the caller's or null.
    unsafe {
        cairn::system_call(libc::SYS_futex, [at, operation, value as usize, time, 0, 0]);
    }
}
