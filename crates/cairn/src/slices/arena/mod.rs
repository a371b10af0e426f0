//! Owns: which slices are free, which of those are dirty, and the committed end of the reservation.
//! Idea: bitmaps over slices, and trees over bitmaps that lead to the lowest fitting address:
//!   low addresses fill, high ones empty, and what lies idle is given back from the top.
//! Never: knows size classes, what spans hold, or threads.
//! Threads: any; one lock, never held across a purging system call.
//! Checked: `check` recounts the chunks; the tree against a plain set in its own tests.
//! Story: docs/design/purging.md

mod bursts;
mod huge;
mod near;
pub(crate) mod partition_runs;
mod purge;
mod purge_policy;
mod region_slices;
mod runs;
mod tree;

pub(crate) use huge::THIN;
pub(crate) use near::{after_growth, counted, follow_limits, reserve_mapped, try_reserve_mapped};
pub(crate) use partition_runs::{Leave, Partitions, kept_slices, settle_kept_in_child};
pub(crate) use purge::{count_holes, fill_holes, in_debt, may_wait, purge_all, taken, tick};
pub use purge_policy::{keep_memory, map_nothing_apart, purge_delay_ms, set_purge_delay_ms};
pub(crate) use purge_policy::{keeps, maps_apart, stroke_ms};
pub(crate) use region_slices::{aside, put_back, set_aside, take_in_region};
pub(crate) use runs::lowest_run;

use crate::base::bits::{aligned_runs, bit, longest_run, mask, pieces};
use crate::base::{SLICE_SIZE, point};
use crate::map::{Bit, CHUNK_SLICES, ChunkBits, address_map, region};
use crate::os::{self, Lock};
use crate::slices::fences::{Fence, Fences, Taken};
use crate::slices::tuning::{AHEAD, GROW_MAX, GROW_MIN, RUN_MAX};
use crate::slices::{limit, reservation};
use bursts::Bursts;
use huge::{HUGE_SLICES, back_by_huge_page};
use near::{give_back, take_at};
use tree::{CHUNKS, LEAF_CHUNKS, Tree};

// Invariants, all under the lock
//  1. A committed slice is in use, free, or being purged. Its bits: free; dirty: free, and may be
//     resident; written: dirty, and may be other than zero.
//  2. A chunk is in lane t of the tree exactly if it has a free, aligned run of RUNS[t] slices; in the
//     others, if it has a dirty slice, if it begins the free and partly dirty frame of a huge page, if a
//     large block begins in it.
//  3. `free` and `dirty` are the numbers of set bits;
//     committed = used + free, slices being purged counting as used.
//  4. The tree's `longest` of a chunk is at least the length of the longest free run that begins in it,
//     which may end in a later one; RUN_MAX stands for that much and more. What has been taken leaves it
//     too large: the search that comes upon it mends it, once.

/// Run lengths with a lane of their own, the spans'; each is aligned to its length.
const RUNS: [usize; 3] = [1, 4, 32];
/// The lane of chunks with dirty slices.
const DIRTY: usize = RUNS.len();
/// The lane of the frames of huge pages, by their first chunk, that are free and have some.
const WHOLE: usize = DIRTY + 1;
/// The lane of chunks in which large blocks begin.
const HEADS: usize = WHOLE + 1;
const _: () = assert!(HEADS + 1 == tree::LANES && DIRTY == 3);
const _: () = assert!(size_of::<tree::Leaf>() <= size_of::<address_map::Leaf>());
const _: () = assert!(LEAF_CHUNKS * CHUNK_SLICES == address_map::SECTION_SLICES);
const _: () = assert!(CHUNKS * CHUNK_SLICES * SLICE_SIZE >= reservation::RESERVATION_MAX);

/// What the lock guards.
pub(crate) struct Arena {
    tree: Tree,
    free: usize,
    dirty: usize,
    /// The least value of `dirty` since the last tick: what nobody has needed since then.
    idle: usize,
    /// The most slices that have been needed between two ticks, in this row of them and the one before, and when this one
    /// began.
    needed: [usize; 2],
    needed_ms: u64,
    bursts: Bursts,
    /// Slices taken for small spans, less four times those of large blocks that may stay empty.
    dense: usize,
    /// Slices that have been taken for spans, ever.
    taken: usize,
}

