//! Owns: which allocations take the slow path because somebody wants to see them.
//! Idea: a heap counts bytes down as its refills hand blocks out. A list in which the count would run
//!   out is cut before that block: exactly that allocation comes to a refill, and is told of.
//! Never: costs an instruction of a fast path while nobody asks; counts an allocation of a heap twice,
//!   or leaves one out.
//! Threads: a `Sampling`: whoever has the heap; the rest any.
//! Checked: tests/sample.rs counts each allocation.
//! Story: docs/design/upkeep.md

use crate::base::{
    AtomicPtr, AtomicU8, AtomicUsize, CACHE_UNITS, CLASS_COUNT, Ordering, SizeClass, random,
};
use crate::os;
use crate::samples::asked::Asked;
use crate::samples::tuning::{TRUST_MAX, TRUST_SHARE};
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
/// A `Told`; null: nobody asks, whatever the interval is. Relaxed: it is stored before the interval, and read after it.
static TOLD: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Who has asked for it, or null. Who asks for something else takes it over. Relaxed: as `TOLD`.
static ASKER: AtomicPtr<Asked> = AtomicPtr::new(null_mut());

/// A `Draw`. Relaxed: as `TOLD`.
static DRAW: AtomicU8 = AtomicU8::new(Draw::Each as u8);

/// Which allocations can be samples.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Draw {
    /// Each: exactly that in which the count runs out. Caches take in no frees.
    Each,
    /// Those that come to a refill: the first after the count has run out. Caches work as ever, and nobody is told:
    /// who asks for a refill asks `count`.
    Refills,
    /// Each, by chance: all bytes are as likely to be in a sample, whatever has been one before. Caches work as ever
    /// until the next sample is near, and nobody is told: who asks for a refill asks `takes_drawn`.
    Chance,
}

impl Draw {
    fn wanted() -> Draw {
        let kinds = [Draw::Each, Draw::Refills, Draw::Chance];
        kinds.get(usize::from(DRAW.load(Ordering::Relaxed))).copied().unwrap_or(Draw::Each)
    }
}

/// What a refill gives of the blocks that it has found.
pub(crate) struct Cut {
    /// So many.
    pub(crate) most: u32,
    /// What the cache may take in then.
    pub(crate) limit: Limit,
    /// The first of them is a sample, of which somebody is told.
    pub(crate) is_told: bool,
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

/// Says how all heaps sample from their next look at it on: see `thread::sample_every`. Who has asked before does not have
/// it any more.
pub(crate) fn set(bytes: usize, draw: Draw, told: Told, asker: Option<&'static Asked>) {
    let asker = asker.map_or(null_mut(), |asker| core::ptr::from_ref(asker).cast_mut());
    let before = ASKER.swap(asker, Ordering::Relaxed);
    if before != asker {
        // SAFETY: null, or such a reference.
        unsafe { before.as_ref() }.into_iter().for_each(Asked::lose);
    }
    DRAW.store(draw as u8, Ordering::Relaxed);
    TOLD.store(told as *mut (), Ordering::Relaxed);
    // Release: who finds the interval finds whom to tell.
    INTERVAL.store(bytes, Ordering::Release);
}

/// Ends it, if that is who is told. The interval is left as it is: it may be that of somebody who has asked meanwhile.
pub(crate) fn end(told: Told) {
    let order = Ordering::Relaxed;
    let _ = TOLD.compare_exchange(told as *mut (), null_mut(), order, order);
}

/// Bytes from one sample to the next that somebody asks for; 0: nobody does.
pub(crate) fn wanted_interval() -> usize {
    // Acquire: pairs with `set`.
    let interval = INTERVAL.load(Ordering::Acquire);
    if TOLD.load(Ordering::Relaxed).is_null() { 0 } else { interval }
}

/// What a heap knows of it. The block in which `left` runs out is the sample.
#[derive(Clone, Copy)]
pub(crate) struct Sampling {
    /// As the heap has it; 0: off.
    interval: usize,
    /// Bytes until the next sample.
    left: usize,
    /// Classes whose next block is the sample, a bit each. By chance: of which `next` says how far it is.
    due: u64,
    draw: Draw,
    /// By chance: the block that the last refill has given is a sample.
    drawn: bool,
    /// Where the row of its random numbers stands.
    random: u64,
    /// What it knows of each class, in a mapping of its own that stays; or null.
    next: *mut [Next; CLASS_COUNT],
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
        self.interval > 0 && self.draw != Draw::Refills
    }

