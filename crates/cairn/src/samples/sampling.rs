//! Owns: which allocations take the slow path because somebody wants to see them.
//! Idea: a heap counts bytes down as its refills hand blocks out. A list in which the count would run
//!   out is cut before that block: exactly that allocation comes to a refill, and is told of.
//! Never: costs an instruction of a fast path while nobody asks; counts an allocation of a heap twice,
//!   or leaves one out.
//! Threads: a `Sampling`: whoever has the heap; the rest any.
//! Checked: tests/sample.rs counts each allocation.
//! Story: docs/design/upkeep.md

use crate::base::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, SizeClass};
use crate::store::{Caches, Limit, Store};
use core::ptr::null_mut;

/// Who is told of a sampled allocation: the block, and its size in bytes. It must not allocate, free or
/// panic.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// static BYTES: AtomicUsize = AtomicUsize::new(0);
/// let told: cairn::Told = |_block, bytes| _ = BYTES.fetch_add(bytes, Ordering::Relaxed);
/// cairn::sample_every(1 << 20, told);
/// # cairn::sample_every(0, told);
/// ```
pub type Told = fn(*mut u8, usize);

/// Bytes from one sample to the next; 0: nobody asks. Who sees it late counts from then on.
static INTERVAL: AtomicUsize = AtomicUsize::new(0);
/// A `Told`, or null. Relaxed: it is stored before the interval, and read after it.
static TOLD: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Whether samples are drawn at refills alone. Relaxed: as `TOLD`.
static AT_REFILLS: AtomicBool = AtomicBool::new(false);

/// Which allocations can be samples.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Draw {
    /// Each: exactly that in which the count runs out. Caches take in no frees.
    Each,
    /// Those that come to a refill: the first after the count has run out. Caches work as ever, and nobody is told:
    /// who asks for a refill asks `count`.
    Refills,
}

/// Bytes in blocks that a thread has allocated and freed while it counted: by the sizes of the blocks, not by what was
/// asked for.
///
/// ```
/// let cairn::ThreadCounts { allocated, freed } = cairn::thread_counts();
/// assert_eq!((allocated, freed), (0, 0), "nobody has asked for them");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ThreadCounts {
    /// Allocated.
    pub allocated: u64,
    /// Freed, whoever has allocated it.
    pub freed: u64,
}

/// Says how all heaps sample from their next look at it on: see `thread::sample_every`.
pub(crate) fn set(bytes: usize, draw: Draw, told: Told) {
    AT_REFILLS.store(draw == Draw::Refills, Ordering::Relaxed);
    TOLD.store(told as *mut (), Ordering::Relaxed);
    // Release: who finds the interval finds whom to tell.
    INTERVAL.store(bytes, Ordering::Release);
}

/// Ends it, if that is who is told.
pub(crate) fn end(told: Told) {
    let order = Ordering::Relaxed;
    if TOLD.compare_exchange(told as *mut (), null_mut(), order, order).is_ok() {
        INTERVAL.store(0, order);
    }
}

/// What a heap knows of it. The block in which `left` runs out is the sample.
#[derive(Clone, Copy)]
pub(crate) struct Sampling {
    /// As the heap has it; 0: off.
    interval: usize,
    /// Bytes until the next sample.
    left: usize,
    /// Classes whose next block is the sample, a bit each.
    due: u64,
    /// Samples are drawn at refills alone.
    at_refills: bool,
    /// The program wants to be called for what it frees later.
    defers: bool,
    /// The program has to be told that memory runs short.
    tells: bool,
    /// It does, or has, or samples are drawn.
    watched: bool,
}

impl Sampling {
    /// Whether the heap's refills are not like others'.
    pub(crate) fn is_careful(&self) -> bool {
        self.is_on() || self.defers
    }

    /// Whether the program is called at refills.
    pub(crate) fn defers(&self) -> bool {
        self.defers
    }

    /// Says whether it is.
    pub(crate) fn set_defers(&mut self, defers: bool) {
        self.defers = defers;
        self.judge_watched();
    }

