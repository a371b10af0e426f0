//! Owns: what the program holds of a heap: its name, its nurseries, who uses it, and what it holds.
//! Idea: small, so that a heap with few blocks is small: metadata of a heap's own comes when the nurseries are used up.
//! Never: looks inside a heap, or decides when one is made.
//! Threads: the heap's user; the lists here are a lock's, or a thread's own.
//! Checked: tests/nursery.rs, tests/closed.rs, tests/shared.rs
//! Story: docs/design/closed-heaps.md

mod all;
mod spares;

#[cfg(test)]
pub(crate) use all::FREE as FREE_HANDLES;
pub(crate) use all::{PARTS, is_made, made, settle_in_child};
pub(crate) use spares::{Spares, salvage as salvage_spares};

use crate::base::{
    AtomicPtr, AtomicU8, AtomicUsize, Linked, MIN_ALIGN, NOBODY, Ordering, SLICE_SIZE, SMALL_MAX,
};
use crate::heap::tuning::{NURSERIES_MAX, PART_LISTS};
use crate::heap::{EMPTY, Heap};
use crate::large::{self, Budget, Care, NURSERY_BYTES, Nurse, Nursery, Owned};
use crate::os::Turn;
use crate::samples::{Beats, ThreadCounts};
use crate::slices::{Run, arena};
use crate::spans::Span;
use core::mem::offset_of;
use core::ptr::{null, null_mut};

// Invariants
//  1. `room` bytes at the beginning of the newest nursery have never been a block since it was empty; 0 if there is
//     none. `base` and `states` are that nursery's. All nurseries are in the list that begins with it, `count` of them.
//  2. `heap` is a heap of its own, or a stand-in that has no blocks; always a stand-in in a shared heap.
//  3. `kind` is `FREE` exactly if it is in a list of free ones.

pub(crate) const FREE: u8 = 0;
pub(crate) const OWNED: u8 = 1;
pub(crate) const SHARED: u8 = 2;

/// The number of the last shared heap. Relaxed: a number is all it is.
static SERIALS: AtomicUsize = AtomicUsize::new(0);

/// A heap of the program's.
#[repr(C, align(64))]
pub(crate) struct Handle {
    // What the fast path reads, also the one in cairn.h: `room` is 0 where that one must not go on.
    room: usize,
    base: *mut u8,
    states: *mut u8,
    pub(crate) heap: *mut Heap,
    // The rest.
    newest: *mut Nursery,
    count: usize,
    /// The number of the thread that has it attached, and that thread's heap.
    pub(crate) user: AtomicUsize,
    pub(crate) user_heap: *const Heap,
    /// The number of a shared heap, which no other has had or will have.
    pub(crate) serial: usize,
    pub(crate) kind: AtomicU8,
    /// What the program has said that it is.
    pub(crate) tag: AtomicUsize,
    /// Its large blocks, and what it holds.
    pub(crate) owned: Owned,
    /// A shared heap's parts: lists by the number of the thread.
    parts: [AtomicPtr<Heap>; PART_LISTS],
    /// The next free one.
    next: *mut Handle,
    /// Of a free one that a thread keeps: the address of its `Spares`; else 0.
    keeper: AtomicUsize,
}

impl Linked for Handle {
    const LINK: usize = offset_of!(Handle, next);
}

const _: () = {
    let before = [offset_of!(Handle, room), offset_of!(Handle, base), offset_of!(Handle, states)];
    assert!(matches!(before, [0, 8, 16]));
    assert!(MIN_ALIGN == 16);
};

/// What a closed heap is to the program.
#[repr(C)]
pub(crate) struct Member {
    /// The heap of the thread that has a closed heap attached.
    pub(crate) user_heap: *const Heap,
    /// Whose it is, or null.
    pub(crate) of: *mut Handle,
    /// The part behind this one.
    pub(crate) next: *mut Heap,
    // What follows others read when the heap is gone, and so it is no part of what is written over (`Heap::write_over`).
    /// The number of the thread that has a closed heap attached.
    pub(crate) user: AtomicUsize,
    /// Who may be inside, if it is a part.
    pub(crate) turn: Turn,
}

