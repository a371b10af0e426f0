//! Owns: runs of slices that spans of a partition have left: none but that partition's spans use them again.
//! Idea: address space is cheap; the memory behind them goes back at once, unless nothing shall.
//! Never: gives one to another partition, or back to the arena.
//! Threads: any; one lock.
//! Checked: tests/partitions.rs
//! Story: docs/design/policy.md

use super::{ARENA, Arena, RUNS, Run, keeps};
use crate::base::bits::{bit, ones};
use crate::base::{InHardened, Linked, Ordering, PARTITIONS, SLICE_SIZE, Stack};
use crate::map::address_map::{self, marks};
use crate::map::{CHUNK_SLICES, OWNER_NONE};
use crate::os::{self, Lock};
use crate::slices::limit;
use core::{mem::offset_of, ptr::null_mut};

/// Spans' lengths.
const LENGTHS: usize = RUNS.len();

/// The runs of each partition and length; the slices of all, and of those that are resident.
pub(crate) struct Kept {
    runs: [[Stack<Note>; LENGTHS]; PARTITIONS],
    slices: usize,
    resident: usize,
}

const NONE: [[Stack<Note>; LENGTHS]; PARTITIONS] =
    [const { [const { Stack::EMPTY }; LENGTHS] }; PARTITIONS];

/// Slices of a run that have gone are to be used again; false if that goes beyond the hard limit: others can be had, once
/// what is dirty has gone.
#[inline(never)]
fn take_gone(slices: usize) -> bool {
    let arena = ARENA.lock();
    let fits = limit::hard() == 0 || !arena.goes_beyond(slices * SLICE_SIZE);
    if fits {
        limit::take_gone(slices * SLICE_SIZE);
    }
    fits
}

pub(crate) static KEPT: Lock<Kept> = Lock::new(Kept { runs: NONE, slices: 0, resident: 0 });

/// What a run's slot says while it is kept.
struct Note {
    next: *mut Note,
    index: usize,
    resident: bool,
}

impl Linked for Note {
    const LINK: usize = offset_of!(Note, next);
}

impl Kept {
    fn push(&mut self, [partition, length]: [usize; 2], index: usize, resident: bool) {
        let slices = RUNS[length];
        self.slices += slices;
        self.resident += if resident { slices } else { 0 };
        let note: *mut Note = address_map::slot(index).cast();
        if let Some(runs) = self.runs.get_mut(partition) {
            // SAFETY: the run's slot, in no use.
            unsafe {
                note.write(Note { next: null_mut(), index, resident });
                runs[length].push(note);
            }
        }
    }

    /// A run, and whether it is resident.
    fn pop(&mut self, [partition, length]: [usize; 2]) -> Option<(usize, bool)> {
        let note = self.runs.get_mut(partition)?[length].pop();
        // SAFETY: null, or the slot of a run that has been kept.
        let &Note { index, resident, .. } = unsafe { note.as_ref() }?;
        self.slices -= RUNS[length];
        self.resident -= if resident { RUNS[length] } else { 0 };
        Some((index, resident))
    }
}

/// The place of a length: 1, 4 and 32 slices.
fn length(slices: usize) -> usize {
    slices.ilog2().div_ceil(2).min(2) as usize
}

/// The build's.
pub(crate) type Partitions = InHardened<Shared, Apart>;

/// What becomes of the runs of a partition, numbered from 1: in the default build the arena has them.
pub(crate) trait Leave {
    /// Says that a run is a partition's from now on, for ever, if that is one: before it has a block.
    fn set_apart(_partition: u8, _index: usize) {}

    /// Keeps a run, unless the arena is to have it: false.
    fn keep(_partition: u8, _index: usize, _slices: usize) -> bool {
        false
    }

    /// Takes one that a partition has left.
    fn take(_partition: u8, _slices: usize) -> Option<Run> {
        None
    }

    /// All that are partitions' are not free, where all bitmaps are made anew: in a forked child that has one thread. Another may
    /// have been giving one back, which then stood in no list.
    fn stay(_arena: &mut Arena) {}

    /// Gives back what is resident of them; the number of slices that went. Meanwhile nobody finds those of the same
    /// partition and length.
    #[inline(always)]
    fn purge() -> usize {
        0
    }
}

/// The default build's.
pub(crate) struct Shared;

impl Leave for Shared {}

/// The hardened build's.
pub(crate) struct Apart;

impl Leave for Apart {
    fn set_apart(partition: u8, index: usize) {
        if partition > 0 {
            // Relaxed: a forked child finds it before it finds that the run has no owner any more.
            marks(index / CHUNK_SLICES).apart.fetch_or(bit(index), Ordering::Relaxed);
        }
    }

    fn keep(partition: u8, index: usize, slices: usize) -> bool {
        let Some(partition) = usize::from(partition).checked_sub(1) else { return false };
        let resident = keeps() || !purge(index, slices);
        // First: a child that is forked in between takes no more back than has gone.
        limit::add_gone(usize::from(!resident) * slices * SLICE_SIZE);
        KEPT.lock().push([partition, length(slices)], index, resident);
        true
    }

    fn take(partition: u8, slices: usize) -> Option<Run> {
        let place = [usize::from(partition).checked_sub(1)?, length(slices)];
        let (index, resident) = KEPT.lock().pop(place)?;
        if !resident && !take_gone(slices) {
            KEPT.lock().push(place, index, resident);
            return None;
        }
        Some(Run { index, dirty: if resident { slices } else { 0 }, zero: false, backed: false })
    }

    fn stay(arena: &mut Arena) {
        for chunk in 0..address_map::committed().div_ceil(CHUNK_SLICES) {
            for at in ones(marks(chunk).apart.load(Ordering::Relaxed)) {
                let index = chunk * CHUNK_SLICES + at;
                let was = address_map::descriptor_at(index);
                // One that has an owner is not free already. They are of one length for ever.
                if was.owner.load(Ordering::Relaxed) == OWNER_NONE {
                    arena.remove(index, was.class().span_slices());
                }
            }
        }
    }

    fn purge() -> usize {
        let mut done = 0;
        if KEPT.lock().resident == 0 {
            return 0;
        }
        for nth in 0..PARTITIONS * LENGTHS {
            let place = [nth / LENGTHS, nth % LENGTHS];
            let slices = RUNS[place[1]];
            let mut all = Kept { runs: NONE, slices: 0, resident: 0 };
            while let Some((index, resident)) = KEPT.lock().pop(place) {
                all.push(place, index, resident);
            }
            while let Some((index, resident)) = all.pop(place) {
                let gone = resident && purge(index, slices);
                done += usize::from(gone) * slices;
                limit::add_gone(usize::from(gone) * slices * SLICE_SIZE);
                KEPT.lock().push(place, index, resident && !gone);
            }
        }
        done
    }
}

fn purge(index: usize, slices: usize) -> bool {
    let bytes = slices * SLICE_SIZE;
    // Large pages may have others' slices, too.
    // SAFETY: the run is the caller's, and in no use; it begins at a multiple of its length.
    bytes >= os::page_size() && unsafe { os::purge(address_map::slice_address(index), bytes) }
}

/// Slices that are kept, and how many of them are resident.
pub(crate) fn kept_slices() -> [usize; 2] {
    let kept = KEPT.lock();
    [kept.slices, kept.resident]
}

/// In a forked child, before it has a second thread: what another thread was changing is given up.
pub(crate) fn settle_kept_in_child() {
    if KEPT.settle_in_child() {
        *KEPT.lock() = Kept { runs: NONE, slices: 0, resident: 0 };
    }
}
