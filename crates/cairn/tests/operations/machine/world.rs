//! What the threads of a program share: heaps, the region, blocks that change hands or wait. There are two such worlds: a
//! forked child has its own, for a lock of the program's may be held by a thread that the child does not have.

use super::table::Held;
use cairn::{HeapId, RegionId};
use std::cell::Cell;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};

/// How many heaps there are at most.
pub(super) const HEAPS: usize = 4;

/// Where a heap may be.
pub(super) struct Place {
    pub(super) heap: Option<HeapId>,
    /// The number of the thread that has left an owned heap attached.
    pub(super) kept_by: Option<u64>,
}

pub(super) struct World {
    /// Who uses a shared heap reads; who uses an owned one, or makes or ends one, writes.
    pub(super) heaps: [RwLock<Place>; HEAPS],
    /// Through these, blocks pass from thread to thread while all are at work.
    pub(super) exchange: [Mutex<Option<Held>>; 16],
    /// Addresses of blocks that wait to be freed inside an allocation.
    pub(super) waiting: Mutex<Vec<usize>>,
    /// The region of some heaps, while one has been named.
    pub(super) region: Mutex<Option<RegionId>>,
    /// One thread at a time begins an epoch.
    pub(super) epochs: Mutex<()>,
}

impl World {
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is a world of its own")]
    const NEW: World = World {
        heaps: [const { RwLock::new(Place { heap: None, kept_by: None }) }; HEAPS],
        exchange: [const { Mutex::new(None) }; 16],
        waiting: Mutex::new(Vec::new()),
        region: Mutex::new(None),
        epochs: Mutex::new(()),
    };
}

static WORLDS: [World; 2] = [const { World::NEW }; 2];
static IN_CHILD: AtomicBool = AtomicBool::new(false);
/// The heaps that there are, without a lock, for a child: made to the end, and not about to go.
static NAMES: [AtomicPtr<u8>; HEAPS] = [const { AtomicPtr::new(null_mut()) }; HEAPS];

/// The world of this process.
pub(super) fn world() -> &'static World {
    &WORLDS[usize::from(is_child())]
}

/// Whether this is a forked child.
pub(super) fn is_child() -> bool {
    // Relaxed: set while there is one thread.
    IN_CHILD.load(Ordering::Relaxed)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a panic ends the process")
}

/// The place of a heap, for one thread alone.
pub(super) fn place(number: usize) -> RwLockWriteGuard<'static, Place> {
    world().heaps[number % HEAPS].write().expect("a panic ends the process")
}

/// Writes down which heap is in a place, if one is.
pub(super) fn publish(number: usize, heap: Option<HeapId>) {
    let name = heap.map_or(null_mut(), |heap| heap.into_raw().as_ptr());
    NAMES[number % HEAPS].store(name, Ordering::Release);
}

/// What a child is told: the region, and which owned heaps the forking thread has left attached.
pub(super) struct Heritage {
    region: Option<RegionId>,
    kept_by: [Option<u64>; HEAPS],
}

/// What a child of the calling thread is to be told.
pub(super) fn heritage() -> Heritage {
    let is_mine = |thread: &u64| *thread == me();
    let kept_by = std::array::from_fn(|number| place(number).kept_by.filter(is_mine));
    Heritage { region: *lock(&world().region), kept_by }
}

/// In a forked child: the heaps are those that the program had, and other threads have none attached.
pub(super) fn enter_child(heritage: Heritage) {
    IN_CHILD.store(true, Ordering::Relaxed);
    for (number, name) in NAMES.iter().enumerate() {
        let name = NonNull::new(name.load(Ordering::Acquire));
        let mut place = place(number);
        // SAFETY: that is where it comes from.
        place.heap = name.map(|name| unsafe { HeapId::from_raw(name) });
        place.kept_by = heritage.kept_by[number];
    }
    *lock(&world().region) = heritage.region;
}

thread_local! { static ME: Cell<u64> = const { Cell::new(0) } }

/// A number for a thread that is to be made; the one that runs the programs has 0.
pub(super) fn new_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// The calling thread's number, which also its last destructors know.
pub(super) fn me() -> u64 {
    ME.get()
}

/// The calling thread has been made with that number.
pub(super) fn set_me(number: u64) {
    ME.set(number);
}

/// A thread has ended, and been joined: others may attach what it has left attached.
pub(super) fn gone(thread: u64) {
    for number in 0..HEAPS {
        let mut place = place(number);
        place.kept_by = place.kept_by.filter(|&kept_by| kept_by != thread);
    }
}