/// What is a thread's own, and no other's that gets its heap. All zeros: as it is for a new thread.
pub(crate) struct Own {
    /// The shared heap that it has used last, by its serial, and its part there.
    pub(crate) last: (usize, *mut Heap),
    /// What it has counted.
    pub(crate) counts: ThreadCounts,
    /// What it has called for the program to free.
    pub(crate) beats: Beats,
}

impl Own {
    /// A new thread's.
    pub(crate) const NEW: Own = Own {
        last: (0, null_mut()),
        counts: ThreadCounts { allocated: 0, freed: 0 },
        beats: Beats::NONE,
    };
}

impl Member {
    /// Of a heap that no thread uses.
    pub(crate) const fn of_nobody() -> Member {
        Member {
            user_heap: null(),
            of: null_mut(),
            next: null_mut(),
            user: AtomicUsize::new(NOBODY),
            turn: Turn::alone(),
        }
    }

    /// Says which thread uses it from now on, and that thread's heap.
    pub(crate) fn set_user(&mut self, user: usize, user_heap: *const Heap) {
        // In this order: a fork in between finds a user that has ended, or none.
        self.user_heap = user_heap;
        // Relaxed: who finds its own number has written it.
        self.user.store(user, Ordering::Relaxed);
    }

    /// What all of the program's heap hold, if it is part of one.
    fn budget(&self) -> Option<&Budget> {
        // SAFETY: null, or the handle, which is there as long as the heap.
        unsafe { self.of.as_ref() }.map(|handle| &handle.owned.budget)
    }

    /// Takes a run for a span of a heap of the program's: out of its region, or `anywhere`. None if that is over the hard limit.
    #[cold]
    pub(crate) fn take_run(
        &self,
        slices: usize,
        anywhere: impl FnOnce() -> Option<Run>,
    ) -> Option<Run> {
        let (budget, bytes) = (self.budget()?, slices * SLICE_SIZE);
        if !budget.take(bytes) {
            return None;
        }
        let run = match self.region() {
            Some(region) => arena::take_in_region(region, slices),
            None => anywhere(),
        };
        if run.is_none() {
            budget.untake(bytes);
        }
        run
    }

    /// Whether it may take so many more.
    pub(crate) fn may_take(&self, bytes: usize) -> bool {
        self.budget().is_none_or(|budget| budget.may_take(bytes))
    }

    /// Whether a span of its with no block in use has to wait for readers.
    pub(crate) fn holds(&self, span: &mut Span) -> bool {
        // SAFETY: as above.
        unsafe { self.of.as_ref() }.is_some_and(|handle| handle.owned.grace.holds(span))
    }

    /// The number of the region that it allocates from, if from one.
    pub(crate) fn region(&self) -> Option<usize> {
        // SAFETY: as above.
        unsafe { self.of.as_ref() }.and_then(|handle| handle.owned.region.checked_sub(1))
    }

    /// Whether the heap allocates from a region: a look from another thread.
    ///
    /// # Safety
    /// A heap's that has been made.
    pub(crate) unsafe fn peek_region(this: *const Member) -> bool {
        // SAFETY: as above; handles are never unmapped. Volatile: both may be changing.
        unsafe {
            let of = (&raw const (*this).of).read_volatile();
            !of.is_null() && (&raw const (*of).owned.region).read_volatile() > 0
        }
    }

    /// Gives so many back.
    pub(crate) fn give(&self, bytes: usize) {
        if let Some(budget) = self.budget() {
            budget.give(bytes);
        }
    }
}

impl Handle {
    /// Takes a handle for a heap, out of what the calling thread keeps, `mine`, if it has a heap; null if there is no
    /// memory.
    ///
    /// # Safety
    /// `mine` is null or the calling thread's.
    pub(crate) unsafe fn create(mine: *mut Spares, kind: u8, region: Option<usize>) -> *mut Handle {
        // SAFETY: as above; free handles are the owner's of their list.
        unsafe {
            let kept = mine.as_mut().and_then(Spares::pop_handle);
            let handle = kept.unwrap_or_else(all::take);
            if !handle.is_null() {
                handle.write_bytes(0, 1);
                (*handle).heap = EMPTY.heap();
                if kind == SHARED {
                    (*handle).serial = SERIALS.fetch_add(1, Ordering::Relaxed) + 1;
                }
                (*handle).user.store(NOBODY, Ordering::Relaxed);
                (*handle).kind.store(kind, Ordering::Relaxed);
                if let Some(region) = region {
                    (*handle).owned.region = region + 1;
                    (*handle).use_no_nursery();
                }
            }
            handle
        }
    }

