//! Owns: which allocations take the slow path because somebody wants to see them.
//! Idea: a heap counts bytes down as its refills hand blocks out. A list in which the count would run
//!   out is cut before that block: exactly that allocation comes to a refill, and is told of.
//! Never: costs an instruction of a fast path while nobody asks; counts an allocation of a heap twice,
//!   or leaves one out.
//! Threads: as `heap`; `set_sampling` any.
//! Checked: tests/sample.rs counts each allocation.
//! Story: docs/design/upkeep.md

use super::Heap;
use crate::block::{Block, Chain, Limit};
use crate::size_class::SizeClass;
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};
use core::ptr::null_mut;

/// Who is told of a sampled allocation: the block, and its size in bytes. It must not allocate, free or
/// panic.
pub type Told = fn(*mut u8, usize);

/// Bytes from one sample to the next; 0: nobody asks. Who sees it late counts from then on.
static INTERVAL: AtomicUsize = AtomicUsize::new(0);
/// A `Told`, or null. Relaxed: it is stored before the interval, and read after it.
static TOLD: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Asks all heaps to sample: see `thread::sample_every`.
pub(crate) fn set_sampling(bytes: usize, told: Told) {
    TOLD.store(told as *mut (), Ordering::Relaxed);
    // Release: who finds the interval finds whom to tell.
    INTERVAL.store(bytes, Ordering::Release);
    super::request_trim();
}

/// What a heap knows of it. The block in which `left` runs out is the sample.
#[derive(Clone, Copy)]
pub(super) struct Sampling {
    /// As the heap has it; 0: off.
    interval: usize,
    /// Bytes until the next sample.
    left: usize,
    /// Classes whose next block is the sample, a bit each.
    due: u64,
}

impl Sampling {
    /// How many of `count` blocks may be handed out before the next sample, and whether the first of
    /// them is that sample.
    fn cut(&mut self, class: SizeClass, count: usize) -> (usize, bool) {
        let size = class.block_size();
        let before = self.left / size;
        if self.due & class.bit() != 0 {
            self.due &= !class.bit();
            return (1, true);
        }
        if before == 0 {
            self.left = self.interval;
            return (1, true);
        }
        let most = before.min(count);
        self.left -= most * size;
        if most < count {
            self.due |= class.bit();
            self.left = self.interval;
        }
        (most, false)
    }
}

impl Heap {
    /// Does as `sample_every` has said. What the caches hold has not been counted: it goes back.
    pub(crate) fn follow_sampling(&mut self) {
        // Acquire: pairs with `sample_every`.
        let interval = INTERVAL.load(Ordering::Acquire);
        if interval != self.sampling.interval && !self.is_shared {
            SizeClass::all().for_each(|class| self.empty_cache(class));
            self.sampling = Sampling { interval, left: interval, due: 0 };
            self.set_ordinary();
        }
    }

    pub(super) fn is_sampled(&self) -> bool {
        self.sampling.interval > 0
    }

    /// Fills the cache up to the next sample, or with that alone.
    pub(super) fn fill_cut(
        &mut self,
        class: SizeClass,
        mut list: Chain,
        limit: Limit,
    ) -> *mut Block {
        let (most, is_sample) = self.sampling.cut(class, list.count as usize);
        let mut last = list.head;
        // SAFETY: the list is this heap's, and longer than that.
        let mut rest = unsafe {
            (1..most).for_each(|_| last = Block::next(last));
            let rest = Block::next(last);
            Block::set_next(last, null_mut());
            rest
        };
        list.count = most as u32;
        while !rest.is_null() {
            // SAFETY: the blocks are this heap's to free; the link is read first.
            unsafe {
                let next = Block::next(rest);
                self.put_back(class, rest);
                rest = next;
            }
        }
        let limit = if limit == Limit::ZEROED { limit } else { Limit::NOTHING };
        // SAFETY: the list is this heap's, and not empty.
        let block = unsafe { self.caches.fill(class, list, limit) };
        let told = TOLD.load(Ordering::Relaxed);
        if is_sample && !told.is_null() {
            // SAFETY: stored by `sample_every` out of such a function.
            let told: Told = unsafe { core::mem::transmute(told) };
            told(block.cast(), class.block_size());
        }
        block
    }
}

const _: () = assert!(size_of::<Told>() == size_of::<*mut ()>());
