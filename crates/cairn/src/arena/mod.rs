//! Owns: which slices are free, which of those are dirty, and the committed end of the window.
//! Idea: bitmaps over slices, and trees over bitmaps that lead to the lowest fitting address:
//!   low addresses fill, high ones empty, and what lies idle is given back from the top.
//! Never: knows size classes, what spans hold, or threads.
//! Threads: any; one lock, never held across a purging system call.
//! Checked: `check` recounts the chunks; the tree against a plain set in its own tests.
//! Story: docs/giving-back.md

mod tree;

use crate::address_map::{self, CHUNK_SLICES, ChunkBits};
use crate::os::{self, Fork, Guard, Lock};
use crate::size_class::SLICE_SIZE;
use crate::sync::{Apart, AtomicUsize, Ordering};
use tree::Tree;

// Invariants, all under the lock
//  1. A committed slice is in use, free, or being purged. free = 1: free; dirty = 1: free and
//     not known to be zero.
//  2. A chunk is in lane t of the tree exactly if it has a free, aligned run of RUNS[t] slices;
//     in the last lane, if it has a dirty slice.
//  3. `free` and `dirty` are the numbers of set bits;
//     committed - first = used + free, slices being purged counting as used.
//  4. No free run as long as hint h stands for begins in a chunk below hints[h], but for runs
//     that reach lowest_put.

/// Run lengths with a lane of their own, the spans'; each is aligned to its length.
const RUNS: [usize; 3] = [1, 4, 32];
/// The lane of chunks with dirty slices.
const DIRTY: usize = RUNS.len();
/// The lane of the rooms of huge pages, by their first chunk, that are free and have some.
const WHOLE: usize = DIRTY + 1;

/// Dirty memory that is always kept, in slices: 512 KiB. Twice of it shows in every small
/// process; half of it purges what a loop is about to use again.
const KEEP_MIN: usize = (512 << 10) / SLICE_SIZE;
/// Beyond that a 16th of what is in use may stay dirty.
const KEEP_SHARE: usize = 16;
/// Dirty slices that make a release purge at once: 4 MiB, or a quarter of what is in use. A
/// process that frees everything and falls idle keeps that; twice of it is seen by its owner.
const BURST_MIN: usize = (4 << 20) / SLICE_SIZE;
const BURST_SHARE: usize = 4;
/// What is purged so and needed again within this time should have stayed: from then on as much
/// may be dirty as is in use, or 32 MiB, ...
const REGRET_MS: u64 = 1000;
const BURST_KEPT: usize = (32 << 20) / SLICE_SIZE;
/// ... but at first 16 MiB, and twice as much and 16 MiB the next time, up to this, 512 MiB.
const BURST_STEP: usize = (16 << 20) / SLICE_SIZE;
const BURST_MAX: usize = (512 << 20) / SLICE_SIZE;
/// Slices purged in one go, 4 MiB: about 0.3 ms of system time.
const BATCH: usize = (4 << 20) / SLICE_SIZE;
/// Refused purges that end a batch: in a process whose memory is locked all are.
const REFUSALS: usize = 4;
/// The window grows by what it holds, at least by 4 MiB, at most by 64 MiB.
const STEP_MIN: usize = (4 << 20) / SLICE_SIZE;
const STEP_MAX: usize = (64 << 20) / SLICE_SIZE;

/// Slices in the room of a huge page.
const HUGE_SLICES: usize = os::HUGE_PAGE / SLICE_SIZE;
/// Slices in use from which on a heap is backed by huge pages as it grows: one of them is then
/// an eighth of it at most. With many that take spans it is a huge page for each.
const HUGE_MIN: usize = (16 << 20) / SLICE_SIZE;

/// Search hints: one for each run length up to a chunk, then one per doubling.
const HINTS: usize = CHUNK_SLICES + 1 + 20;

