//! Owns: which heaps there are: those of threads, the shared one, and those that a fork has left behind.
//! Idea: a heap is made once, used by one thread after another, and never unmapped. A thread that comes takes
//!   the heap that one that left has warmed.
//! Never: looks inside a heap that a thread uses.
//! Threads: any; one lock.
//! Checked: thread churn, idle thread and fork tests.
//! Story: docs/design/tls.md, docs/design/fork.md

mod bury;
pub(crate) mod left;
pub(crate) mod partitions;
pub(crate) mod salvage;
pub(crate) mod shared;

use crate::base::shares::{in_use, one_less, one_more};
use crate::base::{
    AtomicBool, AtomicU32, AtomicUsize, LEFT_BEHIND, Ordering, PARTITIONS, Stack, fence,
    in_hardened, point, shares,
};
use crate::heap::process_upkeep::{set_besides, strike};
use crate::heap::{Handle, Heap, MADE, Member, Role, handle};
use crate::map::{address_map, region};
use crate::os::{self, Lock, Presence};
use crate::slices::{arena, reservation};
use core::ptr::null_mut;

/// What the lock guards.
pub(crate) struct Pool {
    free: Stack<Heap>,
    made: usize,
}

impl Pool {
    /// # Safety
    /// Nobody uses the heap, and it is not there.
    unsafe fn take_in(&mut self, heap: *mut Heap) {
        // SAFETY: the caller's.
        unsafe { self.free.push(heap) };
        TAKEN.store(TAKEN.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }
}

pub(crate) static POOL: Lock<Pool> = Lock::new(Pool { free: Stack::EMPTY, made: 0 });
/// How many forks have led to this process. A heap in use that carries another number is dead: its
/// thread is not here. Relaxed: it changes while there is one thread.
static EPOCH: AtomicU32 = AtomicU32::new(0);
/// How many threads have had a heap. Relaxed: a number is all it is.
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// How many heaps are not in the pool. Relaxed: written under its lock; a number is all it is.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// The shared heap has its place, and needs none any more. Relaxed: written under the pool's lock.
static HAS_SHARED: AtomicBool = AtomicBool::new(false);
/// How often the system has refused memory for a heap. Relaxed: a number is all it is.
static REFUSED: AtomicUsize = AtomicUsize::new(0);
/// There are dead heaps, whose spans have not been salvaged. Release, and Acquire: who finds none any more finds those of the
/// program's whole.
static DEAD: AtomicBool = AtomicBool::new(false);

/// Places for heaps that are left, beside the shared heap's, behind one of a thread's own, or of the program's: the one that is
/// lent to threads without a heap, in turns, and the first one of each partition.
const LEFT_FOR_GOOD: usize = 1 + in_hardened(0, PARTITIONS);

/// Takes a heap that a thread keeps; null if there is no memory for one.
pub(crate) fn take() -> *mut Heap {
    take_for_thread(LEFT_FOR_GOOD)
}

/// Takes a heap for a thread that gives it back at once; null as for `take`.
pub(crate) fn lend() -> *mut Heap {
    take_for_thread(0)
}

/// Takes the shared heap; null as for `take`. Under its lock.
pub(crate) fn take_shared() -> *mut Heap {
    take_leaving(None)
}

/// In a forked child, before it has a second thread: it needs a place again.
pub(crate) fn forget_shared() {
    HAS_SHARED.store(false, Ordering::Relaxed);
}

fn take_for_thread(spare: usize) -> *mut Heap {
    let heap = take_any(spare);
    if !heap.is_null() {
        one_more();
        // SAFETY: the caller's, who alone has it.
        unsafe { (*heap).begin_thread(THREADS.fetch_add(1, Ordering::Relaxed) + 1) };
    }
    heap
}

/// Whether the places for heaps that are left had better serve each partition once, or twice.
pub(crate) fn is_all_but_full() -> bool {
    // Relaxed: a number is all it is. Without a reservation there are none.
    (1..=TAKEN.load(Ordering::Relaxed) + 2 * PARTITIONS).contains(&address_map::tables().heap_limit)
}

/// How often there has been no memory for a heap.
pub(crate) fn refused() -> usize {
    REFUSED.load(Ordering::Relaxed)
}

/// Waits a little for a thread to end what it has a heap for.
pub(crate) fn wait_for_turn() {
    // Of a thread that a fork has left behind, perhaps.
    salvage::all();
    os::rest();
}

/// Takes a heap, old or new, if `spare` places are left behind it beside the shared heap's; null if not, or if there is
/// no memory. It does not count as in use: for closed heaps, and the shared heap.
pub(crate) fn take_any(spare: usize) -> *mut Heap {
    take_leaving(Some(spare))
}

/// The same; None: it is the shared heap, which takes the place that others leave it.
fn take_leaving(spare: Option<usize>) -> *mut Heap {
    let heap = try_take(spare);
    // Of those that are left some may have nothing any more.
    if heap.is_null() && left::collect() { try_take(spare) } else { heap }
}

fn try_take(spare: Option<usize>) -> *mut Heap {
    let mut pool = POOL.lock();
    let (taken, has_shared) = (TAKEN.load(Ordering::Relaxed), HAS_SHARED.load(Ordering::Relaxed));
    let left = spare.map_or(0, |spare| spare + usize::from(!has_shared));
    if address_map::heap_address(taken + left).is_none() {
        return null_mut();
    }
    let mut heap = pool.free.pop();
    // SAFETY: heaps in the pool are the lock owner's; a new one is nobody else's.
    unsafe {
        if heap.is_null() {
            let Some(at) = address_map::heap_address(pool.made) else { return null_mut() };
            if !reservation::commit_heap(pool.made) {
                REFUSED.fetch_add(1, Ordering::Relaxed);
                return null_mut();
            }
            heap = at.cast();
            heap.write(Heap::empty());
            (*heap).set_owner();
            pool.made += 1;
            MADE.store(pool.made, Ordering::Release);
        }
        (*heap).set_epoch(EPOCH.load(Ordering::Relaxed));
        // Whoever sees that somebody has it sees that this is no dead thread.
        fence(Ordering::Release);
        (*heap).role = Role::Thread;
    }
    TAKEN.store(taken + 1, Ordering::Relaxed);
    HAS_SHARED.store(has_shared || spare.is_none(), Ordering::Relaxed);
    heap
}

/// Takes a closed heap with nothing in it, of a handle of the program's or null; null as for `take_any`.
pub(crate) fn take_closed(of: *mut Handle) -> *mut Heap {
    close(take_any(LEFT_FOR_GOOD), of)
}

/// Makes a heap that has been taken, or null, a closed one.
fn close(heap: *mut Heap, of: *mut Handle) -> *mut Heap {
    if !heap.is_null() {
        // SAFETY: the caller's, who alone has it.
        unsafe {
            (*heap).member.turn.shut();
            // A child that finds it half written finds it shut.
            fence(Ordering::Release);
            Heap::write_over(heap, Heap::closed_of(of));
            (*heap).member.turn.close();
        }
    }
    heap
}

/// Takes back a heap, and what it holds.
///
/// # Safety
/// The heap came from `take`, and the caller does not use it any more.
pub(crate) unsafe fn put(heap: *mut Heap) {
    // SAFETY: taken from here, and the caller is the last who uses it.
    unsafe {
        // A thread may end in a function of the program's, which an allocation has called.
        (*heap).busy_partitions = 0;
        partitions::put_all(heap);
        // For good: nobody looks at it in the pool.
        core::mem::forget((*heap).presence.enter());
        (*heap).abandon_all();
        (*heap).spares.give();
    }
    let mut pool = POOL.lock();
    // SAFETY: as above.
    unsafe {
        (*heap).role = Role::Free;
        // It is in use again before the next thread's number stands there: nobody takes that one for this (`find_user`).
        (*heap).thread = 0;
        point();
        pool.take_in(heap);
    }
    one_less();
}

/// Takes back a closed heap, which holds nothing and has no user.
///
/// # Safety
/// The heap came from `take_any`, and the caller does not use it any more.
pub(crate) unsafe fn put_closed(heap: *mut Heap) {
    let mut pool = POOL.lock();
    // SAFETY: as above.
    unsafe {
        // A dead thread's has not been ended.
        if !(*heap).member.turn.is_shut() {
            (*heap).member.turn.shut();
        }
        // A child that finds it half written finds it shut.
        fence(Ordering::Release);
        Heap::write_over(heap, Heap::empty());
        // A dead thread's has been one.
        (*heap).presence.bar();
        (*heap).member.turn.close();
        pool.take_in(heap);
    }
}

/// Where a thread is whose heap that was.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// It has ended, or there has been none. What it did is seen by the caller.
    Gone,
    AtWork,
    /// A fork has left it behind, wherever in its work it was.
    LeftBehind,
}

