//! Owns: which heap a thread uses, from its first allocation to its last free, and over forks.
//! Idea: a thread without a heap points at an empty stand-in, so that the fast paths never ask.
//! Never: looks inside spans.
//! Threads: each for itself.
//! Checked: the process and thread tests of the C layer.
//! Story: docs/design/fork.md, docs/design/tls.md

mod counting;
mod deferred_calls;
mod fork;
pub(crate) mod low_memory;
pub(crate) mod pool;
pub(crate) mod purge;
pub(crate) mod search;
mod shortage;
mod tls;
pub(crate) mod tuning;

use crate::base::{AtomicU32, Ordering, SizeClass, shares};
use crate::heap::{self, COUNTING, EMPTY, GONE, Heap};
use crate::map::{Block, Chain, Generation, HEAP_SIZE, address_map, region};
use crate::os::Lock;
use crate::samples::{Draw, Told, guards, profile, sampling};
use crate::spans::{abandoned, waiting};
use crate::thread::pool::{salvage, shared};
use crate::thread::tuning::{CROWD, TICKS_WITHOUT_HEAP};
use crate::{os, slices::reservation};
use core::ffi::c_void;
use core::ptr::null_mut;

pub use counting::{count, thread_counts, thread_counts_place};
pub(crate) use counting::{is_counting, note};
pub use deferred_calls::on_deferred_free;
use deferred_calls::retry;
pub(crate) use deferred_calls::{defer, defer_in_need, refill_or_force};
pub use fork::see_forks;
pub use low_memory::LowMemory;
pub use purge::{has_purge_thread, start_purge_thread};
pub use shortage::{on_low_memory, set_memory_limits};
pub(crate) use shortage::{retry as retry_in_shortage, tell as tell_of_shortage};
pub(crate) use tls::get as heap;

/// The reservation is made once.
pub(crate) static STARTED: Lock<()> = Lock::new(());
/// The key whose destructor tells that a thread leaves, plus 1; 0: none.
static KEY: AtomicU32 = AtomicU32::new(0);

fn is_stand_in(heap: *mut Heap) -> bool {
    !heap.addr().is_multiple_of(HEAP_SIZE)
}

/// The calling thread's heap, made if need be; null if it is new or has given it back, or if there is
/// none.
#[inline(always)]
fn own_heap() -> *mut Heap {
    match tls::get() {
        heap if !is_stand_in(heap) => heap,
        heap => heap_instead_of(heap),
    }
}

#[cold]
#[inline(never)]
fn heap_instead_of(stand_in: *mut Heap) -> *mut Heap {
    if stand_in == COUNTING.heap() {
        return counting::heap_behind();
    }
    if is_gone() || is_new() { null_mut() } else { arrive() }
}

/// Whether the calling thread has no heap, and gets none.
fn is_gone() -> bool {
    tls::get() == GONE.heap()
}

/// Gives the calling thread a heap, unless it has given one back.
#[cold]
#[inline(never)]
fn arrive_unless_gone() -> *mut Heap {
    if is_gone() { null_mut() } else { arrive() }
}

/// Calls the C library, which may allocate in there, and so may whoever stands before it in the symbol table. A thread
/// without a heap gets none meanwhile: else it would come here again, and again.
fn outside<T>(call: impl FnOnce() -> T) -> T {
    let before = tls::get();
    if is_stand_in(before) {
        tls::set(GONE.heap());
    }
    let answer = call();
    if is_stand_in(before) {
        tls::set(before);
    }
    answer
}

/// Whether the calling thread, which has no heap, goes on without one for this slow tick: in a
/// crowd the shared heap serve the first few if a heap would have to be made. Many threads need no more.
#[cold]
fn is_new() -> bool {
    // Before the pool's lock: this thread may be a forked child's, in which handlers of others run first.
    os::notice_fork();
    shares::in_use() > CROWD && !pool::has_free() && is_among_first()
}

/// Counts a slow tick, or a free to another thread, of the calling thread, which has no heap; whether it is one of the first few.
#[cold]
#[inline(never)]
fn is_among_first() -> bool {
    // Acquire: pairs with `key`.
    let key = KEY.load(Ordering::Acquire);
    if !(1..=os::STATIC_KEYS).contains(&key) {
        return false;
    }
    // The value is a count until it is a heap; `leave` tells them apart.
    outside(|| {
        let slow_ticks = os::thread_value(key - 1).addr();
        let next = core::ptr::without_provenance(slow_ticks + 1);
        slow_ticks < TICKS_WITHOUT_HEAP && os::set_thread_value(key - 1, next)
    })
}

