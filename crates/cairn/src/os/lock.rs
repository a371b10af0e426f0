//! Owns: the one lock of the slow paths.
//! Idea: a three-state futex word: free, held, held with sleepers; no allocation, fork-aware.
//! Never: is taken on a fast path.
//! Threads: any; see ARCHITECTURE.md for the order in which locks may nest.
//! Checked: the stress tests; its states are the classic futex mutex.
//! Story: docs/fork.md

use super::{thread_token, wait, wake};
use crate::sync::{AtomicU32, AtomicUsize, Ordering};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// How often a waiter looks before it sleeps: about the length of the short sections here.
const SPINS: u32 = 60;

/// The three moments of a fork.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fork {
    /// Before it.
    Prepare,
    /// After it, in the parent.
    Parent,
    /// After it, in the child, where no other thread exists.
    Child,
}

/// The thread that is forking: it holds every lock, and may go through them, because handlers
/// of others that run before and after ours may allocate. 0: none.
static FORKER: AtomicUsize = AtomicUsize::new(0);

/// Says that the calling thread holds every lock now, or does not any more.
pub(crate) fn set_forking(forking: bool) {
    // Relaxed: only the forking thread compares equal, and it sees its own stores.
    FORKER.store(if forking { thread_token() } else { 0 }, Ordering::Relaxed);
}

/// Whether the calling thread is forking and holds every lock.
#[inline]
pub(crate) fn is_forker() -> bool {
    let forker = FORKER.load(Ordering::Relaxed);
    forker != 0 && forker == thread_token()
}

/// Data that one thread at a time may touch.
pub(crate) struct Lock<T> {
    word: AtomicU32,
    data: UnsafeCell<T>,
}

// SAFETY: the word admits one thread at a time to the data.
unsafe impl<T> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock around `data`.
    pub(crate) const fn new(data: T) -> Self {
        Self { word: AtomicU32::new(FREE), data: UnsafeCell::new(data) }
    }

    /// Waits for the lock.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.acquire();
        Guard(self)
    }

    /// Takes part in a fork: no thread is inside while it happens.
    pub(crate) fn at_fork(&self, step: Fork) {
        match step {
            Fork::Prepare => self.acquire(),
            Fork::Parent => self.unlock(),
            // Whatever it was: no other thread exists.
            Fork::Child => self.word.store(FREE, Ordering::Relaxed),
        }
    }

    #[inline]
    fn acquire(&self) {
        if !self.try_acquire() {
            self.acquire_slow();
        }
    }

    #[inline]
    fn try_acquire(&self) -> bool {
        // Acquire: sees what the last holder wrote.
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn acquire_slow(&self) {
        if is_forker() {
            return;
        }
        for _ in 0..SPINS {
            if self.word.load(Ordering::Relaxed) == FREE && self.try_acquire() {
                return;
            }
            core::hint::spin_loop();
        }
        while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
            wait(&self.word, CONTENDED);
        }
    }

    #[inline]
    fn unlock(&self) {
        // Release: the next holder sees what this one wrote.
        if self.word.swap(FREE, Ordering::Release) == CONTENDED {
            wake(&self.word);
        }
    }
}

/// Access to a lock's data; unlocks when dropped.
pub(crate) struct Guard<'a, T>(&'a Lock<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists only while the lock is held.
        unsafe { &*self.0.data.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists only while the lock is held.
        unsafe { &mut *self.0.data.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if is_forker() {
            return;
        }
        self.0.unlock();
    }
}
