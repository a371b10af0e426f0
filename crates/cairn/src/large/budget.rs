//! Owns: what a heap of the program's holds, and what it may hold.
//! Idea: bytes are counted by nurseries, spans and large blocks, so that allocations count nothing.
//! Never: knows nurseries, spans or blocks.
//! Threads: any; the counters are atomics.
//! Checked: tests/limits.rs
//! Story: docs/design/closed-heaps.md

use crate::base::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use core::ptr::null_mut;

// Invariants
//  1. `held` is the bytes of all spans of the heap and its parts, and of its large blocks; `large` and `large_blocks` are
//     of the latter; `nurseries` are bytes, too. All that is held is no more than `hard`, if that is not 0, but for a
//     moment in which one has asked for too much, and for a nursery that is taken while another thread resizes a block.
//  2. `is_over` says that more than `soft` has been held since it was last no more.
//  3. `peak` is the most that has been held, if that is more than is held now.
// Relaxed throughout: a number is all that they are.

/// What a heap holds, all parts of a shared one together, and what it may hold. All zeros: nothing, and no limits.
pub(crate) struct Budget {
    held: AtomicUsize,
    /// Written by the heap's user alone, so without an atomic step of two: a new heap takes some at once.
    nurseries: AtomicUsize,
    peak: AtomicUsize,
    large: AtomicUsize,
    large_blocks: AtomicUsize,
    soft: AtomicUsize,
    hard: AtomicUsize,
    is_over: AtomicBool,
    /// Nobody has been told of that yet.
    is_due: AtomicBool,
    /// Who is to be told, a function, or null, and what else.
    told: AtomicPtr<()>,
    words: [AtomicUsize; 2],
}

/// What a heap holds, in bytes of its spans and large blocks. It costs no walk.
///
/// ```
/// let heap = cairn::Heap::new().expect("memory");
/// let block = heap.allocate(1 << 20, 16);
/// let cairn::HeapStats { large, large_blocks, .. } = heap.stats();
/// assert!(large >= 1 << 20 && large_blocks == 1);
/// # unsafe { cairn::deallocate(block) };
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapStats {
    /// Of spans and nurseries, whatever of them is in use.
    pub spans: usize,
    /// Of large blocks: over 64 KiB, or aligned to more.
    pub large: usize,
    /// How many large blocks there are.
    pub large_blocks: usize,
    /// The most that both have been together.
    pub peak: usize,
    /// What they may be before somebody is told; 0: no limit.
    pub soft_limit: usize,
    /// What they may be at most; 0: no limit.
    pub hard_limit: usize,
}

impl Budget {
    /// Takes so many bytes more; false, and nothing is done, if that is over the hard limit.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        let nurseries = self.nurseries.load(Ordering::Relaxed);
        let before = self.held.fetch_add(bytes, Ordering::Relaxed) + nurseries;
        let fits = self.fits(before, bytes);
        if fits {
            self.notice(before + bytes);
        } else {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }

    /// The same for a nursery, which is within the hard limit. The heap's user calls.
    pub(crate) fn take_nursery(&self, bytes: usize) {
        self.take_nursery_unlimited(bytes);
        self.notice(self.all());
    }

    /// The same where there is no limit of either kind.
    #[inline(always)]
    pub(crate) fn take_nursery_unlimited(&self, bytes: usize) {
        let nurseries = self.nurseries.load(Ordering::Relaxed);
        self.nurseries.store(nurseries + bytes, Ordering::Relaxed);
    }

    /// All that is held.
    fn all(&self) -> usize {
        self.held.load(Ordering::Relaxed) + self.nurseries.load(Ordering::Relaxed)
    }

    fn fits(&self, before: usize, bytes: usize) -> bool {
        let hard = self.hard.load(Ordering::Relaxed);
        before.checked_add(bytes).is_some_and(|held| hard == 0 || held <= hard)
    }

    /// So many are held now, more than before.
    fn notice(&self, held: usize) {
        let soft = self.soft.load(Ordering::Relaxed);
        if soft > 0 && held > soft && !self.is_over.swap(true, Ordering::Relaxed) {
            self.is_due.store(true, Ordering::Relaxed);
        }
    }

    /// Whether there is a hard limit.
    pub(crate) fn has_limit(&self) -> bool {
        self.hard.load(Ordering::Relaxed) > 0
    }

    /// Whether there is a limit of either kind.
    pub(crate) fn is_limited(&self) -> bool {
        self.soft.load(Ordering::Relaxed) | self.hard.load(Ordering::Relaxed) > 0
    }

    /// Whether so many more would be within the hard limit.
    pub(crate) fn may_take(&self, bytes: usize) -> bool {
        self.fits(self.all(), bytes)
    }