/// Milliseconds that memory lies idle before it is given back.
static PURGE_DELAY_MS: AtomicUsize = AtomicUsize::new(250);
/// Idle slices found by the last tick and not yet purged. Relaxed, like the next: read by every
/// slow visit of every thread, written a few times a second.
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
    hints: [u32; HINTS],
    /// The lowest chunk that slices went back to since the hints were last brought up to date.
    lowest_put: usize,
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
}

/// Takes an aligned run of one of the spans' lengths; None if the system has no more memory. `users`
/// take spans: each leaves some of its own untouched.
pub(crate) fn take_span(slices: usize, users: usize) -> Option<Run> {
    let lane = RUNS.iter().position(|&n| n == slices)?;
    let mut arena = ARENA.lock();
    arena.dense = (arena.dense + slices % RUNS[2]).min(8 * HUGE_SLICES);
    // Behind that much: the longest, which are filled bit by bit, in larger heaps only.
    let least = if slices < RUNS[2] { HUGE_MIN } else { 4 * HUGE_MIN };
    let front = address_map::first_slice() + least.max(users * HUGE_SLICES);
    loop {
        if let Some(chunk) = arena.tree.next(lane, 0) {
            let fits = aligned_runs(bits(chunk).free, lane);
            let index = chunk * CHUNK_SLICES + fits.trailing_zeros() as usize;
            let end = if arena.dense >= HUGE_SLICES { usize::MAX } else { arena.sparse_from() };
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

/// Takes `slices` anywhere, which are `filled` soon, or perhaps not; None if the system has no
/// more memory.
pub(crate) fn take_run(slices: usize, filled: bool) -> Option<Run> {
    let mut arena = ARENA.lock();
    arena.dense = arena.dense.saturating_sub(if filled { 0 } else { 4 * slices });
    // What may stay empty is put in front if there is no room behind.
    let mut from = if filled { 0 } else { arena.sparse_from() };
    loop {
        if let Some(index) = arena.lowest_run(slices, from / CHUNK_SLICES) {
            let Some(unit) = arena.unit_for_huge_page(index, slices, filled) else {
                return Some(arena.take_at(index, slices));
            };
            arena = back_by_huge_page(arena, unit);
        } else if arena.grow(slices, 1).is_none() && core::mem::take(&mut from) == 0 {
            return None;
        }
    }
}

/// Puts a huge page into its room at `unit`. The lock is given up meanwhile, the slices are nobody's.
fn back_by_huge_page(mut arena: Guard<'static, Arena>, unit: usize) -> Guard<'static, Arena> {
    arena.take_at(unit, HUGE_SLICES);
    drop(arena);
    os::use_huge_page(address_map::slice_address(unit));
    let mut arena = ARENA.lock();
    // Zero, but resident: it counts as dirty, so that what nobody takes is given back.
    arena.put(unit, HUGE_SLICES, true);
    arena
}

/// Takes the `slices` that begin at `index` if all are free; the answer says if they are zero.
pub(crate) fn take_exactly(index: usize, slices: usize) -> Option<Run> {
    let mut arena = ARENA.lock();
    let is_free = |(chunk, mask)| bits(chunk).free & mask == mask;
    let free = index + slices <= address_map::committed() && pieces(index, slices).all(is_free);
    free.then(|| arena.take_at(index, slices))
}

/// Gives a run back. `dirty`: it may hold other than zeros. Purges at once if very much is.
pub(crate) fn release(index: usize, slices: usize, dirty: bool) {
    let mut arena = ARENA.lock();
    arena.put(index, slices, dirty);
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
    let _arena = ARENA.lock();
    let b = bits(index / CHUNK_SLICES);
    b.heads = if head { b.heads | bit(index) } else { b.heads & !bit(index) };
}

/// The first slice of the nearest large block that begins at or below `index`.
pub(crate) fn head_below(index: usize) -> Option<usize> {
    let _arena = ARENA.lock();
    let first = address_map::first_slice() / CHUNK_SLICES;
    let mut mask = !0 >> (63 - index % CHUNK_SLICES);
    for chunk in (first..=index / CHUNK_SLICES).rev() {
        let heads = bits(chunk).heads & mask;
        if heads != 0 {
            return Some(chunk * CHUNK_SLICES + 63 - heads.leading_zeros() as usize);
        }
        mask = !0;
    }
    None
}

/// Slices that are free and known to be zero, and how many were given back since the start.
pub(crate) fn clean_and_purged() -> (usize, u64) {
    let arena = ARENA.lock();
    (arena.free - arena.dirty, arena.purged)
}

/// Calls `f` with each run of dirty slices (index, length); takes the lock chunk by chunk.
pub(crate) fn for_each_dirty(mut f: impl FnMut(usize, usize)) {
    let end = address_map::committed().div_ceil(CHUNK_SLICES);
    for chunk in address_map::first_slice() / CHUNK_SLICES..end {
        let mut dirty = {
            let _arena = ARENA.lock();
            bits(chunk).dirty
        };
        while dirty != 0 {
            let at = dirty.trailing_zeros() as usize;
            let len = (dirty >> at).trailing_ones() as usize;
            f(chunk * CHUNK_SLICES + at, len);
            dirty &= !mask(at, len);
        }
    }
}

/// Holds the lock over a fork.
pub(crate) fn at_fork(step: Fork) {
    ARENA.at_fork(step);
}

/// Purges up to `limit` dirty slices, from the top in each of `lanes`; the number that went. The
/// lock is given up around each system call; the slices are nobody's meanwhile.
fn purge_batch(mut arena: Guard<'static, Arena>, lanes: &[usize], limit: usize) -> usize {
    let (mut done, mut refused) = (0, 0);
    let mut end = address_map::committed().div_ceil(CHUNK_SLICES);
    while done < limit {
        let last = |&lane: &usize| Some((lane, arena.tree.last(lane, end)?));
        let Some((lane, chunk)) = lanes.iter().find_map(last) else { break };
        let (mut index, mut len) = (chunk * CHUNK_SLICES, HUGE_SLICES);
        if lane == DIRTY {
            let dirty = purgeable(bits(chunk));
            if dirty == 0 {
                end = chunk;
                continue;
            }
            let top = 63 - dirty.leading_zeros() as usize;
            len = (dirty << (63 - top)).leading_ones() as usize;
            index += top + 1 - len;
        }
        let dirty = arena.remove(index, len);
        drop(arena);
        let clean = os::decommit(address_map::slice_address(index), len * SLICE_SIZE);
        arena = ARENA.lock();
        arena.put(index, len, !clean);
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
    fn unit_for_huge_page(&self, index: usize, slices: usize, dense: bool) -> Option<usize> {
        let units = index / HUGE_SLICES..(index + slices).div_ceil(HUGE_SLICES);
        let mut starts = units.map(|unit| unit * HUGE_SLICES);
        let is_clean = |(chunk, _)| bits(chunk).free & !bits(chunk).dirty == !0;
        let is_untouched = |&unit: &usize| {
            unit + HUGE_SLICES <= address_map::committed()
                && pieces(unit, HUGE_SLICES).all(is_clean)
        };
        (dense && self.used() >= HUGE_MIN).then(|| starts.find(is_untouched))?
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
        self.settle_hints();
        let hint = self.hints[hint_of(slices)] as usize;
        let found = self.find_run(slices, hint.max(low));
        let (Ok(at) | Err(at)) = found;
        if low <= hint {
            self.learn(slices, at);
        }
        found.ok()
    }

    /// The lowest run of `slices` free slices from chunk `from` on, or where one would begin that the
    /// window's end cuts off.
    fn find_run(&self, slices: usize, mut from: usize) -> Result<usize, usize> {
        // Free slices right in front of chunk `from`.
        let mut len = 0;
        while let Some(chunk) = self.tree.next(0, from) {
            let free = bits(chunk).free;
            len = if chunk == from { len } else { 0 };
            let low = free.trailing_ones() as usize;
            if len + low >= slices {
                return Ok(chunk * CHUNK_SLICES - len);
            }
            let runs = if slices <= CHUNK_SLICES { runs_of(free, slices) } else { 0 };
            if runs != 0 {
                return Ok(chunk * CHUNK_SLICES + runs.trailing_zeros() as usize);
            }
            let whole = low == CHUNK_SLICES;
            len = if whole { len + low } else { free.leading_ones() as usize };
            from = chunk + 1;
        }
        Err(if len > 0 { from * CHUNK_SLICES - len } else { address_map::committed() })
    }

    /// Notes that no run of `slices` begins below `found`.
    fn learn(&mut self, slices: usize, found: usize) {
        // Rounded up: what does not hold `slices` holds no longer run either.
        let rounded = if slices > CHUNK_SLICES { slices.next_power_of_two() } else { slices };
        let hint = &mut self.hints[hint_of(rounded)];
        *hint = (*hint).max((found / CHUNK_SLICES) as u32);
    }

    /// Lowers the hints to what has been put back.
    fn settle_hints(&mut self) {
        if self.lowest_put == usize::MAX {
            return;
        }
        for (nth, hint) in self.hints.iter_mut().enumerate() {
            // As far as a run reaches back that begins in front of it, in chunks.
            let before = 1 << nth.saturating_sub(CHUNK_SLICES);
            *hint = (*hint).min(self.lowest_put.saturating_sub(before) as u32);
        }
        self.lowest_put = usize::MAX;
    }

    /// Commits more of the window so that an aligned run of `slices` fits at its end.
    fn grow(&mut self, slices: usize, align: usize) -> Option<()> {
        let from = address_map::committed();
        let first = address_map::first_slice();
        // A free tail counts.
        let is_free = |&index: &usize| bits(index / CHUNK_SLICES).free & bit(index) != 0;
        let tail = (first..from).rev().take(slices).take_while(is_free).count();
        let start = (from - tail).next_multiple_of(align);
        let page = (os::page_size() / SLICE_SIZE).max(1);
        let need = (start + slices).saturating_sub(from).next_multiple_of(page);
        let step = (from - first).clamp(STEP_MIN, STEP_MAX).max(need);
        let step = step.next_multiple_of(HUGE_SLICES) - from % HUGE_SLICES;
        let mut counts = [step, need].into_iter();
        let count = counts.find(|&count| count >= need.max(1) && address_map::commit(count))?;
        self.put(from, count, false);
        Some(())
    }

    /// Takes slices out of the free ones; how many of them are dirty.
    fn remove(&mut self, index: usize, slices: usize) -> usize {
        let before = self.dirty;
        for (chunk, mask) in pieces(index, slices) {
            let b = bits(chunk);
            debug_assert_eq!(b.free & mask, mask);
            self.dirty -= (b.dirty & mask).count_ones() as usize;
            b.free &= !mask;
            b.dirty &= !mask;
            self.refresh(chunk);
        }
        self.free -= slices;
        self.idle = self.idle.min(self.dirty);
        before - self.dirty
    }

    fn take_at(&mut self, index: usize, slices: usize) -> Run {
        let dirty = self.remove(index, slices);
        if dirty <= slices / 2 && self.burst_ms > 0 {
            // Mostly clean slices are needed: was what the last burst gave back needed still?
            if os::now_ms() < self.burst_ms + REGRET_MS {
                self.burst = (BURST_STEP + 2 * self.burst).min(BURST_MAX);
            }
            self.burst_ms = 0;
        }
        Run { index, zero: dirty == 0 }
    }

    fn put(&mut self, index: usize, slices: usize, dirty: bool) {
        for (chunk, mask) in pieces(index, slices) {
            let b = bits(chunk);
            debug_assert_eq!(b.free & mask, 0);
            b.free |= mask;
            if dirty {
                b.dirty |= mask;
            }
            self.refresh(chunk);
        }
        self.free += slices;
        if dirty {
            self.dirty += slices;
        }
        self.lowest_put = self.lowest_put.min(index / CHUNK_SLICES);
    }

    /// Invariant 2, for one chunk.
    fn refresh(&mut self, chunk: usize) {
        let b = bits(chunk);
        for lane in 0..=WHOLE {
            let (place, member) = match lane {
                DIRTY => (chunk, b.dirty != 0),
                WHOLE => (chunk & !1, is_whole(chunk)),
                _ => (chunk, aligned_runs(b.free, lane) != 0),
            };
            if self.tree.has(lane, place) != member {
                self.tree.set(lane, place, member);
            }
        }
    }
}

/// A chunk's bitmaps. Callers hold the lock.
fn bits(chunk: usize) -> &'static mut ChunkBits {
    // SAFETY: the chunk is committed; the lock admits one thread, and no caller keeps the
    // reference while it asks for another to the same chunk.
    unsafe { &mut *address_map::chunk_bits(chunk) }
}

/// Whether the room of a huge page that `chunk` lies in is free, and may be resident.
fn is_whole(chunk: usize) -> bool {
    let (low, high) = (chunk & !1, chunk | 1);
    (high + 1) * CHUNK_SLICES <= address_map::committed()
        && bits(low).free & bits(high).free == !0
        && bits(low).dirty | bits(high).dirty != 0
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

fn bit(index: usize) -> u64 {
    1 << (index % CHUNK_SLICES)
}

/// `len` bits from `at` on; 1 <= len <= 64 - at.
fn mask(at: usize, len: usize) -> u64 {
    (!0 >> (64 - len)) << at
}

/// The hint for the longest hinted length up to `slices`.
fn hint_of(slices: usize) -> usize {
    if slices <= CHUNK_SLICES {
        slices
    } else {
        (CHUNK_SLICES + (slices / CHUNK_SLICES).ilog2() as usize).min(HINTS - 1)
    }
}

/// The parts of a run that lie in one chunk each: (chunk, mask).
fn pieces(index: usize, slices: usize) -> impl Iterator<Item = (usize, u64)> {
    let mut at = index;
    let end = index + slices;
    core::iter::from_fn(move || {
        (at < end).then(|| {
            let offset = at % CHUNK_SLICES;
            let len = (end - at).min(CHUNK_SLICES - offset);
            let piece = (at / CHUNK_SLICES, mask(offset, len));
            at += len;
            piece
        })
    })
}

/// Bit i: slices i .. i + len are free; len <= 64.
fn runs_of(free: u64, len: usize) -> u64 {
    let (mut runs, mut have) = (free, 1);
    while have < len {
        let by = have.min(len - have);
        runs &= runs >> by;
        have += by;
    }
    runs
}

/// The starts of free aligned runs of RUNS[lane] slices.
fn aligned_runs(free: u64, lane: usize) -> u64 {
    match lane {
        0 => free,
        1 => runs_of(free, 4) & 0x1111_1111_1111_1111,
        _ => runs_of(free, 32) & 0x1_0000_0001,
    }
}

/// Recounts the chunks: invariants 2 and 3.
pub(crate) fn check() {
    let arena = ARENA.lock();
    let (mut free, mut dirty) = (0, 0);
    let end = address_map::committed().div_ceil(CHUNK_SLICES);
    for chunk in address_map::first_slice() / CHUNK_SLICES..end {
        let b = bits(chunk);
        free += b.free.count_ones() as usize;
        dirty += b.dirty.count_ones() as usize;
        assert_eq!(b.dirty & !b.free, 0);
        for lane in 0..RUNS.len() {
            assert_eq!(arena.tree.has(lane, chunk), aligned_runs(b.free, lane) != 0);
        }
        assert_eq!(arena.tree.has(DIRTY, chunk), b.dirty != 0);
        assert_eq!(arena.tree.has(WHOLE, chunk & !1), is_whole(chunk));
    }
    assert_eq!((free, dirty), (arena.free, arena.dirty));
}
