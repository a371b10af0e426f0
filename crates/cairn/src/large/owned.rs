//! Owns: which large blocks belong to a closed heap.
//! Idea: runs stand in a list of their heap's, by links in their metadata; the few mappings say whose they are.
//! Never: looks inside a heap.
//! Threads: any; one lock, inside which that of the mappings is taken.
//! Checked: tests/closed.rs.
//! Story: docs/design/closed-heaps.md

use super::{Allocated, Freers, Large, allocate_at, allocate_in_region, free, mapping};
use crate::base::{AtomicPtr, AtomicUsize, Ordering};
use crate::large::budget::Budget;
use crate::map::{OWNER_LARGE, address_map, all_heads};
use crate::os::Lock;
use crate::spans::Grace;
use core::mem::offset_of;
use core::ptr::{from_ref, null_mut};

// Invariants, under the lock
//  1. A run that belongs to a heap stands in the list of that heap, `link.of`. All others have none.
//  2. `mappings` is how many mappings have said that they belong to the heap; fewer may be left.

/// A closed heap's large blocks. It is what they say they belong to, and so does not move.
pub(crate) struct Owned {
    runs: Runs,
    mappings: AtomicUsize,
    /// The number of the program's region that the heap allocates from, plus 1, or 0. Constant.
    pub(crate) region: usize,
    /// What waits of the heap for its readers.
    pub(crate) grace: Grace,
    /// What the heap holds, these blocks included.
    pub(crate) budget: Budget,
}

/// Where a run stands: in no list unless it belongs to a heap. Relaxed but for `of`: used under the lock, or
/// by whoever may use the block.
pub(super) struct Link {
    of: AtomicPtr<Owned>,
    next: AtomicPtr<Large>,
    prev: AtomicPtr<Large>,
}

/// A list of runs, or of slices of nurseries, under a lock. All zeros: nothing. Its first member is an atomic: who ends a heap
/// looks without the lock whether there is one.
pub(super) struct Runs(AtomicPtr<Large>);

/// Where a run's slot says what the block belongs to, and a mapping's entry, for tools.
pub(crate) const OWNER_OFFSETS: [usize; 2] =
    [offset_of!(Large, link.of), offset_of!(mapping::Mapping, owner)];

// SAFETY: what is in a list is used under its lock alone.
unsafe impl Send for Runs {}

impl Runs {
    pub(super) const fn of(first: *mut Large) -> Runs {
        Runs(AtomicPtr::new(first))
    }

    /// The first one.
    pub(super) fn first(&self, order: Ordering) -> Option<&'static Large> {
        // SAFETY: a member, or null; slots are never unmapped.
        unsafe { self.0.load(order).as_ref() }
    }

    pub(super) fn clear(&self) {
        self.0.store(null_mut(), Ordering::Relaxed);
    }

    pub(super) fn insert(&self, large: &Large) {
        let (at, next) = (from_ref(large).cast_mut(), self.first(Ordering::Relaxed));
        large.link.next.store(self.0.load(Ordering::Relaxed), Ordering::Relaxed);
        large.link.prev.store(null_mut(), Ordering::Relaxed);
        if let Some(next) = next {
            next.link.prev.store(at, Ordering::Relaxed);
        }
        self.0.store(at, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, large: &Large) {
        self.close(large.link.neighbours());
    }

    /// Closes the gap between what stood beside a member.
    fn close(&self, [next, prev]: [*mut Large; 2]) {
        // SAFETY: members, or null; slots are never unmapped.
        unsafe {
            match prev.as_ref() {
                Some(prev) => prev.link.next.store(next, Ordering::Relaxed),
                // Release: who finds the list empty takes no lock, and the heap may be another one then.
                None => self.0.store(next, Ordering::Release),
            }
            if let Some(next) = next.as_ref() {
                next.link.prev.store(prev, Ordering::Relaxed);
            }
        }
    }
}

pub(crate) static OWNED: Lock<()> = Lock::new(());

