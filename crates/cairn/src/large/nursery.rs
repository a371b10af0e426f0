//! Owns: nurseries: pieces of a slice in which a closed heap's first blocks lie one behind the other, of all sizes.
//! Idea: a heap that has few blocks takes neither a heap's metadata nor a span for each class, and frees nothing when
//!   it goes. A byte for each 16 says where a block starts and whether it is in use.
//! Never: uses the memory of a freed block again before all of its nursery are free.
//! Threads: a nursery's heap allocates; any free. One lock, for which nurseries there are.
//! Checked: tests/nursery.rs; the model `nurseries`.
//! Story: docs/design/closed-heaps.md

pub(super) mod fork;
pub(super) mod hardened;

pub(super) use fork::settle_in_child;
pub(crate) use fork::{all, salvage};
pub(crate) use hardened::{Care, Nurse};

use super::{Large, owned::Runs};
use crate::base::{
    AtomicPtr, AtomicU8, AtomicUsize, Linked, MIN_ALIGN, Ordering, SLICE_SIZE, SizeClass, Stack,
};
use crate::large::tuning::NURSERY_METADATA_BYTES;
use crate::map::{OWNER_LARGE, OWNER_NONE, address_map};
use crate::os::{self, Lock};
use crate::slices::{Fence, Fences, GUARD, Memory, Taken, arena};
use core::{cell::Cell, mem::offset_of, ptr::null_mut};

// Invariants
//  1. A slice of nurseries is a large block that starts nowhere: its `start` is null. Its `nurseries` lead to one for
//     each of its pieces. Those that no heap has are set in `free`; it is in the pool's list exactly if one is, and goes
//     back to the arena when all are.
//  2. `states` of what is not a block's start are `NONE`. A block goes from `LIVE` to `FREED`; if its heap has been
//     deleted in between, from `COUNTED`. Hardened, `GAP` stands where `room` ends, if behind it are some bytes.
//  3. `left` is `MANY` until the heap has been deleted; then the number of blocks that are `COUNTED`, and the nursery is
//     given back with the last one.
//  4. Hardened: what a nursery has behind `room` is zero, as all of one that no heap has, and the head of each freed
//     block; unless somebody has written there (`hardened`).

/// Bytes of a nursery. Half of it serves fewer heaps whole; twice of it is more than 4 KiB for each small heap.
pub(crate) const NURSERY_BYTES: usize = 2048;
/// How many a slice has.
const PIECES: usize = SLICE_SIZE / NURSERY_BYTES;
/// Which of them are used, a bit each: hardened, there is a guard in place of the last ones.
const ALL: u8 = u8::MAX >> (GUARD / NURSERY_BYTES);
/// Places where a block may start.
const PLACES: usize = NURSERY_BYTES / MIN_ALIGN;

const NONE: u8 = 0;
/// The program has it.
const LIVE: u8 = 1;
const FREED: u8 = 2;
/// The program has it, and its heap is gone.
const COUNTED: u8 = LIVE | 4;
/// From here on there are no blocks.
const GAP: u8 = 8;

/// More blocks than there can be.
const MANY: usize = 1 << 20;

/// A bit that addresses of handles and `Spares` do not have.
const KEPT: usize = 1;

/// What is known of one.
#[repr(C, align(64))]
pub(crate) struct Nursery {
    states: [AtomicU8; PLACES],
    /// Where it begins.
    pub(crate) base: AtomicPtr<u8>,
    /// The handle of the heap that has it, or `KEPT` and the address of the `Spares` that keep it; null if nobody does, or
    /// if its heap has been deleted. Relaxed: it is the user's own, or a hint.
    of: AtomicPtr<()>,
    left: AtomicUsize,
    /// Blocks that the heap's user has freed since it was empty. A cell: others refer to the nursery meanwhile.
    freed: Cell<u32>,
    /// Hardened: where the first block ends.
    room: u16,
    /// Hardened: no heap has had it, and its pages are nowhere yet.
    is_new: bool,
    /// Hardened: where a row of random numbers stands.
    random: u64,
    /// The heap's older ones, or the next spare one.
    pub(crate) next: *mut Nursery,
}

impl Linked for Nursery {
    const LINK: usize = offset_of!(Nursery, next);
}

const _: () = assert!(size_of::<Nursery>() == 192 && PIECES == 8);

/// Slices that have free nurseries, and metadata that no slice uses.
struct Pool {
    slices: Runs,
    unused: Stack<Nursery>,
    /// Hardened: where a row of random numbers stands; 0 if it has not begun.
    random: u64,
}

