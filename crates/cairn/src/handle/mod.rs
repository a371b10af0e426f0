//! Owns: what the program holds of a heap: its name, its nurseries, who uses it, and what it holds.
//! Idea: small, so that a heap with few blocks is small: metadata of a heap's own comes when the nurseries are used up.
//! Never: looks inside a heap, or decides when one is made.
//! Threads: the heap's user; the lists here are a lock's, or a thread's own.
//! Checked: tests/nursery.rs, tests/closed.rs, tests/shared.rs
//! Story: docs/design/closed-heaps.md

mod all;

pub(crate) use all::Handles;

use crate::arena::{self, Run};
use crate::budget::Budget;
use crate::crowd::NOBODY;
use crate::deferred::Deferred;
use crate::large::{self, NURSERY_BYTES, Nursery, Owned};
use crate::policy::HARDENED;
use crate::sampling::ThreadCounts;
use crate::size_class::{MIN_ALIGN, SLICE_SIZE, SMALL_MAX};
use crate::span::Span;
use crate::sync::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};
use core::ptr::null_mut;

// Invariants
//  1. `room` bytes at the beginning of the newest nursery have never been a block since it was empty; 0 if there is
//     none. `base` and `states` are that nursery's. All nurseries are in the list that begins with it, `count` of them.
//  2. `heap` is a heap of its own, or a stand-in that has no blocks; always a stand-in in a shared heap.
//  3. `kind` is `FREE` exactly if it is in a list of free ones.

/// Nurseries that a heap has at most: then it has so many blocks that classes of their own pay.
const NURSERIES: usize = 8;
/// Free nurseries and handles that a thread keeps ready for the next heap.
const SPARE: usize = 2 * NURSERIES;
/// Lists of parts in a shared heap. With half as many, threads that meet wait longer for their part to be found.
const LISTS: usize = 16;

pub(crate) const FREE: u8 = 0;
pub(crate) const OWNED: u8 = 1;
pub(crate) const SHARED: u8 = 2;

/// A heap of the program's. `H` is what it allocates from.
#[repr(C, align(64))]
pub(crate) struct Handle<H> {
    // What the fast path reads, also the one in cairn.h: `room` is 0 where that one must not go on.
    room: usize,
    base: *mut u8,
    states: *mut u8,
    pub(crate) heap: *mut H,
    // The rest.
    newest: *mut Nursery,
    count: usize,
    /// The number of the thread that has it attached, and that thread's heap.
    pub(crate) user: AtomicUsize,
    pub(crate) user_heap: *const H,
    /// The number of a shared heap, which no other has had or will have.
    pub(crate) serial: usize,
    pub(crate) kind: AtomicU8,
    /// What the program has said that it is.
    pub(crate) tag: AtomicUsize,
    /// Its large blocks, and what it holds.
    pub(crate) owned: Owned,
    /// A shared heap's parts: lists by the number of the thread.
    parts: [AtomicPtr<H>; LISTS],
    /// The next free one.
    next: *mut Handle<H>,
}

const _: () = {
    use core::mem::offset_of;
    type Any = Handle<u8>;
    assert!(
        offset_of!(Any, room) == 0 && offset_of!(Any, base) == 8 && offset_of!(Any, states) == 16
    );
    assert!(MIN_ALIGN == 16);
};

/// What a closed heap is to the program, and what a thread keeps for the program's heaps. All zeros: nothing.
pub(crate) struct Member<H> {
    /// The number of the thread that has a closed heap attached, and that thread's heap.
    pub(crate) user: AtomicUsize,
    pub(crate) user_heap: *const H,
    /// Whose it is, or null.
    pub(crate) of: *mut Handle<H>,
    /// The part behind this one.
    pub(crate) next: *mut H,
    /// A thread's: the shared heap that it has used last, by its serial, and its part there.
    pub(crate) last: (usize, *mut H),
    /// A thread's: what it has counted.
    pub(crate) counts: ThreadCounts,
    /// A thread's: what it calls for the program to free.
    pub(crate) deferred: Deferred,
    /// A thread's: free nurseries and handles.
    nurseries: (*mut Nursery, usize),
    handles: (*mut Handle<H>, usize),
}

