//! Owns: which slices are free, which of those are dirty, and the committed end of the reservation.
//! Idea: bitmaps over slices, and trees over bitmaps that lead to the lowest fitting address:
//!   low addresses fill, high ones empty, and what lies idle is given back from the top.
//! Never: knows size classes, what spans hold, or threads.
//! Threads: any; one lock, never held across a purging system call.
//! Checked: `check` recounts the chunks; the tree against a plain set in its own tests.
//! Story: docs/design/purging.md

mod bits;
mod tree;

use crate::address_map::{self, CHUNK_SLICES, ChunkBits};
use crate::os::{self, Guard, Lock};
use crate::size_class::SLICE_SIZE;
use crate::sync::{Apart, AtomicUsize, Ordering, in_shuttle, point};
use bits::{bit, longest_run, mask, pieces, runs_of};
use tree::{CHUNKS, LEAF_CHUNKS, Tree};

// Invariants, all under the lock
//  1. A committed slice is in use, free, or being purged. Its bits: free; dirty: free, and may be
//     resident; written: dirty, and may be other than zero.
//  2. A chunk is in lane t of the tree exactly if it has a free, aligned run of RUNS[t] slices; in the
//     others, if it has a dirty slice, if it begins the free and partly dirty room of a huge page, if a
//     large block begins in it. The tree counts chunks from the reservation's first one.
//  3. `free` and `dirty` are the numbers of set bits;
//     committed - first = used + free, slices being purged counting as used.
//  4. The tree's `longest` of a chunk is at least the length of the longest free run that begins in it,
//     which may end in a later one; RUN_MAX stands for that much and more. What has been taken leaves it
//     too large: the search that comes upon it mends it, once.

/// Run lengths with a lane of their own, the spans'; each is aligned to its length.
const RUNS: [usize; 3] = [1, 4, 32];
/// The lane of chunks with dirty slices.
const DIRTY: usize = RUNS.len();
/// The lane of the rooms of huge pages, by their first chunk, that are free and have some.
const WHOLE: usize = DIRTY + 1;
/// The lane of chunks in which large blocks begin.
const HEADS: usize = WHOLE + 1;
const _: () = assert!(HEADS + 1 == tree::LANES && DIRTY == 3);
const _: () = assert!(size_of::<tree::Leaf>() <= size_of::<address_map::Leaf>());
const _: () = assert!(LEAF_CHUNKS * CHUNK_SLICES == address_map::SECTION_SLICES);
const _: () = assert!(CHUNKS * CHUNK_SLICES * SLICE_SIZE >= address_map::RESERVATION_MAX);
/// The longest run whose length is told apart from longer ones: 64 MiB.
const RUN_MAX: usize = 64 * CHUNK_SLICES;

/// Dirty memory that is always kept, in slices: 512 KiB. Twice of it shows in every small
/// process; half of it purges what a loop is about to use again.
const KEEP_MIN: usize = in_shuttle((512 << 10) / SLICE_SIZE, 2);
/// Beyond that a 16th of what is in use may stay dirty.
const KEEP_SHARE: usize = 16;
/// Dirty slices that make a release purge at once: 4 MiB, or a quarter of what is in use. A
/// process that frees everything and falls idle keeps that; twice of it is seen by its owner.
const BURST_MIN: usize = in_shuttle((4 << 20) / SLICE_SIZE, 24);
const BURST_SHARE: usize = 4;
/// What is purged so and needed again within this time should have stayed: from then on as much
/// may be dirty as is in use, or 32 MiB, ...
const REGRET_MS: u64 = 1000;
const BURST_KEPT: usize = (32 << 20) / SLICE_SIZE;
/// ... but at first 16 MiB, and twice as much and 16 MiB the next time, up to this, 512 MiB.
const BURST_STEP: usize = in_shuttle((16 << 20) / SLICE_SIZE, 24);
const BURST_MAX: usize = (512 << 20) / SLICE_SIZE;
/// Slices purged in one go, 4 MiB: about 0.3 ms of system time.
const BATCH: usize = in_shuttle((4 << 20) / SLICE_SIZE, 4);
/// Refused purges that end a batch: in a process whose memory is locked all are.
const REFUSALS: usize = 4;
/// The reservation grows by what it holds, at least by 4 MiB, at most by 64 MiB.
const STEP_MIN: usize = in_shuttle((4 << 20) / SLICE_SIZE, 64);
const STEP_MAX: usize = in_shuttle((64 << 20) / SLICE_SIZE, 64);

