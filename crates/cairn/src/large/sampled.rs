//! Owns: which large blocks are samples of the heap profile, as their metadata says.
//! Idea: a free that finds no sample there need not look for it.
//! Never: knows what a sample is.
//! Threads: whoever has the block.
//! Checked: tests/sample/profile.rs
//! Story: docs/guide/profile.md

use super::{Large, at};
use crate::base::Ordering;
use crate::map::address_map;

/// Says that the block at `p`, which is live, is a sample. Mappings do not say it.
pub(crate) fn mark_sample(p: *mut u8) {
    if let Some(large) = run(p) {
        large.sampled.store(true, Ordering::Relaxed);
    }
}

/// Whether the block at `p`, any value at all, may be a sample: runs know, of mappings there are few. It is none any more.
pub(crate) fn unmark_sample(p: *mut u8) -> bool {
    match address_map::contains(p) {
        true => run(p).is_some_and(|large| large.sampled.swap(false, Ordering::Relaxed)),
        false => !p.is_null(),
    }
}

fn run(p: *mut u8) -> Option<&'static Large> {
    if address_map::contains(p) { at(p) } else { None }
}
