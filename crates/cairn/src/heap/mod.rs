//! Owns: what one thread allocates from: a list of free blocks per class, the spans it holds,
//!   and the frees it has under way to other owners.
//! Idea: the fast path pops and pushes plain lists; every slow tick does a bounded bit of upkeep.
//! Never: knows how threads find their heap, or the C ABI.
//! Threads: the thread that has the heap; takes the locks of `abandoned` and `arena`, never both.
//! Checked: `Heap::check`; oracle and stress tests.
//! Story: docs/design/heap.md

pub(crate) mod pool;
pub(crate) mod salvage;
mod sending;
pub(crate) mod shared;
mod upkeep;

pub(crate) use sending::send_without_heap;
pub(crate) use upkeep::request_trim;
pub use upkeep::tick;

use crate::address_map::{self, HEAP_SIZE};
use crate::block::{Block, Chain};
use crate::large::Large;
use crate::size_class::{
    CLASS_COUNT, CLASSES, LONG_CLASS, MASKS, MIN_ALIGN, SMALL_CLASS, SMALL_MAX,
};
use crate::span::{Span, SpanList};
use crate::sync::{AtomicPtr, Ordering};
use crate::{abandoned, arena, os};
use core::ptr::null_mut;
use core::sync::atomic::compiler_fence;
use upkeep::UPKEEP_TICKS;

// Invariants
//  1. `cache[c]` holds blocks of spans of class c; they count as used there. A refill fills it
//     from one span, frees add to it: its length + `cache_left[c]`, if that is above 0, is at most the
//     class's room. What does not fit goes home, to its span.
//  2. A held span is `active[c]`, or in `partial[c]`, or in `full`, one of them. A span in
//     `partial` has free or untouched blocks. A full span that is not active is let go, but
//     the latest of them go into `full`, as far as that pays and there is room.
//     `full_slices` counts those.
//  3. `large_cache` is a run that `large` has let go and the arena has not got back, or null.
//  4. A batch in `batches` holds blocks of one span, others' when they came, fewer than its bound.
//  5. `sweep_next` is null or a member of `partial[sweep_class]`.

/// Batches under way at once. Twice of it holds back more blocks of threads that free at
/// random; half of it evicts batches of one when 16 threads free to each other.
const BATCHES: usize = 16;
/// A refill carves at most this much of untouched memory, an OS page, the first few times of a
/// class: that much more than it needs is what a small program shows ...
const CARVE_BYTES: usize = 4096;
const COLD_CARVES: u8 = 6;
/// ... and then this much, which makes the refills of a growing heap rare ...
const HOT_CARVE_BYTES: usize = 16384;
/// ... and at most this many blocks.
const CARVE_BLOCKS: usize = 64;
/// A heap asks the shared heap this often for blocks of a class before it takes spans of its own.
const SHARED_REFILLS: u8 = 3;
/// What it gets at once is at most one block, or this much.
const SHARED_BYTES: usize = 1024;
/// `cache_left` of a list of blocks that are zero but for their links: it takes in no others.
const ZEROED: i32 = i32::MIN / 2;
/// Spans of the heap's own looked at for the fullest.
const LOOK: usize = 8;
/// One empty span of a class may stay with its heap if it is no larger than the heap's share of
/// this: up to eight heaps keep some, of at most 1 MiB in each.
const SPARE_SLICES: usize = 8;
/// Free blocks that make a span worth a refill.
const WORTHWHILE: u32 = 8;
/// Usable spans of a class that a heap takes in, by freeing into them, while others might need
/// them. More: what idle threads leave unusable grows; fewer: threads that exchange blocks let
/// go of what they need next (docs/why-not.md has both).
const PARTIAL_LIMIT: usize = 4;

/// Frees under way to one span.
#[derive(Clone, Copy)]
struct Batch {
    /// Index of the span's first slice; `NO_SPAN` until there is one.
    span: usize,
    chain: Chain,
}

const NO_SPAN: usize = usize::MAX;