impl Link {
    /// What stands behind it and in front of it.
    fn neighbours(&self) -> [*mut Large; 2] {
        [&self.next, &self.prev].map(|link| link.load(Ordering::Relaxed))
    }

    /// In no list.
    pub(super) fn clear(&self) {
        // Release: who finds it finds the block ended, if it has been.
        self.of.store(null_mut(), Ordering::Release);
    }

    /// What the block belongs to, or null.
    pub(super) fn of(&self) -> *const Owned {
        // Acquire: pairs with `clear`.
        self.of.load(Ordering::Acquire)
    }

    /// Whether the block belongs to a heap.
    pub(super) fn is_owned(&self) -> bool {
        !self.of().is_null()
    }
}

/// Allocates a block of `size` bytes that belongs to a heap, more than a span serves or aligned beyond what
/// it does. None if the heap must not have it, or if there is no memory.
pub(crate) fn allocate_owned(owned: &Owned, size: usize, align: usize) -> Allocated {
    // Asked first: what the heap must not have shall not be made.
    if !owned.budget.may_take(size) {
        return Allocated::NONE;
    }
    let got = match owned.region.checked_sub(1) {
        None => allocate_at(size, align, 0),
        Some(region) => allocate_in_region(region, size, align),
    };
    if !got.block.is_null() && !own(owned, got.block) {
        free(got.block, "malloc");
        mapping::free(got.block, "malloc");
        return Allocated::NONE;
    }
    got
}

/// Makes the mapping's block at `p` the heap's that `large` belongs to, if any; false if the heap must not have it.
/// Its heap may go meanwhile: under the lock either `large` has none any more, or the heap finds the mapping.
pub(super) fn inherit(large: &Large, p: *mut u8) -> bool {
    with_owner(large, |owned| own_mapping(owned, p)).unwrap_or(true)
}

/// Does something under the lock with what a block belongs to, if it belongs to a heap.
fn with_owner<R>(large: &Large, then: impl FnOnce(&Owned) -> R) -> Option<R> {
    if !large.link.is_owned() {
        return None;
    }
    let _held = OWNED.lock();
    // SAFETY: a list that is there while a block says so, under the lock.
    unsafe { large.link.of().as_ref() }.map(then)
}

fn own_mapping(owned: &Owned, p: *mut u8) -> bool {
    owned.mappings.fetch_add(1, Ordering::Relaxed);
    mapping::set_owner(p, from_ref(owned))
}

/// Makes the block at `p`, which belongs to nobody and is nobody else's to use, a heap's; false if the heap must not
/// have it.
fn own(owned: &Owned, p: *mut u8) -> bool {
    if !address_map::contains(p) {
        return own_mapping(owned, p);
    }
    let large: *mut Large = address_map::descriptor(p).slot.load(Ordering::Relaxed).cast();
    // SAFETY: a live block's slot.
    let large = unsafe { &*large };
    let fits = owned.budget.take_large(large.bytes());
    if fits {
        let _held = OWNED.lock();
        insert(owned, large);
    }
    fits
}

/// The block has grown by so many bytes, or is going to; false if its heap must not have them.
pub(super) fn grow(large: &Large, bytes: usize) -> bool {
    with_owner(large, |owned| owned.budget.grow_large(bytes)).unwrap_or(true)
}

/// The block has not got the bytes of `grow`.
pub(super) fn ungrow(large: &Large, bytes: usize) {
    with_owner(large, |owned| owned.budget.ungrow_large(bytes));
}

/// The block has so many bytes less.
pub(super) fn shrink(large: &Large, bytes: usize) {
    with_owner(large, |owned| owned.budget.shrink_large(bytes));
}

/// The heap's large blocks that the block at `p` belongs to, any value at all; null if it belongs to none.
pub(crate) fn owner_of(p: *mut u8) -> *const Owned {
    match address_map::contains(p) {
        true => super::at(p).map_or(null_mut(), |large| large.link.of().cast_mut()),
        false => mapping::owner_of(p),
    }
}

