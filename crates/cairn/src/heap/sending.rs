//! Owns: the way of a freed block to a span that its thread does not own.
//! Idea: blocks of one span travel together; one CAS delivers them all.
//! Never: holds anything back for a thread that seldom frees to others.
//! Threads: as `heap`; the free functions here, any.
//! Checked: the models of the word; traffic tests.
//! Story: docs/design/remote-frees.md

use super::{Batch, Heap, NO_BATCH};
use crate::base::Ordering;
use crate::heap::tuning::{BATCH_AFTER, BATCH_BLOCKS, BATCH_BYTES, BATCHES, PROBE_EACH};
use crate::map::{Block, Chain, END, Generation, Pushed, address_map};
use crate::spans::{Span, abandoned};
use crate::store::{Known, Live};

/// The batch of a span.
fn batch_index(span: usize) -> usize {
    (span ^ span >> 4) % BATCHES
}

/// Whether a batch of that many blocks leaves.
fn is_full(count: u32, size: u32) -> bool {
    count >= BATCH_BLOCKS || (count + 1) * size > BATCH_BYTES
}

impl Heap {
    // Frees of blocks in spans that this heap does not own.
    //
    // batch_push         into the span's batch, if it is not full and this thread does it often
    // send               with what is in the batch, which leaves, or in a new one
    //   push             one CAS
    //     take_over      the span was full and abandoned: it is this heap's now
    //     release        it was the last block of a listed span

    /// Puts `block` into a batch for the span at slice `span`; false, and nothing is done, if that
    /// would be full, if another span's is in its place, if it is the first for a
    /// span that nobody holds and is full, or if this thread seldom frees to others.
    ///
    /// # Safety
    /// As for `send`; `size` is the block's. The heap is the calling thread's or a stand-in.
    #[inline(always)]
    pub(crate) unsafe fn batch_push(
        this: *mut Heap,
        span: usize,
        size: u32,
        block: *mut Block,
    ) -> bool {
        // SAFETY: the calling thread's heap, or a stand-in, which has no frees and is only read; the block is the caller's, and so
        // free from here on. Inside: others send batches off, too.
        unsafe {
            if (*this).remote_frees <= BATCH_AFTER || !Heap::enters(this) {
                return false;
            }
            let batch = (&raw mut (*this).batches).cast::<Batch>().add(batch_index(span));
            let count = (*batch).chain.list.count;
            let fits = !is_full(count + 1, size)
                && match count {
                    0 => !abandoned::is_claimable(span),
                    _ => (*batch).span == span,
                };
            if fits {
                (*this).remote_frees += 1;
                (*batch).span = span;
                (*batch).chain.push(block);
            }
            Heap::leaves(this);
            fits
        }
    }

    /// Counts a free into an abandoned span; true each `PROBE_EACH`th time: that block shall go there, and not into the cache.
    /// Where the cache takes all in, a heap would not learn otherwise that the spans are those that it has let go of.
    ///
    /// # Safety
    /// The heap is the calling thread's.
    pub(crate) unsafe fn is_probe(this: *mut Heap) -> bool {
        // SAFETY: the calling thread's.
        unsafe {
            (*this).strays = (*this).strays.wrapping_add(1);
            (*this).strays.is_multiple_of(PROBE_EACH)
        }
    }

    /// Gives `block`, of `size` bytes, back to the span at slice `span`: with what was gathered for
    /// it, or in a new batch where another is in the way, or alone if this thread seldom frees to others, or
    /// becomes the span's owner with it.
    ///
    /// # Safety
    /// `block` is a block of that span, in use, and the caller's to free.
    pub(crate) unsafe fn send(&mut self, span: usize, size: u32, block: *mut Block) {
        let _inside = self.presence.enter();
        self.remote_frees += 1;
        // SAFETY: the block is the caller's to free.
        let is_claimable = || unsafe { abandoned::is_claimable(span) };
        let begins = self.remote_frees > BATCH_AFTER && !is_full(1, size) && !is_claimable();
        let batch = &mut self.batches[batch_index(span)];
        let mut leaving = Batch { span, chain: Chain::EMPTY };
        if batch.span == span || begins {
            core::mem::swap(batch, &mut leaving);
        }
        let chain = if leaving.span == span { &mut leaving.chain } else { &mut batch.chain };
        // SAFETY: the block is the caller's, the chain this heap's.
        unsafe { chain.push(block) };
        if leaving.chain.list.count > 0 {
            // SAFETY: invariant 4: the blocks are of that span, and this heap's to free.
            unsafe { self.push(leaving.span, leaving.chain, None) };
            self.slow_tick();
        }
    }