/// Where the thread of that number is, whose heap that was.
pub(crate) fn find_user(heap: *const Heap, thread: usize) -> User {
    let _pool = POOL.lock();
    // SAFETY: null, or a heap: those are never unmapped. Volatile: who takes it next gives it a number after the lock.
    let is_its = |heap: *const Heap| unsafe {
        (&raw const (*heap).role).read_volatile() != Role::Free
            && (&raw const (*heap).thread).read_volatile() == thread
    };
    if heap.is_null() || !is_its(heap) {
        User::Gone
    } else if is_dead_thread(heap) {
        User::LeftBehind
    } else {
        User::AtWork
    }
}

/// Whether that thread is at work and has that heap, or null, without the lock: the answer may be old. True of a thread that asks
/// for itself.
pub(crate) fn is_at_work(heap: *const Heap, thread: usize) -> bool {
    // SAFETY: null, or a heap: those are never unmapped. Volatile: it may be changing.
    let has_it =
        |heap: *const Heap| unsafe { (&raw const (*heap).thread).read_volatile() == thread };
    !heap.is_null() && has_it(heap) && !is_dead_thread(heap)
}

/// Whether a heap waits for a thread.
pub(crate) fn has_free() -> bool {
    !POOL.lock().free.is_empty()
}

/// Walks all heaps and the arena and asserts their invariants. Not for use while other threads
/// allocate or free.
pub fn check() {
    let pool = POOL.lock();
    for at in (0..pool.made).filter_map(address_map::heap_address) {
        let heap: *const Heap = at.cast();
        // SAFETY: made; nobody changes it, by the caller's word.
        unsafe {
            if (*heap).role != Role::Free && !is_dead(heap) && !was_ending(heap) {
                (*heap).check();
            }
        }
    }
    drop(pool);
    arena::check();
    region::check();
}

