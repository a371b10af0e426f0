//! Owns: which slices are backed by huge pages, and where blocks are put for that.
//! Idea: a large heap that grows densely gets a huge page where it grows next, before it touches small
//!   ones. What may stay empty is put elsewhere.
//! Never: asks for a huge page in a small heap, or where one has been slow lately.
//! Threads: any; the arena's lock, given up around each system call.
//! Checked: tests/huge.rs; the lab's rows of memory.
//! Story: docs/design/huge-pages.md

use super::{ARENA, Arena, Memory, RUNS};
use crate::base::bits::pieces;
use crate::base::{Apart, AtomicUsize, Ordering, SLICE_SIZE};
use crate::map::{CHUNK_SLICES, address_map};
use crate::os::{self, Guard};
use crate::slices::fences::{Fence, Fences, Taken};
use crate::slices::tuning::{DENSE_MIN, GROW_MAX, HUGE_MIN, THIN_SHARE};

/// Slices of spans in which there are blocks that nobody has had: who has many classes, and few blocks, touches little of them.
/// Relaxed: a measure.
pub(crate) static THIN: Apart<AtomicUsize> = Apart(AtomicUsize::new(0));

/// Slices in the frame of a huge page.
pub(super) const HUGE_SLICES: usize = os::HUGE_PAGE / SLICE_SIZE;

/// Puts a huge page into its frame at `unit`. The lock is given up meanwhile, the slices are nobody's.
pub(super) fn back_by_huge_page(
    mut arena: Guard<'static, Arena>,
    unit: usize,
) -> Guard<'static, Arena> {
    arena.remove(unit, HUGE_SLICES);
    arena.bursts.judge(HUGE_SLICES);
    drop(arena);
    if !Fences::bare(unit, HUGE_SLICES, Taken::Otherwise) {
        return ARENA.lock();
    }
    // SAFETY: slices that have been free, and that nobody else can take now.
    unsafe { os::use_huge_page(address_map::slice_address(unit)) };
    let mut arena = ARENA.lock();
    // It counts as dirty, so that what nobody takes is given back.
    arena.put(unit, HUGE_SLICES, Memory::Zero);
    arena
}

impl Arena {
    /// Spans of `slices` have been taken: the front of the reservation gets denser.
    pub(super) fn note_span(&mut self, slices: usize) {
        self.dense = (self.dense + slices % RUNS[2]).min(8 * HUGE_SLICES);
        self.taken = self.taken.wrapping_add(slices);
    }

    /// A large block that may stay empty has been taken.
    pub(super) fn note_sparse(&mut self, slices: usize) {
        self.dense = self.dense.saturating_sub(4 * slices);
    }

    /// Whether a span of `slices` at `index` lies where all is filled soon.
    pub(super) fn is_dense(&self, index: usize, slices: usize) -> bool {
        // The longest, which are filled bit by bit, in larger heaps only.
        let least = if slices < RUNS[2] { HUGE_MIN } else { 4 * HUGE_MIN };
        let end = if self.dense >= DENSE_MIN { usize::MAX } else { self.sparse_from() };
        (least..end).contains(&index) && THIN.0.load(Ordering::Relaxed) <= self.used() / THIN_SHARE
    }

    /// Where a huge page is to be put before `slices` from `index` on are taken: into the frame of one
    /// that holds nothing, not even what could be resident, if the heap is large and it gets `dense`.
    #[inline]
    pub(super) fn unit_for_huge_page(
        &self,
        index: usize,
        slices: usize,
        dense: bool,
    ) -> Option<usize> {
        let is_large = dense && self.used() >= HUGE_MIN;
        if is_large { self.untouched_unit(index, slices) } else { None }
    }

    /// The first frame of a huge page under a run that holds nothing.
    #[inline(never)]
    pub(super) fn untouched_unit(&self, index: usize, slices: usize) -> Option<usize> {
        let units = index / HUGE_SLICES..(index + slices).div_ceil(HUGE_SLICES);
        let mut starts = units.map(|unit| unit * HUGE_SLICES);
        let is_clean = |(chunk, _)| self.bits(chunk).free & !self.bits(chunk).dirty == !0;
        let is_untouched = |&unit: &usize| {
            unit + HUGE_SLICES <= address_map::committed()
                && pieces(unit, HUGE_SLICES).all(is_clean)
        };
        let fits = |&unit: &usize| self.has_room_to_spare(unit, HUGE_SLICES);
        // Last: it reads the clock.
        starts.find(is_untouched).filter(fits).filter(|_| os::wants_huge_pages())
    }

    /// Where large blocks are put that may stay empty, in a heap so large that the spans in front of
    /// there are to have huge pages. In steps of 64 MiB: where all that is in use ends now, spans will
    /// be next.
    pub(super) fn sparse_from(&self) -> usize {
        let front = (self.used() + 1).next_multiple_of(GROW_MAX);
        if front > GROW_MAX { front } else { 0 }
    }

    /// Whether the frame of a huge page that `chunk` lies in is free, and may be resident.
    pub(super) fn is_whole(&self, chunk: usize) -> bool {
        let (low, high) = (chunk & !1, chunk | 1);
        self.bits(chunk).free == !0
            && (high + 1) * CHUNK_SLICES <= address_map::committed()
            && self.bits(low).free & self.bits(high).free == !0
            && self.bits(low).dirty | self.bits(high).dirty != 0
    }
}
