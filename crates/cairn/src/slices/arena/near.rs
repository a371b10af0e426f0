//! Owns: what the arena does for the limits of memory: room for what comes, and less free memory the nearer a limit is.
//! Idea: who takes memory, or gives it back, does its part; the time of it is counted.
//! Never: purges where nothing is to go back unasked, but to fulfil a request.
//! Threads: any; the arena's lock, given up around each system call.
//! Checked: tests/memory_limits.rs
//! Story: docs/design/purging.md

use super::purge::{GOING, GOING_CLEAN, purge_all, purge_batch};
use super::{ARENA, Arena, DIRTY, Run, Taken, WHOLE, keeps, region_slices};
use crate::base::bits::pieces;
use crate::base::nearness::ALL;
use crate::base::{Ordering, SLICE_SIZE};
use crate::os::{self, Guard};
use crate::slices::limit::{self, LOOK_FROM, Turn, Why};
use crate::slices::tuning::{HOLLOW_MIN, PURGE_BATCH};

/// Milliseconds that a request at the hard limit waits at most for what others are purging: more than a batch takes.
const GOING_LOOKS: usize = 20;

impl Arena {
    /// Bytes of slices in use and of dirty ones.
    fn touchable(&self) -> usize {
        (self.used() + self.dirty) * SLICE_SIZE
    }

    /// Bytes that count: the same, without what is a region's or has gone, and mappings. Holes count: who needs one again does
    /// not ask.
    #[inline(never)]
    pub(super) fn counted(&self) -> usize {
        let clean = region_slices::committed_aside() + GOING_CLEAN.load(Ordering::Relaxed);
        let apart = clean * SLICE_SIZE + limit::gone();
        self.touchable().saturating_sub(apart) + limit::mapped()
    }

    /// Whether a run that is taken goes beyond the hard limit.
    #[inline]
    pub(super) fn lacks_room(&self, index: usize, slices: usize) -> bool {
        limit::hard() > 0 && self.run_goes_beyond(index, slices)
    }

    #[cold]
    #[inline(never)]
    fn run_goes_beyond(&self, index: usize, slices: usize) -> bool {
        let clean =
            |(chunk, mask): (usize, u64)| (mask & !self.bits(chunk).dirty).count_ones() as usize;
        self.goes_beyond(pieces(index, slices).map(clean).sum::<usize>() * SLICE_SIZE)
    }

    /// Whether so many bytes more do, where there is one.
    #[cold]
    #[inline(never)]
    pub(super) fn goes_beyond(&self, bytes: usize) -> bool {
        self.counted().saturating_add(bytes) > limit::hard()
    }

    /// Whether slices may become resident that nobody has asked for.
    #[inline(never)]
    pub(super) fn has_room_to_spare(&self, index: usize, slices: usize) -> bool {
        !self.lacks_room(index, slices) && self.share() == ALL
    }

    /// How much of its bound free memory may keep: see `limit::share`.
    #[inline(never)]
    pub(super) fn share(&self) -> usize {
        if self.is_watched() { limit::share(self.counted()) } else { ALL }
    }

    /// Whether anybody has to look at the limits.
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        limit::is_watched(self.touchable() + limit::mapped())
    }
}

/// A release of `slices` has made much dirty: purges at once what is beyond the bound, if it is.
pub(super) fn after_release(mut arena: Guard<'static, Arena>, slices: usize) {
    // No bound is lower.
    if keeps() || arena.dirty <= HOLLOW_MIN && !arena.is_watched() {
        return;
    }
    let bound = arena.burst_bound();
    if arena.dirty > bound && !arena.bursts.is_refused {
        arena.bursts.begin(slices);
        // Whole chunks as long as that will do: a purge of single slices splits huge pages, unless holes have.
        let is_much = arena.is_hollow() || arena.dirty > 2 * bound;
        let lanes = if is_much { &[WHOLE, DIRTY][..] } else { &[WHOLE] };
        // In proportion: a small free does not pay for a large one, and dirty memory still shrinks.
        purge_batch(arena, lanes, 2 * slices.max(32));
    } else if arena.is_watched() {
        relieve(arena, 0);
    }
}

