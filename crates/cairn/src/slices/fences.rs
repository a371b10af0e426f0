//! Owns: the guard pages of the hardened build: in front of the blocks of longer spans and behind them, and behind
//!   nurseries, so that what overflows there ends the process; and which there are.
//! Idea: a guard stays where it is when its span goes: the next span of that length in the same place has it already, and
//!   so have nurseries. It goes when something else takes the slice.
//! Never: does anything in the default build; counts on them, for the system may refuse.
//! Threads: who takes or has the slices; holds nothing.
//! Checked: tests/quarantine.rs, tests/hardened_nursery.rs
//! Story: docs/design/policy.md

use crate::base::bits::{ones, pieces};
use crate::base::{AtomicUsize, InHardened, Ordering, SLICE_SIZE, size_class};
use crate::map::CHUNK_SLICES;
use crate::map::address_map::{marks, slice_address};
use crate::os;

// Invariants
//  1. A slice with a guard has its bit in the word of that kind of its chunk: set before the guard is there, cleared
//     when it has gone. Relaxed: what a slice has is changed by who takes it or has it.

/// Slices that are in no use any more because the system has not taken their guards away. Relaxed: a number.
pub(crate) static LOST: AtomicUsize = AtomicUsize::new(0);

/// What becomes of the slices that are taken.
#[derive(Clone, Copy)]
pub(crate) enum Taken {
    /// A span, which has guards itself.
    ForSpan,
    /// Nurseries, which have one behind them.
    ForNurseries,
    /// Anything else.
    Otherwise,
}

/// Bytes of a guard that is not a whole slice; 0 in the default build.
pub(crate) const GUARD: usize = size_class::guards(4)[0];

/// Where the guards are of so many slices that are taken for something: the kind, and the slice. Kind 0 is the first bytes
/// of a slice, 1 its last ones, 2 all.
fn places(index: usize, slices: usize, taken: Taken) -> impl Iterator<Item = (usize, usize)> {
    let [before, after] = match taken {
        Taken::ForSpan => size_class::guards(slices),
        Taken::ForNurseries => [0, GUARD],
        Taken::Otherwise => [0, 0],
    };
    let behind = if after == SLICE_SIZE { 2 } else { 1 };
    let places = [(0, index, before), (behind, index + slices - 1, after)];
    places.into_iter().filter(|place| place.2 > 0).map(|(kind, slice, _)| (kind, slice))
}

/// The pages of a guard: (address, bytes).
fn pages(kind: usize, slice: usize) -> (*mut u8, usize) {
    let at = slice_address(slice);
    match kind {
        0 => (at, GUARD),
        1 => (at.wrapping_add(SLICE_SIZE - GUARD), GUARD),
        _ => (at, SLICE_SIZE),
    }
}

/// The build's.
pub(crate) type Fences = InHardened<Open, Guarded>;

/// Guards in slices: in the default build there are none.
pub(crate) trait Fence {
    /// Puts the guards of what takes a run of slices there, where there are none yet.
    ///
    /// # Safety
    /// The run is the caller's, and nobody uses what the guards take.
    unsafe fn put(_index: usize, _slices: usize, _taken: Taken) {}

    /// Takes all guards of free slices away, but those that what takes them has. False if the system has not.
    fn bare(_index: usize, _slices: usize, _taken: Taken) -> bool {
        true
    }
}

/// The default build's.
pub(crate) struct Open;

impl Fence for Open {}

/// The hardened build's.
pub(crate) struct Guarded;

impl Fence for Guarded {
    unsafe fn put(index: usize, slices: usize, taken: Taken) {
        for (kind, slice) in places(index, slices, taken) {
            let (word, bit) =
                (&marks(slice / CHUNK_SLICES).guards[kind], 1 << (slice % CHUNK_SLICES));
            // Nobody else changes this bit: added or taken away, it is set or cleared.
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_add(bit, Ordering::Relaxed);
                let (at, bytes) = pages(kind, slice);
                // SAFETY: the caller's, and in no block.
                if !unsafe { os::guard(at, bytes) } {
                    word.fetch_sub(bit, Ordering::Relaxed);
                }
            }
        }
    }

    fn bare(index: usize, slices: usize, taken: Taken) -> bool {
        let mut is_bare = true;
        for (chunk, within) in pieces(index, slices) {
            for (kind, word) in marks(chunk).guards.iter().enumerate() {
                for at in ones(word.load(Ordering::Relaxed) as u64 & within) {
                    let slice = chunk * CHUNK_SLICES + at;
                    if places(index, slices, taken).any(|place| place == (kind, slice)) {
                        continue;
                    }
                    let (pages, bytes) = pages(kind, slice);
                    if os::unguard(pages, bytes) {
                        word.fetch_sub(1 << at, Ordering::Relaxed);
                    } else {
                        is_bare = false;
                    }
                }
            }
        }
        if !is_bare {
            LOST.fetch_add(slices, Ordering::Relaxed);
        }
        is_bare
    }
}
