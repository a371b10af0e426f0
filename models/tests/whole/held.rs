//! Blocks as the models hold them: with contents, and in a list of all live blocks. One that is handed
//! out twice overlaps another; one that is purged, moved badly or written to has other contents
//! when it is looked at.

use super::threads;
use crate::os::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Between marks in larger blocks: no page is without one.
const STEP: usize = 1021;
/// Blocks up to this are marked everywhere.
const WHOLE: usize = if cfg!(miri) { 64 } else { 256 };

/// Where the random numbers of this execution begin.
static SEED: AtomicU64 = AtomicU64::new(0);

/// What the models draw.
pub(crate) struct Random(fastrand::Rng);

impl Random {
    /// Makes all that are made from now on differ from those made before.
    pub(crate) fn set_seed(seed: u64) {
        SEED.store(seed, Ordering::Relaxed);
    }

    /// The same sequence always.
    pub(crate) const FIRST: Random = Random(fastrand::Rng::with_seed(0));

    /// A sequence for one thread of an execution.
    pub(crate) fn new(thread: u64) -> Random {
        Random(fastrand::Rng::with_seed(SEED.load(Ordering::Relaxed) * 1000 + thread))
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0.usize(..n)
    }

    /// One of those given, taken out; None if there is none.
    pub(crate) fn take<T>(&mut self, from: &mut Vec<T>) -> Option<T> {
        (!from.is_empty()).then(|| {
            let at = self.below(from.len());
            from.swap_remove(at)
        })
    }
}

/// Every live block: its address and its usable size.
static LIVE: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// A live block and what it was filled with.
#[derive(Debug)]
pub(crate) struct Held {
    block: *mut u8,
    size: usize,
    seed: u8,
}

// SAFETY: whoever has it owns the block.
unsafe impl Send for Held {}

impl Held {
    /// Allocates; None only if calls may fail.
    pub(crate) fn allocate(size: usize) -> Option<Held> {
        Held::take(crate::allocate(size), size)
    }

    /// Allocates from a heap of the program's.
    pub(crate) fn allocate_in(heap: crate::HeapId, size: usize) -> Option<Held> {
        // SAFETY: the models see to it that the heap is there, and the thread's.
        Held::take(unsafe { heap.allocate(size, 16) }, size)
    }

    /// Allocates zeroed memory from a heap of the program's, and looks if it is.
    pub(crate) fn zeroed_in(heap: crate::HeapId, size: usize) -> Option<Held> {
        // SAFETY: as above.
        Held::take_zeroed(unsafe { heap.allocate_zeroed(size, 16) }, size)
    }

    /// Whether it is a block of that heap.
    pub(crate) fn is_of(&self, heap: crate::HeapId) -> bool {
        crate::heap_of(self.block) == Some(heap)
    }

    /// Whether it is as large as those that have mappings of their own.
    pub(crate) fn is_mapping(&self) -> bool {
        self.size >= super::work::MAPPING_LEAST
    }

    /// In a forked child: what threads that it does not have had of a heap is gone.
    pub(crate) fn forget_all_of(heap: crate::HeapId) {
        let is_its =
            |&at: &usize| crate::heap_of(std::ptr::with_exposed_provenance(at)) == Some(heap);
        let all: Vec<usize> = lock(&LIVE).keys().copied().collect();
        for at in all.into_iter().filter(is_its) {
            lock(&LIVE).remove(&at);
        }
    }

    /// Allocates zeroed memory, and looks if it is.
    pub(crate) fn zeroed(size: usize) -> Option<Held> {
        Held::take_zeroed(crate::allocate_zeroed(size), size)
    }

    fn take_zeroed(block: *mut u8, size: usize) -> Option<Held> {
        if !block.is_null() {
            for at in places(size) {
                // SAFETY: inside the block.
                let got = unsafe { block.add(at).read() };
                assert_eq!(got, 0, "zeroed block {block:p} of {size} bytes, at {at}");
            }
        }
        Held::take(block, size)
    }

    /// Allocates aligned memory.
    pub(crate) fn aligned(size: usize, align: usize) -> Option<Held> {
        let block = crate::allocate_aligned(size, align);
        assert_eq!(block.addr() % align, 0, "block of {size} bytes");
        Held::take(block, size)
    }

