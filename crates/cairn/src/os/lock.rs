//! Owns: the one lock of the slow paths, and what a forked child does with it.
//! Idea: a three-state futex word: free, held, held with sleepers; no allocation. A fork takes no lock:
//!   the lock says who holds it, so that the child, in which other threads' work stands half done,
//!   knows which of them it has to repair.
//! Never: is taken on a fast path.
//! Threads: any; see ARCHITECTURE.md for the order in which locks may nest.
//! Checked: the stress tests; its states are the classic futex mutex; the models fork at every step.
//! Story: docs/design/fork.md

use super::{process_id, thread_token, wait, wake};
use crate::base::{Apart, AtomicPtr, AtomicU32, AtomicUsize, Ordering, UnsafeCell};
use crate::os::tuning::LOCK_SPINS;
use core::ops::{Deref, DerefMut};
use core::ptr::null_mut;
use core::sync::atomic::fence;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// What threads have to notice on their slow paths, in one word: how many threads are forking, and above
/// that a count of all else. Relaxed: who sees it late acts late. But who takes note of the count sees what it is about.
static NOTICES: Apart<AtomicUsize> = Apart(AtomicUsize::new(0));
const FORKING: usize = 0xffff;
/// One more of what heaps go through all their spans for; smaller counts run over into it after 65,536.
const THOROUGH: usize = 1 << 32;
/// Who they are, by their tokens; 0: nobody. One that finds no place does without what `notice_fork` is
/// for.
static FORKERS: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];
/// The process that they fork.
static PARENT: AtomicU32 = AtomicU32::new(0);
/// What a child has to do before it takes a lock: a function without arguments, or null.
static REPAIR: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Says that the calling thread is about to fork; `repair` is what its child has to do first.
// Relaxed here and below: a forking thread finds its own stores, in the parent and in the child.
pub(crate) fn begin_fork(repair: fn()) {
    PARENT.store(process_id(), Ordering::Relaxed);
    REPAIR.store(repair as *mut (), Ordering::Relaxed);
    NOTICES.0.fetch_add(1, Ordering::Relaxed);
    let token = thread_token();
    let _ = FORKERS.iter().any(|place| {
        place.compare_exchange(0, token, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    });
}

/// Says that it has forked: in the parent.
pub(crate) fn end_fork() {
    let token = thread_token();
    let own = |place: &&AtomicUsize| place.load(Ordering::Relaxed) == token;
    FORKERS.iter().filter(own).for_each(|place| place.store(0, Ordering::Relaxed));
    NOTICES.0.fetch_sub(1, Ordering::Relaxed);
}

/// The same in the child, where no other thread is.
pub(crate) fn forget_forkers() {
    FORKERS.iter().for_each(|place| place.store(0, Ordering::Relaxed));
    NOTICES.0.store(settled_notices(), Ordering::Relaxed);
}

/// Something that all threads have to notice has come up.
pub(crate) fn notify_all() {
    notify(THOROUGH);
}

/// The same, but no heap has to go through all its spans for it: this may come often.
pub(crate) fn notify_briefly() {
    notify(FORKING + 1);
}

#[inline(always)]
fn notify(more: usize) {
    // Release: pairs with `settled_notices`.
    NOTICES.0.fetch_add(more, Ordering::Release);
}

/// Whether somebody who has noticed `before`, and now `settled`, has to go through all.
pub(crate) fn are_thorough(before: usize, settled: usize) -> bool {
    before / THOROUGH != settled / THOROUGH
}

/// What there is to notice: it differs from what `settled_notices` has answered while a thread forks, and after
/// each `notify_all`.
pub(crate) fn notices() -> usize {
    NOTICES.0.load(Ordering::Relaxed)
}

/// Whether a thread forks, as far as this one knows.
pub(crate) fn is_forking() -> bool {
    notices() & FORKING != 0
}

/// What a thread has noticed that has answered all but forks, or answers it now.
pub(crate) fn settled_notices() -> usize {
    // Acquire: what was changed before `notify_all` is seen. Not seen, it would never be looked at again.
    NOTICES.0.load(Ordering::Acquire) & !FORKING
}

/// To be called before an operation that may take a lock: handlers of others may run in a forked child,
/// and allocate, before ours does. What threads that are not there have left half done is repaired first.
pub(crate) fn notice_fork() {
    if is_forking() {
        notice_child();
    }
}

#[cold]
fn notice_child() {
    let token = thread_token();
    // A thread that forks and its child's only one have the same token; a child that shares memory (vfork)
    // has that of a thread that is not forking.
    if FORKERS.iter().any(|place| place.load(Ordering::Relaxed) == token)
        && process_id() != PARENT.load(Ordering::Relaxed)
    {
        let repair = REPAIR.load(Ordering::Relaxed);
        // SAFETY: stored by `begin_fork` out of such a function.
        unsafe { core::mem::transmute::<*mut (), fn()>(repair)() };
    }
}

/// Data that one thread at a time may touch.
pub(crate) struct Lock<T> {
    word: AtomicU32,
    /// The token of the thread that is inside, 0 if none is: a part of the time for which the word says
    /// so, in which the data may be half changed.
    inside: AtomicUsize,
    data: UnsafeCell<T>,
}

// SAFETY: the word admits one thread at a time to the data, and any thread.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock around `data`.
    pub(crate) const fn new(data: T) -> Self {
        Self {
            word: AtomicU32::new(FREE),
            inside: AtomicUsize::new(0),
            data: UnsafeCell::new(data),
        }
    }

    /// Waits for the lock.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        acquire(&self.word);
        self.inside.store(thread_token(), Ordering::Relaxed);
        // A child that finds a change of the data finds this, too.
        fence(Ordering::Release);
        Guard(self)
    }

    /// The same; None if the calling thread is inside: it has found a misuse there, and this is a signal's handler.
    pub(crate) fn lock_unless_inside(&self) -> Option<Guard<'_, T>> {
        // Relaxed: nobody else writes this thread's token, and it finds its own.
        (self.inside.load(Ordering::Relaxed) != thread_token()).then(|| self.lock())
    }

    /// How far in it the data stands.
    pub(crate) const DATA: usize = core::mem::offset_of!(Self, data);

    /// The data, for a forked child before it has a second thread.
    pub(crate) fn alone(&self) -> *mut T {
        self.data.get()
    }

    /// In a forked child, before it has a second thread: frees the lock if one held it that is not here.
    /// True if the data may be half changed.
    pub(crate) fn settle_in_child(&self) -> bool {
        if self.word.load(Ordering::Relaxed) == FREE {
            return false;
        }
        let inside = self.inside.load(Ordering::Relaxed);
        if inside == thread_token() {
            // A signal's handler has forked that has interrupted the thread here: it goes on in the child.
            self.word.store(HELD, Ordering::Relaxed);
            return false;
        }
        self.inside.store(0, Ordering::Relaxed);
        self.word.store(FREE, Ordering::Relaxed);
        inside != 0
    }

    /// The same of data that is given up if it may be half changed: nothing stands there then.
    pub(crate) fn give_up_in_child(&self, nothing: T) {
        if self.settle_in_child() {
            *self.lock() = nothing;
        }
    }

    fn unlock(&self) {
        free(&self.word, &self.inside);
    }
}