impl<H> Member<H> {
    /// Of a heap that no thread uses.
    pub(crate) fn of_nobody() -> Member<H> {
        // SAFETY: numbers, atomics and null pointers.
        let member: Member<H> = unsafe { core::mem::zeroed() };
        member.user.store(NOBODY, Ordering::Relaxed);
        member
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
            budget.give(bytes);
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
    pub(crate) unsafe fn peek_region(this: *const Member<H>) -> bool {
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

    /// Gives up what a thread keeps.
    pub(crate) fn give_spares(&mut self, all: &Handles<H>) {
        while let Some(nursery) = self.pop_nursery() {
            large::put_nursery(nursery);
        }
        let (first, count) = core::mem::replace(&mut self.handles, (null_mut(), 0));
        (0..count).fold(first, |handle, _| {
            // SAFETY: a list of this thread's, so long.
            let next = unsafe { (*handle).next };
            all.put(handle);
            next
        });
    }

    fn pop_nursery(&mut self) -> Option<*mut Nursery> {
        let (first, count) = self.nurseries;
        if first.is_null() {
            return None;
        }
        let mut place = &raw mut self.nurseries.0;
        // SAFETY: a list of this thread's, so long.
        unsafe {
            if HARDENED {
                for _ in 0..Nursery::chance(first, count) {
                    place = &raw mut (**place).next;
                }
            }
            let nursery = *place;
            *place = (*nursery).next;
            self.nurseries.1 = count - 1;
            Some(nursery)
        }
    }

    fn push_nursery(&mut self, nursery: *mut Nursery) {
        let (first, count) = self.nurseries;
        if count == SPARE {
            return large::put_nursery(nursery);
        }
        // SAFETY: the caller's, in which nothing is in use.
        unsafe {
            Nursery::reset(nursery);
            (*nursery).next = first;
        }
        self.nurseries = (nursery, count + 1);
    }
}

impl<H> Handle<H> {
    /// Takes a handle for a heap, out of what the calling thread keeps, `mine`, if it has a heap; null if there is no
    /// memory. `stand_in` has no blocks.
    ///
    /// # Safety
    /// `mine` is null or the calling thread's.
    pub(crate) unsafe fn create(
        mine: *mut Member<H>,
        all: &Handles<H>,
        stand_in: *mut H,
        kind: u8,
        serial: usize,
        region: Option<usize>,
    ) -> *mut Handle<H> {
        // SAFETY: as above; free handles are the owner's of their list.
        unsafe {
            let mut handle = null_mut();
            if let Some(mine) = mine.as_mut()
                && !mine.handles.0.is_null()
            {
                handle = mine.handles.0;
                mine.handles = ((*handle).next, mine.handles.1 - 1);
            }
            if handle.is_null() {
                handle = all.take();
            }
            if !handle.is_null() {
                handle.write_bytes(0, 1);
                ((*handle).heap, (*handle).serial) = (stand_in, serial);
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

    /// Ends it: nothing leads to it any more but `heap`, a stand-in.
    ///
    /// # Safety
    /// As for `create`; the handle is the caller's alone.
    pub(crate) unsafe fn end(
        this: *mut Handle<H>,
        mine: *mut Member<H>,
        all: &Handles<H>,
        stand_in: *mut H,
    ) {
        // SAFETY: as above.
        unsafe {
            (*this).kind.store(FREE, Ordering::Relaxed);
            (*this).user.store(NOBODY, Ordering::Relaxed);
            (*this).room = 0;
            (*this).heap = stand_in;
            (*this).serial = 0;
            match mine.as_mut() {
                Some(mine) if mine.handles.1 < SPARE => {
                    (*this).next = mine.handles.0;
                    mine.handles = (this, mine.handles.1 + 1);
                }
                _ => all.put(this),
            }
        }
    }

    /// Allocates `size` bytes in the nursery; None if it has no room for them.
    ///
    /// # Safety
    /// The heap is the calling thread's.
    #[inline(always)]
    pub(crate) unsafe fn allocate(this: *mut Handle<H>, size: usize) -> Option<*mut u8> {
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
    pub(crate) unsafe fn make_room(
        this: *mut Handle<H>,
        mine: *mut Member<H>,
        size: usize,
    ) -> bool {
        // SAFETY: as above.
        unsafe {
            if size > SMALL_MAX || (*this).kind.load(Ordering::Relaxed) != OWNED {
                return false;
            }
            if let Some(newest) = (*this).newest.as_ref().filter(|newest| newest.has_freed()) {
                let (live, all) = newest.count();
                if live == 0 {
                    Nursery::reset((*this).newest);
                    (*this).room = (*(*this).newest).room();
                    return true;
                }
                // Where half is free already, classes will use it again.
                if live < all / 2 {
                    (*this).count = NURSERIES;
                }
            }
            if (*this).count == NURSERIES || !(*this).owned.budget.may_take(NURSERY_BYTES) {
                return false;
            }
            let spare = mine.as_mut().and_then(Member::pop_nursery);
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
    pub(crate) unsafe fn make_room_at_once(this: *mut Handle<H>, mine: *mut Member<H>) -> bool {
        // SAFETY: as above.
        unsafe {
            let has_freed = (*this).newest.as_ref().is_some_and(Nursery::has_freed);
            if has_freed || (*this).count == NURSERIES || (*this).owned.budget.is_limited() {
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
    unsafe fn use_nursery(this: *mut Handle<H>, nursery: *mut Nursery) {
        // SAFETY: as above; the nursery is the caller's.
        unsafe {
            if HARDENED {
                Nursery::expect_zero(nursery);
            }
            (*nursery).set_of(this.cast());
            (*nursery).next = (*this).newest;
            (*this).newest = nursery;
            (*this).count += 1;
            (*this).room = (*nursery).room();
            (*this).base = (*nursery).base.load(Ordering::Relaxed);
            (*this).states = (*nursery).states();
        }
    }

    /// The heap is destroyed, or deleted, and with it go its nurseries, or what is in use of them lives on.
    ///
    /// # Safety
    /// As for `create`; the heap is the caller's alone, its blocks too if they go.
    pub(crate) unsafe fn end_nurseries(
        this: *mut Handle<H>,
        mine: *mut Member<H>,
        with_blocks: bool,
    ) {
        // SAFETY: as above; the next one is read before this one may go.
        unsafe {
            let mut nursery = core::mem::replace(&mut (*this).newest, null_mut());
            (*this).room = 0;
            while !nursery.is_null() {
                let next = (*nursery).next;
                match mine.as_mut() {
                    _ if !with_blocks => (*nursery).leave(),
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
    pub(crate) unsafe fn trim(this: *mut Handle<H>) {
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
                (*this).count = (*this).count.min(NURSERIES) - 1;
                large::put_nursery(nursery);
                (*this).owned.budget.give_nursery(NURSERY_BYTES);
            }
            if let (0, Some(newest)) = ((*this).room, (*this).newest.as_ref()) {
                (*this).base = newest.base.load(Ordering::Relaxed);
                (*this).states = newest.states();
            }
        }
    }

    /// From now on classes serve all.
    pub(crate) fn use_no_nursery(&mut self) {
        (self.room, self.count) = (0, NURSERIES);
    }

    /// The first part that may be that thread's.
    pub(crate) fn first(&self, thread: usize) -> *mut H {
        // Acquire: who finds a part finds it made.
        self.parts.get(thread % LISTS).map_or(null_mut(), |first| first.load(Ordering::Acquire))
    }

    /// Puts a part into the list of a thread. Under the caller's lock.
    pub(crate) fn put_first(&self, thread: usize, part: *mut H) {
        if let Some(first) = self.parts.get(thread % LISTS) {
            first.store(part, Ordering::Release);
        }
    }

    /// The first parts of all lists.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = *mut H> {
        self.parts.iter().map(|first| first.load(Ordering::Acquire))
    }
}
