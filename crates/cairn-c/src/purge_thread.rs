//! The one thread that the library may have, if `CAIRN_PURGE_THREAD=1` asks for it: it lets time
//! pass where nobody allocates, and gives back before the process's memory cgroup is full.
//! docs/giving-back.md says what it changes for a program.

use crate::cgroup::Group;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// A few small frames, and what the C library puts there: thread storage, and the frame of the
/// signal by which it changes the user of all threads.
const STACK_SIZE: usize = 64 << 10;
/// Between two batches, so that other threads come to the locks.
const PAUSE_MS: usize = 1;
/// The clock that upkeep reads lags behind by so much at most: less, and every other tick
/// would find itself too early.
const LAG_MS: usize = 10;
/// A group is near its limit when it has less than this part of it left.
const NEAR: u64 = 8;
/// How fast the room in a group may go, in bytes a millisecond (2 GiB/s): so long the thread may
/// sleep, but not less than `LOOK_MS`.
const FILL: u64 = 2 << 20;
const LOOK_MS: usize = 5;
/// Bytes: where giving back all there is brings less, the next look is `REST` times as far. Each
/// one goes through all that nobody holds, and asks all threads.
const WORTHWHILE: usize = 1 << 20;
const REST: usize = 10;

/// What the thread sleeps on. 1: it shall end.
static ENDING: AtomicU32 = AtomicU32::new(0);
/// The thread; 0: there is none.
static THREAD: AtomicUsize = AtomicUsize::new(0);
/// Its destructor tells that the thread which has started ours leaves.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Starts the thread, in this process and in every child that it forks; false if it cannot.
pub(crate) fn begin() -> bool {
    let mut key = 0;
    // SAFETY: `key` is valid for writing; the handlers stay loaded as long as the process. Handlers
    // in the child run in the order in which they were registered: the allocator's before ours.
    unsafe {
        if libc::pthread_key_create(&mut key, Some(end)) != 0 {
            return false;
        }
        KEY.store(key, Ordering::Relaxed);
        libc::pthread_atfork(None, None, Some(begin_in_child)) == 0 && start()
    }
}

extern "C" fn begin_in_child() {
    // The parent's is not here, and the thread that forks is the first one. Without memory for
    // another the child goes on without.
    start();
}

/// Starts the thread. All signals are blocked in it: they are the program's.
fn start() -> bool {
    ENDING.store(0, Ordering::Relaxed);
    THREAD.store(0, Ordering::Relaxed);
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: the key exists; every pointer is to a local of the right type, and what is read
    // from one has been written by the call before it.
    unsafe {
        // Any value but null. First, because the thread must not be without who ends it.
        let key = KEY.load(Ordering::Relaxed);
        if libc::pthread_setspecific(key, (&raw const ENDING).cast()) != 0 {
            return false;
        }
        if libc::pthread_attr_init(attributes) != 0 {
            return false;
        }
        // Refused where pages are large: then it is the default.
        libc::pthread_attr_setstacksize(attributes, STACK_SIZE);
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let mut create = |attributes| {
            libc::pthread_create(thread.as_mut_ptr(), attributes, run, null_mut()) == 0
        };
        // The program's thread storage may not fit into so small a stack.
        let started = create(attributes.cast_const()) || create(null());
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
        libc::pthread_attr_destroy(attributes);
        if started {
            THREAD.store(thread.assume_init() as usize, Ordering::Relaxed);
        }
        started
    }
}

/// The thread that has started ours leaves; the process goes on without both. Waiting for it makes
/// the C library see its own last thread, with which it ends the process.
extern "C" fn end(_: *mut c_void) {
    let thread = THREAD.swap(0, Ordering::Relaxed);
    if thread == 0 {
        return;
    }
    ENDING.store(1, Ordering::Relaxed);
    // SAFETY: the word is a static; the thread is joined by nobody else.
    unsafe {
        let flags = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, ENDING.as_ptr(), flags, 1);
        libc::pthread_join(thread as libc::pthread_t, null_mut());
    }
}

/// The thread's body. Nothing in here allocates.
extern "C" fn run(_: *mut c_void) -> *mut c_void {
    // SAFETY: a C string of less than 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"cairn-purge".as_ptr()) };
    let group = Group::find();
    while ENDING.load(Ordering::Relaxed) == 0 {
        let more = cairn::tick();
        let ms = if more { PAUSE_MS } else { cairn::purge_delay_ms().saturating_add(LAG_MS) };
        if !sleep(ms.min(group.as_ref().map_or(usize::MAX, relieve))) {
            break;
        }
    }
    null_mut()
}

/// Gives back all there is if the group is near its limit; how long it cannot be full after that, in
/// milliseconds.
fn relieve(group: &Group) -> usize {
    let Some((used, limit)) = group.used_and_limit() else { return usize::MAX };
    let left = limit.saturating_sub(used);
    let in_vain = left < limit / NEAR && cairn::purge() < WORTHWHILE;
    let least = if in_vain { LOOK_MS * REST } else { LOOK_MS };
    usize::try_from(left / FILL).unwrap_or(usize::MAX).max(least)
}

/// Sleeps for so long, or until the thread shall end. False if the system does not let it.
fn sleep(ms: usize) -> bool {
    let time = libc::timespec { tv_sec: (ms / 1000) as _, tv_nsec: (ms % 1000 * 1_000_000) as _ };
    let flags = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is a static, the time a local; errno's location is the thread's.
    unsafe {
        libc::syscall(libc::SYS_futex, ENDING.as_ptr(), flags, 0, &time) == 0
            || [libc::ETIMEDOUT, libc::EAGAIN, libc::EINTR].contains(&*libc::__errno_location())
    }
}