/// Frees a lock. One for the locks of all types: 4 KiB less of code.
#[inline(never)]
fn free(word: &AtomicU32, inside: &AtomicUsize) {
    // Release: a child that finds nobody inside finds all that was changed there.
    inside.store(0, Ordering::Release);
    // Release: the next owner sees what this one wrote.
    if word.swap(FREE, Ordering::Release) == CONTENDED {
        wake(word);
    }
}

fn acquire(word: &AtomicU32) {
    if !try_acquire(word) {
        acquire_slow(word);
    }
}

fn try_acquire(word: &AtomicU32) -> bool {
    // Acquire: sees what the last owner wrote.
    word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// One for the locks of all types.
#[cold]
fn acquire_slow(word: &AtomicU32) {
    for _ in 0..LOCK_SPINS {
        if word.load(Ordering::Relaxed) == FREE && try_acquire(word) {
            return;
        }
        core::hint::spin_loop();
    }
    while word.swap(CONTENDED, Ordering::Acquire) != FREE {
        wait(word, CONTENDED);
    }
}

/// Access to a lock's data; unlocks when dropped.
pub(crate) struct Guard<'a, T>(&'a Lock<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists only while the lock is held.
        unsafe { &*self.0.data.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists only while the lock is held.
        unsafe { &mut *self.0.data.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}
