//! Owns: what one thread allocates from: a cache of free blocks per class, the spans it owns,
//!   and the frees it has under way to other owners.
//! Idea: the fast paths pop and push plain lists; every slow tick does a bounded bit of upkeep.
//! Never: knows how threads find their heap, or the C ABI.
//! Threads: the thread that has the heap; takes the locks of `abandoned` and `arena`, never both.
//! Checked: `Heap::check`; oracle and stress tests.
//! Story: docs/design/heap.md

use upkeep::Then;
mod empty;
pub(crate) mod handle;
mod hardened;
mod others;
pub(crate) mod process_upkeep;
mod refill;
mod sending;
mod shrinking;
mod spans;
mod tuning;
mod upkeep;

pub(crate) use handle::{Handle, Member, OWNED, Own, SHARED, Spares};
pub(crate) use others::MADE;
pub(crate) use sending::send_without_heap;

use empty::Empty;

use crate::base::{
    AtomicPtr, AtomicU32, CACHE_UNITS, CLASS_COUNT, FULL_FIRST, FULL_MOST, FULL_SLICES, Linked,
    Ordering, PARTITIONS, SizeClass, in_hardened, in_loom,
};
use crate::heap::tuning::{BATCHES, PARTIAL_EARNED, UPKEEP_TICKS};
use crate::large::Large;
use crate::map::{
    Block, Chain, END, HEAP_BYTES, HEAP_SIZE, OWNER_CLOSED, OWNER_LARGE, address_map,
};
use crate::os::Presence;
use crate::samples::{Deferred, Sampling};
use crate::spans::{Ahead, Following, Span, SpanList, Thinning, is_block_of};
use crate::store::{Caches, Store};
use core::{marker::PhantomPinned, mem::offset_of};

// Invariants
//  1. The cache of class c holds blocks of spans of that class; they count as used there. A refill
//     fills it from one span, frees add to it: its length and what is left of it, if anything, are at most
//     the class's limit. What does not fit goes home, to its span.
//  2. An owned span is `active[c]`, or in `partial[c]`, `full` or `empty`, one of them. A span in
//     `partial` has free or untouched blocks. A full span that is not active is abandoned, but
//     the latest of them go into `full`, as far as that pays and `shares::full_share` allows; all of
//     them in a closed heap. `full_slices` counts those.
//  3. `large_cache` is a run that `large` has freed and the arena has not got back, or null.
//  4. A batch in `batches` holds blocks of one span, others' when they came, fewer than its bound.
//  5. `sweep_next` is null or a member of `partial[sweep_class]`.
//  6. A span in `empty` is of one slice, and nothing of it is in use. The slices of `ahead` are clean and have no owner.
//  7. `upkeep_mask` is 0 in a quiet heap: each slow tick does upkeep. `ordinary` is `refilled`, or empty if the
//     heap is careful: quiet, sampled, closed, or the program is called at refills. The caches of a sampled heap take in no frees: each
//     block of them is counted once.

/// Frees under way to one span.
#[derive(Clone, Copy)]
struct Batch {
    /// Index of the span's first slice.
    span: usize,
    chain: Chain,
}

/// Nothing is under way.
const NO_BATCH: Batch = Batch { span: usize::MAX, chain: Chain::EMPTY };

/// Whose a heap is. A thread's own may be quiet, and any careful: that comes and goes (invariant 7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Role {
    /// Nobody's: it waits in the pool, or stands in for one.
    Free = 0,
    /// A thread's. It alone keeps what it may need next, and asks the shared one.
    Thread = 1,
    /// The one that threads share, under a lock: others wait meanwhile.
    Shared = 2,
    /// A closed one: a heap of the program's, a part of one, or a partition's. Its spans' owner has this bit, too.
    Closed = OWNER_CLOSED,
}

