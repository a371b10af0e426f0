//! Owns: the search for a block in all the lists in which a free one may be.
//! Idea: a mark that a program's own value resembles accuses nobody: whoever frees a marked block has it looked
//!   up. Lists of other threads are followed while they change; what is found twice in a row is free.
//! Never: believes a link: each is that of a marked block of the class.
//! Threads: any; holds nothing.
//! Checked: tests/twice.rs, with each place in which a block can be.
//! Story: docs/design/fast-paths.md

use crate::base::{Ordering, SizeClass};
use crate::heap::{Handle, Heap};
use crate::map::{Block, END, address_map};
use crate::os;
use crate::spans::{Span, is_block_of};
use crate::store::{Caches, Store};
use crate::thread::pool;
use core::ptr::null_mut;

/// Whether a block, which carries the mark of a free one, is in a list. It may be missed while another thread moves it
/// from one list to another. A block in use stands in no list: whoever frees it has been given it, and so sees all lists as
/// they were without it, or later. It can be found all the same where a walk follows a block that another thread takes off
/// its list meanwhile, if the program writes into that one the very link that leads to this block, combined with the
/// key: 64 bits that it does not know, and twice in a row.
pub(crate) fn is_free(block: *mut Block) -> bool {
    os::notice_fork();
    let class = address_map::descriptor(block.cast()).class();
    if !is_block_of(class, block) {
        return false;
    }
    // SAFETY: as above.
    if unsafe { Span::is_set_aside_at(block.cast(), class) } {
        return true;
    }
    // SAFETY: where the links of a block stand.
    let next = unsafe { Block::peek_next(block) };
    (next == END || is_block_of(class, next))
        && is_in_a_list(class, block)
        && is_in_a_list(class, block)
}

fn is_in_a_list(class: SizeClass, block: *mut Block) -> bool {
    let span = address_map::span_index(block.cast(), class);
    let mut lists = lists_of(span).chain(caches_of(class, Some(heap_of(block))));
    lists.any(|list| each(class, list).any(|at| at == block))
}

/// The lists in which free blocks of the span at slice `index` are, but for caches; some blocks may be others'.
pub(crate) fn lists_of(index: usize) -> impl Iterator<Item = *mut Block> {
    let span: *const Span = address_map::slot(index).cast();
    // SAFETY: a span's slices are committed, and metadata is never unmapped.
    let own = unsafe {
        let word = address_map::remote_word(index);
        [peek_free(span), word.pending_head(address_map::slice_address(index))]
    };
    // SAFETY: heaps that have been made are never unmapped.
    own.into_iter().chain(pool::all().map(move |heap| unsafe { Heap::peek_batch(heap, index) }))
}

/// The program's heap that the span of a block belongs to; null if it is threads'.
fn heap_of(block: *mut Block) -> *mut Handle {
    let owner = address_map::descriptor(block.cast()).owner.load(Ordering::Relaxed);
    // SAFETY: a heap that has been made.
    Heap::of_owner(owner).map_or(null_mut(), |heap| unsafe { peek_of(heap) })
}

/// The program's heap that a heap is part of, or null.
///
/// # Safety
/// The heap has been made.
unsafe fn peek_of(heap: *const Heap) -> *mut Handle {
    // SAFETY: never unmapped. Volatile: it may be changing.
    unsafe { (&raw const (*heap).member.of).read_volatile() }
}

/// The caches of a class: a heap's, where its blocks are and no others (null: those of threads), or all. What another heap
/// has in a region may be gone while it is looked at.
pub(crate) fn caches_of(
    class: SizeClass,
    of: Option<*mut Handle>,
) -> impl Iterator<Item = *mut Block> {
    pool::all().map(move |heap| peek_cache(heap, class, of))
}

/// What is first in one of them, or null.
#[inline(never)]
fn peek_cache(heap: *mut Heap, class: SizeClass, of: Option<*mut Handle>) -> *mut Block {
    // SAFETY: heaps that have been made are never unmapped.
    unsafe {
        match of.is_none_or(|of| of == peek_of(heap)) {
            true => Caches::peek(&raw const (*heap).caches, class),
            false => null_mut(),
        }
    }
}

/// The blocks of a list of a class that may be changing; each was in it, or looked so, when it was reached.
pub(crate) fn each(class: SizeClass, list: *mut Block) -> impl Iterator<Item = *mut Block> {
    let layout = class.layout();
    let most = usize::from(layout.blocks) + layout.cache_blocks() as usize;
    let sound = move |at: *mut Block| {
        // SAFETY: it is looked at only if it is the start of a block, of the heap that was meant.
        let next = || unsafe { Block::peek_next(at) };
        is_block_of(class, at).then(next).filter(|next| !next.is_null()).map(|next| (at, next))
    };
    core::iter::successors(sound(list), move |&(_, next)| sound(next)).map(|(at, _)| at).take(most)
}

/// (used, carved) of a span that somebody else may be changing: for accounts.
///
/// # Safety
/// `span` is a slot that has held a span.
pub(crate) unsafe fn peek_span(span: *const Span) -> (usize, usize) {
    // SAFETY: never unmapped. Volatile: the values may change, and are checked for sense. They are
    // plain for the owner: as relaxed atomics they would take it two instructions more for each
    // free, and one for each 30 allocations.
    unsafe {
        let until = (&raw const (*span).until_event).read_volatile();
        let after = (&raw const (*span).used_after_event).read_volatile();
        let carved = (&raw const (*span).carved).read_volatile();
        (until.wrapping_add_signed(after.into()) as usize, usize::from(carved))
    }
}

/// The first block in `local_free`, read while the owner may be at work.
///
/// # Safety
/// As for `peek_span`.
unsafe fn peek_free(span: *const Span) -> *mut Block {
    // SAFETY: as in `peek_span`.
    unsafe { (&raw const (*span).local_free).read_volatile() }
}
