//! Owns: what `os` asks of a system's threads: values of their own, their end, forks, sleeping.
//! Idea: POSIX threads' keys and fork handlers, and futexes.
//! Never: keeps state.
//! Threads: any; holds nothing. The C library may allocate in what makes keys, handlers and threads.
//! Checked: see `os`; tests/purge_thread.rs and tests/account.rs of the C layer for small threads.
//! Story: docs/design/tls.md

use super::keeping_errno;
use super::machine::{self, system_call};
use crate::base::{AtomicU32, AtomicUsize, Ordering};
use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;
use core::ptr::{null, null_mut};

/// Values under keys below this number are stored without an allocation: they stand in glibc's
/// descriptor of the thread.
pub(crate) const STATIC_KEYS: u32 = 32;

/// A key under which each thread has a value, null at first. `end` is called with it when a thread
/// ends and its value is not null. None if the C library has no key left.
pub(crate) fn thread_key(end: extern "C" fn(*mut c_void)) -> Option<u32> {
    let mut key = 0;
    // SAFETY: `key` is valid for writing; `end` stays loaded as long as the process.
    (unsafe { libc::pthread_key_create(&mut key, Some(end)) } == 0).then_some(key)
}

/// Gives back a key that nobody uses.
pub(crate) fn drop_thread_key(key: u32) {
    // SAFETY: the caller's own.
    unsafe { libc::pthread_key_delete(key) };
}

/// The calling thread's value under a key that has been made.
pub(crate) fn thread_value(key: u32) -> *mut c_void {
    // SAFETY: has no preconditions; a key that is none has no value.
    unsafe { libc::pthread_getspecific(key) }
}

/// Stores the calling thread's value under a key that has been made; false if there is no memory.
pub(crate) fn set_thread_value(key: u32, value: *const c_void) -> bool {
    // SAFETY: has no preconditions; a key that is none is refused.
    keeping_errno(|| unsafe { libc::pthread_setspecific(key, value) }) == 0
}

/// What the C library is to call around each fork of the calling thread.
pub(crate) struct ForkHandlers {
    /// Before it.
    pub(crate) prepare: Option<unsafe extern "C" fn()>,
    /// After it.
    pub(crate) parent: Option<unsafe extern "C" fn()>,
    /// After it, in the child.
    pub(crate) child: Option<unsafe extern "C" fn()>,
}

/// Registers handlers for forks, which run in the child in the order in which they were registered;
/// false if there is no memory.
pub(crate) fn on_fork(handlers: ForkHandlers) -> bool {
    let ForkHandlers { prepare, parent, child } = handlers;
    // SAFETY: the handlers stay loaded as long as the process.
    unsafe { libc::pthread_atfork(prepare, parent, child) == 0 }
}

/// A number that tells the calling thread from all others; the same in a forked child.
pub(crate) fn thread_token() -> usize {
    machine::thread_pointer()
}

/// Gives the calling thread a name of at most 15 bytes.
pub(crate) fn name_thread(name: &CStr) {
    let name = name.as_ptr().expose_provenance();
    // SAFETY: a C string.
    unsafe { system_call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name, 0, 0, 0, 0]) };
}

/// The number of the calling process.
pub(crate) fn process_id() -> u32 {
    // SAFETY: has no preconditions.
    unsafe { system_call(libc::SYS_getpid, [0; 6]) as u32 }
}

/// Makes a call about a word that threads sleep on.
fn futex(word: &AtomicU32, operation: i32, value: u32, time: *const libc::timespec) -> isize {
    let operation = (operation | libc::FUTEX_PRIVATE_FLAG) as usize;
    let (at, time) = (word.as_ptr().expose_provenance(), time.expose_provenance());
    // SAFETY: the word and the time outlive the call; the kernel only reads them.
    unsafe { system_call(libc::SYS_futex, [at, operation, value as usize, time, 0, 0]) }
}

/// Sleeps while `*word == expected`, or returns at once if it is not.
pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    futex(word, libc::FUTEX_WAIT, expected, null());
}

/// Sleeps for so long while `*word == expected`, less where the system wants; false if it does not let
/// anybody sleep.
pub(crate) fn wait_for(word: &AtomicU32, expected: u32, ms: usize) -> bool {
    let time = libc::timespec { tv_sec: (ms / 1000) as _, tv_nsec: (ms % 1000 * 1_000_000) as _ };
    let answer = futex(word, libc::FUTEX_WAIT, expected, &raw const time);
    answer == 0 || [libc::ETIMEDOUT, libc::EAGAIN, libc::EINTR].contains(&(-answer as i32))
}

/// Wakes one sleeper on `word`.
#[cold]
#[inline(never)]
pub(crate) fn wake(word: &AtomicU32) {
    futex(word, libc::FUTEX_WAKE, 1, null());
}

/// What the C library takes out of each stack for the program's thread storage, and itself; 0 where it does not say: musl's
/// comes beside the stack.
fn taken_from_stacks() -> usize {
    const UNASKED: usize = usize::MAX;
    // Relaxed: a number is all it is. Asked once: a forked child may not wait for the loader.
    static TAKEN: AtomicUsize = AtomicUsize::new(UNASKED);
    type Least = unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize;
    let mut taken = TAKEN.load(Ordering::Relaxed);
    if taken == UNASKED {
        // SAFETY: glibc's function has this type, and asks the attributes for nothing.
        taken = unsafe {
            let least = libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr());
            let least = core::mem::transmute::<*mut c_void, Option<Least>>(least);
            least.map_or(0, |least| least(null()))
        };
        TAKEN.store(taken, Ordering::Relaxed);
    }
    taken
}

/// Starts a thread that runs `body`, with all signals blocked and a stack of `stack_size` bytes beside what the program's
/// thread storage takes, or of the default size where that does not do. Its `pthread_t`; None if it cannot.
pub fn start_small_thread(
    stack_size: usize,
    body: extern "C" fn(*mut c_void) -> *mut c_void,
) -> Option<usize> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: every pointer is to a local of the right type, and what is read from one has been
    // written by the call before it.
    unsafe {
        if libc::pthread_attr_init(attributes) != 0 {
            return None;
        }
        // Refused where pages are large: then it is the default.
        libc::pthread_attr_setstacksize(attributes, stack_size + taken_from_stacks());
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let mut create = |attributes| {
            libc::pthread_create(thread.as_mut_ptr(), attributes, body, null_mut()) == 0
        };
        // Where nobody says what thread storage takes, it may not fit.
        let started = create(attributes.cast_const()) || create(null());
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
        libc::pthread_attr_destroy(attributes);
        started.then(|| thread.assume_init() as usize)
    }
}

/// Waits until a thread that `start_small_thread` has started has ended; nobody else does.
pub(crate) fn join_thread(thread: usize) {
    // SAFETY: a thread that has been started, and not been joined.
    unsafe { libc::pthread_join(thread as libc::pthread_t, null_mut()) };
}
