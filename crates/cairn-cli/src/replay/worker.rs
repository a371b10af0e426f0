//! Inside the process that replays: a trace's calls, by as many threads as made them.
//!
//! Owns the replay's threads. The one idea: the allocator is whatever library the process has been started with, and
//! nothing here allocates, so that all that it does is the trace's. It must never run far ahead with one thread: what
//! lives at once would not be what lived at once.
//!
//! The first thread of a trace is the process's first one, which some allocators treat otherwise. A call waits for those
//! of the same slot that come before it, and for threads that are [`DRIFT`] calls behind. The one that stands first of
//! all waits for nobody.

use super::window::{Lane, Memory, Op, Slot, kind};
use rustix::thread::sched_yield;
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::fs::File;
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The first word of this process's command line.
pub(crate) const WORD: &CStr = c"replay-calls";

/// How many calls of others a thread may be ahead.
const DRIFT: u32 = 16 << 10;
/// A position behind all calls.
const BEHIND: u32 = u32::MAX;
/// How often a thread says where it is.
const TELL: usize = 64;
/// A byte is touched in each.
const PAGE: u64 = 4096;
/// The first one, of a thread that waits for others.
const PAUSE: Duration = Duration::from_micros(16);
const STACK_BYTES: usize = 128 << 10;

/// Has the process replay a window; anything else, or nothing, ends it.
pub(super) const GO: u8 = b'g';
/// Says that it has, or that it waits for the first.
pub(super) const DONE: u8 = b'd';

static MEMORY: OnceLock<Memory> = OnceLock::new();
/// How many windows have begun, and who waits for the next.
static ROUND: Mutex<u32> = Mutex::new(0);
static BEGUN: Condvar = Condvar::new();
/// Threads that are not through with theirs.
static LEFT: Mutex<u32> = Mutex::new(0);
static THROUGH: Condvar = Condvar::new();
static FAILED: AtomicU64 = AtomicU64::new(0);

/// Replays what the process at the other end of standard input and output puts into this file.
pub(crate) fn run(path: &CStr) -> c_int {
    // SAFETY: it has no preconditions. Nobody else would end this process.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let Ok(memory) = Memory::open(Path::new(OsStr::from_bytes(path.to_bytes()))) else { return 1 };
    let memory = MEMORY.get_or_init(|| memory);
    tell_library(memory);
    let (before, began) = (Resident::now(), usage());
    let mut nanoseconds = 0;
    // Without the buffers of `std::io::stdin`, which would be the first blocks of the allocator.
    // SAFETY: whoever has started this process has made both, and neither is closed here.
    let streams = [0, 1].map(|stream| unsafe { File::from_raw_fd(stream) }).map(ManuallyDrop::new);
    let [mut input, mut output] = streams;
    let mut word = [0];
    if output.write_all(&[DONE]).is_err() {
        return 1;
    }
    while input.read_exact(&mut word).is_ok() && word[0] == GO {
        let start = Instant::now();
        play_window(memory);
        nanoseconds += start.elapsed().as_nanos() as u64;
        if output.write_all(&[DONE]).is_err() {
            return 1;
        }
    }
    let (after, ended) = (Resident::now(), usage());
    let told = memory.told();
    let grown = after.peak.saturating_sub(before.all);
    for (place, value) in [
        (&told.nanoseconds, nanoseconds),
        (&told.processor_microseconds, ended.0 - began.0),
        (&told.faults, ended.1 - began.1),
        (&told.peak, before.anonymous + grown),
        (&told.end, after.anonymous),
        (&told.failed, FAILED.load(Ordering::Relaxed)),
    ] {
        place.store(value, Ordering::Relaxed);
    }
    // The other process sees that this one has ended.
    let _ = output.write_all(&[DONE]);
    // SAFETY: it has no preconditions. What the allocator would say at exit, nobody has asked for.
    unsafe { libc::_exit(0) }
}

/// Says which library has malloc.
fn tell_library(memory: &Memory) {
    let mut found = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: the name is a C string; what is found is a name that the loader keeps.
    let name = unsafe {
        let malloc = libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr());
        if libc::dladdr(malloc, &raw mut found) == 0 || found.dli_fname.is_null() {
            return;
        }
        CStr::from_ptr(found.dli_fname)
    };
    for (place, bytes) in memory.told().library.iter().zip(name.to_bytes().chunks(4)) {
        let mut word = [0; 4];
        word[..bytes.len()].copy_from_slice(bytes);
        place.store(u32::from_ne_bytes(word), Ordering::Relaxed);
    }
}

/// Bytes that are resident.
struct Resident {
    all: u64,
    anonymous: u64,
    peak: u64,
}