// SAFETY: numbers, and a bool, all of which start at 0; so the static stays out of the library's file.
pub(crate) static ARENA: Lock<Arena> = Lock::new(unsafe { core::mem::zeroed() });

/// Slices handed out.
pub(crate) struct Run {
    /// Index of the first.
    pub(crate) index: usize,
    /// Whether all of them are known to be zero.
    pub(crate) zero: bool,
    /// How many of them may be resident.
    pub(crate) dirty: usize,
    /// Huge pages have been put there for them.
    pub(crate) backed: bool,
}

/// What a large block will do with its run, as far as others tell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Much of it may stay empty.
    Sparse,
    /// It is filled soon.
    Filled,
    /// The same, and it may have huge pages put there.
    Backed,
}

/// What is known of a free run's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Nothing is resident: it reads as zeros.
    Clean,
    /// Zero, and resident: huge pages that nobody has used.
    Zero,
    /// Neither is known.
    Written,
}

/// Takes an aligned run of one of the spans' lengths; None if the system has no more memory.
pub(crate) fn take_span(slices: usize) -> Option<Run> {
    take_up_to(slices, slices, Taken::ForSpan).map(|(run, _)| run)
}

/// Takes a slice for nurseries: as for a span, with the guard that it has for them already.
pub(crate) fn take_for_nurseries() -> Option<Run> {
    take_up_to(1, 1, Taken::ForNurseries).map(|(run, _)| run)
}

/// Takes a slice for a span; with those behind it, `AHEAD` in all, if the lowest free slice begins such a row and it is clean:
/// what is dirty, or lies between others, is taken one by one, and where a limit counts what nobody uses. How many they are.
pub(crate) fn take_row() -> Option<(Run, usize)> {
    let most = if limit::hard() > 0 { 1 } else { AHEAD };
    take_up_to(most, 1, Taken::ForSpan)
}

/// Takes `most` clean slices, a power of two, or `slices`.
fn take_up_to(most: usize, slices: usize, taken: Taken) -> Option<(Run, usize)> {
    let lane = RUNS.iter().position(|&n| n == slices)?;
    let mut arena = ARENA.lock();
    arena.note_span(slices);
    loop {
        if let Some(chunk) = arena.tree.next(lane, 0) {
            let bits = arena.bits(chunk);
            let place = aligned_runs(bits.free, lane).trailing_zeros() as usize;
            let index = chunk * CHUNK_SLICES + place;
            let is_row = place & (most - 1) == 0
                && !(bits.free & !bits.dirty) & mask(place, most) == 0
                && !arena.lacks_room(index, most);
            let count = if is_row { most } else { slices };
            if arena.lacks_room(index, count) {
                arena = give_back(arena)?;
                continue;
            }
            // A row is for short spans, and keeps no huge page away.
            let dense = arena.is_dense(index, slices);
            let Some(unit) = arena.unit_for_huge_page(index, count, dense) else {
                arena.note_span(count - slices);
                return Some((take_at(arena, index, count, taken)?, count));
            };
            arena = back_by_huge_page(arena, unit);
        } else {
            arena.grow(slices, slices)?;
        }
    }
}

/// Takes `slices` anywhere; None if the system has no more memory.
pub(crate) fn take_run(slices: usize, used: Use) -> Option<Run> {
    let mut arena = ARENA.lock();
    // What may stay empty is put in front if there is no room behind.
    let mut from = 0;
    if used == Use::Sparse && !keeps() {
        arena.note_sparse(slices);
        from = arena.sparse_from();
    }
    let mut backed = false;
    loop {
        if let Some(index) = arena.lowest_run(slices, from / CHUNK_SLICES) {
            if arena.lacks_room(index, slices) {
                arena = give_back(arena)?;
                continue;
            }
            let Some(unit) = arena.unit_for_huge_page(index, slices, used == Use::Backed) else {
                let run = take_at(arena, index, slices, Taken::Otherwise)?;
                return Some(Run { backed, ..run });
            };
            backed = true;
            arena = back_by_huge_page(arena, unit);
        } else if arena.grow(slices, 1).is_none() && core::mem::replace(&mut from, 0) == 0 {
            return None;
        }
    }
}

