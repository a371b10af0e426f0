//! Owns: the way of a freed block to a span that its thread does not hold.
//! Idea: blocks of one span travel together; one CAS delivers them all.
//! Never: holds anything back for a thread that seldom frees to others.
//! Threads: as `heap`; the free functions here, any.
//! Checked: the models of the word; traffic tests.
//! Story: docs/protocol.md

use super::{Batch, Heap, KEEP_PARTIAL, RING, pool};
use crate::block::{Block, Chain};
use crate::remote::Pushed;
use crate::size_class::{CLASS_COUNT, CLASSES};
use crate::span::Span;
use crate::{address_map, orphans};

/// A batch leaves at this many blocks ...
const BATCH_BLOCKS: u32 = 4;
/// ... or bytes.
const BATCH_BYTES: u32 = 2048;
/// Recent remote frees (upkeep halves their number) that a thread must have made before it
/// batches: one that frees now and then holds nothing back.
const BATCH_AFTER: u32 = 64;

impl Heap {
    // Frees of blocks in spans that this heap does not hold.
    //
    // send               batched, or at once if the span is nobody's or this thread seldom does it
    //   push             one CAS
    //     take_over      the span was full and nobody's: it is this heap's now
    //     release        it was the last block of a listed span
    /// Gives `block` back to the span at slice `span`.
    ///
    /// # Safety
    /// `block` is a block of that span, of `class`, in use, and the caller's to free.
    pub(crate) unsafe fn send(&mut self, span: usize, class: usize, block: *mut Block, now: bool) {
        self.remote_frees = self.remote_frees.saturating_add(1);
        if now || self.remote_frees <= BATCH_AFTER {
            // SAFETY: the caller's contract.
            unsafe { self.push(span, Chain::one(block)) };
            return self.visit();
        }
        let batch = &mut self.ring[(span ^ span >> 4) % RING];
        let mut evicted = None;
        if batch.span != span && batch.chain.count > 0 {
            evicted = Some(core::mem::replace(batch, Batch { span, chain: Chain::EMPTY }));
        }
        batch.span = span;
        // SAFETY: the block is the caller's, the chain this heap's.
        unsafe { batch.chain.push(block) };
        let bound = BATCH_BLOCKS.min(BATCH_BYTES / CLASSES[class % CLASS_COUNT].size);
        if batch.chain.count >= bound {
            let full = core::mem::replace(&mut batch.chain, Chain::EMPTY);
            // SAFETY: the blocks are of that span, and this heap's to free.
            unsafe { self.push(span, full) };
            self.visit();
        }
        if let Some(batch) = evicted {
            // SAFETY: as above.
            unsafe { self.push(batch.span, batch.chain) };
            self.visit();
        }
    }

    /// Sends all batches off.
    pub(crate) fn flush(&mut self) {
        for i in 0..RING {
            let Batch { span, chain } = self.ring[i];
            self.ring[i].chain = Chain::EMPTY;
            if chain.count > 0 {
                // SAFETY: invariant 4: the blocks are of that span, and this heap's to free.
                unsafe { self.push(span, chain) };
            }
        }
    }

    pub(super) unsafe fn push(&mut self, index: usize, chain: Chain) {
        // SAFETY: the caller's contract.
        let pushed = unsafe { push_to(index, chain) };
        if let Some(span) = pushed {
            self.take_over(span);
        }
    }

    /// Takes in a span that a push has claimed.
    fn take_over(&mut self, span: *mut Span) {
        // SAFETY: the push made this thread the holder.
        unsafe {
            let class = (*span).class() % CLASS_COUNT;
            debug_assert!((*span).used() > 0, "a batch is less than a full span");
            let crowded = self.partial[class].len() >= KEEP_PARTIAL && pool::in_use() > 1;
            if crowded && orphans::leave(span) {
                return;
            }
            (*span).own(Heap::tag(self));
            self.put_aside(class, span);
        }
    }
}

/// Gives blocks back to a span that the caller does not hold. If that makes the caller its
/// holder, answers the span, its free blocks in place; unless nothing is in use any more in a
/// listed span: that one is gone then.
///
/// # Safety
/// As for `RemoteWord::push`; `index` is the span's first slice.
unsafe fn push_to(index: usize, chain: Chain) -> Option<*mut Span> {
    let span: *mut Span = address_map::slot(index).cast();
    let base = address_map::slice_address(index);
    // SAFETY: the caller's contract.
    match unsafe { address_map::remote_word(index).push(base, chain) } {
        Pushed::Queued => None,
        Pushed::Claimed => {
            // The links up to the tail are ours; behind it there was nothing.
            // SAFETY: the claim made us the holder.
            unsafe { (*span).claim(chain) };
            Some(span)
        }
        Pushed::ClaimedEmpty => {
            // SAFETY: the claim made us the holder; no block is in use.
            unsafe {
                // No reference is made: the links are the lock's until the span is out of the list.
                orphans::remove(span, usize::from((*span).class));
                (*span).empty();
                (*span).release();
            }
            None
        }
    }
}

/// Frees a block from a thread that has no heap (any more).
///
/// # Safety
/// As for `Heap::send`.
pub(crate) unsafe fn send_without_heap(index: usize, block: *mut Block) {
    // SAFETY: the caller's contract; a claimed span is ours until we let it go.
    unsafe {
        if let Some(span) = push_to(index, Chain::one(block))
            && !orphans::leave(span)
        {
            (*span).empty();
            (*span).release();
        }
    }
}