fn insert(owned: &Owned, large: &Large) {
    large.link.of.store(from_ref(owned).cast_mut(), Ordering::Relaxed);
    owned.runs.insert(large);
}

/// Takes a block that ends out of its heap's list, if it stands in one.
pub(super) fn remove(large: &Large) {
    with_owner(large, |owned| unlink(owned, large));
}

/// The same under the lock.
fn unlink(owned: &Owned, large: &Large) {
    let (bytes, neighbours) = (large.bytes(), large.link.neighbours());
    // First: in a child that is forked in between it is nobody's, and is given back once. Who frees it takes no lock from here
    // on, and its slot may soon be something else.
    large.link.clear();
    owned.budget.give_large(bytes);
    // Last: see `close`.
    owned.runs.close(neighbours);
}

/// What belongs to a heap belongs to nobody from now on. What waits for the heap's readers goes.
pub(crate) fn set_free(owned: &Owned) {
    end(owned, |waits| waits);
}

/// Frees what belongs to a heap.
pub(crate) fn destroy(owned: &Owned) {
    end(owned, |_| true);
}

/// Takes all from a heap that ends, and frees those of which `goes` says so, by whether they wait.
fn end(owned: &Owned, goes: impl Fn(bool) -> bool) {
    while let Some(ended) = take_first(owned, &goes) {
        ended.into_iter().for_each(Large::give_back);
    }
    if has_mappings(owned) {
        mapping::disown(from_ref(owned), goes);
    }
}

/// Whether any mapping has said that it belongs to a heap, for the last time.
fn has_mappings(owned: &Owned) -> bool {
    owned.mappings.load(Ordering::Relaxed) > 0 && owned.mappings.swap(0, Ordering::Relaxed) > 0
}

/// Takes a run out of a heap's list: what its block was made of, if that goes. Its life ends before it belongs to nobody:
/// who frees it a second time meanwhile is late.
fn take_first(owned: &Owned, goes: impl Fn(bool) -> bool) -> Option<Option<&'static Large>> {
    // Others take out, nobody puts in. Acquire: pairs with `unlink`, whose last word about the heap this is.
    owned.runs.first(Ordering::Acquire)?;
    // What is first may be freed, and be another heap's block, as soon as the lock is not held.
    let _held = OWNED.lock();
    let large = owned.runs.first(Ordering::Relaxed)?;
    let ends = goes(large.waits.load(Ordering::Relaxed));
    let ended = if ends { super::end(large.run().0, usize::MAX, Freers::Many) } else { None };
    unlink(owned, large);
    Some(ended)
}

/// In a forked child, before it has a second thread: lists that another thread was changing are made anew. So they are if
/// slices have been: a block whose life has ended may still stand in a list, and its slices are free now. `all` are those of
/// all heaps.
pub(crate) fn settle_in_child<'a>(slices_are_new: bool, all: impl Iterator<Item = &'a Owned>) {
    if !OWNED.settle_in_child() && !slices_are_new {
        return;
    }
    let runs = || {
        let heads = all_heads().filter(|&(_, owner, _)| owner == OWNER_LARGE);
        // SAFETY: a large block's slot; the lists that blocks say they belong to are there.
        heads.filter_map(|(index, ..)| unsafe {
            let large = &*address_map::slot(index).cast::<Large>();
            Some((large.link.of().as_ref()?, large))
        })
    };
    for of in all {
        of.runs.clear();
        of.grace.forget_waiting();
    }
    // SAFETY: a freed block, which waits for the epoch that it is now, at the earliest.
    let wait = |of: &Owned, p| unsafe { of.grace.keep(p) };
    for (of, large) in runs() {
        insert(of, large);
        if large.waits.load(Ordering::Relaxed) {
            wait(of, large.run().0);
        }
    }
    mapping::waiting().for_each(|(of, p)| wait(of, p));
}
