//! Owns: the search for a block in all the lists in which a free one may be.
//! Idea: a mark that a program's own value resembles accuses nobody: whoever frees a marked block has it looked
//!   up. Lists of other threads are followed while they change; what is found twice in a row is free.
//! Never: believes a link: each is that of a marked block of the class.
//! Threads: any; holds nothing.
//! Checked: tests/twice.rs, with each place in which a block can be.
//! Story: docs/design/fast-paths.md

use crate::address_map;
use crate::block::{Block, END};
use crate::caches::Caches;
use crate::heap::{Heap, is_block_of};
use crate::pool;
use crate::size_class::SizeClass;
use crate::span::Span;

/// Whether a block, which carries the mark of a free one, is in a list. It may be missed while another thread moves it
/// from one list to another. A block in use is not found: whoever frees it has been given it, and so sees all lists as
/// they were without it, or later. Then only a program leads here that writes a link to it, combined with the key, into
/// the first blocks that it takes off such a list, in both walks.
pub(crate) fn is_free(block: *mut Block) -> bool {
    let Some((class, _)) = address_map::span_block(block.cast()) else { return false };
    // SAFETY: the start of a block.
    let next = unsafe { Block::peek_next(block) };
    (next == END || is_block_of(class, next))
        && is_in_a_list(class, block)
        && is_in_a_list(class, block)
}

fn is_in_a_list(class: SizeClass, block: *mut Block) -> bool {
    let index = address_map::span_index(block.cast(), class);
    let span: *const Span = address_map::slot(index).cast();
    // SAFETY: a span's slices are committed, and metadata is never unmapped.
    let [own, pending] = unsafe {
        let pending =
            address_map::remote_word(index).pending_head(address_map::slice_address(index));
        [Span::peek_free(span), pending]
    };
    let heaps = (0..pool::counts().1).filter_map(address_map::heap_address);
    let mut lists = heaps.flat_map(|heap| {
        let heap: *const Heap = heap.cast();
        // SAFETY: heaps that have been made are never unmapped.
        unsafe { [Caches::peek(&raw const (*heap).caches, class), Heap::peek_batch(heap, index)] }
    });
    [own, pending].into_iter().any(|list| holds(class, list, block))
        || lists.any(|list| holds(class, list, block))
}

fn holds(class: SizeClass, list: *mut Block, block: *mut Block) -> bool {
    each(class, list).any(|at| at == block)
}

/// The blocks of a list of a class that may be changing; each was in it, or looked so, when it was reached.
pub(crate) fn each(class: SizeClass, list: *mut Block) -> impl Iterator<Item = *mut Block> {
    let layout = class.layout();
    let most = usize::from(layout.blocks) + layout.cache_blocks() as usize;
    let sound = move |at: *mut Block| {
        // SAFETY: it is looked at only if it is the start of a block.
        let next = || unsafe { Block::peek_next(at) };
        is_block_of(class, at).then(next).filter(|next| !next.is_null()).map(|next| (at, next))
    };
    core::iter::successors(sound(list), move |&(_, next)| sound(next)).map(|(at, _)| at).take(most)
}