/// A thread's allocator. Its address modulo 2^32 is its tag in descriptors.
#[repr(C)]
pub(crate) struct Heap {
    /// What the fast paths use; the rest is for the slow ones.
    pub(crate) caches: Caches,
    /// The spans that refills come from.
    pub(crate) active: [*mut Span; CLASS_COUNT],
    pub(crate) partial: [SpanList; CLASS_COUNT],
    pub(crate) full: SpanList,
    pub(crate) full_slices: usize,
    /// Slices of full spans that it keeps at most: as many as it has had frees into.
    pub(crate) full_limit: usize,
    /// How often each class has been carved, or blocks of it been asked of the shared heap. Passes
    /// on to the next thread: those that follow each other are alike.
    carves: [u8; CLASS_COUNT],
    batches: [Batch; BATCHES],
    /// Empty spans for any class.
    empty: Empty,
    /// Clean slices in a row.
    pub(crate) ahead: Ahead,
    /// A freed run of slices for the next large block, or null.
    pub(crate) large_cache: AtomicPtr<Large>,
    remote_frees: u32,
    /// Frees into abandoned spans.
    strays: u32,
    large_blocks: u32,
    pub(crate) slow_ticks: u32,
    /// Upkeep is due at a slow tick whose number has none of these bits.
    upkeep_mask: u32,
    /// How often in a row it was found quiet: with less than one slow tick in a millisecond.
    quiet: u32,
    /// When that was last judged, and the slow ticks up to then.
    judged: (u32, u32),
    /// Where the search for holes goes on, and in which class.
    sweep_next: *mut Span,
    sweep_class: SizeClass,
    /// Classes that have been refilled since upkeep last looked at them, a bit each.
    pub(crate) refilled: u64,
    /// Those of them whose refill is an ordinary one.
    ordinary: u64,
    trims_seen: usize,
    thinning: Thinning,
    following: Following,
    pub(crate) sampling: Sampling,
    /// The next one in a list of those in no use.
    next: *mut Heap,
    pub(crate) role: Role,
    /// What it writes into its spans' descriptors: its tag, and what its role adds.
    owner: u32,
    /// In the hardened build, its thread's heaps for partitions, or null.
    pub(crate) partitions: [*mut Heap; in_hardened(0, PARTITIONS)],
    /// Those of them that its thread is allocating from, a bit each.
    pub(crate) busy_partitions: u16,
    /// The number of the partition that a closed heap serves, plus 1, or 0.
    pub(crate) partition: u8,
    /// Spans that its frees have emptied in classes that it did not refill, at most `PARTIAL_EARNED`; upkeep halves it.
    emptied: u8,
    /// Bytes at the head of its free blocks that stay as they are, in front of their links.
    pub(crate) head: u16,
    /// When spans that others have emptied were last looked for, in milliseconds modulo 2^16.
    swept: u16,
    /// What its thread keeps for heaps of the program's.
    pub(crate) spares: Spares,
    /// What the program wants to be called for.
    pub(crate) deferred: Deferred,
    /// What is its thread's own.
    pub(crate) own: Own,
    /// The number of the thread whose heap it is: no other has it, before or after.
    pub(crate) thread: usize,
    /// Who uses it, if it is closed, and whose it is.
    pub(crate) member: Member,
    // Others read what follows at any time: it is never written over.
    /// How many forks there had been when it was taken.
    epoch: AtomicU32,
    /// Whether its thread is at work on its spans.
    pub(crate) presence: Presence,
    /// A `&mut` claims only what is touched, a `&` claims to read all of the heap. So whoever touches it while its thread may be
    /// outside goes by the former, or by single fields: others that let go of its spans, and the thread itself.
    _read: PhantomPinned,
}

const _: () = assert!(size_of::<Heap>() <= HEAP_BYTES - 64);

impl Linked for Heap {
    const LINK: usize = offset_of!(Heap, next);
}

/// A heap with nothing in it that is only ever read. It stands 64 bytes into a page, and so
/// its tag is no real heap's: those stand at multiples of a page.
#[repr(C, align(4096))]
pub(crate) struct StandIn {
    lead: [u8; 64],
    heap: Heap,
}

// SAFETY: never written.
unsafe impl Sync for StandIn {}

const _: () = assert!(offset_of!(StandIn, heap) == 64);
const _: () = assert!(HEAP_SIZE.is_multiple_of(4096) && (OWNER_LARGE as usize) < 64);