static POOL: Lock<Pool> =
    Lock::new(Pool { slices: Runs::of(null_mut()), unused: Stack::EMPTY, random: 0 });

/// Takes a nursery that nobody has; null if there is no memory.
pub(crate) fn take() -> *mut Nursery {
    let mut pool = POOL.lock();
    let large = match pool.slices.first(Ordering::Relaxed) {
        Some(large) => large,
        None => {
            drop(pool);
            let Some(large) = make() else { return null_mut() };
            pool = POOL.lock();
            pool.slices.insert(large);
            large
        }
    };
    let free = large.free.load(Ordering::Relaxed);
    let piece = Nurse::choose(&mut pool.random, free);
    let left = free & !(1 << piece);
    large.free.store(left, Ordering::Relaxed);
    if left == 0 {
        pool.slices.remove(large);
    }
    large.nurseries.load(Ordering::Relaxed).wrapping_add(piece)
}

/// Takes one back, in which nothing is in use. The slice goes when it is the last of it.
pub(crate) fn put(nursery: *mut Nursery) {
    // SAFETY: the caller's alone.
    unsafe {
        Nurse::reset(nursery);
        (*nursery).of.store(null_mut(), Ordering::Relaxed);
        (*nursery).left.store(MANY, Ordering::Relaxed);
    }
    // SAFETY: as above.
    let base = unsafe { (*nursery).base.load(Ordering::Relaxed) };
    let index = address_map::slice_of(base);
    // SAFETY: the slot of a slice of nurseries.
    let large = unsafe { &*address_map::slot(index).cast::<Large>() };
    let mut pool = POOL.lock();
    let before = large.free.load(Ordering::Relaxed);
    let free = before | 1 << (base.addr() % SLICE_SIZE / NURSERY_BYTES);
    large.free.store(free, Ordering::Relaxed);
    if before == 0 {
        pool.slices.insert(large);
    }
    if free == ALL {
        pool.slices.remove(large);
        // Before another slice may have the metadata: a forked child finds that it is one slice's, or no one's.
        let all = large.nurseries.load(Ordering::Relaxed);
        large.nurseries.store(null_mut(), Ordering::Relaxed);
        address_map::set_owner(index, 1, OWNER_NONE);
        // SAFETY: the metadata is nobody's any more.
        unsafe { pool.unused.push(all) };
        drop(pool);
        arena::release(index, 1, Memory::Written);
    }
}

/// Makes a slice of nurseries, in no list.
fn make() -> Option<&'static Large> {
    let mut pool = POOL.lock();
    let mut all = pool.unused.pop();
    let mut random = Nurse::row(&mut pool.random);
    drop(pool);
    if all.is_null() {
        all = make_metadata()?;
    }
    let Some(run) = arena::take_for_nurseries() else {
        // SAFETY: nobody else's.
        unsafe { POOL.lock().unused.push(all) };
        return None;
    };
    let slot = address_map::slot(run.index);
    // SAFETY: a slot is never unmapped; it is ours with the run.
    let large = unsafe { &*slot.cast::<Large>() };
    large.start.store(null_mut(), Ordering::Relaxed);
    large.slices.store(1, Ordering::Relaxed);
    large.link.clear();
    large.free.store(ALL, Ordering::Relaxed);
    for piece in 0..PIECES {
        let base = address_map::slice_address(run.index).wrapping_add(piece * NURSERY_BYTES);
        // SAFETY: metadata for so many; the run is the caller's.
        unsafe {
            let nursery = all.add(piece);
            (*nursery).base.store(base, Ordering::Relaxed);
            (*nursery).left.store(MANY, Ordering::Relaxed);
            if ALL & 1 << piece != 0 {
                Nurse::prepare(nursery, &mut random, run.zero);
            }
        }
    }
    // SAFETY: the run is the caller's; what the guard takes is in no nursery that is used.
    unsafe { Fences::put(run.index, 1, Taken::ForNurseries) };
    // Release, by `describe`: who finds the slice finds them.
    large.nurseries.store(all, Ordering::Release);
    // SAFETY: the run is the caller's, taken just now: no block is in it yet.
    unsafe { address_map::describe(run.index, 1, slot, OWNER_LARGE, SizeClass::FIRST) };
    Some(large)
}

