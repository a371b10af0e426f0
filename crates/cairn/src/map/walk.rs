//! Owns: the walk over all spans and large blocks there are.
//! Idea: a descriptor that leads to its own slice's slot is the first one of a span or large block.
//! Never: takes a lock, or believes what it finds to stay so.
//! Threads: any; holds nothing.
//! Checked: the reconciliation test; fork tests; tests/region.rs
//! Story: docs/guide/statistics.md

use crate::base::{Ordering, SLICE_SIZE, SizeClass};
use crate::map::address_map::{
    OWNER_NONE, described, descriptor_at, is_supplied, slice_limit, slice_of, slot,
};
use crate::map::region;

/// The first slices of spans and large blocks: (index, owner, class); the class of a large block is 0, whose spans have one
/// slice.
pub(crate) struct Heads {
    next: usize,
    /// Of the piece of a region that it is in; none: it is in the reservation.
    end: Option<usize>,
    /// The place of the next piece; none: they are not gone through.
    place: Option<usize>,
}

/// Those of the reservation, from slice `next` on. What a region has the metadata of is none of them.
pub(crate) fn heads_from(next: usize) -> Heads {
    Heads { next, end: None, place: None }
}

/// Those of all regions of the program's.
pub(crate) fn heads_in_regions() -> Heads {
    Heads { next: 0, end: Some(0), place: Some(0) }
}

/// All there are.
pub(crate) fn all_heads() -> Heads {
    Heads { place: Some(0), ..heads_from(0) }
}

impl Iterator for Heads {
    type Item = (usize, u32, SizeClass);

    // Not inlined: half of those who call are of a forked child.
    #[inline(never)]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let head = next_head(&mut self.next, self.end.unwrap_or_else(described));
            if head.is_some() {
                return head;
            }
            let (nth, start, bytes) = region::place_from(self.place?)?;
            self.place = Some(nth + 1);
            self.next = slice_of(start);
            self.end = Some(self.next + bytes / SLICE_SIZE);
        }
    }
}

/// Whether it is a slice of the reservation, in no use because a region has its metadata.
fn is_aside(index: usize) -> bool {
    let behind = |start| index.wrapping_sub(slice_of(start)) & (slice_limit() - 1);
    let meets = |(start, bytes): (*mut u8, usize)| behind(start) < bytes / SLICE_SIZE;
    !is_supplied(index) && region::places().any(meets)
}

/// The first one from `next` on; behind it goes the search on.
fn next_head(next: &mut usize, end: usize) -> Option<(usize, u32, SizeClass)> {
    while *next < end {
        let (index, d) = (*next, descriptor_at(*next));
        let owner = d.owner.load(Ordering::Relaxed);
        let class = d.class();
        let at_slot = core::ptr::eq(d.slot.load(Ordering::Relaxed), slot(index));
        if at_slot && owner != OWNER_NONE && !is_aside(index) {
            // On behind the whole span: if it was being made at a fork, its other slices may
            // still say what was there before.
            *next += class.span_slices();
            return Some((index, owner, class));
        }
        *next += 1;
    }
    None
}