/// The heap of threads that have none yet, and what the program's allocate from until they have one of their own.
pub(crate) static EMPTY: StandIn = StandIn::new(0);
/// The heap of threads that have given theirs back, or that call the C library as they arrive.
pub(crate) static GONE: StandIn = StandIn::new(1);
/// The heap of threads that count: theirs stands behind the key.
pub(crate) static COUNTING: StandIn = StandIn::new(2);

impl StandIn {
    /// Each is another one.
    const fn new(number: u8) -> StandIn {
        StandIn { lead: [number; 64], heap: Heap::EMPTY }
    }

    /// Where it stands.
    #[inline(always)]
    pub(crate) fn heap(&self) -> *mut Heap {
        (&raw const self.heap).cast_mut()
    }
}

impl Heap {
    /// A heap with nothing in it: a copy of the stand-in, so that the library's data has one, and not a template besides.
    #[inline(always)]
    pub(crate) fn empty() -> Heap {
        // SAFETY: never written; nothing of a heap is dropped.
        unsafe { EMPTY.heap().read() }
    }

    #[allow(clippy::declare_interior_mutable_const, reason = "each use is a heap of its own")]
    const EMPTY: Heap = Heap {
        caches: Caches::EMPTY,
        full_limit: in_loom(FULL_FIRST, in_hardened(0, FULL_SLICES)),
        upkeep_mask: UPKEEP_TICKS - 1,
        batches: [NO_BATCH; BATCHES],
        presence: Presence::barred(),
        member: Member::of_nobody(),
        // SAFETY: null pointers, empty lists and zeros are what the rest starts with.
        ..unsafe { core::mem::zeroed() }
    };

    /// What a thread's heap writes into its spans' descriptors.
    #[inline(always)]
    pub(crate) fn tag(this: *const Heap) -> u32 {
        this.addr() as u32
    }

    /// The heap that a descriptor names as owner; None if it is no heap's.
    pub(crate) fn of_owner(owner: u32) -> Option<*mut Heap> {
        Some(address_map::heap_address(address_map::heap_of_owner(owner)?)?.cast())
    }

    /// It stands where it is going to stay.
    pub(crate) fn set_owner(&mut self) {
        self.owner = Heap::tag(self) | self.role as u32 & OWNER_CLOSED;
    }

    /// The shared heap with nothing in it: it does not ask itself, and keeps no full spans.
    pub(crate) fn shared() -> Heap {
        let mut heap = Heap::empty();
        (heap.role, heap.full_limit) = (Role::Shared, 0);
        heap
    }

    /// How many forks there had been when it was taken. Acquire: who finds the latest sees what became of it before. Nothing
    /// else is read: it may be another thread's.
    ///
    /// # Safety
    /// It has been made.
    pub(crate) unsafe fn epoch(this: *const Heap) -> u32 {
        // SAFETY: heaps are never unmapped.
        unsafe { (*this).epoch.load(Ordering::Acquire) }
    }

    /// Release: see `epoch`.
    pub(crate) fn set_epoch(&self, epoch: u32) {
        self.epoch.store(epoch, Ordering::Release);
    }

    /// Makes it the heap of the thread of that number. It has nothing, after `abandon_all` or in a new one. The thread
    /// before leaves nothing of its own; what the heap has learned, and its cadence, pass on: those that follow each other are
    /// alike (docs/design/closed-heaps.md has each field).
    pub(crate) fn begin_thread(&mut self, thread: usize) {
        debug_assert!(self.role == Role::Thread && self.spares.is_empty());
        debug_assert!(self.partitions.iter().all(|heap| heap.is_null()));
        self.thread = thread;
        self.own = Own::NEW;
        self.presence.admit();
        // What the thread before has followed may be over.
        self.follow_sampling();
    }

    /// A closed heap with nothing in it, of a handle of the program's or null.
    pub(crate) fn closed_of(of: *mut Handle) -> Heap {
        let mut heap = Heap::empty();
        (heap.role, heap.member.of) = (Role::Closed, of);
        heap
    }