/// A thread's allocator. Its address modulo 2^32 is its tag in descriptors.
#[repr(C)]
pub(crate) struct Heap {
    // Fast path.
    cache: [*mut Block; CLASS_COUNT],
    small_class: [u8; SMALL_MAX / MIN_ALIGN + 1],
    /// How many more freed blocks `cache` may take in, if above 0.
    cache_left: [i32; CLASS_COUNT],
    /// The classes' masks: a free finds its own by one instruction.
    pub(crate) masks: [u64; CLASS_COUNT],
    // Slow path.
    active: [*mut Span; CLASS_COUNT],
    partial: [SpanList; CLASS_COUNT],
    full: SpanList,
    full_slices: usize,
    /// What it makes use of of full spans at most.
    full_limit: usize,
    /// How often each class has been carved, or blocks of it been asked of the shared heap. Passes
    /// on to the next thread: those that follow each other are alike.
    carves: [u8; CLASS_COUNT],
    batches: [Batch; BATCHES],
    /// A freed run of slices for the next large block, or null.
    pub(crate) large_cache: AtomicPtr<Large>,
    remote_frees: u32,
    large_blocks: u32,
    slow_ticks: u32,
    /// How often in a row it was found to make few slow_ticks: less than one in a millisecond.
    quiet: u32,
    /// When that was last judged, and the slow_ticks up to then.
    judged: (u32, u32),
    /// Where the search for holes goes on, and in which class.
    sweep_next: *mut Span,
    sweep_class: usize,
    /// Classes that have been refilled since upkeep last looked at them, a bit each.
    refilled: u64,
    trims_seen: usize,
    // The pool's.
    next: *mut Heap,
    pub(crate) in_use: bool,
    /// It is the shared heap.
    pub(crate) is_shared: bool,
    /// How many forks there had been when it was taken.
    epoch: u32,
}

const _: () = assert!(size_of::<Heap>() <= HEAP_SIZE - 64);
const _: () = assert!(CLASS_COUNT <= 64);

impl Heap {
    /// A heap with nothing in it.
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is a heap of its own")]
    pub(crate) const EMPTY: Heap = Heap {
        small_class: SMALL_CLASS,
        masks: MASKS,
        full_limit: pool::FULL_SLICES,
        batches: [Batch { span: NO_SPAN, chain: Chain::EMPTY }; BATCHES],
        // SAFETY: null pointers, empty lists and zeros are what the rest starts with.
        ..unsafe { core::mem::zeroed() }
    };

    /// The class for a size up to `SMALL_MAX`.
    ///
    /// # Safety
    /// `size` is no larger.
    #[inline(always)]
    pub(crate) unsafe fn small_class(&self, size: usize) -> usize {
        // SAFETY: (SMALL_MAX + 15) / 16 is the last index.
        unsafe {
            usize::from(
                *self
                    .small_class
                    .get_unchecked((size + MIN_ALIGN - 1) >> MIN_ALIGN.trailing_zeros()),
            )
        }
    }

    /// Pops a block; null if a refill is due.
    ///
    /// # Safety
    /// The caller is the heap's thread; `class` is below `CLASS_COUNT`.
    #[inline(always)]
    pub(crate) unsafe fn cache_pop(this: *mut Heap, class: usize) -> *mut Block {
        // SAFETY: the thread's own heap, and a class of the table. A stand-in is only read: its lists
        // are empty.
        unsafe {
            let head = (&raw mut (*this).cache).cast::<*mut Block>().add(class);
            let block = *head;
            if !block.is_null() {
                *head = Block::next(block);
                *(&raw mut (*this).cache_left).cast::<i32>().add(class) += 1;
            }
            block
        }
    }

    /// Whether the block just popped is zero but for its first word; false is always safe.
    ///
    /// # Safety
    /// `class` is below `CLASS_COUNT`.
    #[inline(always)]
    pub(crate) unsafe fn is_zeroed(&self, class: usize) -> bool {
        // SAFETY: a class of the table.
        unsafe { self.cache_left(class) < ZEROED / 2 }
    }

