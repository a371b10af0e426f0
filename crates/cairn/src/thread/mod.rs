//! Owns: which heap a thread uses, from its first allocation to its last free, and over forks.
//! Idea: a thread without a heap points at an empty stand-in, so that the fast paths never ask.
//! Never: looks inside spans.
//! Threads: each for itself; forks take every lock (see `prepare`).
//! Checked: the process and thread tests of the C layer.
//! Story: docs/fork.md, docs/tls.md

mod slot;

use crate::address_map::{self, HEAP_SIZE, OWNER_HEAP_MIN, OWNER_LARGE};
use crate::block::Block;
use crate::heap::{self, Heap, commons, pool};
use crate::os::{Fork, Lock};
use crate::span::Span;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use crate::{arena, large, orphans, os};
use core::ptr::null_mut;

pub(crate) use slot::{get as heap, owns};

/// A heap with nothing in it that is only ever read. It stands 64 bytes into a page, and so
/// its tag is no real heap's: those stand at multiples of a page.
#[repr(C, align(4096))]
pub(crate) struct StandIn {
    lead: [u8; 64],
    heap: Heap,
}

// SAFETY: never written.
unsafe impl Sync for StandIn {}

const _: () = assert!(core::mem::offset_of!(StandIn, heap) == 64);
const _: () = assert!(HEAP_SIZE.is_multiple_of(4096) && (OWNER_LARGE as usize) < 64);

/// The heap of threads that have none yet.
pub(crate) static EMPTY: StandIn = StandIn { lead: [0; 64], heap: Heap::EMPTY };
/// The heap of threads that have given theirs back.
static GONE: StandIn = StandIn { lead: [1; 64], heap: Heap::EMPTY };

/// Whether the window exists; the lock makes it be made once.
static STARTED: Lock<bool> = Lock::new(false);
/// The key whose destructor tells that a thread leaves, plus 1; 0: none.
static KEY: AtomicU32 = AtomicU32::new(0);
/// Slow visits of a thread before a heap is made for it in a crowd. A heap is a page; each of these
/// visits takes the commons' lock.
const VISITS_WITHOUT: usize = 16;
/// Whether the C library calls us around each fork.
static FORKS_SEEN: AtomicBool = AtomicBool::new(false);

fn is_stand_in(heap: *mut Heap) -> bool {
    !heap.addr().is_multiple_of(HEAP_SIZE)
}

/// The calling thread's heap, made if need be; null if it is new or has given it back, or if there is
/// none.
fn own_heap() -> *mut Heap {
    match slot::get() {
        heap if !is_stand_in(heap) => heap,
        heap if core::ptr::eq(heap, &raw const GONE.heap) => null_mut(),
        _ if is_new() => null_mut(),
        _ => arrive(),
    }
}

/// Whether the calling thread, which has no heap, goes on without one for this slow visit: in a
/// crowd the commons serve the first few if a heap would have to be made. Many threads need no more.
#[cold]
fn is_new() -> bool {
    // Relaxed: the crowd's heaps were taken after the key was made, under the lock that `has_free` takes.
    let key = KEY.load(Ordering::Relaxed);
    // The values of 32 keys are in glibc's descriptor of the thread; for others it allocates.
    if !(1..=32).contains(&key) || pool::in_use() <= pool::CROWD || pool::has_free() {
        return false;
    }
    // SAFETY: the key exists. Its value is a count until it is a heap; `leave` tells them apart.
    unsafe {
        let visits = libc::pthread_getspecific(key - 1).addr();
        let next = core::ptr::without_provenance_mut(visits + 1);
        visits < VISITS_WITHOUT && libc::pthread_setspecific(key - 1, next) == 0
    }
}

/// Refills the calling thread's list of `class` and pops a block; null if there is no memory.
#[cold]
#[inline(never)]
pub(crate) fn refill(class: usize) -> *mut Block {
    let heap = own_heap();
    if heap.is_null() {
        // New, or on its way out, or one thread more than there are heaps; or out of memory.
        return if start() { commons::take(class, 1).head } else { null_mut() };
    }
    // SAFETY: the calling thread's own.
    unsafe { (*heap).refill(class) }
}

/// Gives `block` back to the span at slice `span`, which the calling thread does not hold.
///
/// # Safety
/// As for `Heap::send`.
#[cold]
#[inline(never)]
pub(crate) unsafe fn send(span: usize, size: u32, block: *mut Block, now: bool) {
    let heap = own_heap();
    // SAFETY: the caller's contract; the heap is the calling thread's own.
    unsafe {
        if heap.is_null() {
            heap::send_without_heap(span, block);
        } else {
            (*heap).send(span, size, block, now);
        }
    }
}

/// Sees to it that the window exists, for callers that need no heap.
pub(crate) fn start() -> bool {
    let mut started = STARTED.lock();
    let first = !*started && address_map::init();
    *started |= first;
    let done = *started;
    drop(started);
    if first {
        see_forks();
    }
    done
}

/// Asks to be called around forks, until the C library agrees (it may be out of memory). The first
/// allocation does so; who can be earlier is older than fork handlers of others that allocate.
pub fn see_forks() {
    // Relaxed: it is asked once; the handlers may allocate to register, and no lock is held.
    if !FORKS_SEEN.swap(true, Ordering::Relaxed) {
        // SAFETY: the handlers stay loaded as long as the process.
        let error = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        FORKS_SEEN.store(error == 0, Ordering::Relaxed);
    }
}

