//! Owns: when free memory goes back to the system, and how much of it stays.
//! Idea: what nobody has needed between two ticks is idle, and goes in small batches from the top. How much may be dirty besides
//!   depends on what is in use, and on what was regretted.
//! Never: purges what is in use, or holds the lock over a purge.
//! Threads: any; the arena's lock, given up around each system call.
//! Checked: the arena's tests; the lab's rows of memory after load.
//! Story: docs/design/purging.md

use super::huge::HUGE_SLICES;
use super::partition_runs::{Leave, Partitions};
use super::purge_policy::{NEXT_TICK_MS, keeps, purge_delay_ms, stroke_ms};
use super::{ARENA, Arena, DIRTY, Memory, WHOLE};
use crate::base::bits::{aligned_runs, bit, mask};
use crate::base::nearness::ALL;
use crate::base::{Apart, AtomicUsize, Ordering, SLICE_SIZE};
use crate::map::{CHUNK_SLICES, ChunkBits, address_map};
use crate::os::{self, Guard};
use crate::slices::tuning::{
    BURST_MIN, BURST_SHARE, HOLLOW_MIN, HOLLOW_SHARE, HUGE_MIN, KEEP_MIN, KEEP_SHARE,
    NEEDED_DELAYS, NEEDED_MAX, PURGE_BATCH,
};

/// Idle slices found by the last tick and not yet purged. Relaxed, like the next: read by every
/// slow tick of every thread, written a few times a second.
static DEBT: Apart<AtomicUsize> = Apart(AtomicUsize::new(0));

/// Bytes that have gone from spans in use, and are not needed again, for all that is known. Relaxed: a measure.
static HOLES: Apart<AtomicUsize> = Apart(AtomicUsize::new(0));

/// Below which slice of `WHOLE`, and of `DIRTY`, the next batch goes on, for the last one has met locked memory there;
/// `usize::MAX`: at the top. Relaxed: who sees it late meets that again.
static BELOW: [AtomicUsize; 2] = [const { AtomicUsize::new(usize::MAX) }; 2];

/// Runs that are being purged, and how many slices of them were clean: the others count until they have gone. Relaxed: changed
/// under the arena's lock.
pub(super) static GOING: AtomicUsize = AtomicUsize::new(0);
pub(super) static GOING_CLEAN: AtomicUsize = AtomicUsize::new(0);

/// So many bytes have gone from spans in use.
pub(crate) fn count_holes(bytes: usize) {
    HOLES.0.fetch_add(bytes, Ordering::Relaxed);
}

