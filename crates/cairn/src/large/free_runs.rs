//! Owns: how a run is found among what is free, without any growth: for an aligned block, and where the system has no more.
//! Idea: aligned blocks of a size lie side by side; each fits where one has been.
//! Never: asks the system for memory.
//! Threads: any; takes the arena's lock.
//! Checked: tests/large.rs; tests/limits.rs of the C layer
//! Story: docs/design/large-blocks.md

use super::{Allocated, Pages, begin, run_slices};
use crate::base::SLICE_SIZE;
use crate::map::{CHUNK_SLICES, address_map};
use crate::slices::{Run, Use, arena, limit};

/// Takes a run of what is free whose first slice lies a multiple of `align` and `at` bytes, whole slices, behind address 0.
/// Aligned blocks take each other's places so. None if the first few `looks`, at runs that are long enough, do not do.
#[cold]
#[inline(never)]
pub(super) fn take_free(
    slices: usize,
    [align, at]: [usize; 2],
    used: Use,
    looks: usize,
) -> Option<Run> {
    // Nothing is given back for what cannot be had.
    if limit::hard() > 0 && slices * SLICE_SIZE > limit::hard() {
        return None;
    }
    let mut low = 0;
    for _ in 0..looks {
        let index = arena::lowest_run(slices, low, used)?;
        let first = index + before_aligned(index, [align, at]);
        // A chunk's other places may lie in other runs.
        low = first / CHUNK_SLICES + 1;
        for at in (first..low * CHUNK_SLICES).step_by(align.div_ceil(SLICE_SIZE).max(1)) {
            // Behind the reservation is what others have.
            if at + slices <= address_map::committed()
                && let Some(run) = arena::take_exactly(at, slices)
            {
                return Some(run);
            }
        }
    }
    None
}

/// Slices from one to the next that lies so.
pub(super) fn before_aligned(index: usize, [align, at]: [usize; 2]) -> usize {
    let address = address_map::slice_address(index).addr();
    (at.wrapping_sub(address) & (align.max(SLICE_SIZE) - 1)) / SLICE_SIZE
}

/// Allocates a block of what is free, with nothing besides, wherever it lies.
#[cold]
#[inline(never)]
pub(super) fn allocate_free_run(size: usize, [align, at]: [usize; 2]) -> Allocated {
    let in_slice = at % SLICE_SIZE;
    let slices = run_slices(in_slice + size, 0);
    let place = [align, at - in_slice];
    let Some(run) = take_free(slices, place, Use::Filled, usize::MAX) else {
        return Allocated::NONE;
    };
    let block = address_map::slice_address(run.index).wrapping_add(in_slice);
    begin(run.index, slices, block, size, Pages::Small);
    Allocated { block, zero: run.zero, untouched: run.dirty == 0 }
}
