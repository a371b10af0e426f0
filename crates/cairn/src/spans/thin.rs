//! Owns: how much of spans nobody has had a block of.
//! Idea: who has many classes, and few blocks, touches little of each span: huge pages there would be resident for nothing.
//!   Regions of the program's get none, and do not count.
//! Never: knows a span.
//! Threads: any; a measure.
//! Checked: tests/span.rs; tests/memory.rs of the C layer
//! Story: docs/design/huge-pages.md

use crate::base::{Ordering, SizeClass};
use crate::map::address_map;
use crate::slices::arena::THIN;

/// A span of a class begins at a slice.
pub(crate) fn begin(index: usize, class: SizeClass) {
    if !address_map::is_supplied(index) {
        THIN.0.fetch_add(class.span_slices(), Ordering::Relaxed);
    }
}

/// So many of its blocks have been in a list before, and now, which is the answer: all, when it ends.
#[inline]
pub(crate) fn recount(index: usize, class: SizeClass, before: u16, now: u16) -> u16 {
    let blocks = class.layout().blocks;
    match (before < blocks, now < blocks) {
        (true, false) if !address_map::is_supplied(index) => {
            // A fork may have come in between.
            let less = |thin: usize| Some(thin.saturating_sub(class.span_slices()));
            let _ = THIN.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
        (false, true) => begin(index, class),
        _ => {}
    }
    now
}