    /// Whether caches take in nothing.
    pub(crate) fn is_strict(&self) -> bool {
        self.interval > 0 && self.draw == Draw::Each
    }

    /// Whether samples are drawn by chance.
    #[inline(always)]
    pub(crate) fn is_by_chance(&self) -> bool {
        self.interval > 0 && self.draw == Draw::Chance
    }

    /// How samples are drawn.
    pub(crate) fn draw(&self) -> Draw {
        self.draw
    }

    /// Bytes from one sample to the next, on average or exactly.
    pub(crate) fn interval(&self) -> usize {
        self.interval
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
        // What the program has freed meanwhile may have served: that tells of nothing.
        let blocks = 1 + Caches::told(class, before, after).max(0);
        let bytes = blocks as usize * class.block_size();
        let is_sample = bytes >= self.left;
        self.left = if is_sample { self.interval } else { self.left - bytes };
        is_sample
    }

    /// Whether somebody has asked for something else than the heap does. It does that from now on, unless it is not to draw by
    /// chance.
    pub(crate) fn follow(&mut self, is_for_chance: bool) -> bool {
        let mut interval = wanted_interval();
        let draw = Draw::wanted();
        if interval > 0 && draw == Draw::Chance && !(is_for_chance && self.has_next()) {
            interval = 0;
        }
        let is_new = interval != self.interval || draw != self.draw;
        if is_new {
            let place = core::ptr::from_ref(self).addr();
            let random = random::first(os::seed(), place, os::now_ns());
            let (left, due, drawn) = (interval, 0, false);
            *self = Sampling { interval, left, due, draw, drawn, random, ..*self };
            self.judge_watched();
        }
        is_new
    }

    /// What a refill may give of `count` blocks, where the cache may take in as much and would have been left at `left`.
    pub(crate) fn cut(&mut self, class: SizeClass, count: u32, limit: Limit, left: i32) -> Cut {
        if self.draw == Draw::Chance {
            return self.cut_by_chance(class, count, limit, left);
        }
        let limit = if limit == Limit::ZEROED { limit } else { Limit::NOTHING };
        let (most, is_told) = self.count_to_next(class, count as usize);
        Cut { most: most as u32, limit, is_told }
    }

