//! Owns: where free runs of a length are, and how long the longest of each chunk is.
//! Idea: the tree knows an upper bound of each chunk; the search that finds it too high mends it.
//! Never: takes or gives slices.
//! Threads: the owner of the arena's lock.
//! Checked: the arena's `check`, invariant 4.
//! Story: docs/design/large-blocks.md

use super::{ARENA, Arena, Use, keeps};
use crate::base::bits::{longest_run, run_around, runs_of};
use crate::map::{CHUNK_SLICES, address_map};
use crate::slices::tuning::RUN_MAX;

impl Arena {
    /// The lowest run of `slices` free slices that begins in chunk `low` or behind it.
    pub(super) fn lowest_run(&mut self, slices: usize, low: usize) -> Option<usize> {
        let (least, mut from) = (slices.min(RUN_MAX), low);
        loop {
            let chunk = self.tree.next_run(least as u16, from)?;
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
            self.tree.set_longest(chunk, known as u16);
            from = chunk.max(end / CHUNK_SLICES);
        }
    }

    /// Where the free run that begins at `start` ends; not much behind `most` slices.
    pub(super) fn run_end(&self, start: usize, most: usize) -> usize {
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
    pub(super) fn last_run(&self, chunk: usize) -> usize {
        match self.bits(chunk).free.leading_ones() as usize {
            0 => 0,
            tail => (tail + self.run_at_start(chunk + 1)).min(RUN_MAX),
        }
    }

    /// At least the length of the free run that begins with the first slice of `chunk`.
    pub(super) fn run_at_start(&self, chunk: usize) -> usize {
        if chunk * CHUNK_SLICES >= address_map::committed() {
            return 0;
        }
        match self.bits(chunk).free.trailing_ones() as usize {
            CHUNK_SLICES => usize::from(self.tree.longest(chunk)),
            part => part,
        }
    }

    /// Invariant 4, for a run that has been put.
    pub(super) fn lengthen(&mut self, index: usize, slices: usize) {
        let first = index / CHUNK_SLICES;
        // From the last chunk down: what begins in one may end in the next.
        let mut chunk = (index + slices - 1) / CHUNK_SLICES;
        loop {
            let free = self.bits(chunk).free;
            let start = chunk * CHUNK_SLICES;
            // Only the run that it has become part of may be longer than what is known.
            let around =
                if chunk < first { 0 } else { run_around(free, index.saturating_sub(start)) };
            let longest = around.max(self.last_run(chunk));
            if longest > usize::from(self.tree.longest(chunk)) {
                self.tree.set_longest(chunk, longest as u16);
            }
            // Runs that begin in front of the first one, too, if they go on in it as far as here.
            let head = free.trailing_ones() as usize;
            let reached = match chunk.cmp(&first) {
                core::cmp::Ordering::Greater => true,
                core::cmp::Ordering::Equal => start + head > index,
                core::cmp::Ordering::Less => head == CHUNK_SLICES,
            };
            let near = first < chunk + RUN_MAX / CHUNK_SLICES;
            if chunk == 0 || !reached || !near {
                return;
            }
            chunk -= 1;
            if chunk < first && self.bits(chunk).free.leading_ones() == 0 {
                return;
            }
        }
    }

    /// Invariant 4, for all chunks, of which nothing is known.
    pub(super) fn measure_all(&mut self) {
        for chunk in (0..address_map::committed().div_ceil(CHUNK_SLICES)).rev() {
            let longest = longest_run(self.bits(chunk).free).max(self.last_run(chunk));
            self.tree.set_longest(chunk, longest as u16);
        }
    }
}

/// Where the lowest run of `slices` free slices is, from chunk `low` on, for who takes them exactly; where it looks for such a use.
pub(crate) fn lowest_run(slices: usize, low: usize, used: Use) -> Option<usize> {
    let mut arena = ARENA.lock();
    let from = if used == Use::Sparse && !keeps() { arena.sparse_from() } else { 0 };
    arena.lowest_run(slices, low.max(from / CHUNK_SLICES))
}
