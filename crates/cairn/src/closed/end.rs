//! Owns: how a heap of the program's ends: its blocks go with it, or live on.
//! Idea: a span that is destroyed loses its owner, then its generation: what is under way to it is dropped. Spans of a
//!   deleted heap are abandoned, unless no other heap may have them.
//! Never: touches a block.
//! Threads: see each call.
//! Checked: tests/closed.rs; the models destroy a heap while others free.
//! Story: docs/design/closed-heaps.md

use super::{expect_free, is_shared, mine, parts};
use crate::base::{NOBODY, Ordering, SizeClass};
use crate::heap::{EMPTY, Handle, Heap};
use crate::spans::{Span, SpanList};
use crate::store::{Caches, Store};
use crate::thread::pool::{self, left, salvage};
use crate::{large, map::region, os};

/// What becomes of the blocks of a heap that ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocks {
    /// The heap is deleted; they are as any others.
    LiveOn,
    /// The heap is destroyed, and they with it.
    End,
}

/// Ends a heap.
///
/// # Safety
/// Nobody uses the heap any more, or has it attached but the calling thread. If it is destroyed: nobody uses a block of it
/// any more, and no thread is about to free one.
pub(crate) unsafe fn end(name: *mut Handle, blocks: Blocks) {
    os::notice_fork();
    // SAFETY: this heap's, which is gone after this.
    unsafe {
        let is_shared = is_shared(name);
        if (*name).owned.grace.is_on() {
            large::end_readers(&(*name).owned);
        }
        if is_shared {
            // A part of a thread that a fork has left behind is none that can be ended, until it is salvaged.
            salvage::all();
            parts::for_each(name, |part| end_one(part, blocks));
        } else {
            expect_free(name);
            if (*name).heap != EMPTY.heap() {
                end_one((*name).heap, blocks);
            }
        }
        Handle::end_nurseries(name, mine(), blocks == Blocks::End);
        match blocks {
            Blocks::End => large::destroy(&(*name).owned),
            Blocks::LiveOn => large::set_free(&(*name).owned),
        }
        let region = (*name).owned.region.checked_sub(1);
        Handle::end(name, mine());
        region.into_iter().for_each(region::heap_ends);
    }
}

/// # Safety
/// As for `end`.
unsafe fn end_one(heap: *mut Heap, blocks: Blocks) {
    // SAFETY: the caller's; nobody uses its blocks, if they go. The last turn: a free of its thread's may be under way.
    unsafe {
        (*heap).member.turn.shut();
        (*heap).member.user.store(NOBODY, Ordering::Relaxed);
        match blocks {
            Blocks::End => destroy_spans(heap),
            // What is in a region stays there; links that stand elsewhere are no other heap's.
            Blocks::LiveOn if (*heap).member.region().is_some() || (*heap).head > 0 => {
                (*heap).give_back()
            }
            Blocks::LiveOn => (*heap).abandon_all(),
        }
        if blocks == Blocks::End || left::slices(&*heap) == 0 {
            pool::put_closed(heap);
        } else {
            left::keep(heap);
        }
    }
}

/// Destroys all spans of a closed heap. Nothing of it can be used after that.
///
/// # Safety
/// Nobody uses a block of it any more, or the heap.
unsafe fn destroy_spans(heap: *mut Heap) {
    // SAFETY: the heap's invariant 2 says where its spans are.
    unsafe {
        for class in SizeClass::all() {
            destroy_from((*heap).active[class.index()]);
            destroy_from((*heap).partial[class.index()].first());
        }
        destroy_from((*heap).full.first());
        Caches::forget(&raw mut (*heap).caches);
    }
}

/// Destroys a span and those after it in its list, if it is in one; null is fine.
///
/// # Safety
/// They are the caller's; nobody uses a block of them.
unsafe fn destroy_from(mut span: *mut Span) {
    while !span.is_null() {
        // SAFETY: the caller's; an active span has no next one.
        unsafe {
            let next = SpanList::after(span);
            (*span).destroy();
            span = next;
        }
    }
}