/// The key plus 1, made if need be; 0 if the C library has none left.
fn key() -> u32 {
    let _started = STARTED.lock();
    if KEY.load(Ordering::Relaxed) == 0 {
        let mut key = 0;
        // SAFETY: `key` is valid for writing; the destructor stays loaded as long as the process.
        if unsafe { libc::pthread_key_create(&mut key, Some(leave)) } == 0 {
            KEY.store(key + 1, Ordering::Relaxed);
        }
    }
    KEY.load(Ordering::Relaxed)
}

/// Gives the calling thread a heap; null if there is no memory for one, or no way to learn when
/// the thread leaves: its heap would be lost then.
#[cold]
fn arrive() -> *mut Heap {
    if !start() {
        return null_mut();
    }
    see_forks();
    let key = key();
    let heap = match slot::get() {
        // The C library has allocated to register what it was told to.
        heap if !is_stand_in(heap) => return heap,
        _ if key == 0 => return null_mut(),
        _ => pool::take(),
    };
    if heap.is_null() {
        return heap;
    }
    // First the slot: the C library may allocate to store the key.
    slot::set(heap);
    // SAFETY: the key exists.
    let set = || unsafe { libc::pthread_setspecific(key - 1, heap.cast()) };
    if os::keeping_errno(set) != 0 {
        slot::set((&raw const EMPTY.heap).cast_mut());
        // SAFETY: it was the calling thread's, which cannot reach it any more.
        unsafe { pool::put(heap) };
        return null_mut();
    }
    heap
}

/// The calling thread leaves: its heap goes to the pool, its spans to whoever needs them.
/// Frees and allocations of later destructors still work.
extern "C" fn leave(heap: *mut libc::c_void) {
    let heap: *mut Heap = heap.cast();
    let newcomer = heap.addr() <= VISITS_WITHOUT;
    // In a forked child glibc may hand a new thread the values of one that was ending.
    if heap != slot::get() && !newcomer {
        return;
    }
    // A newcomer, too, shall have no heap any more: nobody would take it back.
    slot::set((&raw const GONE.heap).cast_mut());
    if !newcomer {
        // SAFETY: it was the calling thread's, which cannot reach it any more.
        unsafe { pool::put(heap) };
    }
}

/// Gives back what the calling thread holds free.
pub(crate) fn trim() {
    let heap = slot::get();
    if !is_stand_in(heap) {
        // SAFETY: the calling thread's own.
        unsafe { (*heap).abandon() };
    }
    commons::trim();
    orphans::make_holes();
    heap::request_trim();
}

/// Every lock, in the order in which they nest: what they guard is whole in the child.
fn locks(step: Fork) {
    STARTED.at_fork(step);
    commons::at_fork(step);
    pool::at_fork(step);
    orphans::at_fork(step);
    large::at_fork(step);
    arena::at_fork(step);
}

/// Where the C library says that the process has one thread, by a byte that is not 0, as glibc
/// does. Without it a handler that forks may wait for ever for what it has interrupted.
pub static ALONE: AtomicPtr<u8> = AtomicPtr::new(null_mut());

extern "C" fn prepare() {
    // A lock that a lone thread finds taken is its own: a signal's handler forks, which has
    // interrupted the allocator. There is nobody to be kept out.
    let alone = ALONE.load(Ordering::Relaxed);
    // SAFETY: the C library's variable, as `ALONE` promises.
    if !alone.is_null() && unsafe { alone.read_volatile() } != 0 {
        return;
    }
    locks(Fork::Prepare);
    os::set_forking(true);
}

extern "C" fn parent() {
    if os::is_forker() {
        os::set_forking(false);
        locks(Fork::Parent);
    }
}

extern "C" fn child() {
    os::set_forking(false);
    locks(Fork::Child);
    let (mine, common) = (slot::get(), commons::heap());
    if pool::in_use() > usize::from(!is_stand_in(mine)) {
        salvage(mine, common);
    }
}

/// In a forked child: lets go of the spans of threads that do not exist here. Those may have
/// been anywhere in their work, so nothing of theirs is believed but the remote words: blocks
/// that only their lists knew stay lost to the child.
fn salvage(mine: *mut Heap, common: *mut Heap) {
    let keeps = |heap: *mut Heap| heap == mine || heap == common;
    // Null and a stand-in have tags that no span names.
    let tags = [mine, common].map(|heap| Heap::tag(heap));
    orphans::clear();
    for (index, owner, _) in address_map::heads() {
        if owner != OWNER_LARGE && !tags.contains(&owner) {
            // SAFETY: this is the only thread, and the span is none of its heaps'.
            unsafe { salvage_span(address_map::slot(index).cast(), owner < OWNER_HEAP_MIN) };
        }
    }
    pool::reclaim(keeps);
}

/// Lets go of one span; `ownerless`: its descriptors name no heap.
unsafe fn salvage_span(span: *mut Span, ownerless: bool) {
    // SAFETY: the caller's contract makes this thread the holder.
    unsafe {
        let word = (*span).word();
        let held = word.is_held();
        let listed = word.listed_live().is_some();
        if ownerless && !held && !listed {
            return; // full, and nobody's, as before
        }
        let pending = word.seize((*span).base());
        if ownerless && listed {
            // It was whole when it was listed.
            (*span).push_list(pending.head);
        } else {
            (*span).salvage(pending);
        }
        if (*span).used() == 0 || (*span).has_room() && !orphans::leave(span) {
            (*span).empty();
            (*span).release();
        } else if !(*span).has_room() {
            (*span).disown();
            word.orphan();
        }
    }
}