/// Metadata for a slice, and for others later.
fn make_metadata() -> Option<*mut Nursery> {
    const SLICES: usize = NURSERY_METADATA_BYTES / (PIECES * size_of::<Nursery>());
    let first: *mut Nursery = os::map(NURSERY_METADATA_BYTES).cast();
    if first.is_null() {
        return None;
    }
    let mut pool = POOL.lock();
    for slice in 1..SLICES {
        // SAFETY: mapped just now, as zeros; nobody else's.
        unsafe { pool.unused.push(first.wrapping_add(slice * PIECES)) };
    }
    Some(first)
}

/// The nursery that `p` points into, any value at all.
pub(crate) fn around(p: *const u8) -> Option<&'static Nursery> {
    // SAFETY: metadata is never unmapped.
    place_around(p).map(|nursery| unsafe { &*nursery })
}

/// The same, for who may write there.
#[inline(never)]
fn place_around(p: *const u8) -> Option<*mut Nursery> {
    if !address_map::contains(p) {
        return None;
    }
    let d = address_map::descriptor(p);
    if d.owner.load(Ordering::Relaxed) != OWNER_LARGE {
        return None;
    }
    // SAFETY: a large block's slot; slots are never unmapped, nor is the metadata.
    unsafe {
        let large = d.slot.load(Ordering::Relaxed).cast::<Large>().as_ref()?;
        let all = large.nurseries.load(Ordering::Acquire);
        let is_one = !all.is_null() && large.start.load(Ordering::Relaxed).is_null();
        is_one.then(|| all.add(p.addr() % SLICE_SIZE / NURSERY_BYTES))
    }
}

/// Who frees a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freer {
    /// The thread that allocates there.
    User,
    /// Any other.
    Another,
}

/// Frees the block that starts at `p`; false if none in use does. `is_mine` says whether the calling thread is the one
/// that uses the heap of a handle.
pub(crate) fn free(p: *mut u8, is_mine: impl FnOnce(*mut ()) -> bool) -> bool {
    let Some(nursery) = place_around(p) else { return false };
    // SAFETY: metadata is never unmapped.
    let of = unsafe { (*nursery).of() };
    let freer = if !of.is_null() && is_mine(of) { Freer::User } else { Freer::Another };
    // SAFETY: metadata is never unmapped.
    p.addr().is_multiple_of(MIN_ALIGN) && unsafe { Nursery::end(nursery, place_of(p), freer) }
}

fn place_of(p: *const u8) -> usize {
    p.addr() % NURSERY_BYTES / MIN_ALIGN
}

/// The block around `p`: (start, usable bytes). Freed ones count.
pub(crate) fn block_around(p: *const u8) -> Option<(*mut u8, usize)> {
    let nursery = around(p)?;
    let is_start = |place: &usize| nursery.states[*place].load(Ordering::Relaxed) != NONE;
    let first = (0..=place_of(p)).rev().find(is_start)?;
    if nursery.states[first].load(Ordering::Relaxed) == GAP {
        return None;
    }
    let end = (first + 1..PLACES).find(is_start).unwrap_or(PLACES);
    let start = nursery.base.load(Ordering::Relaxed).wrapping_add(first * MIN_ALIGN);
    Some((start, (end - first) * MIN_ALIGN))
}

/// Bytes usable from `p`, the start of a block in use; None if none starts there.
pub(crate) fn usable_size(p: *const u8) -> Option<usize> {
    let state = around(p)?.states[place_of(p)].load(Ordering::Relaxed);
    let found = (state & LIVE != 0).then(|| block_around(p))?;
    found.filter(|&(start, _)| start.cast_const() == p).map(|(_, usable)| usable)
}

impl Nursery {
    /// Where the states are: a block that begins at byte n is in use while the byte n / 16 is 1.
    pub(crate) fn states(&self) -> *mut u8 {
        (&raw const self.states).cast_mut().cast()
    }

    /// The handle of the heap that has it, or null.
    pub(crate) fn of(&self) -> *mut () {
        let of = self.of.load(Ordering::Relaxed);
        if of.addr() & KEPT == 0 { of } else { null_mut() }
    }

    /// The address of the `Spares` that keep it, if any do.
    fn keeper(&self) -> Option<usize> {
        let of = self.of.load(Ordering::Relaxed).addr();
        (of & KEPT != 0).then_some(of & !KEPT)
    }

    /// Those keep it from now on.
    pub(crate) fn set_keeper(&self, keeper: usize) {
        self.of.store(core::ptr::without_provenance_mut(keeper | KEPT), Ordering::Relaxed);
    }

    /// A heap has it from now on.
    pub(crate) fn set_of(&self, of: *mut ()) {
        self.of.store(of, Ordering::Relaxed);
    }