/// Takes the `slices` that begin at `index` if all are free, of the reservation or of a region; the answer says if
/// they are zero.
pub(crate) fn take_exactly(index: usize, slices: usize) -> Option<Run> {
    if address_map::is_supplied(index) {
        let done = region::take_exactly(address_map::slice_address(index), slices);
        return done.then(|| Run::supplied(index, slices));
    }
    let mut arena = ARENA.lock();
    loop {
        let is_free = |(chunk, mask)| arena.bits(chunk).free & mask == mask;
        if index + slices > address_map::committed() || !pieces(index, slices).all(is_free) {
            return None;
        }
        if !arena.lacks_room(index, slices) {
            return take_at(arena, index, slices, Taken::Otherwise);
        }
        arena = give_back(arena)?;
    }
}

/// Gives a run back. Purges at once if very much may be resident.
pub(crate) fn release(index: usize, slices: usize, memory: Memory) {
    if address_map::is_supplied(index) {
        return region::release(address_map::slice_address(index), slices);
    }
    let mut arena = ARENA.lock();
    arena.put(index, slices, memory);
    near::after_release(arena, slices);
}

/// Marks the first slice of a large block, or takes the mark away.
pub(crate) fn mark_head(index: usize, to: Bit) {
    if address_map::is_supplied(index) {
        return region::mark_head(address_map::slice_address(index), to);
    }
    let mut arena = ARENA.lock();
    let chunk = index / CHUNK_SLICES;
    let b = arena.bits_mut(chunk);
    b.heads = match to {
        Bit::One => b.heads | bit(index),
        Bit::Zero => b.heads & !bit(index),
    };
    let any = b.heads != 0;
    arena.tree.set(HEADS, chunk, any);
}

/// The first slice of the nearest large block that begins at or below `index`, a slice of the reservation or of the same
/// region.
pub(crate) fn head_below(index: usize) -> Option<usize> {
    if address_map::is_supplied(index) {
        return region::head_below(address_map::slice_address(index))
            .map(|at| address_map::slice_of(at));
    }
    let arena = ARENA.lock();
    let chunk = index / CHUNK_SLICES;
    let here = arena.bits(chunk).heads & (!0 >> (63 - index % CHUNK_SLICES));
    let (chunk, heads) = if here != 0 {
        (chunk, here)
    } else {
        let below = arena.tree.last(HEADS, chunk)?;
        (below, arena.bits(below).heads)
    };
    Some(chunk * CHUNK_SLICES + heads.checked_ilog2()? as usize)
}

/// Numbers of slices.
pub(crate) struct Counts {
    /// Free ones with nothing resident.
    pub(crate) clean: usize,
    /// Free ones that may be resident.
    pub(crate) dirty: usize,
    /// Given back since the start.
    pub(crate) purged: u64,
}

/// How many slices are what.
pub(crate) fn counts() -> Counts {
    let arena = ARENA.lock();
    let (clean, dirty, purged) = (arena.free - arena.dirty, arena.dirty, arena.bursts.purged);
    drop(arena);
    let [kept, resident] = kept_slices();
    Counts { clean: clean + kept - resident, dirty: dirty + resident, purged }
}

/// Calls `f` with each run of dirty slices (index, length); takes the lock chunk by chunk.
pub(crate) fn for_each_dirty(mut f: impl FnMut(usize, usize)) {
    for chunk in 0..address_map::committed().div_ceil(CHUNK_SLICES) {
        let mut dirty = ARENA.lock().bits(chunk).dirty;
        while dirty != 0 {
            let at = dirty.trailing_zeros() as usize;
            let len = (dirty >> at).trailing_ones() as usize;
            f(chunk * CHUNK_SLICES + at, len);
            dirty &= !mask(at, len);
        }
    }
}

/// In a forked child, before it has a second thread: if another thread was changing the bitmaps, they
/// are made anew. `runs` says which runs of slices (index, length) are in use, and whether a large block begins there.
/// True if they have been made anew.
pub(crate) fn settle_in_child<I: Iterator<Item = (usize, usize, bool)>>(
    runs: impl Fn() -> I,
) -> bool {
    near::settle_in_child();
    // Before anything is committed there are no bitmaps, and nothing has changed.
    let is_torn = ARENA.settle_in_child() && address_map::committed() > 0;
    if is_torn {
        let mut runs = runs();
        ARENA.lock().rebuild(&mut || runs.next());
        Partitions::stay(&mut ARENA.lock());
    }
    is_torn
}

