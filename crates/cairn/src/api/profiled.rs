//! Owns: which blocks are samples of the heap profile, and when they end.
//! Idea: a small one has slices of its own, where no thread's fast free reaches it; large ones come and go by slow paths
//!   anyway.
//! Never: looks at a block that comes from a cache.
//! Threads: any, at any time in a thread's life; holds nothing.
//! Checked: tests/sample/profile.rs here and in the C layer.
//! Story: docs/guide/profile.md

use crate::base::{MEDIUM_MAX, SizeClass};
use crate::samples::profile::{self, Sample};
use crate::{large, thread};
use core::ptr::null_mut;

/// Allocates a sample in place of `near`, a block of `class`; null if there is no room for it.
#[cold]
#[inline(never)]
pub(super) fn allocate(
    size: usize,
    class: SizeClass,
    align: usize,
    near: *mut u8,
    rate: usize,
) -> *mut u8 {
    // Without colour: a block of the largest class shall have no slice more.
    let align = align.max(2 * large::COLOUR_STEP);
    let block = large::allocate_at(size, align, 0).block;
    if block.is_null() || begin(block, size, near, class.block_size(), rate) {
        return block;
    }
    // Nobody has seen it.
    let _ = large::free(block, "malloc") || large::free_mapping(block, "malloc");
    null_mut()
}

fn begin(block: *mut u8, size: usize, near: *mut u8, weighed: usize, rate: usize) -> bool {
    let done = profile::insert(block, size, near, weighed, rate);
    if done {
        large::mark_sample(block);
    }
    done
}

/// Takes a large block that has just been allocated, or null, for a sample if it is drawn.
#[inline(always)]
pub(super) fn note_large(block: *mut u8, size: usize) {
    // SAFETY: the calling thread's heap, or a stand-in, which is only read.
    if unsafe { (*thread::heap()).sampling.is_by_chance() } {
        draw_large(block, size);
    }
}

#[cold]
#[inline(never)]
fn draw_large(block: *mut u8, size: usize) {
    // SAFETY: the calling thread's own: no stand-in draws.
    let sampling = unsafe { &mut (*thread::heap()).sampling };
    let weighed = profile::weighed(size);
    if !block.is_null() && sampling.draws_block(weighed) {
        begin(block, size, null_mut(), weighed, sampling.interval());
    }
}

/// What is being freed, any value at all, is a sample no longer. Whether it was a small one.
#[inline(always)]
pub(super) fn end(p: *mut u8) -> bool {
    profile::has_live() && take(p).is_some_and(|sample| sample.asked <= MEDIUM_MAX)
}

/// The sample that a large block is, which may be about to change its size.
#[inline(always)]
pub(super) fn pause(p: *mut u8) -> Option<Sample> {
    if profile::has_live() { take(p) } else { None }
}

#[cold]
#[inline(never)]
fn take(p: *mut u8) -> Option<Sample> {
    large::unmark_sample(p).then(|| profile::take(p))?
}

/// A large block has been resized to `size` bytes, and is at `new`, which counts as an allocation; or it stays what it was, and
/// goes on being the sample that it was.
pub(super) fn resume(new: Option<*mut u8>, p: *mut u8, size: usize, paused: Option<Sample>) {
    match (new, paused) {
        (Some(new), _) if !new.is_null() => {
            let is_heaps = large::nursery_around(new).is_some() || !large::owner_of(new).is_null();
            if !is_heaps {
                note_large(new, size);
            }
        }
        (_, Some(sample)) => {
            profile::put_back(sample);
            large::mark_sample(p);
        }
        _ => {}
    }
}