    /// Somebody has told the program that memory runs short.
    pub(crate) fn has_told(&mut self) {
        self.tells = false;
        self.judge_watched();
    }

    /// Says whether somebody has to.
    pub(crate) fn set_tells(&mut self, tells: bool) {
        self.tells = tells;
        self.judge_watched();
    }

    /// Whether somebody has.
    pub(crate) fn tells(&self) -> bool {
        self.tells
    }

    fn judge_watched(&mut self) {
        self.watched = self.defers || self.tells || self.draws();
    }

    /// How many blocks a cache is filled with at most. Where the program is called at refills, as many as it takes in: one in
    /// a loop uses up each block in `CACHE_UNITS` turns.
    pub(crate) fn most(&self, class: SizeClass) -> u32 {
        let most = if self.defers { class.layout().cache_blocks() } else { u32::MAX };
        Caches::most(most)
    }

    /// What a cache may take in. Where the program is called at refills, that must not depend on what is known of the memory
    /// of carved blocks: the clock decides that. And in the hardened build a cache that takes in is never refilled in a loop.
    pub(crate) fn limit(&self, limit: Limit, freed: bool) -> Limit {
        let is_less = self.defers && limit != Limit::ZEROED && !Caches::comes_to_refills(freed);
        if is_less { Limit::NOTHING } else { limit }
    }

    /// Whether any allocation of the heap can be a sample.
    pub(crate) fn is_on(&self) -> bool {
        self.interval > 0 && !self.at_refills
    }

    /// Whether somebody wants to see refills: those in which a block may be a sample, or all.
    #[inline(always)]
    pub(crate) fn is_watched(&self) -> bool {
        self.watched
    }

    /// Whether any allocation can be a sample.
    pub(crate) fn draws(&self) -> bool {
        self.interval > 0
    }

    /// Counts what a refill tells of, by what the cache of `class` told before it and does after it (see
    /// `tells`): the blocks of the cache, and those that have come back to it and been allocated again. Whether
    /// the block that the refill has given is the sample.
    pub(crate) fn count(&mut self, class: SizeClass, before: i32, after: i32) -> bool {
        let blocks = 1 + Caches::told(class, before, after);
        let bytes = blocks as usize * class.block_size();
        let is_sample = bytes >= self.left;
        self.left = if is_sample { self.interval } else { self.left - bytes };
        is_sample
    }

    /// Whether somebody has asked for something else than the heap does. It does that from now on.
    pub(crate) fn follow(&mut self) -> bool {
        // Acquire: pairs with `set`.
        let interval = INTERVAL.load(Ordering::Acquire);
        let at_refills = AT_REFILLS.load(Ordering::Relaxed);
        let is_new = interval != self.interval || at_refills != self.at_refills;
        if is_new {
            *self = Sampling { interval, left: interval, due: 0, at_refills, ..*self };
            self.judge_watched();
        }
        is_new
    }

    /// How many of `count` blocks may be handed out before the next sample, and whether the first of
    /// them is that sample.
    pub(crate) fn cut(&mut self, class: SizeClass, count: usize) -> (usize, bool) {
        let size = class.block_size();
        let before = self.left / size;
        if self.due & class.bit() != 0 {
            self.due &= !class.bit();
            return (1, true);
        }
        if before == 0 {
            self.left = self.interval;
            return (1, true);
        }
        let most = before.min(count);
        self.left -= most * size;
        if most < count {
            self.due |= class.bit();
            self.left = self.interval;
        }
        (most, false)
    }
}

/// Tells of a sampled allocation.
pub(crate) fn tell(block: *mut u8, size: usize) {
    let told = TOLD.load(Ordering::Relaxed);
    if !told.is_null() {
        // SAFETY: stored by `set` out of such a function.
        let told: Told = unsafe { core::mem::transmute(told) };
        told(block, size);
    }
}

const _: () = assert!(size_of::<Told>() == size_of::<*mut ()>());