impl Arena {
    /// A chunk's bitmaps.
    fn bits(&self, chunk: usize) -> &ChunkBits {
        // SAFETY: chunks of the reservation are committed and never unmapped. The one value of this type
        // stands behind the lock, and no other code reads or writes them: while `self` is borrowed they
        // do not change.
        unsafe { &*address_map::chunk_bits(chunk) }
    }

    /// The same, to be changed.
    fn bits_mut(&mut self, chunk: usize) -> &mut ChunkBits {
        // SAFETY: as above; `self` is borrowed alone.
        unsafe { &mut *address_map::chunk_bits(chunk) }
    }

    fn used(&self) -> usize {
        address_map::committed() - self.free
    }

    /// Makes the tree reach to the committed end.
    fn reach(&mut self) {
        let (leaves, distance) = address_map::leaves();
        let count = address_map::committed().div_ceil(LEAF_CHUNKS * CHUNK_SLICES);
        // SAFETY: leaves of committed sections, zero at first, which only the arena uses.
        unsafe { self.tree.extend(leaves.cast(), distance, count) };
    }

    /// Makes all bitmaps anew, the tree and the counts. What is in no run is free; nothing is believed of
    /// its memory.
    fn rebuild(&mut self, next: &mut dyn FnMut() -> Option<(usize, usize, bool)>) {
        let end = address_map::committed();
        for (chunk, mask) in pieces(0, end) {
            let b = self.bits_mut(chunk);
            (b.free, b.dirty, b.written, b.heads) = (mask, mask, mask, 0);
        }
        while let Some((index, slices, is_large)) = next() {
            for (chunk, mask) in pieces(index, slices) {
                let b = self.bits_mut(chunk);
                b.free &= !mask;
                (b.dirty, b.written) = (b.free, b.free);
            }
            if is_large {
                self.bits_mut(index / CHUNK_SLICES).heads |= bit(index);
            }
        }
        let count = |chunk: usize| self.bits(chunk).free.count_ones() as usize;
        let free = (0..end.div_ceil(CHUNK_SLICES)).map(count).sum();
        (self.free, self.dirty, self.idle) = (free, free, 0);
        self.reach();
        self.tree.clear();
        self.refresh(0, end);
        self.measure_all();
        for chunk in 0..end.div_ceil(CHUNK_SLICES) {
            let any = self.bits(chunk).heads != 0;
            self.tree.set(HEADS, chunk, any);
        }
    }

    /// Commits more of the reservation so that an aligned run of `slices` fits at its end.
    fn grow(&mut self, slices: usize, align: usize) -> Option<()> {
        let from = address_map::committed();
        // A free tail counts.
        let is_free = |&index: &usize| self.bits(index / CHUNK_SLICES).free & bit(index) != 0;
        let tail = (0..from).rev().take(slices).take_while(is_free).count();
        let mut start = (from - tail).next_multiple_of(align);
        while let Some(end) = region_slices::end_of_aside(start, slices) {
            start = end.next_multiple_of(align);
        }
        let page = (os::page_size() / SLICE_SIZE).max(1);
        let need = (start + slices).saturating_sub(from).next_multiple_of(page);
        let step = from.clamp(GROW_MIN, GROW_MAX).max(need);
        let step = step.next_multiple_of(HUGE_SLICES) - from % HUGE_SLICES;
        let mut counts = [step, need].into_iter();
        let count = counts.find(|&count| count >= need.max(1) && reservation::commit(count))?;
        self.reach();
        self.put_new(from, count);
        Some(())
    }

