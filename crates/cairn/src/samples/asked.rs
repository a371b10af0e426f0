//! Owns: what is asked of the sampler for guards or for the profile, here or by a tool outside, and what is done.
//! Idea: two words each. The tool writes the first one; who finds that they differ does it.
//! Never: takes back what has been asked for meanwhile.
//! Threads: any.
//! Checked: tests/sample.rs
//! Story: docs/guide/inspect.md

use crate::base::{AtomicUsize, Ordering};

/// Bytes from one sample to the next, 0 for off. Relaxed: a number is all each of them is.
#[repr(C)]
pub(crate) struct Asked {
    wanted: AtomicUsize,
    done: AtomicUsize,
}

impl Asked {
    pub(crate) const fn nothing() -> Asked {
        Asked { wanted: AtomicUsize::new(0), done: AtomicUsize::new(0) }
    }

    /// What is done.
    #[inline(always)]
    pub(crate) fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// So many are done from now on.
    pub(crate) fn set_done(&self, bytes: usize) {
        self.done.store(bytes, Ordering::Relaxed);
    }

    /// The program has asked: nothing is wanted beside what is done.
    pub(crate) fn settle(&self) {
        self.wanted.store(self.done(), Ordering::Relaxed);
    }

    /// Whether a tool outside has asked for something else than is done.
    #[inline(always)]
    pub(super) fn is_new(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != self.done()
    }

    /// Has that done which a tool outside has asked for. If it cannot be, the wish is taken back.
    pub(crate) fn follow(&self, apply: fn(usize) -> bool) {
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted != self.done() {
            apply(wanted);
            self.answer(wanted, self.done());
        }
    }

    /// Somebody else draws samples: nothing is done any more.
    #[cold]
    pub(crate) fn lose(&self) {
        self.answer(self.done(), 0);
        self.set_done(0);
    }

    /// As a tool outside asks.
    #[cfg(test)]
    pub(crate) fn want(&self, bytes: usize) {
        self.wanted.store(bytes, Ordering::Relaxed);
    }

    fn answer(&self, wanted: usize, done: usize) {
        let order = Ordering::Relaxed;
        let _ = self.wanted.compare_exchange(wanted, done, order, order);
    }
}
