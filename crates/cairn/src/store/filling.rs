//! Owns: blocks that a refill finds one by one, in any order, for the hardened build's caches.
//! Idea: each takes a random place among those before it.
//! Never: decides which blocks they are.
//! Threads: the one whose caches are filled.
//! Checked: tests/rooms.rs, tests/quarantine.rs
//! Story: docs/design/policy.md

use crate::base::MIN_ALIGN;
use crate::base::random::{after, below};
use crate::map::Block;
use crate::store::tuning::ROW;

/// Blocks that are ready, or wait, at most.
pub(crate) const READY: u32 = ROW as u32 - 1;

/// Blocks of a class on their way to be ready. Apart from the heap: the compiler keeps it in registers.
pub(crate) struct Filling {
    pub(crate) ready: *mut *mut Block,
    pub(crate) count: usize,
    /// A random number, another one with each block.
    pub(crate) random: u64,
}

impl Filling {
    /// One more, at a random place among the others.
    ///
    /// # Safety
    /// It is a free block of the class, and the caller's; there are less than `READY`.
    #[inline(always)]
    pub(crate) unsafe fn add(&mut self, block: *mut Block) {
        debug_assert!(self.count < READY as usize);
        self.random = after(self.random);
        let place = below(self.random, self.count + 1);
        // SAFETY: the caller's; the places are inside.
        unsafe {
            *self.ready.add(self.count) = *self.ready.add(place);
            *self.ready.add(place) = block;
        }
        self.count += 1;
    }

    /// The blocks for which a bit is set, one for each `MIN_ALIGN` bytes from `from` on, until there are `most`: true
    /// then. By itself it has registers enough.
    ///
    /// # Safety
    /// As for `add`; there are less than `most`, at most `READY`.
    #[inline(never)]
    pub(crate) unsafe fn add_each(&mut self, from: *mut u8, mut bits: u64, most: usize) -> bool {
        let mut filling = Filling { ..*self };
        while bits != 0 && filling.count < most {
            let place = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            // SAFETY: the caller's.
            unsafe { filling.add(from.wrapping_add(place * MIN_ALIGN).cast()) };
        }
        *self = filling;
        self.count == most
    }
}
