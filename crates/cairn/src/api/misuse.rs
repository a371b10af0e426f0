//! Owns: what is said of a bad pointer, or a wrong size, before the process ends.
//! Idea: the address alone tells what it is: a free block's, inside a block, of no block, or of no memory of cairn's.
//! Never: returns.
//! Threads: any; holds nothing.
//! Checked: misuse tests of the C layer.
//! Story: docs/guide/misuse.md

use super::lookup::base;
use crate::store::FREED_TWICE;
use crate::{map::address_map, os, samples::guards};

/// Says that the block at `p` has not the size or alignment that it is freed with, and aborts.
#[cold]
pub fn bad_size(call: &str, p: *const u8) -> ! {
    os::fatal(call, p, "the size or the alignment is not the block's")
}

/// Says what is wrong with `p` and aborts.
#[cold]
#[inline(never)]
pub(super) fn bad_pointer(call: &str, p: *mut u8) -> ! {
    guards::misused(call, p);
    let reason = match base(p) {
        Some(block) if block.addr() == p.addr() => FREED_TWICE,
        Some(_) => "the pointer is inside a block, not at its start",
        None if address_map::contains(p) => "no block is here: freed already, or never allocated",
        None => "the pointer is not from this allocator",
    };
    os::fatal(call, p, reason)
}
