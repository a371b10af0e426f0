//! Owns: slices of the reservation that are in no use because a region of the program's has their metadata.
//! Idea: metadata is found by an address modulo the reservation's size, and addresses are cheap: the reservation does
//!   without those slices.
//! Never: touches a region's memory.
//! Threads: any; under the arena's lock.
//! Checked: tests/region.rs
//! Story: docs/design/regions.md

use super::{ARENA, Arena, Memory, Run};
use crate::base::SLICE_SIZE;
use crate::base::bits::pieces;
use crate::map::address_map::{committed, slice_address, slice_limit, slice_of};
use crate::map::{Piece, RegionError, region};
use crate::os;
use crate::slices::reservation;

/// The slices of the reservation whose metadata a run has that begins at `start`: (index, slices), in two parts if
/// it runs over the reservation's end.
fn parts(start: *mut u8, slices: usize) -> impl Iterator<Item = (usize, usize)> {
    let first = slice_of(start) & (slice_limit() - 1);
    let before = slices.min(slice_limit() - first);
    [(first, before), (0, slices - before)].into_iter().filter(|part| part.1 > 0)
}

/// The same of all regions: (index, slices).
pub(crate) fn aside() -> impl Iterator<Item = (usize, usize)> {
    region::places().flat_map(|(start, bytes)| parts(start, bytes / SLICE_SIZE))
}

/// The first slice behind those set aside that meet a run; None if it meets none.
pub(super) fn end_of_aside(index: usize, slices: usize) -> Option<usize> {
    let meets = |part: &(usize, usize)| part.0 < index + slices && index < part.0 + part.1;
    aside().filter(meets).map(|(first, slices)| first + slices).max()
}

/// What of a part is committed: (index, slices).
fn within((index, slices): (usize, usize)) -> (usize, usize) {
    (index, slices.min(committed().saturating_sub(index)))
}

/// How many slices of the reservation that are committed are in no use because of regions.
pub(super) fn committed_aside() -> usize {
    aside().map(|part| within(part).1).sum()
}

/// Makes a piece of memory part of its region, and its metadata usable. One thread at a time.
pub(crate) fn set_aside(mut piece: Piece) -> Result<(), RegionError> {
    let mut arena = ARENA.lock();
    let refused = arena.may_set_aside(piece.start, piece.slices).err();
    if let Some(reason) = refused {
        piece.drop_bits();
        return Err(reason);
    }
    let taken = parts(piece.start, piece.slices).map(within).filter(|part| part.1 > 0);
    for (index, slices) in taken {
        arena.remove(index, slices);
        // Nobody would find it there. Under the lock: a region is rare.
        // SAFETY: slices that have been free, and that nobody can take now.
        unsafe { os::purge(slice_address(index), slices * SLICE_SIZE) };
    }
    region::insert(piece);
    Ok(())
}

/// Gives the reservation back what a piece of a region has had, which is no more.
pub(crate) fn put_back(start: *mut u8, slices: usize) {
    let mut arena = ARENA.lock();
    region::forget_place(start);
    for (index, slices) in parts(start, slices).map(within).filter(|part| part.1 > 0) {
        arena.put(index, slices, Memory::Written);
    }
}

/// Takes a run for a span out of a region; None if there is none.
pub(crate) fn take_in_region(region: usize, slices: usize) -> Option<Run> {
    region::take(region, slices, slices).map(|at| Run::supplied(slice_of(at), slices))
}

impl Run {
    /// One of a region: nothing is known of its memory.
    pub(super) fn supplied(index: usize, slices: usize) -> Run {
        Run { index, zero: false, dirty: slices, backed: false }
    }
}

impl Arena {
    /// Whether a run's metadata is in no use: neither of the reservation's slices nor of a region's; makes it usable.
    fn may_set_aside(&self, start: *mut u8, slices: usize) -> Result<(), RegionError> {
        let is_free = |(chunk, mask)| self.bits(chunk).free & mask == mask;
        let is_unused = |part: (usize, usize)| {
            let (index, slices) = within(part);
            pieces(index, slices).all(is_free) && end_of_aside(part.0, part.1).is_none()
        };
        if slices > slice_limit() || !parts(start, slices).all(is_unused) {
            return Err(RegionError::PlaceInUse);
        }
        let commit = |(index, slices)| reservation::commit_metadata(index, index + slices);
        let is_done = region::has_room() && parts(start, slices).all(commit);
        is_done.then_some(()).ok_or(RegionError::NoMemory)
    }

    /// Puts new slices that are not set aside.
    pub(super) fn put_new(&mut self, index: usize, slices: usize) {
        let (mut at, end) = (index, index + slices);
        while at < end {
            let next = aside().map(|part| part.0).filter(|&first| first > at).min();
            match end_of_aside(at, 1) {
                Some(behind) => at = behind,
                None => {
                    let until = next.map_or(end, |next| next.min(end));
                    self.put(at, until - at, Memory::Clean);
                    at = until;
                }
            }
        }
    }
}