    /// Gives so many back.
    pub(crate) fn give(&self, bytes: usize) {
        let nurseries = self.nurseries.load(Ordering::Relaxed);
        let before = self.held.fetch_sub(bytes, Ordering::Relaxed) + nurseries;
        self.fall(before, bytes);
    }

    /// The same for a nursery. The heap's user calls.
    pub(crate) fn give_nursery(&self, bytes: usize) {
        let (before, nurseries) = (self.all(), self.nurseries.load(Ordering::Relaxed));
        self.nurseries.store(nurseries - bytes, Ordering::Relaxed);
        self.fall(before, bytes);
    }

    /// The same of what it has taken and never got: it has not been held, and nobody is told of it.
    pub(crate) fn untake(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        if self.all() <= self.soft.load(Ordering::Relaxed) {
            self.is_over.store(false, Ordering::Relaxed);
            self.is_due.store(false, Ordering::Relaxed);
        }
    }

    /// So many less are held than before.
    fn fall(&self, before: usize, bytes: usize) {
        if before > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(before, Ordering::Relaxed);
        }
        if before - bytes <= self.soft.load(Ordering::Relaxed) {
            self.is_over.store(false, Ordering::Relaxed);
        }
    }

    /// The same for a large block.
    pub(crate) fn take_large(&self, bytes: usize) -> bool {
        let fits = self.take(bytes);
        if fits {
            self.large.fetch_add(bytes, Ordering::Relaxed);
            self.large_blocks.fetch_add(1, Ordering::Relaxed);
        }
        fits
    }

    /// The same for a large block.
    pub(crate) fn give_large(&self, bytes: usize) {
        self.large.fetch_sub(bytes, Ordering::Relaxed);
        self.large_blocks.fetch_sub(1, Ordering::Relaxed);
        self.give(bytes);
    }

    /// A large block gets so many bytes more; false, and nothing is done, if that is over the hard limit.
    pub(crate) fn grow_large(&self, bytes: usize) -> bool {
        let fits = self.take(bytes);
        self.large.fetch_add(if fits { bytes } else { 0 }, Ordering::Relaxed);
        fits
    }

    /// A large block has so many bytes less.
    pub(crate) fn shrink_large(&self, bytes: usize) {
        self.large.fetch_sub(bytes, Ordering::Relaxed);
        self.give(bytes);
    }

    /// A large block has not got so many bytes more that it was to have.
    #[inline(never)]
    pub(crate) fn ungrow_large(&self, bytes: usize) {
        self.large.fetch_sub(bytes, Ordering::Relaxed);
        self.untake(bytes);
    }

    /// Whether more than the soft limit is held, and nobody has been told of it; the caller will.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed) && self.is_due.swap(false, Ordering::Relaxed)
    }

    /// Whether more than the soft limit is held.
    pub(crate) fn is_over(&self) -> bool {
        let soft = self.soft.load(Ordering::Relaxed);
        soft > 0 && self.all() > soft
    }

    /// Says who is to be told, and what else.
    pub(crate) fn set_told(&self, told: *mut (), words: [usize; 2]) {
        self.told.store(null_mut(), Ordering::Relaxed);
        self.words.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        self.told.store(told, Ordering::Release);
    }

    /// Who is to be told, if anybody, and what else.
    pub(crate) fn told(&self) -> Option<(*mut (), [usize; 2])> {
        let told = self.told.load(Ordering::Acquire);
        let words = [0, 1].map(|nth: usize| self.words[nth].load(Ordering::Relaxed));
        (!told.is_null()).then_some((told, words))
    }

    /// Sets both limits, in bytes; 0: none. False, and nothing is done, if more than the hard one is held.
    pub(crate) fn limit(&self, soft: usize, hard: usize) -> bool {
        if hard > 0 && self.all() > hard {
            return false;
        }
        self.soft.store(soft, Ordering::Relaxed);
        self.hard.store(hard, Ordering::Relaxed);
        self.is_over.store(self.is_over(), Ordering::Relaxed);
        self.is_due.store(self.is_over(), Ordering::Relaxed);
        true
    }

    /// What is held.
    pub(crate) fn stats(&self) -> HeapStats {
        let (all, large) = (self.all(), self.large.load(Ordering::Relaxed));
        HeapStats {
            spans: all.saturating_sub(large),
            large,
            large_blocks: self.large_blocks.load(Ordering::Relaxed),
            peak: self.peak.load(Ordering::Relaxed).max(all),
            soft_limit: self.soft.load(Ordering::Relaxed),
            hard_limit: self.hard.load(Ordering::Relaxed),
        }
    }
}