    /// How many blocks the list of `class` holds, read from outside while its thread may be
    /// at work: nothing is followed that is not a block of the class.
    ///
    /// # Safety
    /// `this` is a heap that has been made.
    pub(crate) unsafe fn peek(this: *const Heap, class: usize) -> usize {
        let class = class % CLASS_COUNT;
        // SAFETY: heaps, slots and committed slices are never unmapped; each link is verified before it
        // is followed. Volatile, and plain for the thread: as an atomic the link would be no dearer,
        // but a block that has been handed out meanwhile is the program's.
        unsafe {
            let mut at = (&raw const (*this).cache[class]).read_volatile();
            let most = usize::from(CLASSES[class].blocks) + CLASSES[class].cache_limit as usize;
            let mut count = 0;
            while count < most && is_block_of(class, at) {
                count += 1;
                at = at.cast::<*mut Block>().read_volatile();
            }
            count
        }
    }

    /// What this heap writes into its spans' descriptors.
    #[inline(always)]
    pub(crate) fn tag(this: *const Heap) -> u32 {
        this.addr() as u32
    }

    /// How many more freed blocks the list of `class` takes in, if above 0.
    ///
    /// # Safety
    /// `class` is below `CLASS_COUNT`.
    #[inline(always)]
    pub(crate) unsafe fn cache_left(&self, class: usize) -> i32 {
        // SAFETY: a class of the table.
        unsafe { *self.cache_left.get_unchecked(class) }
    }

    /// Keeps a freed block for the next allocation: it is warm, and the next refill far. False if
    /// there is no room.
    ///
    /// # Safety
    /// `block` is a block of `class`, in use, and the caller's to free; the heap is no stand-in.
    #[inline(always)]
    pub(crate) unsafe fn cache_push(this: *mut Heap, class: usize, block: *mut Block) -> bool {
        debug_assert!(class < CLASS_COUNT);
        // SAFETY: the thread's own heap, a class of the table, and a block that is the caller's to free.
        unsafe {
            let room = (&raw mut (*this).cache_left).cast::<i32>().add(class);
            let left = *room - 1;
            *room = left;
            if left < 0 {
                // Without this the compiler takes three instructions more where there is room.
                compiler_fence(Ordering::SeqCst);
                *room += 1;
                return false;
            }
            let head = (&raw mut (*this).cache).cast::<*mut Block>().add(class);
            Block::set_next(block, *head);
            *head = block;
        }
        true
    }

    // The ladder of a refill: each rung is tried if the one before gave nothing.
    //
    // refill_short       what was freed in the active span here
    // refill             with a bit of upkeep:
    //   take_shared      a class this thread hardly uses: a few blocks of shared spans
    //   active_frees     what was freed in the active span, by others too
    //   take_partial        another span of this heap, the fullest of a few
    //   reclaim     a span that somebody let go, the fullest of a few
    //   carve            untouched blocks of the active span, a page's worth
    //   carve_own        the same of another span
    //   fresh_span       a new span, from the arena
    /// The first rung, short for blocks of which each pair of malloc and free comes by; null if
    /// it gives nothing, or if upkeep is due.
    ///
    /// # Safety
    /// As for `cache_pop`.
    #[inline(always)]
    pub(crate) unsafe fn refill_short(this: *mut Heap, class: usize) -> *mut Block {
        // SAFETY: the thread's own heap; a stand-in has no active span. An active span is held.
        unsafe {
            let span = *(&raw const (*this).active).cast::<*mut Span>().add(class);
            if span.is_null()
                || !(*span).has_local_free()
                || (*this).slow_ticks.wrapping_add(1).is_multiple_of(UPKEEP_TICKS)
                || (*this).refilled & 1 << class == 0
                || (*this).quiet > 0
            {
                return null_mut();
            }
            (*this).slow_ticks += 1;
            let class = class % CLASS_COUNT;
            (*this).serve(class, (*span).take_local(), CLASSES[class].cache_limit as i32)
        }
    }

