//! Owns: runs of slices that spans of a partition have left: none but that partition's spans use them again.
//! Idea: address space is cheap; the memory behind them goes back at once.
//! Never: gives one to another partition, or back to the arena.
//! Threads: any; one lock.
//! Checked: tests/partitions.rs
//! Story: docs/design/policy.md

use super::Run;
use crate::address_map;
use crate::os::{self, Lock};
use crate::policy::PARTITIONS;
use crate::size_class::SLICE_SIZE;

/// Spans' lengths.
const LENGTHS: usize = 3;

/// The first run of each partition and length, plus 1, and the slices of all. Each run's slot names the next one.
struct Kept {
    first: [[u32; LENGTHS]; PARTITIONS],
    slices: usize,
}

static KEPT: Lock<Kept> = Lock::new(Kept { first: [[0; LENGTHS]; PARTITIONS], slices: 0 });

/// The place of a length: 1, 4 and 32 slices.
fn length(slices: usize) -> usize {
    slices.ilog2().div_ceil(2).min(2) as usize
}

/// Keeps a run for a partition, numbered from 0.
pub(crate) fn keep(partition: usize, index: usize, slices: usize) {
    // SAFETY: the run is the caller's, and in no use.
    unsafe { os::purge(address_map::slice_address(index), slices * SLICE_SIZE) };
    let mut kept = KEPT.lock();
    kept.slices += slices;
    if let Some(first) = kept.first.get_mut(partition).map(|firsts| &mut firsts[length(slices)]) {
        // SAFETY: the run's slot, in no use.
        unsafe { address_map::slot(index).cast::<u32>().write(*first) };
        *first = index as u32 + 1;
    }
}

/// Takes one that a partition has left.
pub(crate) fn take_kept(partition: usize, slices: usize) -> Option<Run> {
    let mut kept = KEPT.lock();
    let first = &mut kept.first.get_mut(partition)?[length(slices)];
    let index = first.checked_sub(1)? as usize;
    // SAFETY: the slot of a run that is kept.
    *first = unsafe { address_map::slot(index).cast::<u32>().read() };
    kept.slices -= slices;
    Some(Run { index, dirty: 0, zero: false, backed: false })
}

/// Slices that are kept.
pub(crate) fn kept_slices() -> usize {
    KEPT.lock().slices
}

/// In a forked child, before it has a second thread: what another thread was changing is given up.
pub(crate) fn settle_kept_in_child() {
    if KEPT.settle_in_child() {
        KEPT.lock().first = [[0; LENGTHS]; PARTITIONS];
    }
}
