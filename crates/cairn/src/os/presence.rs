//! Owns: whether a heap's thread is at work on its spans, or has been away for so long that others may let go of them.
//! Idea: the thread pays two additions and a look where it touches a span. Who wants the spans looks twice, some time apart:
//!   what would take the thread a fence is waited for.
//! Never: knows what the spans are; interrupts a thread at its work.
//! Threads: the heap's own, and any.
//! Checked: the model `presence`; tests/idle/presence.rs.
//! Story: docs/design/heap.md

use super::tuning::{AWAY_MS, AWAY_TURN_MS, REGRETS_MAX};
use super::{now_ms, wait, wake};
use crate::base::{
    AtomicU32, AtomicUsize, Ordering, add_at, holds, in_hardened, is_zero_at, late_fence,
    owners_fence,
};

// Invariants
//  1. `inside` is 0 only in a heap that a thread has, and only while that is not at work on its spans.
//  2. Only who has made `word` LET_GO touches the spans of another's heap, until the next store to it.
//  3. A thread that goes on with its spans has read `word` as NEW after its store to `inside`, or has made it NEW.
//  4. What `word` has been dated with was read from the clock after somebody had read UNDATED there: a thread that came
//     inside `AWAY_TURN_MS` or more later has seen that, and one that was inside before has been seen.
// 4 is time's and not the memory model's: a store is seen within microseconds. In the models both sides have a fence.

/// Nobody has looked since the thread was inside.
const NEW: u32 = 0;
/// Somebody has, just now.
const UNDATED: u32 = 1;
/// Somebody lets go of its spans.
const LET_GO: u32 = 2;
/// This, or more, with milliseconds in the upper bits: at that time somebody had looked.
const DATED: u32 = 4;
/// In place of `DATED`: it has had no spans since then.
const EMPTY: u32 = DATED + 1;

/// Two words of a heap.
#[repr(C)]
pub(crate) struct Presence {
    /// How often its thread has come inside and not left.
    inside: AtomicU32,
    word: AtomicU32,
}

/// The thread is inside, until the end of it.
pub(crate) struct Inside(*const Presence);

impl Drop for Inside {
    fn drop(&mut self) {
        // SAFETY: heaps are never unmapped.
        unsafe { Presence::end::<0>(self.0.cast()) }
    }
}

impl Presence {
    /// The hardened build's caches have blocks that only the owner of a span may move: each heap keeps what is its own.
    pub(crate) const IS_ASKED: bool = in_hardened(1, 0) > 0;

    /// How far in it `word` stands.
    pub(crate) const WORD: usize = size_of::<AtomicU32>();

    /// Nobody else may ever touch the spans.
    pub(crate) const fn barred() -> Presence {
        Presence { inside: AtomicU32::new(1), word: AtomicU32::new(NEW) }
    }

    /// The heap is no thread's any more, whatever became of the one that had it.
    pub(crate) fn bar(&self) {
        if Self::IS_ASKED {
            // Relaxed: nobody looks at a dead heap, and `set_epoch` releases this.
            self.inside.store(1, Ordering::Relaxed);
            self.word.store(NEW, Ordering::Relaxed);
        }
    }

    /// A thread begins to use the heap. Release: who finds it outside finds the heap as it is.
    pub(crate) fn admit(&self) {
        if Self::IS_ASKED {
            self.inside.store(0, Ordering::Release);
        }
    }

    /// The thread goes inside; false, and it stays outside, if somebody has looked: then `enter` helps.
    ///
    /// # Safety
    /// The calling thread's, whose words stand so far behind `base`.
    #[inline(always)]
    pub(crate) unsafe fn begin<const INSIDE: usize, const WORD: usize>(base: *const u8) -> bool {
        // SAFETY: as above.
        !Self::IS_ASKED
            || unsafe {
                add_at::<INSIDE, 1>(base, Ordering::Relaxed);
                owners_fence();
                is_zero_at::<WORD>(base) || {
                    Presence::end::<INSIDE>(base);
                    false
                }
            }
    }

    /// The thread leaves. Release: who finds it outside finds all that it has done.
    ///
    /// # Safety
    /// As above; it is inside.
    #[inline(always)]
    pub(crate) unsafe fn end<const INSIDE: usize>(base: *const u8) {
        if Self::IS_ASKED {
            // SAFETY: as above.
            unsafe { add_at::<INSIDE, -1>(base, Ordering::Release) }
        }
    }

    /// The thread is inside, perhaps once more, until the end of what this returns.
    #[must_use]
    pub(crate) fn enter(&self) -> Inside {
        if Self::IS_ASKED {
            // SAFETY: the calling thread's.
            unsafe { add_at::<0, 1>((&raw const *self).cast(), Ordering::Relaxed) };
            owners_fence();
            if !holds(&self.word, NEW) {
                self.insist();
            }
        }
        Inside(self)
    }

    /// It leaves once more than `enter` has said, if it is inside. Relaxed: its own.
    pub(crate) fn leave_if_inside(&self) {
        if Self::IS_ASKED && self.inside.load(Ordering::Relaxed) > 0 {
            drop(Inside(self));
        }
    }