    /// Pops the first block of `list`, which may grow to `most`.
    #[inline(always)]
    fn serve(&mut self, class: usize, list: Chain, most: i32) -> *mut Block {
        // SAFETY: the list is this heap's now.
        self.cache[class] = unsafe { Block::next(list.head) };
        self.cache_left[class] = most + 1 - list.count as i32;
        list.head
    }

    /// Fills `free[class]` and pops a block; null if there is no more memory.
    #[cold]
    #[inline(never)]
    pub(crate) fn refill(&mut self, class: usize) -> *mut Block {
        let class = class % CLASS_COUNT;
        self.slow_tick();
        if self.refilled & 1 << class == 0 {
            self.refilled |= 1 << class;
            self.judge_quiet(os::now_ms());
        }
        let room = CLASSES[class].cache_limit as i32;
        let freed = [Heap::take_shared, Heap::active_frees, Heap::take_partial, Heap::reclaim];
        for (nth, rung) in freed.into_iter().enumerate() {
            let mut list = rung(self, class);
            if list.count > 0 && nth > 0 && self.quiet > 0 {
                // SAFETY: the list is of the active span.
                unsafe { (*self.active[class]).take_rest_back(&mut list) };
            }
            if list.count > 0 {
                // What is shared goes back when it is freed: others need as little of it.
                let keeps = nth > 0 && self.quiet == 0;
                return self.serve(class, list, if keeps { room } else { 0 });
            }
        }
        for rung in [Heap::carve, Heap::carve_own, Heap::fresh_span] {
            let (list, fresh) = rung(self, class);
            if list.count > 0 {
                return self.serve(class, list, if fresh { ZEROED } else { room });
            }
        }
        null_mut()
    }

    /// The first few blocks of a class come from shared spans, if there is somebody to share
    /// with: one, two, four; in a crowd twice as many, for its thread has had some before it came.
    fn take_shared(&mut self, class: usize) -> Chain {
        let asked = self.carves[class];
        if asked >= SHARED_REFILLS || self.is_shared || pool::in_use() <= 1 {
            return Chain::EMPTY;
        }
        self.carves[class] += 1;
        let most = (SHARED_BYTES / CLASSES[class].size as usize).max(1);
        shared::take(class, most.min(1 << asked << usize::from(pool::in_use() > pool::CROWD)))
    }

    fn active_frees(&mut self, class: usize) -> Chain {
        let span = self.active[class];
        if span.is_null() {
            return Chain::EMPTY;
        }
        // SAFETY: invariant 2: this heap holds it.
        let span = unsafe { &mut *span };
        match span.has_local_free() {
            true => span.take_local(),
            // Pending blocks count as used already, and go on counting.
            false => span.collect(),
        }
    }

    fn take_partial(&mut self, class: usize) -> Chain {
        let mut best: (i32, *mut Span) = (i32::MIN, null_mut());
        let mut at = self.partial[class].first();
        for _ in 0..LOOK {
            if at.is_null() {
                break;
            }
            // SAFETY: members of `partial` are held by this heap.
            unsafe {
                if !(*at).has_local_free() {
                    (*at).absorb((*at).collect());
                }
                let free = (*at).free() as i32;
                // The fullest of those with some to give; else the one with the most.
                let worthwhile = free >= WORTHWHILE as i32;
                let rank = if worthwhile { -free } else { free - (1 << 16) };
                if free > 0 && rank > best.0 {
                    best = (rank, at);
                }
                at = SpanList::after(at);
            }
        }
        let span = best.1;
        if span.is_null() {
            return Chain::EMPTY;
        }
        self.activate(class, span, true);
        // SAFETY: held by this heap.
        unsafe { (*span).take_local() }
    }

    fn reclaim(&mut self, class: usize) -> Chain {
        let Some((span, pending)) = abandoned::reclaim(class) else { return Chain::EMPTY };
        self.activate(class, span, false);
        // SAFETY: this heap holds it now.
        unsafe {
            (*span).own(Heap::tag(self));
            match pending.count {
                0 => (*span).take_local(),
                _ => pending,
            }
        }
    }