impl Resident {
    fn now() -> Self {
        let (mut buffer, mut length) = ([0; 4096], 0);
        if let Ok(mut file) = File::open("/proc/self/status") {
            while let Ok(more @ 1..) = file.read(&mut buffer[length..]) {
                length += more;
            }
        }
        let text = str::from_utf8(&buffer[..length]).unwrap_or_default();
        let field = |name| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
        };
        Self { all: field("VmRSS:"), anonymous: field("RssAnon:"), peak: field("VmHWM:") }
    }
}

/// Microseconds of the processor, and page faults.
fn usage() -> (u64, u64) {
    // SAFETY: it fills what it is given, of which all zeros are a value.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let time = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    (time(usage.ru_utime) + time(usage.ru_stime), usage.ru_minflt as u64)
}

/// One window, by all threads.
fn play_window(memory: &Memory) {
    let window = {
        let round = lock(&ROUND);
        *round as usize % 2
    };
    let mut busy = 0;
    for lane in memory.lanes() {
        let first = ops(memory, lane, window).first();
        lane.position.store(first.map_or(BEHIND, |op| op.index), Ordering::Relaxed);
        busy += u32::from(first.is_some());
    }
    *lock(&LEFT) = busy;
    *lock(&ROUND) += 1;
    BEGUN.notify_all();
    for (at, lane) in memory.lanes().iter().enumerate().skip(1) {
        let is_empty = ops(memory, lane, window).is_empty();
        if !is_empty && lane.is_taken.swap(1, Ordering::Relaxed) == 0 {
            begin_thread(at, 0);
        }
    }
    if !ops(memory, &memory.lanes()[0], window).is_empty() {
        // This thread goes on as the next one.
        let mut from = 0;
        while let Some(next) = play(memory, 0, window, from) {
            from = next;
        }
        leave(&memory.lanes()[0]);
    }
    let mut left = lock(&LEFT);
    while *left > 0 {
        left = THROUGH.wait(left).unwrap_or_else(PoisonError::into_inner);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ops<'a>(memory: &'a Memory, lane: &Lane, window: usize) -> &'a [Op] {
    let (first, count) = &lane.calls[window];
    let first = first.load(Ordering::Relaxed) as usize;
    // SAFETY: while it is replayed, the other process writes the other window alone.
    let all = unsafe { memory.ops(window) };
    &all[first..first + count.load(Ordering::Relaxed) as usize]
}

/// A thread is through with its window.
fn leave(lane: &Lane) {
    lane.position.store(BEHIND, Ordering::Relaxed);
    let mut left = lock(&LEFT);
    *left -= 1;
    if *left == 0 {
        THROUGH.notify_one();
    }
}

/// A thread for a lane, from this call of its in the present window on.
fn begin_thread(lane: usize, from: usize) {
    let told = ptr::without_provenance_mut(lane << 32 | from);
    // SAFETY: the attributes are made and unmade here; the thread gets what it expects.
    let failed = unsafe {
        let mut attributes = std::mem::zeroed();
        let mut thread = std::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstacksize(&raw mut attributes, STACK_BYTES);
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let failed = libc::pthread_create(&raw mut thread, &raw const attributes, begun, told);
        libc::pthread_attr_destroy(&raw mut attributes);
        failed
    };
    if failed != 0 {
        crate::say("the replay cannot start a thread");
        // SAFETY: it has no preconditions.
        unsafe { libc::_exit(1) }
    }
}

extern "C" fn begun(told: *mut c_void) -> *mut c_void {
    let (lane, mut from) = (told.addr() >> 32, told.addr() & 0xffff_ffff);
    let Some(memory) = MEMORY.get() else { return ptr::null_mut() };
    let mut round = *lock(&ROUND);
    loop {
        let window = (round as usize + 1) % 2;
        let (own, is_last) = (&memory.lanes()[lane], |next| {
            next == ops(memory, &memory.lanes()[lane], window).len()
        });
        match play(memory, lane, window, from) {
            // The lane's next thread begins in a later window, or now.
            Some(next) if is_last(next) => {
                own.is_taken.store(0, Ordering::Relaxed);
                leave(own);
                return ptr::null_mut();
            }
            Some(next) => {
                begin_thread(lane, next);
                return ptr::null_mut();
            }
            None => leave(own),
        }
        from = 0;
        round = next_round(memory, own, round);
    }
}