/// So many are needed again, or their span has ended.
pub(crate) fn fill_holes(bytes: usize) {
    let less = |holes: usize| Some(holes.saturating_sub(bytes));
    let _ = HOLES.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

/// How many bytes in spans in use may wait to go: a part of what is in use, and has not gone; near a limit less of it.
pub(crate) fn may_wait() -> usize {
    let arena = ARENA.lock();
    let used = arena.used() * SLICE_SIZE;
    let bound = used.saturating_sub(HOLES.0.load(Ordering::Relaxed)) / HOLLOW_SHARE;
    bound * arena.share() / ALL
}

/// Slices that have been taken for spans, ever.
pub(crate) fn taken() -> usize {
    ARENA.lock().taken
}

/// Upkeep from slow paths: once per purge delay, when it answers true, finds what has lain
/// idle; gives back a batch of it at each call.
pub(crate) fn tick(now_ms: u64) -> bool {
    let due = || now_ms as usize >= NEXT_TICK_MS.0.load(Ordering::Relaxed);
    let ticked = due() && {
        let mut arena = ARENA.lock();
        due() && arena.tick(now_ms)
    };
    // One pays: others find no debt meanwhile.
    let debt = if in_debt() { DEBT.0.swap(0, Ordering::Relaxed) } else { 0 };
    if debt > 0 {
        let arena = ARENA.lock();
        // Of a small heap not more than that: what is kept lies in the same frame of a huge page.
        let lanes = if arena.used() < HUGE_MIN { &[DIRTY][..] } else { &[WHOLE, DIRTY] };
        let done = purge_batch(arena, lanes, debt.min(PURGE_BATCH));
        // Where nothing goes (locked memory, say) the next tick finds it again.
        let left = if done > 0 { debt.saturating_sub(done) } else { 0 };
        DEBT.0.fetch_max(left, Ordering::Relaxed);
    }
    ticked
}

/// Whether upkeep has memory to give back right now.
pub(crate) fn in_debt() -> bool {
    DEBT.0.load(Ordering::Relaxed) > 0
}

/// Gives back as much as is dirty now, and all that is if nobody frees meanwhile; the number of bytes that went.
#[inline(never)]
pub(crate) fn purge_all() -> usize {
    // In this order: the guard lives to the end of the line.
    let (mut gone, mut left) = (Partitions::purge(), ARENA.lock().dirty);
    for (lane, below) in [WHOLE, DIRTY].iter().zip(&BELOW) {
        below.store(usize::MAX, Ordering::Relaxed);
        while left > 0 {
            let done = purge_batch(ARENA.lock(), &[*lane], left.min(PURGE_BATCH));
            if done == 0 && below.load(Ordering::Relaxed) == usize::MAX {
                break;
            }
            (gone, left) = (gone + done, left.saturating_sub(done));
        }
    }
    gone * SLICE_SIZE
}

/// Purges up to `limit` dirty slices, from the top in each of `lanes`, one after the other; the number that went. The
/// lock is given up around each system call; the slices are nobody's meanwhile.
#[inline(never)]
pub(super) fn purge_batch(
    mut arena: Guard<'static, Arena>,
    lanes: &[usize],
    limit: usize,
) -> usize {
    let (mut done, mut refused) = (0, 0);
    for &lane in lanes {
        let below = &BELOW[usize::from(lane == DIRTY)];
        while done + refused < limit {
            let end = address_map::committed().min(below.load(Ordering::Relaxed));
            let Some(chunk) = arena.tree.last(lane, end.div_ceil(CHUNK_SLICES)) else {
                below.store(usize::MAX, Ordering::Relaxed);
                break;
            };
            let (mut index, mut len) = (chunk * CHUNK_SLICES, HUGE_SLICES);
            if lane == DIRTY {
                let in_chunk = mask(0, (end - index).min(CHUNK_SLICES));
                let dirty = purgeable(arena.bits(chunk)) & in_chunk;
                if dirty == 0 {
                    below.store(index, Ordering::Relaxed);
                    continue;
                }
                let top = 63 - dirty.leading_zeros() as usize;
                len = (dirty << (63 - top)).leading_ones() as usize;
                // A small heap has no huge pages that this would split.
                if arena.used() < HUGE_MIN {
                    let page = (os::page_size() / SLICE_SIZE).max(1);
                    len = len.min((limit - done).next_multiple_of(page));
                }
                index += top + 1 - len;
            }
            let were_dirty = arena.dirty_among(index, len);
            let (dirty, _) = arena.remove(index, len);
            GOING.fetch_add(1, Ordering::Relaxed);
            GOING_CLEAN.fetch_add(len - dirty, Ordering::Relaxed);
            drop(arena);
            let at = address_map::slice_address(index);
            // SAFETY: slices that have been free, and that nobody else can take now.
            let gone = unsafe { os::purge_pieces(at, len, SLICE_SIZE, were_dirty) };
            arena = ARENA.lock();
            GOING.fetch_sub(1, Ordering::Relaxed);
            GOING_CLEAN.fetch_sub(len - dirty, Ordering::Relaxed);
            // Locked memory, say, stays. What was clean is so still: it may be no memory.
            let stays = were_dirty & !gone;
            let stay = stays.count_ones() as usize;
            arena.bursts.purged += (dirty - stay) as u64;
            (done, refused) = (done + dirty - stay, refused + stay);
            if stays == 0 {
                arena.put(index, len, Memory::Clean);
                continue;
            }
            for nth in 0..len {
                let dirty = stays >> nth & 1 != 0;
                arena.put(index + nth, 1, if dirty { Memory::Written } else { Memory::Clean });
            }
            below.store(index, Ordering::Relaxed);
        }
    }
    arena.bursts.is_refused = done == 0 && refused > 0;
    done
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

impl Arena {
    /// Which of up to 128 slices are dirty, a bit each.
    fn dirty_among(&self, index: usize, slices: usize) -> u128 {
        const _: () = assert!(HUGE_SLICES <= 128);
        let is_dirty = |slice: usize| self.bits(slice / CHUNK_SLICES).dirty & bit(slice) != 0;
        (0..slices).fold(0, |bits, nth| bits | u128::from(is_dirty(index + nth)) << nth)
    }

    /// How many slices may be dirty before a release purges at once.
    #[inline(never)]
    pub(super) fn burst_bound(&self) -> usize {
        let left = self.filled();
        let share = if self.is_hollow() {
            HOLLOW_MIN.max(left / HOLLOW_SHARE)
        } else {
            BURST_MIN.max(self.used() / BURST_SHARE)
        };
        share + self.bursts.allowed(left)
    }

    /// Slices in use but for those that have gone to holes.
    fn filled(&self) -> usize {
        self.used().saturating_sub(HOLES.0.load(Ordering::Relaxed) / SLICE_SIZE)
    }

    /// Whether an eighth of what is in use or more has gone to holes.
    pub(super) fn is_hollow(&self) -> bool {
        let (used, filled) = (self.used(), self.filled());
        used - filled >= used / 8 && filled < used
    }

    fn tick(&mut self, now_ms: u64) -> bool {
        NEXT_TICK_MS.0.store((now_ms as usize).saturating_add(stroke_ms()), Ordering::Relaxed);
        // Twice of it: what is scattered is not all of use to one large block.
        let needed = (2 * self.needed(now_ms)).min(NEEDED_MAX);
        let keep = KEEP_MIN.max(self.filled() / KEEP_SHARE).max(needed);
        let debt = if keeps() { 0 } else { self.idle.saturating_sub(keep) };
        DEBT.0.store(debt, Ordering::Relaxed);
        self.idle = self.dirty;
        self.bursts.fade();
        fill_holes(HOLES.0.load(Ordering::Relaxed) / 16);
        true
    }

    /// The most slices that have been taken and freed again between two ticks, lately: a server that is seldom asked
    /// takes them for its next request.
    fn needed(&mut self, now_ms: u64) -> usize {
        let delays = NEEDED_DELAYS.saturating_mul(purge_delay_ms() as u64);
        if now_ms >= self.needed_ms.saturating_add(delays) {
            (self.needed, self.needed_ms) = ([0, self.needed[0]], now_ms);
        }
        self.needed[0] = self.needed[0].max(self.dirty - self.idle);
        self.needed[0].max(self.needed[1])
    }
}