    fn carve(&mut self, class: usize) -> (Chain, bool) {
        let span = self.active[class];
        if span.is_null() {
            return (Chain::EMPTY, false);
        }
        let carves = &mut self.carves[class];
        *carves = carves.saturating_add(1);
        let bytes = if *carves <= COLD_CARVES { CARVE_BYTES } else { HOT_CARVE_BYTES };
        let limit = (bytes / CLASSES[class].size as usize).clamp(1, CARVE_BLOCKS);
        // SAFETY: invariant 2; its `local_free` was found empty on an earlier rung.
        unsafe { (*span).carve(limit) }
    }

    fn carve_own(&mut self, class: usize) -> (Chain, bool) {
        let span = self.partial[class].first();
        // SAFETY: members of `partial` are held by this heap.
        if span.is_null() || unsafe { (*span).has_local_free() || (*span).untouched() == 0 } {
            return (Chain::EMPTY, false);
        }
        self.activate(class, span, true);
        self.carve(class)
    }

    fn fresh_span(&mut self, class: usize) -> (Chain, bool) {
        let (slices, heaps) = (CLASSES[class].slices as usize, pool::in_use());
        let Some(run) = arena::take_span(slices, heaps) else { return (Chain::EMPTY, false) };
        // SAFETY: the run is ours, taken just now in the class's length.
        let span = unsafe { Span::create(run.index, run.zero, class, Heap::tag(self)) };
        self.activate(class, span, false);
        self.carve(class)
    }

    /// Makes `span` the active one, out of `partial` if it stands there.
    fn activate(&mut self, class: usize, span: *mut Span, listed: bool) {
        if listed {
            // SAFETY: the caller found it there.
            unsafe { self.take_out(class, span) };
        }
        self.deactivate(class);
        // SAFETY: held by this heap.
        unsafe { (*span).set_active() };
        self.active[class] = span;
    }

    /// Puts the active span aside, if there is one.
    fn deactivate(&mut self, class: usize) {
        let span = core::mem::replace(&mut self.active[class], null_mut());
        if !span.is_null() {
            // SAFETY: held by this heap, and in no list.
            unsafe { (*span).clear_event() };
            self.park(class, span);
        }
    }

    /// Finds a place for a held span that is neither active nor in a list.
    fn park(&mut self, mut class: usize, mut span: *mut Span) {
        // SAFETY: this heap holds the span throughout, until `abandon_full` succeeds.
        unsafe {
            if (*span).used() == 0 {
                return (*span).release();
            }
            if (*span).has_local_free() {
                return self.partial[class].push_front(span);
            }
            if (*span).untouched() > 0 {
                return self.partial[class].push_back(span);
            }
            // Half of a span of few blocks is worth as much: it must not wait until empty.
            (*span).set_full(WORTHWHILE.min(u32::from(CLASSES[class].blocks) / 2));
            self.full_slices += CLASSES[class].slices as usize;
            self.full.push_front(span);
            if !self.has_too_many_full() {
                return;
            }
            span = self.full.last();
            class = (*span).class() % CLASS_COUNT;
            self.unlist(class, span);
            if (*span).has_local_free() {
                return self.partial[class].push_front(span);
            }
            if !self.abandon_full(span) {
                // Others free what is allocated here.
                self.full_limit /= 4;
                (*span).absorb((*span).collect());
                self.park(class, span);
            }
        }
    }

    /// Lets go of a full span, nobody's until the next free; false if frees have come in.
    unsafe fn abandon_full(&self, span: *mut Span) -> bool {
        // SAFETY: the caller holds the span.
        unsafe {
            (*span).disown();
            (*span).word().abandon() || {
                (*span).own(Heap::tag(self));
                false
            }
        }
    }

    /// Whether it holds more full spans than it makes use of, or than there is room for.
    fn has_too_many_full(&self) -> bool {
        self.full_slices > self.full_limit.min(pool::full_share())
    }