/// Gives back what can go, for a request that would go beyond the hard limit. None if nothing can: it fails.
#[cold]
pub(super) fn give_back(arena: Guard<'static, Arena>) -> Option<Guard<'static, Arena>> {
    drop(arena);
    let mut gone = purge_all() > 0;
    // What others are purging goes, too, but for a forked child in which they are not.
    for _ in 0..GOING_LOOKS {
        if gone || GOING.load(Ordering::Relaxed) == 0 {
            break;
        }
        os::rest();
        gone = GOING.load(Ordering::Relaxed) == 0;
    }
    gone.then(|| ARENA.lock())
}

/// Takes free slices within the hard limit: see `Arena::take_at`. Near a limit others go.
#[inline(always)]
pub(super) fn take_at(
    mut arena: Guard<'static, Arena>,
    index: usize,
    slices: usize,
    taken: Taken,
) -> Option<Run> {
    let run = arena.take_at(index, slices, taken)?;
    if arena.is_watched() {
        follow_growth(arena, (slices - run.dirty) * SLICE_SIZE, run.dirty * SLICE_SIZE);
    }
    Some(run)
}

/// Counts a mapping that is to have so many bytes more, and makes room for it; false, and nothing counts, if that goes
/// beyond the hard limit.
#[inline(never)]
pub(crate) fn reserve_mapped(bytes: usize) -> bool {
    while !try_reserve_mapped(bytes) {
        if bytes > limit::hard() || give_back(ARENA.lock()).is_none() {
            return false;
        }
    }
    true
}

/// The same without making room: for callers that hold a lock.
#[inline(never)]
pub(crate) fn try_reserve_mapped(bytes: usize) -> bool {
    let arena = (limit::hard() > 0).then(|| ARENA.lock());
    let fits = arena.as_ref().is_none_or(|arena| !arena.goes_beyond(bytes));
    if fits {
        limit::add_mapped(bytes);
    }
    fits
}

/// Bytes that count now.
#[inline(never)]
pub(crate) fn counted() -> usize {
    ARENA.lock().counted()
}

/// So many bytes have come, or are about to: near a limit as many go, or some.
pub(crate) fn after_growth(bytes: usize) {
    let arena = ARENA.lock();
    if arena.is_watched() {
        follow_growth(arena, bytes, 0);
    }
}

/// The same under the lock; so many that count already are in use again.
#[cold]
#[inline(never)]
fn follow_growth(mut arena: Guard<'static, Arena>, bytes: usize, reused: usize) {
    let counted = arena.counted();
    let untouched = limit::note_taken(counted, bytes, reused);
    if limit::must_look(counted) {
        drop(arena);
        limit::look(counted, Why::Growth(untouched));
        arena = ARENA.lock();
    }
    relieve(arena, untouched.div_ceil(SLICE_SIZE));
}

/// Near a limit less than the bound of bursts may be dirty: gives back a batch of what is beyond, if it is time for that. Where the limit is
/// all but reached, at once: twice as much as has come, in slices, or as much as leads away from there, if that can be had.
#[cold]
#[inline(never)]
pub(super) fn relieve(arena: Guard<'static, Arena>, come: usize) {
    let counted = arena.counted();
    let share = limit::share(counted);
    if share == ALL {
        return;
    }
    let spare = arena.dirty.saturating_sub(arena.burst_bound() * share / ALL);
    if spare > 0 && !keeps() {
        let excess = limit::excess(counted).div_ceil(SLICE_SIZE);
        // Where less can be had than leads away, what is freed is wanted again: it would go and come for ever.
        let away = if excess <= spare { excess } else { 0 };
        if excess > 0 && away + come > 0 {
            purge_batch(arena, &[WHOLE, DIRTY], away.max(2 * come));
        } else if let Some(turn) = Turn::begin(share) {
            let given = purge_batch(arena, &[WHOLE, DIRTY], spare.min(PURGE_BATCH));
            turn.end(given * SLICE_SIZE);
        }
    }
    if limit::is_short(counted) && limit::note_near() {
        // Heaps come by: one tells the program.
        os::notify_briefly();
    }
}

/// Once per purge delay: looks at the group, and whether a limit is near. True if one is: idle caches had better go, too.
#[cold]
#[inline(never)]
pub(crate) fn follow_limits() -> bool {
    let counted = counted();
    if (counted >= LOOK_FROM || limit::group_most() > 0) && limit::may_have_group() {
        limit::look(counted, Why::Time);
    }
    if limit::is_far(counted) {
        limit::note_far();
        return false;
    }
    let arena = ARENA.lock();
    let is_near = limit::share(arena.counted()) < ALL;
    relieve(arena, 0);
    is_near && !keeps()
}

/// In a forked child, before it has a second thread.
pub(super) fn settle_in_child() {
    GOING.store(0, Ordering::Relaxed);
    GOING_CLEAN.store(0, Ordering::Relaxed);
    limit::settle_in_child();
}