    /// A closed heap with nothing in it, of the same program's heap or partition.
    pub(crate) fn begun_anew(&self) -> Heap {
        let &Heap { head, partition, member: Member { user_heap, of, next, .. }, .. } = self;
        let mut heap = Heap::closed_of(of);
        (heap.head, heap.partition) = (head, partition);
        (heap.member.user_heap, heap.member.next) = (user_heap, next);
        heap
    }

    /// Makes another heap of it, with the same user, turn, epoch and presence: other threads read these words at any time.
    /// What the place has for samples stays with it.
    ///
    /// # Safety
    /// It has been made, and is the caller's.
    #[inline(always)]
    pub(crate) unsafe fn write_over(this: *mut Heap, new: Heap) {
        const BYTES: usize = offset_of!(Heap, member) + offset_of!(Member, user);
        // SAFETY: the caller's; they are two.
        unsafe {
            let kept = (*this).sampling.mapping();
            this.cast::<u8>().copy_from_nonoverlapping((&raw const new).cast(), BYTES);
            (*this).sampling.set_mapping(kept);
            (*this).set_owner();
        }
    }

    /// Whether the thread may touch its spans until `leaves`: as `Presence::begin`.
    ///
    /// # Safety
    /// The calling thread's heap.
    #[inline(always)]
    unsafe fn enters(this: *const Heap) -> bool {
        const INSIDE: usize = offset_of!(Heap, presence);
        // SAFETY: as above.
        unsafe { Presence::begin::<INSIDE, { INSIDE + Presence::WORD }>(this.cast()) }
    }

    /// # Safety
    /// `enters` has said so.
    #[inline(always)]
    unsafe fn leaves(this: *const Heap) {
        // SAFETY: as above.
        unsafe { Presence::end::<{ offset_of!(Heap, presence) }>(this.cast()) }
    }

    /// Gives the slices of all spans back that have no block in use, and what the caches keep.
    #[inline(never)]
    pub(crate) fn give_back(&mut self) {
        SizeClass::all().for_each(|class| self.empty_cache(class));
        SizeClass::all().for_each(|class| self.deactivate(class));
        self.collect_full(usize::MAX);
        SizeClass::all().for_each(|class| self.collect_partial(class, usize::MAX, Then::Keep));
    }

    /// Whether it is a closed heap.
    pub(crate) fn is_closed(&self) -> bool {
        self.role == Role::Closed
    }

    /// Whether it is the shared one.
    fn is_shared(&self) -> bool {
        self.role == Role::Shared
    }

    /// Invariants 1, 2, 6 and 7.
    pub(crate) fn check(&self) {
        assert_eq!(self.ordinary, if self.is_careful() { 0 } else { self.refilled });
        for span in self.full.iter() {
            self.check_owned(span);
            assert!(span.is_full() && !core::ptr::eq(span, self.active[span.class().index()]));
        }
        self.check_empty();
        assert!(!self.is_shared() || self.full_limit == 0);
        assert!(self.full_limit <= FULL_MOST && self.emptied <= PARTIAL_EARNED);
        for class in SizeClass::all() {
            let active = self.active[class.index()];
            for span in self.partial[class.index()].iter() {
                self.check_owned(span);
                assert!(!core::ptr::eq(span, active) && span.class() == class);
            }
            // SAFETY: null, or a span that this heap owns.
            if let Some(span) = unsafe { active.as_ref() } {
                self.check_owned(span);
            }
            if Caches::IS_MIXED {
                self.check_cached(class);
            }
            let (mut block, mut len) = (self.caches.first(class), 0);
            while block != END {
                assert!(is_block_of(class, block));
                // SAFETY: the blocks in the cache are this heap's.
                (block, len) = (unsafe { Block::next(block) }, len + 1);
            }
            let left = self.caches.left(class);
            assert!(left <= 0 || !self.sampling.is_strict());
            assert!(left <= 0 || left + len * CACHE_UNITS <= class.layout().cache_limit as i32);
        }
    }

    fn check_owned(&self, span: &Span) {
        let owner = &address_map::descriptor_at(span.index()).owner;
        assert_eq!(owner.load(Ordering::Relaxed), self.owner);
        span.check();
    }
}