    /// A block of it is in use from now on.
    ///
    /// # Safety
    /// `states` are a nursery's, and `place` is one of it that nobody uses.
    pub(crate) unsafe fn begin(states: *mut u8, place: usize) {
        // SAFETY: as above. Relaxed: who frees the block has it by the program's own synchronisation.
        unsafe { (*states.cast::<AtomicU8>().add(place)).store(LIVE, Ordering::Relaxed) };
    }

    /// Ends a block's life; false if none in use begins there.
    ///
    /// # Safety
    /// `freer` is what the caller is.
    unsafe fn end(this: *mut Nursery, place: usize, freer: Freer) -> bool {
        // SAFETY: the caller's.
        if let Some(ended) = unsafe { Nurse::end_plainly(this, place, freer) } {
            return ended;
        }
        // SAFETY: never unmapped.
        let state = unsafe { &(*this).states[place] };
        // Release: what the program has done with the block is done before it is used again (`count`).
        for from in [LIVE, COUNTED] {
            let ended = state.compare_exchange(from, FREED, Ordering::AcqRel, Ordering::Acquire);
            if ended.is_ok() {
                // SAFETY: as above; the count is the user's.
                unsafe {
                    if from == COUNTED {
                        Nursery::one_less(this);
                    } else if freer == Freer::User {
                        (*this).freed.set((*this).freed.get() + 1);
                    }
                }
                return true;
            }
        }
        false
    }

    /// A block that outlives its heap is gone.
    ///
    /// # Safety
    /// It was counted.
    unsafe fn one_less(this: *mut Nursery) {
        // SAFETY: never unmapped. AcqRel: the last one finds all others done.
        if unsafe { (*this).left.fetch_sub(1, Ordering::AcqRel) } == 1 {
            put(this);
        }
    }

    /// Whether the user of the heap has freed blocks of it.
    pub(crate) fn has_freed(&self) -> bool {
        self.freed.get() > 0
    }

    /// How many blocks of it are in use, and how many there have been since it was empty. Who uses the heap asks.
    pub(crate) fn count(&self) -> (usize, usize) {
        let of = |wanted: &dyn Fn(u8) -> bool| {
            // Acquire: pairs with `end`.
            self.states.iter().filter(|state| wanted(state.load(Ordering::Acquire))).count()
        };
        (of(&|state| state & LIVE != 0), of(&|state| state != NONE && state != GAP))
    }

    /// Where blocks in use are: (start, bytes).
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (*mut u8, usize)> {
        let base = self.base.load(Ordering::Relaxed);
        let at = move |place: usize| base.wrapping_add(place * MIN_ALIGN);
        (0..PLACES)
            .filter_map(move |place| usable_size(at(place)).map(|usable| (at(place), usable)))
    }

    /// The heap has been deleted: what is in use lives on, and takes the nursery with it.
    ///
    /// # Safety
    /// The heap's, which nobody uses any more.
    pub(crate) unsafe fn leave(this: *mut Nursery) {
        // SAFETY: never unmapped. No reference is left when it goes.
        let (states, left) = unsafe { (&(*this).states, &(*this).left) };
        // SAFETY: as above.
        unsafe { (*this).of.store(null_mut(), Ordering::Relaxed) };
        let mut counted = 0;
        for state in states {
            // A block that is being freed counts, or not; whoever frees it sees which.
            let live = state.compare_exchange(LIVE, COUNTED, Ordering::AcqRel, Ordering::Acquire);
            counted += usize::from(live.is_ok());
        }
        // AcqRel: as in `one_less`.
        if left.fetch_sub(MANY - counted, Ordering::AcqRel) == MANY - counted {
            put(this);
        }
    }
}

/// The nurseries of a slice, if it has some.
fn of_slice(index: usize) -> impl Iterator<Item = *mut Nursery> {
    let first = place_around(address_map::slice_address(index));
    first.into_iter().flat_map(|first| (0..PIECES).map(move |piece| first.wrapping_add(piece)))
}

/// How many slices there are, and blocks in use in them, and the bytes of these.
pub(crate) fn account(index: usize) -> Option<(usize, usize)> {
    around(address_map::slice_address(index))?;
    // SAFETY: never unmapped.
    let blocks = of_slice(index).flat_map(|nursery| unsafe { &*nursery }.blocks());
    Some(blocks.fold((0, 0), |(count, bytes), (_, usable)| (count + 1, bytes + usable)))
}
