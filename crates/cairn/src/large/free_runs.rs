//! Owns: how a run is found among what is free, without any growth: for an aligned block, and where the system has no more.
//! Idea: aligned blocks of a size lie side by side; each fits where one has been.
//! Never: asks the system for memory.
//! Threads: any; takes the arena's lock.
//! Checked: tests/large.rs; tests/limits.rs of the C layer
//! Story: docs/design/large-blocks.md

use super::{Allocated, Pages, begin, fits, run_slices};
use crate::base::SLICE_SIZE;
use crate::large::tuning::ALIGNED_LOOKS;
use crate::map::{CHUNK_SLICES, address_map};
use crate::slices::{Run, Use, arena, limit};

/// Where a run is looked for.
#[derive(Clone, Copy)]
pub(super) enum Look {
    /// Once in each of the first few free runs that are long enough.
    Few,
    /// At each place.
    Everywhere,
}

/// Takes a run of what is free whose first slice lies a multiple of `align` and `at` bytes, whole slices, behind address 0.
/// Aligned blocks take each other's places so.
#[cold]
#[inline(never)]
pub(super) fn take_free(
    slices: usize,
    [align, at]: [usize; 2],
    used: Use,
    look: Look,
) -> Option<Run> {
    // Nothing is given back for what cannot be had.
    if limit::hard() > 0 && slices * SLICE_SIZE > limit::hard() {
        return None;
    }
    let (runs, places) = match look {
        Look::Few => (ALIGNED_LOOKS, 1),
        Look::Everywhere => (usize::MAX, usize::MAX),
    };
    let mut low = 0;
    for _ in 0..runs {
        let index = arena::lowest_run(slices, low, used)?;
        let first = index + before_aligned(index, [align, at]);
        // A chunk's other places may lie in other runs.
        low = first / CHUNK_SLICES + 1;
        let of_chunk = (first..low * CHUNK_SLICES).step_by(align.div_ceil(SLICE_SIZE).max(1));
        for at in of_chunk.take(places) {
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
    // What is free and dirty has gone before, if it is the hard limit that refuses: it would refuse each place.
    if !fits(slices * SLICE_SIZE) {
        return Allocated::NONE;
    }
    // Without an alignment the first place is one, and who is refused it has come too late.
    let look = if align > SLICE_SIZE { Look::Everywhere } else { Look::Few };
    let Some(run) = take_free(slices, place, Use::Filled, look) else {
        return Allocated::NONE;
    };
    let block = address_map::slice_address(run.index).wrapping_add(in_slice);
    begin(run.index, slices, block, size, Pages::Small);
    Allocated { block, zero: run.zero, untouched: run.dirty == 0 }
}