    /// Ends it: it leads to nothing any more.
    ///
    /// # Safety
    /// As for `create`; the handle is the caller's alone.
    pub(crate) unsafe fn end(this: *mut Handle, mine: *mut Spares) {
        // SAFETY: as above.
        unsafe {
            (*this).kind.store(FREE, Ordering::Relaxed);
            (*this).user.store(NOBODY, Ordering::Relaxed);
            (*this).room = 0;
            (*this).heap = EMPTY.heap();
            (*this).serial = 0;
            if !mine.as_mut().is_some_and(|mine| mine.push_handle(this)) {
                all::put(this);
            }
        }
    }

    /// Allocates `size` bytes in the nursery; None if it has no room for them.
    ///
    /// # Safety
    /// The heap is the calling thread's.
    #[inline(always)]
    pub(crate) unsafe fn allocate(this: *mut Handle, size: usize) -> Option<*mut u8> {
        // SAFETY: as above; invariant 1.
        unsafe {
            // The last bytes may stay unused: this way one comparison is all that a heap without nursery pays.
            if size >= (*this).room {
                return None;
            }
            let left = ((*this).room - size.max(1)) & !(MIN_ALIGN - 1);
            (*this).room = left;
            Nursery::begin((*this).states, left / MIN_ALIGN);
            Some((*this).base.wrapping_add(left))
        }
    }

    /// Sees to it that the nursery has room for a block that it has none for; false if the heap shall use a class for it.
    ///
    /// # Safety
    /// As for `allocate`; `mine` as for `create`.
    pub(crate) unsafe fn make_room(this: *mut Handle, mine: *mut Spares, size: usize) -> bool {
        // SAFETY: as above.
        unsafe {
            if size > SMALL_MAX || (*this).kind.load(Ordering::Relaxed) != OWNED {
                return false;
            }
            if let Some(newest) = (*this).newest.as_ref().filter(|newest| newest.has_freed()) {
                let (live, all) = newest.count();
                if live == 0 {
                    Nurse::reset((*this).newest);
                    (*this).room = Nurse::room(&*(*this).newest);
                    return true;
                }
                // Where half is free already, classes will use it again.
                if live < all / 2 {
                    (*this).count = NURSERIES_MAX;
                }
            }
            if (*this).count == NURSERIES_MAX || !(*this).owned.budget.may_take(NURSERY_BYTES) {
                return false;
            }
            let spare = mine.as_mut().and_then(Spares::pop_nursery);
            let nursery = spare.unwrap_or_else(large::take_nursery);
            if !nursery.is_null() {
                (*this).owned.budget.take_nursery(NURSERY_BYTES);
                Self::use_nursery(this, nursery);
            }
            !nursery.is_null()
        }
    }

    /// The same at once: false if there is something to decide, or `mine` keeps no nursery.
    ///
    /// # Safety
    /// As for `make_room`, but `mine` is not null, and it is an owned heap.
    #[inline(always)]
    pub(crate) unsafe fn make_room_at_once(this: *mut Handle, mine: *mut Spares) -> bool {
        // SAFETY: as above.
        unsafe {
            let has_freed = (*this).newest.as_ref().is_some_and(Nursery::has_freed);
            if has_freed || (*this).count == NURSERIES_MAX || (*this).owned.budget.is_limited() {
                return false;
            }
            let Some(nursery) = (*mine).pop_nursery() else { return false };
            (*this).owned.budget.take_nursery_unlimited(NURSERY_BYTES);
            Self::use_nursery(this, nursery);
            true
        }
    }

    /// Allocates from a nursery that nobody has.
    ///
    /// # Safety
    /// As for `allocate`.
    #[inline(always)]
    unsafe fn use_nursery(this: *mut Handle, nursery: *mut Nursery) {
        // SAFETY: as above; the nursery is the caller's.
        unsafe {
            Nurse::expect_zero(nursery);
            (*nursery).set_of(this.cast());
            (*nursery).next = (*this).newest;
            (*this).newest = nursery;
            (*this).count += 1;
            (*this).room = Nurse::room(&*nursery);
            (*this).base = (*nursery).base.load(Ordering::Relaxed);
            (*this).states = (*nursery).states();
        }
    }