/// Heaps in use, and heaps there are.
pub(crate) fn counts() -> (usize, usize) {
    (in_use(), made())
}

/// Whether this is a forked child, and its parent may have been ending the heap, or making it: it is left as it was.
fn was_ending(heap: *const Heap) -> bool {
    // SAFETY: a heap that has been made.
    EPOCH.load(Ordering::Relaxed) > 0 && unsafe { (*heap).member.turn.is_shut() }
}

/// Whether the heap belongs to a thread that was left behind by a fork, or was in use by one. A heap that a thread had which
/// had ended before is whole.
#[inline(never)]
fn is_dead(heap: *const Heap) -> bool {
    // SAFETY: a heap that has been made, and a handle: what is read changes while nobody looks.
    unsafe {
        if !(*heap).is_closed() {
            return is_dead_thread(heap);
        }
        let Member { user, user_heap, .. } = &(*heap).member;
        let user = user.load(Ordering::Relaxed);
        user == LEFT_BEHIND || is_dead_user(*user_heap, user)
    }
}

/// Whether the thread of that number, whose heap that was or null, was left behind by a fork while it was at work.
fn is_dead_user(heap: *const Heap, thread: usize) -> bool {
    // SAFETY: as above. If it is another's by now, that thread has ended before.
    !heap.is_null() && unsafe { is_dead_thread(heap) && (*heap).thread == thread }
}

