//! Owns: how a block of a closed heap is freed.
//! Idea: the thread that has the heap attached frees as into its own; all others send. The heap may be deleted at any time
//!   meanwhile, and another one stand in its place.
//! Never: holds back a free.
//! Threads: any.
//! Checked: tests/closed.rs, tests/hand_over.rs; the models `turns`, and those that destroy a heap while others free.
//! Story: docs/design/closed-heaps.md

use crate::base::{Ordering, SizeClass};
use crate::heap::Heap;
use crate::map::{Block, Generation, address_map};
use crate::os::Got;
use crate::spans::Span;
use crate::store::{Behind, Caches, Canary, FREED_TWICE, Known, Live, Store};
use crate::{os, thread, thread::search};
use core::ptr::null_mut;

/// Frees a block of a closed heap. None of them waits in a batch, and so none is under way when the heap is
/// destroyed: it is home before this returns. False, and nothing is done, if the span is not that heap's any more: the heap
/// may be deleted at any time, and another one stand in its place.
///
/// # Safety
/// `p` starts a block of a span of `class` with that owner, in use as far as the caller can tell, and the
/// caller's to free.
#[cold]
#[inline(never)]
pub(crate) unsafe fn deallocate(p: *mut u8, class: SizeClass, owner: u32, call: &str) -> bool {
    // SAFETY: the block is the caller's to free. A heap that has been made; what is attached stays the owner meanwhile.
    unsafe {
        match Heap::of_owner(owner).map_or((null_mut(), Got::Nothing), |heap| enter_attached(heap))
        {
            (_, Got::Nothing) => send_home(p, class, owner, call),
            (heap, got) => {
                free_attached(heap, class, p, call);
                if got == Got::Turn {
                    (*heap).member.turn.leave();
                }
                true
            }
        }
    }
}

/// The calling thread's turn inside a heap that it has attached.
///
/// # Safety
/// A heap that has been made.
#[inline(always)]
unsafe fn enter_attached(heap: *mut Heap) -> (*mut Heap, Got) {
    // SAFETY: as above. A stand-in is the heap of thread 0, which uses none. What names the calling thread was written by it.
    unsafe {
        let mine = (*thread::heap()).thread;
        let is_mine = || (*heap).member.user.load(Ordering::Relaxed) == mine;
        let got = if is_mine() { (*heap).member.turn.enter() } else { Got::Nothing };
        // Asked again: a part may have ended, and another heap stand there.
        if is_mine() {
            return (heap, got);
        }
        if got == Got::Turn {
            (*heap).member.turn.leave();
        }
        (heap, Got::Nothing)
    }
}

/// Frees a block of a heap that the calling thread has attached.
///
/// # Safety
/// It is the thread's turn inside; as for `deallocate`.
#[inline(always)]
unsafe fn free_attached(heap: *mut Heap, class: SizeClass, p: *mut u8, call: &str) {
    // SAFETY: as above.
    unsafe {
        let block: *mut Block = p.wrapping_add((*heap).head.into()).cast();
        expect_in_use(block, p, call);
        if !Live::take_back(p) {
            os::fatal(call, p, FREED_TWICE);
        }
        Canary::expect(p, class, call);
        let home = Caches::push(&raw mut (*heap).caches, class, block);
        if !home.is_null() {
            (*heap).put_back(class, home);
        }
    }
}

/// Frees a block of a heap that the calling thread has not attached; false, and nothing is done, if the span is not that
/// heap's any more.
///
/// # Safety
/// As for `deallocate`.
unsafe fn send_home(p: *mut u8, class: SizeClass, owner: u32, call: &str) -> bool {
    let Some(meant) = generation_of(p, class, owner) else { return false };
    let block: *mut Block = p.wrapping_add(head_at(p)).cast();
    // SAFETY: of that span, which stays what it is while the block is in use, whoever owns it.
    unsafe {
        expect_in_use(block, p, call);
        Canary::expect(p, class, call);
        Caches::prepare(p.cast(), class);
        thread::send_closed(address_map::span_index(p, class), block, meant);
    }
    true
}

/// Ends the process if a block that is being freed carries the mark of a free one, and is one.
///
/// # Safety
/// It is the caller's to free.
#[inline(always)]
unsafe fn expect_in_use(block: *mut Block, p: *mut u8, call: &str) {
    // SAFETY: as above.
    unsafe {
        if Block::is_marked(block) {
            if search::is_free(block) {
                os::fatal(call, p, FREED_TWICE);
            }
            Block::deface(block);
        }
    }
}

/// Bytes at the head of each free block that stay as they are in the span that `p` points into.
pub(crate) fn head_at(p: *const u8) -> usize {
    let span: *const Span = address_map::descriptor(p).slot.load(Ordering::Relaxed).cast();
    // SAFETY: a span's slot, never unmapped; it is constant while a block of the span is in use.
    unsafe { Span::head_of(span) }
}

/// Which span the block of `class` at `p` is in, if it still has that owner, a closed heap.
pub(crate) fn generation_of(p: *const u8, class: SizeClass, owner: u32) -> Option<Generation> {
    // SAFETY: a span's slices are committed.
    let word = unsafe { address_map::remote_word(address_map::span_index(p, class)) };
    let generation = word.generation();
    // Only now, for a span that is destroyed loses its owner before its generation.
    (address_map::descriptor(p).owner.load(Ordering::Relaxed) == owner).then_some(generation)
}