    /// Takes slices out of the free ones; how many of them are dirty, and whether one was written.
    fn remove(&mut self, index: usize, slices: usize) -> (usize, bool) {
        let (before, mut written) = (self.dirty, false);
        for (chunk, mask) in pieces(index, slices) {
            let b = self.bits_mut(chunk);
            debug_assert_eq!(b.free & mask, mask);
            // Most runs are one slice; counting takes more instructions than all the rest.
            let dirty = b.dirty & mask;
            let one = dirty.is_power_of_two() || dirty == 0;
            let dirty = if one { usize::from(dirty != 0) } else { dirty.count_ones() as usize };
            written |= b.written & mask != 0;
            b.free &= !mask;
            b.dirty &= !mask;
            b.written &= !mask;
            self.dirty -= dirty;
        }
        self.free -= slices;
        self.refresh(index, slices);
        self.idle = self.idle.min(self.dirty);
        (before - self.dirty, written)
    }

    /// Takes free slices, for a span or not; None if those that are clean have to be committed, and cannot be. Hardened,
    /// also if the system leaves guards there: then they are in no use any more.
    fn take_at(&mut self, index: usize, slices: usize, taken: Taken) -> Option<Run> {
        if !os::purged_is_committed() && !self.commit_clean(index, slices) {
            return None;
        }
        let (dirty, written) = self.remove(index, slices);
        if dirty < slices {
            self.bursts.judge(slices - dirty);
        }
        let is_bare = Fences::bare(index, slices, taken);
        is_bare.then_some(Run { index, zero: !written, dirty, backed: false })
    }

    /// Commits free slices if some of them are clean; false if the system refuses.
    fn commit_clean(&self, index: usize, slices: usize) -> bool {
        let is_dirty = |(chunk, mask)| self.bits(chunk).dirty & mask == mask;
        pieces(index, slices).all(is_dirty)
            || os::commit(address_map::slice_address(index), slices * SLICE_SIZE)
    }

    #[inline(never)]
    fn put(&mut self, index: usize, slices: usize, memory: Memory) {
        for (chunk, mask) in pieces(index, slices) {
            let b = self.bits_mut(chunk);
            debug_assert_eq!(b.free & mask, 0);
            point();
            b.free |= mask;
            if memory != Memory::Clean {
                b.dirty |= mask;
            }
            if memory == Memory::Written {
                b.written |= mask;
            }
        }
        self.free += slices;
        if memory != Memory::Clean {
            self.dirty += slices;
        }
        self.refresh(index, slices);
        self.lengthen(index, slices);
    }

    /// Invariant 2, for the chunks of a run that has been taken or put.
    fn refresh(&mut self, index: usize, slices: usize) {
        for chunk in index / CHUNK_SLICES..(index + slices).div_ceil(CHUNK_SLICES) {
            let b = self.bits(chunk);
            let members = [
                b.free != 0,
                aligned_runs(b.free, 1) != 0,
                aligned_runs(b.free, 2) != 0,
                b.dirty != 0,
            ];
            self.tree.refresh(chunk, members);
            // Of both chunks of the frame of a huge page.
            self.tree.update(WHOLE, chunk & !1, self.is_whole(chunk));
        }
    }
}

/// Recounts the chunks: all invariants.
pub(crate) fn check() {
    let arena = ARENA.lock();
    let (mut free, mut dirty) = (0, 0);
    for chunk in 0..address_map::committed().div_ceil(CHUNK_SLICES) {
        let b = arena.bits(chunk);
        free += b.free.count_ones() as usize;
        dirty += b.dirty.count_ones() as usize;
        assert_eq!((b.dirty & !b.free, b.written & !b.dirty), (0, 0));
        for lane in 0..RUNS.len() {
            assert_eq!(arena.tree.has(lane, chunk), aligned_runs(b.free, lane) != 0);
        }
        assert_eq!(arena.tree.has(DIRTY, chunk), b.dirty != 0);
        assert_eq!(arena.tree.has(HEADS, chunk), b.heads != 0);
        assert_eq!(arena.tree.has(WHOLE, chunk & !1), arena.is_whole(chunk));
        let tail = b.free.leading_ones() as usize;
        let end = (chunk + 1) * CHUNK_SLICES;
        let last = if tail > 0 { arena.run_end(end - tail, RUN_MAX) - (end - tail) } else { 0 };
        let longest = longest_run(b.free).max(last.min(RUN_MAX));
        assert!(usize::from(arena.tree.longest(chunk)) >= longest);
    }
    assert_eq!((free, dirty), (arena.free, arena.dirty));
}