/// Slices in the room of a huge page.
const HUGE_SLICES: usize = os::HUGE_PAGE / SLICE_SIZE;
/// Slices in use from which on a heap is backed by huge pages as it grows: one of them is then
/// an eighth of it at most. With many that take spans it is a huge page for each.
const HUGE_MIN: usize = in_shuttle((16 << 20) / SLICE_SIZE, 4);
/// Slices of the front that each heap fills with small pages.
const HUGE_PER_HEAP: usize = in_shuttle(HUGE_SLICES, 0);
/// Slices of spans that have been taken in a row and make the front dense.
const DENSE_MIN: usize = in_shuttle(HUGE_SLICES, 2);

/// Milliseconds that memory lies idle before it is given back.
static PURGE_DELAY_MS: AtomicUsize = AtomicUsize::new(250);
/// Idle slices found by the last tick and not yet purged. Relaxed, like the next: read by every
/// slow tick of every thread, written a few times a second.
static DEBT: Apart<AtomicUsize> = Apart(AtomicUsize::new(0));
/// When the next tick is due.
static NEXT_TICK_MS: Apart<AtomicUsize> = Apart(AtomicUsize::new(0));

struct Arena {
    tree: Tree,
    free: usize,
    dirty: usize,
    /// The least value of `dirty` since the last tick: what nobody has needed since then.
    idle: usize,
    /// Dirty slices that may stay since purges have been regretted; falls with time.
    burst: usize,
    /// When a burst was purged last, unless what has happened since is judged; else 0.
    burst_ms: u64,
    /// Slices taken for small spans, less four times those of large blocks that may stay empty.
    dense: usize,
    purged: u64,
}

// SAFETY: numbers, all of which start at 0; so the static stays out of the library's file.
static ARENA: Lock<Arena> = Lock::new(unsafe { core::mem::zeroed() });

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
enum Memory {
    /// Nothing is resident: it reads as zeros.
    Clean,
    /// Zero, and resident: huge pages that nobody has used.
    Zero,
    /// Neither is known.
    Written,
}