    /// A local free into `span` was the one before an event.
    ///
    /// # Safety
    /// The heap holds `span`.
    #[cold]
    pub(crate) unsafe fn span_event(&mut self, span: *mut Span) {
        os::notice_fork();
        // SAFETY: the heap holds the span; invariant 2 says which list it is in.
        unsafe {
            let class = (*span).class() % CLASS_COUNT;
            if span == self.active[class] {
                // Without a list it is one block that comes and goes.
                if !self.cache[class].is_null() {
                    self.drop_active(class);
                }
                return;
            }
            self.unlist(class, span);
            // The only empty one may stay: the next refill would ask the arena for its like.
            let small = CLASSES[class].slices as usize <= pool::share(SPARE_SLICES);
            if (*span).used() > 0 {
                self.full_limit = (self.full_limit + 1).min(pool::FULL_SLICES);
            } else if self.partial[class].len() > 0 || !small {
                (*span).release();
                if class >= LONG_CLASS {
                    self.drop_active(class);
                }
                return self.slow_tick();
            }
            self.partial[class].push_front(span);
        }
    }

    /// Gives up the active span of a class whose spans become empty, if only the list has blocks of
    /// it: else a burst of frees leaves one of each class, and long ones count.
    fn drop_active(&mut self, class: usize) {
        // SAFETY: invariant 2: this heap holds it.
        let in_use = |span: *mut Span| unsafe { span.as_ref() }.map_or(u32::MAX, Span::used);
        if in_use(self.active[class]) <= CLASSES[class].cache_limit {
            self.empty_cache(class);
        }
        if in_use(self.active[class]) == 0 {
            self.deactivate(class);
        }
    }

    /// Takes a span that is not active out of its list.
    unsafe fn unlist(&mut self, class: usize, span: *mut Span) {
        // SAFETY: the caller names a span of this heap's; invariant 2.
        unsafe {
            if (*span).is_full() {
                (*span).clear_event();
                self.full_slices -= CLASSES[class].slices as usize;
                self.full.remove(span);
            } else {
                self.take_out(class, span);
            }
        }
    }

    /// Takes a span out of `partial`.
    unsafe fn take_out(&mut self, class: usize, span: *mut Span) {
        // SAFETY: the caller names a member; invariant 5.
        unsafe {
            if self.sweep_next == span {
                self.sweep_next = SpanList::after(span);
            }
            self.partial[class].remove(span);
        }
    }

    /// Invariants 1 and 2.
    pub(crate) fn check(&self) {
        let owner =
            |span: &Span| address_map::descriptor_at(span.index()).owner.load(Ordering::Relaxed);
        for span in self.full.iter() {
            assert_eq!(owner(span), Heap::tag(self));
            assert!(span.is_full() && !core::ptr::eq(span, self.active[span.class()]));
            span.check();
        }
        for (class, layout) in CLASSES.iter().enumerate() {
            for span in self.partial[class].iter() {
                assert_eq!(owner(span), Heap::tag(self));
                assert!(!core::ptr::eq(span, self.active[class]) && span.class() == class);
                span.check();
            }
            let active = self.active[class];
            // SAFETY: held by this heap; the blocks in `cache` are its own.
            unsafe {
                if !active.is_null() {
                    assert_eq!(owner(&*active), Heap::tag(self));
                    (*active).check();
                }
                let (mut block, mut len) = (self.cache[class], 0);
                while !block.is_null() {
                    assert!(is_block_of(class, block));
                    (block, len) = (Block::next(block), len + 1);
                }
                assert!(
                    self.cache_left[class] <= 0
                        || self.cache_left[class] + len <= layout.cache_limit as i32
                );
            }
        }
    }
}

/// Whether `p`, any value at all, is a block's start in a span of `class`.
fn is_block_of(class: usize, p: *mut Block) -> bool {
    let p = p.cast();
    address_map::contains(p) && address_map::span_block(p).is_some_and(|(of, _)| of == class)
}