    /// The heap is destroyed, or deleted, and with it go its nurseries, or what is in use of them lives on.
    ///
    /// # Safety
    /// As for `create`; the heap is the caller's alone, its blocks too if they go.
    pub(crate) unsafe fn end_nurseries(this: *mut Handle, mine: *mut Spares, with_blocks: bool) {
        // SAFETY: as above; the next one is read before this one may go.
        unsafe {
            let mut nursery = core::mem::replace(&mut (*this).newest, null_mut());
            (*this).room = 0;
            while !nursery.is_null() {
                let next = (*nursery).next;
                match mine.as_mut() {
                    _ if !with_blocks => large::Nursery::leave(nursery),
                    Some(mine) => mine.push_nursery(nursery),
                    None => large::put_nursery(nursery),
                }
                nursery = next;
            }
        }
    }

    /// Gives nurseries back in which nothing is in use, but the newest.
    ///
    /// # Safety
    /// As for `allocate`.
    pub(crate) unsafe fn trim(this: *mut Handle) {
        // SAFETY: as above. The link is the heap's.
        unsafe {
            let mut place = &raw mut (*this).newest;
            while !(*place).is_null() {
                let nursery = *place;
                if (*nursery).count().0 > 0 {
                    place = &raw mut (*nursery).next;
                    continue;
                }
                if nursery == (*this).newest {
                    (*this).room = 0;
                }
                *place = (*nursery).next;
                (*this).count = (*this).count.min(NURSERIES_MAX) - 1;
                large::put_nursery(nursery);
                (*this).owned.budget.give_nursery(NURSERY_BYTES);
            }
            if (*this).room == 0 {
                Self::place_in_newest(this);
            }
        }
    }

    /// Its next block, when the newest nursery is empty, comes from there: invariant 1.
    ///
    /// # Safety
    /// As for `allocate`, or the caller alone has it.
    unsafe fn place_in_newest(this: *mut Handle) {
        // SAFETY: as above.
        if let Some(newest) = unsafe { (*this).newest.as_ref() } {
            // SAFETY: as above.
            unsafe {
                (*this).base = newest.base.load(Ordering::Relaxed);
                (*this).states = newest.states();
            }
        }
    }

    /// As a fork may find it: its list is another moment's.
    #[cfg(test)]
    pub(crate) fn tear(&mut self) {
        self.newest = core::ptr::without_provenance_mut(64);
    }

    /// In a forked child: it has no nursery, but may be given some.
    ///
    /// # Safety
    /// The thread that had it attached is not in this process, and the caller alone has it.
    pub(crate) unsafe fn begin_anew(this: *mut Handle) {
        // SAFETY: as above.
        unsafe {
            (*this).newest = null_mut();
            (*this).use_no_nursery();
        }
    }

    /// Gives it a nursery that says that it is this heap's.
    ///
    /// # Safety
    /// As for `begin_anew`.
    pub(crate) unsafe fn take_in(this: *mut Handle, nursery: *mut Nursery) {
        // SAFETY: as above.
        unsafe {
            (*nursery).next = (*this).newest;
            (*this).newest = nursery;
            Self::place_in_newest(this);
        }
    }

    /// From now on classes serve all.
    pub(crate) fn use_no_nursery(&mut self) {
        (self.room, self.count) = (0, NURSERIES_MAX);
    }

    /// The first part that may be that thread's.
    pub(crate) fn first(&self, thread: usize) -> *mut Heap {
        // Acquire: who finds a part finds it made.
        self.parts
            .get(thread % PART_LISTS)
            .map_or(null_mut(), |first| first.load(Ordering::Acquire))
    }

    /// Puts a part into the list of a thread. Under the caller's lock.
    pub(crate) fn put_first(&self, thread: usize, part: *mut Heap) {
        if let Some(first) = self.parts.get(thread % PART_LISTS) {
            first.store(part, Ordering::Release);
        }
    }

    /// The first parts of all lists.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = *mut Heap> {
        self.parts.iter().map(|first| first.load(Ordering::Acquire))
    }
}