    /// The first block of the batch in the place of that of a span, or null, read while the heap's thread may be
    /// at work.
    ///
    /// # Safety
    /// `this` is a heap that has been made.
    pub(crate) unsafe fn peek_batch(this: *const Heap, span: usize) -> *mut Block {
        // SAFETY: heaps are never unmapped. Volatile, and plain for the thread.
        unsafe { (&raw const (*this).batches[batch_index(span)].chain.list.head).read_volatile() }
    }

    /// Sends all batches off.
    #[inline(never)]
    pub(crate) fn flush(&mut self) {
        // SAFETY: invariant 4: the blocks are of that span, and this heap's to free.
        self.take_batches(|heap, Batch { span, chain }| unsafe { heap.push(span, chain, None) });
    }

    /// The same by another thread, also into spans of the heap's: what follows from its own frees is for its thread to do.
    pub(super) fn flush_for_others(&mut self) {
        // SAFETY: as above.
        self.take_batches(|_, Batch { span, chain }| unsafe {
            send_without_heap(span, chain, None)
        });
    }

    fn take_batches(&mut self, send: impl Fn(&mut Self, Batch)) {
        for nth in 0..BATCHES {
            if self.batches[nth].chain.list.count > 0 {
                let batch = core::mem::replace(&mut self.batches[nth], NO_BATCH);
                send(self, batch);
            }
        }
    }

    /// Sends a chain to its span, if that is still the one of the generation, where there may be another.
    ///
    /// # Safety
    /// As for `RemoteWord::push`.
    #[inline(never)]
    pub(crate) unsafe fn push(&mut self, index: usize, chain: Chain, meant: Option<Generation>) {
        debug_assert!(self.presence.is_worked_on());
        let owner = &address_map::descriptor_at(index).owner;
        // SAFETY: the blocks are of that span, and this heap's to free; a span that names this heap is its own.
        unsafe {
            // Relaxed: who reads its own tag has written it. Hardened, live bits end on the way by the word.
            if !Live::IS_KNOWN && meant.is_none() && owner.load(Ordering::Relaxed) == self.owner {
                // It has become this heap's since the chain began. What follows from one block may list the span, so each asks
                // whose it is; as others' frees they would speak against keeping full spans.
                let span: *mut Span = address_map::slot(index).cast();
                Block::set_next(chain.tail, END);
                return self.put_all_back((*span).class(), chain.list.head);
            }
            match push_to(index, chain, meant) {
                Pushed::Claimed => self.take_over(address_map::slot(index).cast()),
                Pushed::Listed if meant.is_none() => self.thin_listed(index, chain.list.count),
                _ => {}
            }
        }
    }

    /// Takes in a span that a push has claimed.
    #[inline(never)]
    fn take_over(&mut self, span: *mut Span) {
        // SAFETY: the push made this thread the owner.
        unsafe {
            debug_assert!((*span).used() > 0, "a batch is less than a full span");
            if (*span).let_go_by == self.owner {
                self.earn_full(span);
                self.thinning.count();
            } else if self.has_no_room((*span).class()) && abandoned::list(span) {
                return;
            }
            (*span).own(self.owner);
            self.inherit(span);
            self.park(span);
        }
    }
}

/// Gives blocks back to a span that the caller does not hold. If that makes the caller its owner (`Claimed`), its free
/// blocks are in place; unless nothing is in use any more in a listed span: that one is gone then.
///
/// # Safety
/// As for `RemoteWord::push`; `index` is the span's first slice.
#[inline(never)]
unsafe fn push_to(index: usize, chain: Chain, meant: Option<Generation>) -> Pushed {
    let span: *mut Span = address_map::slot(index).cast();
    let base = address_map::slice_address(index);
    // SAFETY: the blocks are in use in that span, and the caller's to free. Who claims it is the owner, and has the links
    // up to the tail; behind it there was nothing.
    unsafe {
        let pushed = address_map::remote_word(index).push(base, chain, meant);
        if pushed == Pushed::Claimed {
            (*span).claim(chain.list);
        } else if pushed == Pushed::ClaimedEmpty {
            // No reference is made: the links are the lock's until the span is out of the list.
            abandoned::remove(span, Span::class_at(span));
            (*span).empty(chain.list);
            (*span).release();
        }
        pushed
    }
}

/// Frees blocks from a thread that has no heap (any more), or none that is to do what follows.
///
/// # Safety
/// As for `RemoteWord::push`.
pub(crate) unsafe fn send_without_heap(index: usize, chain: Chain, meant: Option<Generation>) {
    // SAFETY: as above; a claimed span is ours until we let it go.
    unsafe {
        if push_to(index, chain, meant) == Pushed::Claimed {
            abandoned::list_or_release(address_map::slot(index).cast());
        }
    }
}