/// Waits for a round in which the lane has calls.
fn next_round(memory: &Memory, lane: &Lane, last: u32) -> u32 {
    let mut round = lock(&ROUND);
    loop {
        let window = (*round as usize + 1) % 2;
        if *round != last && !ops(memory, lane, window).is_empty() {
            return *round;
        }
        round = BEGUN.wait(round).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Replays a lane's calls from one on, to the end of the window or of the thread: then it says which is the next.
fn play(memory: &Memory, lane: usize, window: usize, from: usize) -> Option<usize> {
    let own = &memory.lanes()[lane];
    let slots = memory.slots();
    // Up to which call it need not look at the others.
    let mut bound = if memory.lanes().len() == 1 { BEHIND } else { 0 };
    for (at, op) in ops(memory, own, window).iter().enumerate().skip(from) {
        if at.is_multiple_of(TELL) {
            own.position.store(op.index, Ordering::Relaxed);
        }
        if op.index >= bound {
            bound = wait_for_others(memory, lane, op.index);
        }
        if op.kind == kind::END {
            own.position.store(op.index, Ordering::Relaxed);
            return Some(at + 1);
        }
        let slot = &slots[op.slot as usize];
        if slot.version.load(Ordering::Acquire) != op.version {
            wait_for_slot(own, slot, op);
        }
        call(slot, op);
    }
    None
}

/// Returns up to which call this thread may go.
fn wait_for_others(memory: &Memory, lane: usize, index: u32) -> u32 {
    memory.lanes()[lane].position.store(index, Ordering::Relaxed);
    let mut waited = 0;
    loop {
        let others = memory.lanes().iter().enumerate().filter(|(other, _)| *other != lane);
        let least = others.map(|(_, lane)| lane.position.load(Ordering::Relaxed)).min();
        let bound = least.unwrap_or(BEHIND).saturating_add(DRIFT);
        if index < bound {
            return bound;
        }
        pause(&mut waited);
    }
}

#[cold]
fn wait_for_slot(own: &Lane, slot: &Slot, op: &Op) {
    // Exactly: others may wait for this thread.
    own.position.store(op.index, Ordering::Relaxed);
    let mut waited = 0;
    while slot.version.load(Ordering::Acquire) != op.version {
        pause(&mut waited);
    }
}

fn pause(waited: &mut u32) {
    *waited += 1;
    match *waited {
        0..64 => std::hint::spin_loop(),
        64..256 => sched_yield(),
        // Up to a millisecond: there may be many who wait, and few processors.
        _ => std::thread::sleep(PAUSE * (1 << ((*waited - 256) / 8).min(6))),
    }
}

/// The call itself, and what a program does with a block: it writes to each page, and reads before it frees.
fn call(slot: &Slot, op: &Op) {
    let block: *mut c_void =
        ptr::with_exposed_provenance_mut(slot.block.load(Ordering::Relaxed) as usize);
    let size = slot.size.load(Ordering::Relaxed);
    let next = op.version.wrapping_add(1);
    if op.kind == kind::FREE {
        // The slot is another block's from here on.
        slot.version.store(next, Ordering::Release);
        read(block, size);
        // SAFETY: a block of this slot's, which this call gives up; or null.
        unsafe { libc::free(block) };
        return;
    }
    let wanted = op.size as usize;
    // SAFETY: any size may be asked for; what is resized is this slot's block, or null.
    let made = unsafe {
        match op.kind {
            kind::MALLOC => libc::malloc(wanted),
            kind::CALLOC => libc::calloc(1, wanted),
            kind::REALLOC => libc::realloc(block, wanted.max(1)),
            _ => {
                let mut aligned = ptr::null_mut();
                let align = (1_usize << op.align_log2).max(size_of::<usize>());
                libc::posix_memalign(&raw mut aligned, align, wanted);
                aligned
            }
        }
    };
    if made.is_null() {
        FAILED.fetch_add(1, Ordering::Relaxed);
        // A block that could not be resized is as it was.
        if op.kind != kind::REALLOC {
            set(slot, 0, 0);
        }
    } else {
        // What was there before, realloc has copied.
        let old = if op.kind == kind::REALLOC { size.min(op.size) } else { 0 };
        write(made, old, op.size);
        set(slot, made.expose_provenance() as u64, op.size);
    }
    slot.version.store(next, Ordering::Release);
}

fn set(slot: &Slot, block: u64, size: u64) {
    slot.block.store(block, Ordering::Relaxed);
    slot.size.store(size, Ordering::Relaxed);
}

/// Writes a byte to each page from one byte of a block on.
fn write(block: *mut c_void, from: u64, size: u64) {
    let mut at = from;
    while at < size {
        // SAFETY: inside the block.
        unsafe { block.cast::<u8>().add(at as usize).write_volatile(1) };
        at += PAGE;
    }
}

/// Reads a byte of each page of a block.
fn read(block: *mut c_void, size: u64) {
    let mut at = 0;
    while at < size && !block.is_null() {
        // SAFETY: inside the block, to which this has been written.
        unsafe { block.cast::<u8>().add(at as usize).read_volatile() };
        at += PAGE;
    }
}