    /// Whoever has looked has to begin anew; waits until nobody is at work on the spans.
    #[cold]
    #[inline(never)]
    fn insist(&self) {
        debug_assert!(self.is_worked_on());
        loop {
            // Relaxed: the exchange decides.
            let word = self.word.load(Ordering::Relaxed);
            if word == LET_GO {
                wait(&self.word, LET_GO);
            } else if self.change(word, NEW) {
                if word >= DATED && is_empty(word) {
                    regret(word);
                }
                return;
            }
        }
    }

    /// Acquire: what others have done with the spans is seen. Release: what dates it is seen before.
    fn change(&self, from: u32, to: u32) -> bool {
        self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Looks whether its thread has been away for long, or for a turn of others on its processor. If it has, its spans are the
    /// caller's until `let_go`, which gets this date.
    pub(crate) fn is_left(&self, for_a_turn: bool) -> Option<u32> {
        let away = || if for_a_turn { AWAY_TURN_MS } else { patience() };
        // Relaxed here and below, up to the last look: guesses.
        if self.inside.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let word = self.word.load(Ordering::Relaxed);
        match word {
            NEW | UNDATED => {
                if word == UNDATED || self.change(NEW, UNDATED) {
                    self.change(UNDATED, date());
                }
                None
            }
            _ if word < DATED || is_empty(word) || age(word) < away() => None,
            _ => {
                late_fence();
                // Acquire: of the thread's last leave.
                (self.inside.load(Ordering::Acquire) == 0 && self.change(word, LET_GO))
                    .then_some(word)
            }
        }
    }

    /// The heap has no spans any more; or else is left as it was at the date.
    pub(crate) fn let_go(&self, dated: u32, is_all: bool) {
        let word = if is_all { date() - DATED + EMPTY } else { dated };
        // Release: the thread finds what was done.
        self.word.swap(word, Ordering::Release);
        wake(&self.word);
    }

    /// Whether somebody lets go of its spans: in a forked child, a thread that is not there. Relaxed: it is alone, or asserts.
    pub(crate) fn is_torn(&self) -> bool {
        Self::IS_ASKED && self.word.load(Ordering::Relaxed) == LET_GO
    }

    /// Whether its thread is inside, or somebody lets go of its spans.
    pub(crate) fn is_worked_on(&self) -> bool {
        !Self::IS_ASKED || self.inside.load(Ordering::Relaxed) != 0 || self.is_torn()
    }
}

/// Whose presence is looked at next. Relaxed: any will do, and what two threads mix up ends a round too soon or too late.
pub(crate) struct Round {
    next: AtomicUsize,
    /// With whom the round began, and in which millisecond that was.
    first: AtomicUsize,
    ms: AtomicU32,
}

impl Round {
    pub(crate) const fn new() -> Round {
        Round { next: AtomicUsize::new(0), first: AtomicUsize::new(0), ms: AtomicU32::new(0) }
    }

    /// Looks at the next `few` of `all`, up to the first that is found. Once all have been looked at in vain, not again before the
    /// clock goes on: a look takes a cache line from a thread that may be at work, and tells nothing new.
    pub(crate) fn any(&self, all: usize, few: usize, look: impl Fn(usize) -> bool) -> bool {
        let (at, now) = (self.next.load(Ordering::Relaxed), now_ms() as u32);
        if self.ms.load(Ordering::Relaxed) != now {
            self.ms.store(now, Ordering::Relaxed);
            self.first.store(at, Ordering::Relaxed);
        }
        if at.wrapping_sub(self.first.load(Ordering::Relaxed)) >= all {
            return false;
        }
        let few = few.min(all);
        let next = self.next.fetch_add(few, Ordering::Relaxed);
        let is_found = (next..next.wrapping_add(few)).any(|nth| look(nth % all));
        if is_found {
            self.first.store(next.wrapping_add(few), Ordering::Relaxed);
        }
        is_found
    }
}

/// Whether somebody may look: not while a thread forks, whose child could not end what is begun.
pub(crate) fn may_look() -> bool {
    !super::lock::is_forking()
}

fn is_empty(word: u32) -> bool {
    word % DATED == EMPTY % DATED
}

/// Milliseconds of the clock, and no other bits; not 0.
fn date() -> u32 {
    (now_ms() as u32).wrapping_mul(DATED).max(DATED)
}

/// Milliseconds that have passed since a date.
fn age(word: u32) -> u32 {
    date().wrapping_sub(word - word % DATED) / DATED
}

/// How often in a row threads have come back soon, and when they did last. Relaxed: what is lost is one of many.
static REGRETS: AtomicU32 = AtomicU32::new(0);
static REGRETTED: AtomicU32 = AtomicU32::new(0);

/// How long a thread has to be away. Where more threads run than there are processors, some are away for longer than it
/// takes to see that, and need at once what was theirs.
fn patience() -> u32 {
    let regrets = REGRETS.load(Ordering::Relaxed);
    if regrets > 0 && age(REGRETTED.load(Ordering::Relaxed)) > AWAY_MS << REGRETS_MAX {
        REGRETS.store(0, Ordering::Relaxed);
    }
    AWAY_MS << regrets
}

/// A thread has come back whose spans have gone at that date.
fn regret(gone: u32) {
    if age(gone).saturating_sub(AWAY_MS) == 0 {
        let regrets = REGRETS.load(Ordering::Relaxed);
        REGRETS.store((regrets + 1).min(REGRETS_MAX), Ordering::Relaxed);
        REGRETTED.store(date(), Ordering::Relaxed);
    }
}
