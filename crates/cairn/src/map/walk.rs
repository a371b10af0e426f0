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

/// The first slices of the spans and large blocks of the reservation, from slice `next` on: (index, owner, class); the
/// class of a large block is 0, whose spans have one slice. What a region has the metadata of is none of them.
pub(crate) fn heads_from(mut next: usize) -> impl Iterator<Item = (usize, u32, SizeClass)> {
    core::iter::from_fn(move || next_head(&mut next, described()))
}

/// The same of all regions of the program's.
pub(crate) fn heads_in_regions() -> impl Iterator<Item = (usize, u32, SizeClass)> {
    let (mut places, mut next, mut end) = (region::places(), 0, 0);
    core::iter::from_fn(move || {
        loop {
            let head = next_head(&mut next, end);
            if head.is_some() {
                return head;
            }
            let (start, bytes) = places.next()?;
            next = slice_of(start);
            end = next + bytes / SLICE_SIZE;
        }
    })
}

/// Whether it is a slice of the reservation, in no use because a region has its metadata.
fn is_aside(index: usize) -> bool {
    let behind = |start| index.wrapping_sub(slice_of(start)) & (slice_limit() - 1);
    let meets = |(start, bytes): (*mut u8, usize)| behind(start) < bytes / SLICE_SIZE;
    !is_supplied(index) && region::places().any(meets)
}

/// The first one from `next` on; behind it goes the search on.
#[inline(never)]
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
