//! Owns: how a large block that is not known to be zero becomes zero.
//! Idea: what is resident is written, as the program is about to do; what is not stays so: it is given back, which
//!   costs nothing there.
//! Never: makes memory resident that nobody has used; gives back what is to stay, or part of a page.
//! Threads: the block's owner; holds nothing.
//! Checked: tests/large/zeroing.rs
//! Story: docs/design/large-blocks.md

use super::{fill_guess::forget, is_supplied};
use crate::large::tuning::{ASKED_MIN, ASKED_PAGES, FEW_PAGES, PIECE_PAGES};
use crate::{os, slices::arena};

/// Makes the first `size` bytes of the large block at `p` zero.
///
/// # Safety
/// A live large block of at least `size` bytes starts at `p`, and is the caller's.
pub(crate) unsafe fn zero(p: *mut u8, size: usize) {
    forget(p);
    let may_go = size >= ASKED_MIN
        && os::may_ask()
        && os::purged_is_committed()
        && !is_supplied(p)
        && !arena::keeps();
    let page = os::page_size();
    let lead = if may_go { p.addr().wrapping_neg() % page } else { size };
    // SAFETY: all of it lies in the block's first `size` bytes, which nobody uses yet.
    unsafe {
        p.write_bytes(0, lead);
        let (at, pages) = (p.add(lead), (size - lead) / page);
        let done = zero_pages(at, pages) * page;
        at.add(done).write_bytes(0, size - lead - done);
    }
}

/// Makes whole pages zero, from `at` on: how many, up to `pages`.
///
/// # Safety
/// The pages are the caller's, and what is in them is dead.
unsafe fn zero_pages(at: *mut u8, pages: usize) -> usize {
    let page = os::page_size();
    let mut resident = [0u8; ASKED_PAGES];
    let (mut done, mut end, mut goes) = (0, 0, false);
    while end < pages {
        let asked = (pages - end).min(ASKED_PAGES);
        let Some(answers) = resident.get_mut(..asked) else { break };
        if !os::look(at.wrapping_add(end * page), answers) {
            break;
        }
        for piece in answers.chunks(PIECE_PAGES) {
            let count = piece.iter().filter(|&&answer| answer & 1 != 0).count();
            let is_few = count * PIECE_PAGES <= FEW_PAGES * piece.len();
            if is_few != goes {
                // SAFETY: pages of the caller's.
                unsafe { end_stretch(at.add(done * page), (end - done) * page, goes) };
                (done, goes) = (end, is_few);
            }
            end += piece.len();
        }
    }
    // SAFETY: as above.
    unsafe { end_stretch(at.add(done * page), (end - done) * page, goes) };
    end
}

/// Makes a stretch of whole pages zero by giving them back, if they go, or by writing.
///
/// # Safety
/// As for `zero_pages`.
unsafe fn end_stretch(at: *mut u8, bytes: usize, goes: bool) {
    // SAFETY: pages of the caller's, whose contents are dead.
    unsafe {
        if bytes > 0 && !(goes && os::purge(at, bytes)) {
            at.write_bytes(0, bytes);
        }
    }
}