    /// How many of `count` blocks may be handed out before the next sample, and whether the first of
    /// them is that sample.
    fn count_to_next(&mut self, class: SizeClass, count: usize) -> (usize, bool) {
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

// By chance. How many blocks of a class come before its next sample is drawn when it has had one. A refill gives no more,
// and each free that a cache takes in, whose block may be allocated without a refill, costs its limit a unit for good
// (see `Limit`): what is left of the limit says how many there have been, and a limit of as many units above a block's
// takes in no more than they. But such a cache has room for few blocks at once, where most never use the limit up. Where
// they have not, the limit is a multiple of it (`trust`). If then more have been allocated than were to come before the
// sample, it is missed, and owed. In a loop each refill that finds so comes at the same place: an owed sample is drawn anew,
// as far away as the cache was allowed to run on average, and until none is owed the limit is no multiple.
//
// What has not been a sample says nothing of what comes next: where nobody knows how many there have been, it is drawn anew.

/// What a heap knows of a class whose samples are drawn by chance, since its last refill.
#[derive(Clone, Copy)]
pub(crate) struct Next {
    /// So many blocks come before the sample behind those that the refill has given.
    blocks: u32,
    /// What the cache was allowed to take in then.
    limit: Limit,
    /// The limit may be 2 to that power times as large.
    trust: u8,
    /// The sample is an owed one.
    is_owed: bool,
    /// So many samples have been missed.
    owed: u16,
}

impl Next {
    /// How many blocks come before the sample, where so much is left of the limit; and how many have come behind it.
    fn after_refill(&mut self, left: i32) -> (u32, u32) {
        let frees = self.limit.0.saturating_sub(left).max(0) as u32;
        if frees > self.blocks / 2 {
            self.trust = 0;
        } else if frees < self.blocks / TRUST_SHARE {
            self.trust = (self.trust + 1).min(TRUST_MAX);
        }
        (self.blocks.saturating_sub(frees), frees.saturating_sub(self.blocks))
    }

    /// What the cache may take in of `limit`, where so many blocks come before the sample behind the refill's.
    fn allow(&mut self, blocks: u32, limit: Limit) -> Limit {
        let trust = if self.owed == 0 { self.trust } else { 0 };
        let most = (u64::from(blocks) << trust).min(i32::MAX as u64 / 2) as i32;
        self.blocks = blocks;
        self.limit = match limit.0 > CACHE_UNITS && most > 0 {
            true => limit.min(Limit(CACHE_UNITS + most)),
            false => limit.min(Limit::NOTHING_MORE),
        };
        self.limit
    }
}

impl Sampling {
    #[cold]
    #[inline(never)]
    fn cut_by_chance(&mut self, class: SizeClass, count: u32, limit: Limit, left: i32) -> Cut {
        let before = self.before_next(class, left);
        // SAFETY: samples are drawn by chance only if it is there.
        let next = unsafe { &mut (*self.next)[class.index()] };
        // Hardened, what a cache takes in comes back without a refill.
        let limit = if Caches::IS_MIXED { limit.min(Limit::NOTHING) } else { limit };
        self.due |= class.bit();
        if before > 0 {
            let most = count.min(before);
            return Cut { most, limit: next.allow(before - most, limit), is_told: false };
        }
        self.drawn = true;
        self.due &= !class.bit();
        next.owed -= u16::from(next.is_owed);
        Cut { most: 1, limit: next.allow(0, limit), is_told: false }
    }

    /// How many blocks of a class come before the next sample, where so much is left of its cache's limit.
    fn before_next(&mut self, class: SizeClass, left: i32) -> u32 {
        // SAFETY: samples are drawn by chance only if it is there.
        let next = unsafe { &mut (*self.next)[class.index()] };
        // The limit of a cache that has been emptied is that, and no other's.
        if self.due & class.bit() != 0 && left != Limit::NOTHING.0 {
            let (before, mut behind) = next.after_refill(left);
            if behind == 0 {
                return before;
            }
            // The first of those behind is the sample.
            while behind > 0 {
                next.owed = next.owed.saturating_add(u16::from(!next.is_owed));
                next.is_owed = false;
                behind = (behind - 1).saturating_sub(self.draw_next(class, self.interval));
            }
        }
        let before = self.draw_next(class, self.interval);
        next.is_owed = false;
        if next.owed == 0 {
            return before;
        }
        let before_owed = self.draw_next(class, self.interval >> TRUST_MAX);
        next.is_owed = before_owed < before;
        before.min(before_owed)
    }

    #[inline(never)]
    fn draw_next(&mut self, class: SizeClass, mean: usize) -> u32 {
        let bytes = random::exponential(random::next(&mut self.random), mean);
        (bytes / class.block_size()).min(u32::MAX as usize) as u32
    }

    /// Whether there is a place for what it knows of each class, made if need be.
    #[cold]
    fn has_next(&mut self) -> bool {
        if self.next.is_null() {
            self.next = os::map(size_of::<[Next; CLASS_COUNT]>()).cast();
        }
        !self.next.is_null()
    }

    /// How many bytes come before the next sample, or at least `most`.
    #[inline(never)]
    fn bytes_before_next(&mut self, most: usize) -> usize {
        let random = random::next(&mut self.random);
        match random::exponential_min(random, self.interval) {
            least if least >= most => least,
            _ => random::exponential(random, self.interval),
        }
    }

    /// Whether a block of so many bytes, which comes from no cache, is a sample.
    pub(crate) fn draws_block(&mut self, bytes: usize) -> bool {
        self.bytes_before_next(bytes) < bytes
    }

    /// What it has for each class, which stays where it is: it goes with the place of its heap.
    pub(crate) fn mapping(&self) -> *mut [Next; CLASS_COUNT] {
        self.next
    }

    /// It has that of the heap before in its place.
    pub(crate) fn set_mapping(&mut self, next: *mut [Next; CLASS_COUNT]) {
        self.next = next;
    }

    /// Whether the block that the last refill has given is a sample; only the first to ask is told.
    pub(crate) fn takes_drawn(&mut self) -> bool {
        core::mem::take(&mut self.drawn)
    }
}

/// Tells of a sampled allocation.
pub(crate) fn tell(block: *mut u8, size: usize) {
    let told = TOLD.load(Ordering::Relaxed);
    if !told.is_null() {
        // SAFETY: stored by `set` out of such a function.
        let told: Told = unsafe { core::mem::transmute(told) };
        os::without_panic(|| told(block, size));
    }
}

const _: () = assert!(size_of::<Told>() == size_of::<*mut ()>());