/// The same of a heap that is no closed one.
fn is_dead_thread(heap: *const Heap) -> bool {
    // SAFETY: as above.
    unsafe {
        let is_somebodys = (*heap).role != Role::Free;
        // Acquire: pairs with `take_any`.
        fence(Ordering::Acquire);
        is_somebodys && Heap::epoch(heap) != EPOCH.load(Ordering::Relaxed)
    }
}

/// Whether a dead heap is the owner that stands in a descriptor: such a heap has been made.
#[inline(never)]
pub(crate) fn is_dead_owner(owner: u32) -> bool {
    Heap::of_owner(owner).is_some_and(|heap| is_dead(heap))
}

/// There are dead heaps: upkeep looks for what they had.
fn begin_salvage() {
    DEAD.store(true, Ordering::Relaxed);
    look_besides();
}

/// Upkeep looks besides for what nobody uses any more, from now on.
fn look_besides() {
    set_besides(|| {
        salvage::step();
        left::step();
    });
}

/// There are none any more.
fn end_salvage() {
    DEAD.store(false, Ordering::Release);
}

/// Whether there are dead heaps.
pub(crate) fn has_dead() -> bool {
    DEAD.load(Ordering::Acquire)
}

/// In a forked child, before it has a second thread: all heaps are dead but those of `alive`, the
/// calling thread's, if it has one, and the shared heap, or null.
pub(crate) fn settle_in_child(alive: [*mut Heap; 2]) {
    handle::settle_in_child();
    let epoch = EPOCH.load(Ordering::Relaxed).wrapping_add(1);
    EPOCH.store(epoch, Ordering::Relaxed);
    let mut in_use = 0;
    for heap in alive.into_iter().filter(|heap| !heap.is_null()) {
        // SAFETY: heaps of this process's only thread.
        unsafe {
            (*heap).set_epoch(epoch);
            in_use += usize::from((*heap).role == Role::Thread);
        }
    }
    if shares::settle_in_child(in_use) > in_use {
        begin_salvage();
    }
    if POOL.settle_in_child() {
        // Another thread was taking a heap, or giving one back.
        begin_salvage();
        let mut pool = POOL.lock();
        pool.free = Stack::EMPTY;
        TAKEN.store(pool.made, Ordering::Relaxed);
        for heap in (0..pool.made).filter_map(heap_at) {
            // SAFETY: made, and nobody's if it is in no use.
            unsafe {
                if (*heap).role == Role::Free {
                    // Whoever gave it back may not have come to that.
                    (*heap).presence.bar();
                    if (*heap).member.turn.is_shut() {
                        // It was being written.
                        Heap::write_over(heap, Heap::empty());
                        (*heap).member.turn.close();
                    }
                    pool.take_in(heap);
                }
            }
        }
    }
}

fn heap_at(index: usize) -> Option<*mut Heap> {
    address_map::heap_address(index).map(|at| at.cast())
}

/// Every heap that has been made.
pub(crate) fn all() -> impl Iterator<Item = *mut Heap> {
    (0..made()).filter_map(heap_at)
}

/// How many have been made.
#[inline(never)]
fn made() -> usize {
    POOL.lock().made
}

/// Looks at all heaps: lets go of the spans of those whose threads have been away for long.
pub(crate) fn let_go_of_others() {
    if !Presence::IS_ASKED {
        return;
    }
    let epoch = EPOCH.load(Ordering::Relaxed);
    for heap in all() {
        // SAFETY: made.
        while unsafe { Heap::let_go_of(heap, epoch, None) } {}
    }
}

/// One step of upkeep by the clock: in a forked child, takes over some of what threads had that it does
/// not have; purges what has lain idle for a purge delay, a batch of it at each call; whether there is
/// more to purge right now. Any thread, at any time.
///
/// ```
/// while cairn::tick() {}
/// ```
pub fn tick() -> bool {
    os::notice_fork();
    salvage::step();
    left::step();
    strike();
    arena::in_debt()
}