/// Takes an aligned run of one of the spans' lengths; None if the system has no more memory. `users`
/// take spans: each leaves some of its own untouched.
pub(crate) fn take_span(slices: usize, users: usize) -> Option<Run> {
    let lane = RUNS.iter().position(|&n| n == slices)?;
    let mut arena = ARENA.lock();
    arena.dense = (arena.dense + slices % RUNS[2]).min(8 * HUGE_SLICES);
    // Behind that much: the longest, which are filled bit by bit, in larger heaps only.
    let least = if slices < RUNS[2] { HUGE_MIN } else { 4 * HUGE_MIN };
    let front = address_map::first_slice() + least.max(users * HUGE_PER_HEAP);
    loop {
        if let Some(chunk) = arena.tree.next(lane, 0) {
            let chunk = first_chunk() + chunk;
            let fits = aligned_runs(arena.bits(chunk).free, lane);
            let index = chunk * CHUNK_SLICES + fits.trailing_zeros() as usize;
            let end = if arena.dense >= DENSE_MIN { usize::MAX } else { arena.sparse_from() };
            let dense = (front..end).contains(&index);
            let Some(unit) = arena.unit_for_huge_page(index, slices, dense) else {
                return Some(arena.take_at(index, slices));
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
    let first = address_map::first_slice();
    // What may stay empty is put in front if there is no room behind.
    let mut from = first;
    if used == Use::Sparse {
        arena.dense = arena.dense.saturating_sub(4 * slices);
        from = arena.sparse_from();
    }
    let mut backed = false;
    loop {
        if let Some(index) = arena.lowest_run(slices, from / CHUNK_SLICES) {
            let Some(unit) = arena.unit_for_huge_page(index, slices, used == Use::Backed) else {
                return Some(Run { backed, ..arena.take_at(index, slices) });
            };
            backed = true;
            arena = back_by_huge_page(arena, unit);
        } else if arena.grow(slices, 1).is_none() && core::mem::replace(&mut from, first) == first {
            return None;
        }
    }
}

/// Puts a huge page into its room at `unit`. The lock is given up meanwhile, the slices are nobody's.
fn back_by_huge_page(mut arena: Guard<'static, Arena>, unit: usize) -> Guard<'static, Arena> {
    arena.take_at(unit, HUGE_SLICES);
    drop(arena);
    // SAFETY: slices that have been free, and that nobody else can take now.
    unsafe { os::use_huge_page(address_map::slice_address(unit)) };
    let mut arena = ARENA.lock();
    // It counts as dirty, so that what nobody takes is given back.
    arena.put(unit, HUGE_SLICES, Memory::Zero);
    arena
}

/// Takes the `slices` that begin at `index` if all are free; the answer says if they are zero.
pub(crate) fn take_exactly(index: usize, slices: usize) -> Option<Run> {
    let mut arena = ARENA.lock();
    let is_free = |(chunk, mask)| arena.bits(chunk).free & mask == mask;
    let free = index + slices <= address_map::committed() && pieces(index, slices).all(is_free);
    free.then(|| arena.take_at(index, slices))
}

/// Gives a run back. `dirty`: it may be resident, and hold other than zeros. Purges at once if very
/// much is.
pub(crate) fn release(index: usize, slices: usize, dirty: bool) {
    let mut arena = ARENA.lock();
    arena.put(index, slices, if dirty { Memory::Written } else { Memory::Clean });
    let used = arena.used();
    let regretted = arena.burst.min(used.max(BURST_KEPT));
    let bound = BURST_MIN.max(used / BURST_SHARE).max(regretted);
    if arena.dirty > bound {
        arena.burst_ms = os::now_ms();
        // Whole chunks as long as that will do: a purge of single slices splits huge pages.
        let lanes = if arena.dirty > 2 * bound { &[WHOLE, DIRTY][..] } else { &[WHOLE] };
        // In proportion: a small free does not pay for a large one, and dirty memory still shrinks.
        purge_batch(arena, lanes, 2 * slices.max(32));
    }
}

/// Upkeep from slow paths: once per purge delay, when it answers true, finds what has lain
/// idle; gives back a batch of it at each call.
pub(crate) fn tick(now_ms: u64) -> bool {
    let due = || now_ms as usize >= NEXT_TICK_MS.0.load(Ordering::Relaxed);
    let ticked = due() && {
        let mut arena = ARENA.lock();
        due() && arena.tick(now_ms)
    };
    let debt = DEBT.0.load(Ordering::Relaxed);
    if debt > 0 {
        let done = purge_batch(ARENA.lock(), &[WHOLE, DIRTY], debt.min(BATCH));
        // Where nothing goes (locked memory, say) the next tick finds it again.
        DEBT.0.store(if done > 0 { debt.saturating_sub(done) } else { 0 }, Ordering::Relaxed);
    }
    ticked
}

/// Whether upkeep has memory to give back right now.
pub(crate) fn in_debt() -> bool {
    DEBT.0.load(Ordering::Relaxed) > 0
}

/// Gives back everything dirty; the number of bytes that went.
pub(crate) fn purge_all() -> usize {
    let batch = |_| purge_batch(ARENA.lock(), &[WHOLE, DIRTY], BATCH);
    (0..).map(batch).take_while(|&done| done > 0).sum::<usize>() * SLICE_SIZE
}

/// Sets how many milliseconds free memory lies idle before it is given back.
pub fn set_purge_delay_ms(ms: usize) {
    PURGE_DELAY_MS.store(ms, Ordering::Relaxed);
}

/// Milliseconds that free memory lies idle before it is given back.
pub fn purge_delay_ms() -> usize {
    PURGE_DELAY_MS.load(Ordering::Relaxed)
}

/// Marks the first slice of a large block, or takes the mark away.
pub(crate) fn mark_head(index: usize, head: bool) {
    let mut arena = ARENA.lock();
    let chunk = index / CHUNK_SLICES;
    let b = arena.bits_mut(chunk);
    b.heads = if head { b.heads | bit(index) } else { b.heads & !bit(index) };
    let any = b.heads != 0;
    arena.tree.set(HEADS, chunk - first_chunk(), any);
}

/// The first slice of the nearest large block that begins at or below `index`, a slice of the reservation.
pub(crate) fn head_below(index: usize) -> Option<usize> {
    let arena = ARENA.lock();
    let chunk = index / CHUNK_SLICES;
    let here = arena.bits(chunk).heads & (!0 >> (63 - index % CHUNK_SLICES));
    let (chunk, heads) = if here != 0 {
        (chunk, here)
    } else {
        let below = first_chunk() + arena.tree.last(HEADS, chunk.checked_sub(first_chunk())?)?;
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
    Counts { clean: arena.free - arena.dirty, dirty: arena.dirty, purged: arena.purged }
}

/// Calls `f` with each run of dirty slices (index, length); takes the lock chunk by chunk.
pub(crate) fn for_each_dirty(mut f: impl FnMut(usize, usize)) {
    let end = address_map::committed().div_ceil(CHUNK_SLICES);
    for chunk in address_map::first_slice() / CHUNK_SLICES..end {
        let mut dirty = {
            let arena = ARENA.lock();
            arena.bits(chunk).dirty
        };
        while dirty != 0 {
            let at = dirty.trailing_zeros() as usize;
            let len = (dirty >> at).trailing_ones() as usize;
            f(chunk * CHUNK_SLICES + at, len);
            dirty &= !mask(at, len);
        }
    }
}

/// In a forked child, before it has a second thread: if another thread was changing the bitmaps, they
/// are made anew. `runs` says which runs of slices (index, length) are in use.
pub(crate) fn settle_in_child<I: Iterator<Item = (usize, usize)>>(runs: impl Fn() -> I) {
    if ARENA.settle_in_child() {
        ARENA.lock().rebuild(runs());
    }
}

/// Holds the lock, for tests.
#[cfg(test)]
pub(crate) fn hold() -> impl Drop {
    ARENA.lock()
}

/// Purges up to `limit` dirty slices, from the top in each of `lanes`; the number that went. The
/// lock is given up around each system call; the slices are nobody's meanwhile.
fn purge_batch(mut arena: Guard<'static, Arena>, lanes: &[usize], limit: usize) -> usize {
    let (mut done, mut refused) = (0, 0);
    let mut end = address_map::committed().div_ceil(CHUNK_SLICES);
    while done < limit {
        let below = end - first_chunk();
        let last = |&lane: &usize| Some((lane, arena.tree.last(lane, below)?));
        let Some((lane, chunk)) = lanes.iter().find_map(last) else { break };
        let chunk = first_chunk() + chunk;
        let (mut index, mut len) = (chunk * CHUNK_SLICES, HUGE_SLICES);
        if lane == DIRTY {
            let dirty = purgeable(arena.bits(chunk));
            if dirty == 0 {
                end = chunk;
                continue;
            }
            let top = 63 - dirty.leading_zeros() as usize;
            len = (dirty << (63 - top)).leading_ones() as usize;
            index += top + 1 - len;
        }
        let (dirty, _) = arena.remove(index, len);
        drop(arena);
        // SAFETY: slices that have been free, and that nobody else can take now.
        let clean = unsafe { os::purge(address_map::slice_address(index), len * SLICE_SIZE) };
        arena = ARENA.lock();
        arena.put(index, len, if clean { Memory::Clean } else { Memory::Written });
        if clean {
            arena.purged += dirty as u64;
            done += dirty;
        } else {
            // Locked memory, say: what is below it may go.
            end = chunk;
            refused += 1;
            if refused == REFUSALS {
                break;
            }
        }
    }
    done
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

    fn tick(&mut self, now_ms: u64) -> bool {
        let next = (now_ms as usize).saturating_add(purge_delay_ms());
        NEXT_TICK_MS.0.store(next, Ordering::Relaxed);
        let keep = KEEP_MIN.max(self.used() / KEEP_SHARE);
        DEBT.0.store(self.idle.saturating_sub(keep), Ordering::Relaxed);
        self.idle = self.dirty;
        self.burst -= self.burst / 16;
        true
    }

    /// Where a huge page is to be put before `slices` from `index` on are taken: into room of one
    /// that holds nothing, not even what could be resident, if the heap is large and it gets `dense`.
    #[inline]
    fn unit_for_huge_page(&self, index: usize, slices: usize, dense: bool) -> Option<usize> {
        let is_large = dense && self.used() >= HUGE_MIN;
        if is_large { self.untouched_unit(index, slices) } else { None }
    }

    /// The first room of a huge page under a run that holds nothing.
    #[inline(never)]
    fn untouched_unit(&self, index: usize, slices: usize) -> Option<usize> {
        let units = index / HUGE_SLICES..(index + slices).div_ceil(HUGE_SLICES);
        let mut starts = units.map(|unit| unit * HUGE_SLICES);
        let is_clean = |(chunk, _)| self.bits(chunk).free & !self.bits(chunk).dirty == !0;
        let is_untouched = |&unit: &usize| {
            unit + HUGE_SLICES <= address_map::committed()
                && pieces(unit, HUGE_SLICES).all(is_clean)
        };
        // Last: it reads the clock.
        starts.find(is_untouched).filter(|_| os::wants_huge_pages())
    }

    /// Where large blocks are put that may stay empty, in a heap so large that the spans in front of
    /// there are to have huge pages. In steps of 64 MiB: where all that is in use ends now, spans will
    /// be next.
    fn sparse_from(&self) -> usize {
        let front = (self.used() + 1).next_multiple_of(STEP_MAX);
        address_map::first_slice() + if front > STEP_MAX { front } else { 0 }
    }

    fn used(&self) -> usize {
        address_map::committed() - address_map::first_slice() - self.free
    }

    /// The lowest run of `slices` free slices that begins in chunk `low` or behind it.
    fn lowest_run(&mut self, slices: usize, low: usize) -> Option<usize> {
        let (least, mut from) = (slices.min(RUN_MAX), low - first_chunk());
        loop {
            let chunk = first_chunk() + self.tree.next_run(least as u16, from)?;
            let free = self.bits(chunk).free;
            let runs = if slices <= CHUNK_SLICES { runs_of(free, slices) } else { 0 };
            if runs != 0 {
                return Some(chunk * CHUNK_SLICES + runs.trailing_zeros() as usize);
            }
            // Only the last of a chunk's runs may go on in the next.
            let start = (chunk + 1) * CHUNK_SLICES - free.leading_ones() as usize;
            let end = self.run_end(start, slices);
            if end - start >= slices {
                return Some(start);
            }
            let known = longest_run(free).max((end - start).min(RUN_MAX));
            self.tree.set_longest(chunk - first_chunk(), known as u16);
            from = chunk.max(end / CHUNK_SLICES) - first_chunk();
        }
    }

    /// Where the free run that begins at `start` ends; not much behind `most` slices.
    fn run_end(&self, start: usize, most: usize) -> usize {
        let mut end = start;
        while end < address_map::committed() && end - start < most {
            let free = self.bits(end / CHUNK_SLICES).free >> (end % CHUNK_SLICES);
            let more = free.trailing_ones() as usize;
            end += more;
            if more == 0 || !end.is_multiple_of(CHUNK_SLICES) {
                break;
            }
        }
        end
    }

    /// At least the length of the free run that begins in `chunk` and may go on in the next.
    fn last_run(&self, chunk: usize) -> usize {
        match self.bits(chunk).free.leading_ones() as usize {
            0 => 0,
            tail => (tail + self.run_at_start(chunk + 1)).min(RUN_MAX),
        }
    }

    /// At least the length of the free run that begins with the first slice of `chunk`.
    fn run_at_start(&self, chunk: usize) -> usize {
        if chunk * CHUNK_SLICES >= address_map::committed() {
            return 0;
        }
        match self.bits(chunk).free.trailing_ones() as usize {
            CHUNK_SLICES => usize::from(self.tree.longest(chunk - first_chunk())),
            part => part,
        }
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
    fn rebuild(&mut self, runs: impl Iterator<Item = (usize, usize)>) {
        let (first, end) = (address_map::first_slice(), address_map::committed());
        for (chunk, mask) in pieces(first, end - first) {
            let b = self.bits_mut(chunk);
            (b.free, b.dirty, b.written, b.heads) = (mask, mask, mask, 0);
        }
        for (index, slices) in runs {
            for (chunk, mask) in pieces(index, slices) {
                let b = self.bits_mut(chunk);
                b.free &= !mask;
                (b.dirty, b.written) = (b.free, b.free);
            }
            if address_map::is_large(index) {
                self.bits_mut(index / CHUNK_SLICES).heads |= bit(index);
            }
        }
        let count = |chunk: usize| self.bits(chunk).free.count_ones() as usize;
        let free = (first_chunk()..end.div_ceil(CHUNK_SLICES)).map(count).sum();
        (self.free, self.dirty, self.idle, self.burst_ms) = (free, free, 0, 0);
        self.reach();
        self.tree.clear();
        self.refresh(first, end - first);
        self.lengthen(first, end - first);
        for chunk in first_chunk()..end.div_ceil(CHUNK_SLICES) {
            let any = self.bits(chunk).heads != 0;
            self.tree.set(HEADS, chunk - first_chunk(), any);
        }
    }

    /// Commits more of the reservation so that an aligned run of `slices` fits at its end.
    fn grow(&mut self, slices: usize, align: usize) -> Option<()> {
        let from = address_map::committed();
        let first = address_map::first_slice();
        // A free tail counts.
        let is_free = |&index: &usize| self.bits(index / CHUNK_SLICES).free & bit(index) != 0;
        let tail = (first..from).rev().take(slices).take_while(is_free).count();
        let start = (from - tail).next_multiple_of(align);
        let page = (os::page_size() / SLICE_SIZE).max(1);
        let need = (start + slices).saturating_sub(from).next_multiple_of(page);
        let step = (from - first).clamp(STEP_MIN, STEP_MAX).max(need);
        let step = step.next_multiple_of(HUGE_SLICES) - from % HUGE_SLICES;
        let mut counts = [step, need].into_iter();
        let count = counts.find(|&count| count >= need.max(1) && address_map::commit(count))?;
        self.reach();
        self.put(from, count, Memory::Clean);
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

    fn take_at(&mut self, index: usize, slices: usize) -> Run {
        let (dirty, written) = self.remove(index, slices);
        if dirty <= slices / 2 && self.burst_ms > 0 {
            // Mostly clean slices are needed: was what the last burst gave back needed still?
            if os::now_ms() < self.burst_ms + REGRET_MS {
                self.burst = (BURST_STEP + 2 * self.burst).min(BURST_MAX);
            }
            self.burst_ms = 0;
        }
        Run { index, zero: !written, dirty, backed: false }
    }

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
            let place = chunk - first_chunk();
            let b = self.bits(chunk);
            let members = [
                b.free != 0,
                aligned_runs(b.free, 1) != 0,
                aligned_runs(b.free, 2) != 0,
                b.dirty != 0,
            ];
            self.tree.refresh(place, members);
            // Of both chunks of the room of a huge page.
            self.tree.update(WHOLE, place & !1, self.is_whole(chunk));
        }
    }

    /// Invariant 4, for a run that has been put.
    fn lengthen(&mut self, index: usize, slices: usize) {
        let first = index / CHUNK_SLICES;
        let free = self.bits(first).free;
        let (head, tail) = (free.trailing_ones() as usize, free.leading_ones() as usize);
        let place = index % CHUNK_SLICES;
        let is_inside = head <= place && place + slices <= CHUNK_SLICES - tail;
        if is_inside && usize::from(self.tree.longest(first - first_chunk())) >= CHUNK_SLICES {
            // Most often: the chunk is known to have had as much.
            return;
        }
        // From the last chunk down: what begins in one may end in the next.
        let mut chunk = (index + slices - 1) / CHUNK_SLICES;
        loop {
            let place = chunk - first_chunk();
            let known = usize::from(self.tree.longest(place));
            let free = self.bits(chunk).free;
            let inside = if known < CHUNK_SLICES { longest_run(free) } else { 0 };
            let longest = inside.max(self.last_run(chunk));
            if longest > known {
                self.tree.set_longest(place, longest as u16);
            }
            // Runs that begin in front of the first one, too, if they go on in it as far as here.
            let head = free.trailing_ones() as usize;
            let reached = match chunk.cmp(&first) {
                core::cmp::Ordering::Greater => true,
                core::cmp::Ordering::Equal => chunk * CHUNK_SLICES + head > index,
                core::cmp::Ordering::Less => head == CHUNK_SLICES,
            };
            let near = first < chunk + RUN_MAX / CHUNK_SLICES;
            if chunk == first_chunk() || !reached || !near {
                return;
            }
            chunk -= 1;
            if chunk < first && self.bits(chunk).free.leading_ones() == 0 {
                return;
            }
        }
    }

    /// Whether the room of a huge page that `chunk` lies in is free, and may be resident.
    fn is_whole(&self, chunk: usize) -> bool {
        let (low, high) = (chunk & !1, chunk | 1);
        self.bits(chunk).free == !0
            && (high + 1) * CHUNK_SLICES <= address_map::committed()
            && self.bits(low).free & self.bits(high).free == !0
            && self.bits(low).dirty | self.bits(high).dirty != 0
    }
}

/// The reservation's first chunk, from which the tree counts.
fn first_chunk() -> usize {
    address_map::first_slice() / CHUNK_SLICES
}

/// What can be purged: dirty slices; with larger pages (of 64 KiB), whole pages that are free and
/// have a dirty slice, for the kernel rounds up to pages, whosever they are.
fn purgeable(b: &ChunkBits) -> u64 {
    if os::page_size() <= SLICE_SIZE {
        return b.dirty;
    }
    let dirty = b.dirty | b.dirty >> 1 | b.dirty >> 2 | b.dirty >> 3;
    (aligned_runs(b.free, 1) & dirty) * 0b1111
}

/// The starts of free aligned runs of RUNS[lane] slices.
fn aligned_runs(free: u64, lane: usize) -> u64 {
    match lane {
        0 => free,
        1 => runs_of(free, 4) & 0x1111_1111_1111_1111,
        _ => runs_of(free, 32) & 0x1_0000_0001,
    }
}

/// Recounts the chunks: all invariants.
pub(crate) fn check() {
    let arena = ARENA.lock();
    let (mut free, mut dirty) = (0, 0);
    let end = address_map::committed().div_ceil(CHUNK_SLICES);
    for chunk in first_chunk()..end {
        let (b, place) = (arena.bits(chunk), chunk - first_chunk());
        free += b.free.count_ones() as usize;
        dirty += b.dirty.count_ones() as usize;
        assert_eq!((b.dirty & !b.free, b.written & !b.dirty), (0, 0));
        for lane in 0..RUNS.len() {
            assert_eq!(arena.tree.has(lane, place), aligned_runs(b.free, lane) != 0);
        }
        assert_eq!(arena.tree.has(DIRTY, place), b.dirty != 0);
        assert_eq!(arena.tree.has(HEADS, place), b.heads != 0);
        assert_eq!(arena.tree.has(WHOLE, place & !1), arena.is_whole(chunk));
        let tail = b.free.leading_ones() as usize;
        let end = (chunk + 1) * CHUNK_SLICES;
        let last = if tail > 0 { arena.run_end(end - tail, RUN_MAX) - (end - tail) } else { 0 };
        let longest = longest_run(b.free).max(last.min(RUN_MAX));
        assert!(usize::from(arena.tree.longest(place)) >= longest);
    }
    assert_eq!((free, dirty), (arena.free, arena.dirty));
}
