//! Owns: which allocations take the slow path because somebody wants to see them.
//! Idea: a heap counts bytes down as its refills hand blocks out. A list in which the count would run
//!   out is cut before that block: exactly that allocation comes to a refill, and is told of.
//! Never: costs an instruction of a fast path while nobody asks; counts an allocation of a heap twice,
//!   or leaves one out.
//! Threads: a `Sampling`: whoever has the heap; the rest any.
//! Checked: tests/sample.rs counts each allocation.
//! Story: docs/design/upkeep.md

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

/// Says how all heaps sample from their next look at it on: see `thread::sample_every`.
pub(crate) fn set(bytes: usize, told: Told) {
    TOLD.store(told as *mut (), Ordering::Relaxed);
    // Release: who finds the interval finds whom to tell.
    INTERVAL.store(bytes, Ordering::Release);
}

/// Ends it, if that is who is told.
pub(crate) fn end(told: Told) {
    let order = Ordering::Relaxed;
    if TOLD.compare_exchange(told as *mut (), null_mut(), order, order).is_ok() {
        INTERVAL.store(0, order);
    }
}

/// What a heap knows of it. The block in which `left` runs out is the sample.
#[derive(Clone, Copy)]
pub(crate) struct Sampling {
    /// As the heap has it; 0: off.
    interval: usize,
    /// Bytes until the next sample.
    left: usize,
    /// Classes whose next block is the sample, a bit each.
    due: u64,
}

impl Sampling {
    /// Whether the heap is sampled.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.interval > 0
    }

    /// Whether somebody has asked for something else than the heap does. It does that from now on.
    pub(crate) fn follow(&mut self) -> bool {
        // Acquire: pairs with `set`.
        let interval = INTERVAL.load(Ordering::Acquire);
        let is_new = interval != self.interval;
        if is_new {
            *self = Sampling { interval, left: interval, due: 0 };
        }
        is_new
    }

    /// How many of `count` blocks may be handed out before the next sample, and whether the first of
    /// them is that sample.
    pub(crate) fn cut(&mut self, class: SizeClass, count: usize) -> (usize, bool) {
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

/// Tells of a sampled allocation.
pub(crate) fn tell(block: *mut u8, size: usize) {
    let told = TOLD.load(Ordering::Relaxed);
    if !told.is_null() {
        // SAFETY: stored by `set` out of such a function.
        let told: Told = unsafe { core::mem::transmute(told) };
        told(block, size);
    }
}

const _: () = assert!(size_of::<Told>() == size_of::<*mut ()>());