/// Refills the calling thread's list of `class` and pops a block; null if there is no memory.
#[inline(always)]
pub(crate) fn refill(class: SizeClass) -> *mut Block {
    let heap = tls::get();
    if is_stand_in(heap) {
        return refill_instead_of(heap, class);
    }
    // SAFETY: the calling thread's own.
    unsafe { refill_own(heap, class) }
}

#[cold]
#[inline(never)]
fn refill_instead_of(stand_in: *mut Heap, class: SizeClass) -> *mut Block {
    match heap_instead_of(stand_in) {
        heap if heap.is_null() => match take_without_heap(class) {
            // SAFETY: there is none.
            block if block.is_null() => unsafe { shortage::refill(heap, class) },
            block => block,
        },
        // SAFETY: the calling thread's own.
        heap if is_counting() => unsafe { counting::refill(heap, class) },
        // There may be blocks: what arriving has called may have allocated.
        // SAFETY: as above.
        heap => unsafe {
            let block = retry(heap, class);
            if block.is_null() { shortage::refill(heap, class) } else { block }
        },
    }
}

/// # Safety
/// The heap is the calling thread's own.
#[inline(always)]
unsafe fn refill_own(heap: *mut Heap, class: SizeClass) -> *mut Block {
    // SAFETY: as above.
    unsafe {
        let block = refill_once(heap, class);
        if block.is_null() { shortage::refill(heap, class) } else { block }
    }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn refill_once(heap: *mut Heap, class: SizeClass) -> *mut Block {
    // SAFETY: the calling thread's own.
    unsafe {
        let block = (*heap).serve_freed(class);
        if !block.is_null() {
            return block;
        }
        if (*heap).asks_shared(class) {
            let block = shared::refill(&mut *heap, class);
            if !block.is_null() {
                return block;
            }
        }
        (*heap).refill(class)
    }
}

/// A block for a thread that is new, or on its way out, or one more than there are heaps; null if there is no
/// memory.
#[cold]
#[inline(never)]
fn take_without_heap(class: SizeClass) -> *mut Block {
    if start() { shared::unlisted(shared::take(class, 1)) } else { null_mut() }
}

/// Gives `block` back to the span at slice `span`, which the calling thread does not hold.
///
/// # Safety
/// As for `Heap::send`.
#[cold]
#[inline(never)]
pub(crate) unsafe fn send(span: usize, size: u32, block: *mut Block) {
    os::notice_fork();
    // A thread whose destructors have run ends without a word to us, and the C library frees as the last act of a detached one
    // what others have allocated for it. A heap for that would be lost.
    let is_first = tls::get() == EMPTY.heap() && is_among_first();
    let heap = if is_first { null_mut() } else { own_heap() };
    // SAFETY: the block is the caller's to free; the heap is the calling thread's own.
    unsafe {
        if heap.is_null() {
            heap::send_without_heap(span, Chain::one(block), None);
        } else if !(is_counting() && counting::free(heap, block, size)) {
            (*heap).send(span, size, block);
        }
    }
}

/// The calling thread's heap, if it has one.
pub(crate) fn own() -> Option<*mut Heap> {
    let heap = if is_counting() { counting::heap_behind() } else { tls::get() };
    Some(heap).filter(|&heap| !heap.is_null() && !is_stand_in(heap))
}

/// The calling thread's number, which no other thread has had or will have; None if it has no heap.
pub(crate) fn number() -> Option<usize> {
    let heap = own_heap();
    // SAFETY: the calling thread's own.
    (!heap.is_null()).then(|| unsafe { (*heap).thread })
}

/// The same of a thread that begins to use a heap of the program's: one that has no heap gets it, in a crowd too. By that
/// heap a forked child knows that it does not have the thread, wherever in its work that was.
pub(crate) fn number_of_user() -> Option<usize> {
    let heap = own().unwrap_or_else(arrive_unless_gone);
    // SAFETY: the calling thread's own.
    (!heap.is_null()).then(|| unsafe { (*heap).thread })
}

/// Calls `call` with the calling thread's heap. A thread that has none gets one: for good if it is new, else for this call,
/// as one like a late destructor's does that has given its own back. Null if there is no memory for one.
pub(crate) fn with_heap<R>(call: impl FnOnce(*mut Heap) -> R) -> R {
    os::notice_fork();
    let own = own().unwrap_or_else(arrive_unless_gone);
    if !own.is_null() {
        return call(own);
    }
    let before = tls::get();
    let lent = lend();
    let result = call(lent);
    take_back(lent, before);
    result
}

/// Makes a heap the calling thread's; null if there is no memory for one.
#[cold]
#[inline(never)]
fn lend() -> *mut Heap {
    let heap = if start() { pool::lend() } else { null_mut() };
    if !heap.is_null() {
        tls::set(heap);
    }
    heap
}

/// Takes it from the thread, which had `before`.
fn take_back(heap: *mut Heap, before: *mut Heap) {
    if !heap.is_null() {
        tls::set(before);
        // SAFETY: it was the calling thread's, which cannot reach it any more.
        unsafe { pool::put(heap) };
    }
}

/// Gives a block of a closed heap back to its span, if that is still the one of the generation.
///
/// # Safety
/// As for `Heap::push`.
pub(crate) unsafe fn send_closed(index: usize, block: *mut Block, meant: Generation) {
    os::notice_fork();
    let heap = own_heap();
    // SAFETY: the block is the caller's to free; the heap is the calling thread's own.
    unsafe {
        if heap.is_null() {
            heap::send_without_heap(index, Chain::one(block), Some(meant));
        } else {
            let _inside = (*heap).presence.enter();
            (*heap).push(index, Chain::one(block), Some(meant));
        }
    }
}

/// Sees to it that the reservation exists, for callers that need no heap.
#[inline]
pub(crate) fn start() -> bool {
    address_map::exists() || make_reservation()
}

#[cold]
fn make_reservation() -> bool {
    // Not under the lock: the C library is asked.
    os::page_size();
    let started = STARTED.lock();
    let early = os::early_address_space();
    if early > 0 {
        reservation::set_address_space(early);
    }
    let made = !address_map::exists() && reservation::init();
    drop(started);
    if made {
        see_forks();
    }
    address_map::exists()
}

/// The key plus 1, made if need be; 0 if the C library has none left. No lock is held while it is made.
fn key() -> u32 {
    // Acquire, and Release below: who finds the key finds it made.
    let known = KEY.load(Ordering::Acquire);
    if known != 0 {
        return known;
    }
    let Some(made) = outside(|| os::thread_key(leave)) else { return 0 };
    let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
    KEY.compare_exchange(0, made + 1, success, failure).map_or_else(
        |others| {
            outside(|| os::drop_thread_key(made));
            others
        },
        |_| made + 1,
    )
}

/// Gives the calling thread a heap; null if there is no memory for one, or no way to learn when
/// the thread leaves: its heap would be lost then.
#[cold]
fn arrive() -> *mut Heap {
    os::notice_fork();
    if !start() {
        return null_mut();
    }
    see_forks();
    let key = key();
    // The heaps of threads that a fork has left behind are as good as new ones.
    salvage::all();
    let heap = if key == 0 { null_mut() } else { pool::take() };
    if heap.is_null() {
        return heap;
    }
    if !outside(|| os::set_thread_value(key - 1, heap.cast())) {
        // SAFETY: it would have been the calling thread's, which has not used it.
        unsafe { pool::put(heap) };
        return null_mut();
    }
    tls::set(heap);
    heap
}

/// The calling thread leaves: its heap goes to the pool, its spans to whoever needs them.
/// Frees and allocations of later destructors still work.
extern "C" fn leave(heap: *mut c_void) {
    let heap: *mut Heap = heap.cast();
    let newcomer = heap.addr() <= TICKS_WITHOUT_HEAP;
    // In a forked child glibc may hand a new thread the values of one that was ending.
    if heap != tls::get() && !is_counting() && !newcomer {
        return;
    }
    // In a function of the program's, perhaps, which an allocation has called.
    low_memory::leave();
    region::leave();
    // A newcomer, too, shall have no heap any more: nobody would take it back.
    tls::set(GONE.heap());
    if !newcomer {
        // SAFETY: it was the calling thread's, which cannot reach it any more.
        unsafe { pool::put(heap) };
    }
}

/// Gives back what the calling thread holds free, and has others do so by the notice.
pub(crate) fn trim(notify: fn()) {
    os::notice_fork();
    if let Some(heap) = own() {
        // SAFETY: the calling thread's own.
        unsafe {
            pool::partitions::put_all(heap);
            pool::partitions::give_back(heap);
            (*heap).abandon_all();
            (*heap).spares.give();
        }
    }
    salvage::all();
    pool::let_go_of_others();
    shared::trim();
    abandoned::make_holes();
    waiting::sweep_after_others();
    pool::left::collect();
    notify();
}

/// Says that the calling thread is going to wait: its cached blocks, its frees under way to others, its spans and the
/// large block that it keeps go to where others find them, and what is empty of them goes back to the system by time
/// (docs/guide/memory.md), or by the next `purge`. It does not ask other threads for anything. What the thread does
/// next just works: its spans are anybody's, it takes the first that it needs, and the caches fill as in a new thread.
///
/// ```
/// drop(vec![1; 1000]);
/// cairn::thread_idle();
/// ```
pub fn thread_idle() {
    os::notice_fork();
    if let Some(heap) = own() {
        // SAFETY: the calling thread's own.
        unsafe {
            pool::partitions::put_all(heap);
            (*heap).abandon_all();
        }
    }
    pool::tick();
}

/// Has `told` called with one allocation in every `bytes` that each thread allocates in blocks of up to
/// 64 KiB, by their block sizes: the one in which the count runs out. 0 bytes end that.
///
/// The calling thread follows at once, others at their next slow tick, and new ones from their first
/// allocation with a heap of their own on. While it is on, what a thread frees is not kept for its next allocation, so that
/// none is counted twice or left out. `told` gets the block and its size in bytes; it runs on the thread
/// that allocates, and must not allocate, free or panic. A profiler is built on this (docs/design/upkeep.md).
///
/// There is one user of it: a later call, or `guard_every`, takes it over.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// static SAMPLES: AtomicUsize = AtomicUsize::new(0);
/// let told = |_block, _bytes| _ = SAMPLES.fetch_add(1, Ordering::Relaxed);
/// cairn::sample_every(1000, told);
/// let blocks: Vec<_> = (0..1000).map(|_| cairn::allocate(100)).collect();
/// cairn::sample_every(0, told);
/// println!("{} of 1,000", SAMPLES.load(Ordering::Relaxed));
/// # blocks.into_iter().for_each(|block| unsafe { cairn::deallocate(block) });
/// ```
pub fn sample_every(bytes: usize, told: Told) {
    sampling::set(bytes, Draw::Each, told, None);
    os::notify_all();
    follow_sampling();
}

/// Places one allocation in every `bytes` against an inaccessible page, and keeps it inaccessible for a while when
/// it is freed: an access that must not be ends with a report on standard error (docs/guide/guards.md). 0 bytes end
/// that; what is guarded stays so until it is freed. It draws as `sample_every` does, in its place. False if there is no memory for it.
///
/// ```
/// assert!(cairn::guard_every(10 << 20));
/// cairn::guard_every(0);
/// ```
pub fn guard_every(bytes: usize) -> bool {
    let done = guards::set(bytes);
    follow_sampling();
    done
}

/// Takes a sample of every `bytes` that are allocated, on average, for the heap profile: 512 KiB serve well. 0 bytes end
/// that; what has been sampled stays known, and is noticed when it is freed. `write_profile` tells of it.
///
/// Each byte is as likely as any other to be in a sample, whichever thread allocates it. Blocks of the program's heaps are not
/// in it, nor what a thread allocates that counts. A sampled block of up to 64 KiB takes 16 KiB at least. It draws as
/// `sample_every` does, in its place. False if there is no memory for it.
///
/// ```
/// assert!(cairn::profile_every(512 << 10));
/// cairn::profile_every(0);
/// ```
pub fn profile_every(bytes: usize) -> bool {
    let done = profile::set(bytes);
    follow_sampling();
    done
}

fn follow_sampling() {
    if let Some(heap) = own() {
        // SAFETY: the calling thread's own.
        unsafe { (*heap).follow_sampling() };
    }
}
