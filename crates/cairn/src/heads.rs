//! Owns: the walk over all spans and large blocks there are.
//! Idea: a descriptor that leads to its own slice's slot is the first one of a span or large block.
//! Never: takes a lock, or believes what it finds to stay so.
//! Threads: any; holds nothing.
//! Checked: the reconciliation test; fork tests.
//! Story: docs/design/accounting.md

use crate::address_map::{OWNER_NONE, described, descriptor_at, slice_of, slot};
use crate::region;
use crate::size_class::{SLICE_SIZE, SizeClass};
use crate::sync::Ordering;

/// The first slices of the spans and large blocks of the reservation, from slice `next` on: (index, owner, class); the
/// class of a large block is 0, whose spans have one slice.
pub(crate) fn heads_from(next: usize) -> impl Iterator<Item = (usize, u32, SizeClass)> {
    heads_between(next, described)
}

/// The same of all regions of the program's.
pub(crate) fn heads_in_regions() -> impl Iterator<Item = (usize, u32, SizeClass)> {
    region::places().flat_map(|(start, bytes)| {
        let first = slice_of(start);
        heads_between(first, move || first + bytes / SLICE_SIZE)
    })
}

fn heads_between(
    mut next: usize,
    end: impl Fn() -> usize,
) -> impl Iterator<Item = (usize, u32, SizeClass)> {
    core::iter::from_fn(move || {
        while next < end() {
            let (index, d) = (next, descriptor_at(next));
            let owner = d.owner.load(Ordering::Relaxed);
            let class = d.class();
            let at_slot = core::ptr::eq(d.slot.load(Ordering::Relaxed), slot(index));
            if at_slot && owner != OWNER_NONE {
                // On behind the whole span: if it was being made at a fork, its other slices may
                // still say what was there before.
                next += class.span_slices();
                return Some((index, owner, class));
            }
            next += 1;
        }
        None
    })
}