    fn take(block: *mut u8, size: usize) -> Option<Held> {
        if block.is_null() {
            assert!(threads::may_fail(), "{size} bytes are refused");
            return None;
        }
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let seed = NEXT.fetch_add(37, Ordering::Relaxed) as u8;
        let held = Held { block, size, seed };
        held.enter();
        held.fill();
        Some(held)
    }

    fn enter(&self) {
        // SAFETY: a live block.
        let usable = unsafe { crate::usable_size(self.block) };
        assert!(usable >= self.size, "{self:?}: {usable} bytes are usable");
        let (start, end) = (self.block.addr(), self.block.addr() + usable);
        let mut live = lock(&LIVE);
        if let Some((&at, &bytes)) = live.range(..end).next_back() {
            assert!(at + bytes <= start, "{self:?} overlaps {at:#x} of {bytes} bytes");
        }
        live.insert(start, usable);
    }

    fn exit(&self) {
        assert!(lock(&LIVE).remove(&self.block.addr()).is_some(), "{self:?} is not live");
    }

    fn mark(&self, at: usize) -> u8 {
        self.seed ^ (at ^ at >> 8 ^ at >> 16) as u8
    }

    fn fill(&self) {
        for at in places(self.size) {
            // SAFETY: inside the block.
            unsafe { self.block.add(at).write(self.mark(at)) };
        }
    }

    /// Looks at the contents.
    pub(crate) fn verify(&self) {
        self.verify_up_to(self.size);
    }

    fn verify_up_to(&self, end: usize) {
        for at in places(self.size).filter(|&at| at < end) {
            // SAFETY: inside the block.
            let got = unsafe { self.block.add(at).read() };
            assert_eq!(got, self.mark(at), "{self:?} at {at}");
        }
    }

    /// Looks for the block from inside.
    pub(crate) fn find(&self, random: &mut Random) {
        let inside = self.block.wrapping_add(random.below(self.size.max(1)));
        assert_eq!(crate::base(inside), Some(self.block), "{self:?} around {inside:p}");
    }

    /// Resizes it; it stays as it is if that fails.
    pub(crate) fn resize(&mut self, size: usize) {
        self.verify();
        self.exit();
        // SAFETY: the block is live, and ours.
        let block = unsafe { crate::reallocate(self.block, size) };
        if block.is_null() {
            assert!(threads::may_fail(), "{size} bytes are refused");
            return self.enter();
        }
        self.block = block;
        self.verify_up_to(size);
        self.size = size;
        self.enter();
        self.fill();
    }

    /// Frees it.
    pub(crate) fn free(self) {
        self.verify();
        self.exit();
        // SAFETY: the block is live, and ours.
        unsafe { crate::deallocate(self.block) };
    }

    /// Gives up the right to it, and leaves the block for somebody who frees it by address.
    pub(crate) fn forget(self) -> *mut u8 {
        self.exit();
        self.block
    }
}

fn places(size: usize) -> impl Iterator<Item = usize> {
    let step = if size <= WHOLE { 1 } else { STEP };
    (0..size).step_by(step).chain(size.checked_sub(1))
}

/// Blocks that wait for a thread to take them.
#[derive(Clone, Default)]
pub(crate) struct Bag(Arc<Mutex<Vec<Held>>>);

impl Bag {
    /// All of them.
    pub(crate) fn all(&self) -> MutexGuard<'_, Vec<Held>> {
        lock(&self.0)
    }

    /// Puts one in.
    pub(crate) fn put(&self, held: Held) {
        self.all().push(held);
    }

    /// Allocates so many blocks, and puts in what it gets.
    pub(crate) fn fill(&self, count: usize, bytes: usize) {
        (0..count).filter_map(|_| Held::allocate(bytes)).for_each(|held| self.put(held));
    }

    /// Frees one of so many, and puts the others in.
    pub(crate) fn pass_on(&self, held: Vec<Held>, of: usize, random: &mut Random) {
        for held in held {
            match random.below(of) {
                0 => held.free(),
                _ => self.put(held),
            }
        }
    }

    /// Takes one out.
    pub(crate) fn take(&self, random: &mut Random) -> Option<Held> {
        random.take(&mut self.all())
    }

    /// Frees one, if there is one.
    pub(crate) fn free_one(&self, random: &mut Random) {
        self.take(random).into_iter().for_each(Held::free);
    }

    /// Frees all.
    pub(crate) fn empty(&self) {
        let all = std::mem::take(&mut *self.all());
        all.into_iter().for_each(Held::free);
    }
}
