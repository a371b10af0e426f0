//! Owns: the atomic word through which threads that do not hold a span give blocks back to it.
//! Idea: one CAS carries a whole batch, its length, and the question who holds the span now.
//! Never: knows the OS, thread-local state or size classes; never reads a span's own fields.
//! Threads: any thread may push; the other calls belong to the owner or, where said, to who
//!   holds the lock of the list of abandoned spans.
//! Checked: loom models (the `models` crate) on this very code; states asserted in debug builds.
//! Story: docs/design/remote-frees.md

use crate::base::{AtomicU64, Ordering};
use crate::map::block::{Block, Chain, END, FreeList};

// The word, from bit 0:
//
//     head:16        offset of the first pending block from the span's base, in 16 B, plus 1; 0 = none
//     count:11       number of pending blocks
//     live:11        LISTED only: blocks that were in use when the span was listed
//     status:2       who holds the span
//     generation:24  how many spans here have been destroyed with blocks in use
//
// | status | owner          | pending frees | next push                                    |
// |--------|-----------------|---------------|----------------------------------------------|
// | OWNED  | one heap        | accumulate    | queues                                       |
// | ABANDONED | none, full      | none          | claims: the pusher becomes the owner        |
// | LISTED | none, in a list | accumulate    | queues, or claims if that frees the last one |
//
// Invariants
//  1. At most one thread holds a span: the one that made the word OWNED (by claim or reclaim)
//     or created the span; only it may leave OWNED.
//  2. count <= blocks in use as the last owner saw them; LISTED: count < live.
//  3. A pending block, and its link, belong to the pusher until its CAS succeeds, then to
//     whoever next takes the list.
//  4. ABANDONED has count = 0: a span with free blocks is never unreachable.
//  5. A block in a batch under way still counts as in use, so its span cannot be released.
//  6. The generation changes when the owner destroys the span, and not otherwise. A free that names
//     another one is dropped: what it was meant for is gone.
const OWNED: u64 = 0;
const ABANDONED: u64 = 1;
const LISTED: u64 = 2;

const COUNT_BITS: u32 = 11;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
const COUNT_SHIFT: u32 = 16;
const LIVE_SHIFT: u32 = COUNT_SHIFT + COUNT_BITS;
const STATUS_SHIFT: u32 = LIVE_SHIFT + COUNT_BITS;
const GENERATION_SHIFT: u32 = STATUS_SHIFT + 2;

/// Which span of those that come and go in one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Generation(u64);

/// Bytes per unit of a head offset; also the least block alignment.
const UNIT: usize = 16;

#[derive(Clone, Copy)]
struct State(u64);

impl State {
    /// What comes after `self` in the same generation.
    fn with(self, status: u64, head: u64, count: u64, live: u64) -> State {
        debug_assert!(head < 1 << COUNT_SHIFT && live <= COUNT_MAX);
        // There are at most 1,024 blocks. More: the program has freed one twice.
        let count = count.min(COUNT_MAX);
        let generation = self.0 >> GENERATION_SHIFT << GENERATION_SHIFT;
        let (live, count) = (live << LIVE_SHIFT, count << COUNT_SHIFT);
        State(generation | status << STATUS_SHIFT | live | count | head)
    }

    /// Held, with nothing pending.
    fn held(self) -> State {
        self.with(OWNED, 0, 0, 0)
    }

    fn generation(self) -> Generation {
        Generation(self.0 >> GENERATION_SHIFT)
    }

    fn status(self) -> u64 {
        self.0 >> STATUS_SHIFT & 3
    }

    fn live(self) -> u64 {
        self.0 >> LIVE_SHIFT & COUNT_MAX
    }

    fn count(self) -> u64 {
        self.0 >> COUNT_SHIFT & COUNT_MAX
    }

    fn head_field(self) -> u64 {
        self.0 & 0xffff
    }

    fn head(self, base: *mut u8) -> *mut Block {
        match self.head_field() {
            0 => END,
            h => base.wrapping_add((h as usize - 1) * UNIT).cast(),
        }
    }

    fn list(self, base: *mut u8) -> FreeList {
        FreeList { head: self.head(base), count: self.count() as u32 }
    }
}

/// What a push did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pushed {
    /// The blocks wait for the owner.
    Queued,
    /// The span is listed: they wait for a reclaimer.
    Listed,
    /// The span was full and nobody's: the caller holds it now, and the batch with it.
    Claimed,
    /// The span was listed and this freed its last block: the caller holds it now and has
    /// to take it out of its list.
    ClaimedEmpty,
    /// The span that it was meant for has been destroyed.
    Dropped,
}

/// The word of one span. A zeroed word is OWNED with nothing pending.
#[repr(transparent)]
#[derive(Default)]
pub(crate) struct RemoteWord(AtomicU64);

impl RemoteWord {
    /// Gives `batch` back to the span at `base`, if that is still the one of the generation, where there
    /// may be another; any thread.
    ///
    /// # Safety
    /// The blocks of `batch` are blocks of that span, in use, and the caller's to free; the
    /// chain is linked up to `batch.tail`.
    pub(crate) unsafe fn push(
        &self,
        base: *mut u8,
        batch: Chain,
        meant: Option<Generation>,
    ) -> Pushed {
        let head = (batch.list.head.addr() - base.addr()) as u64 / UNIT as u64 + 1;
        // Relaxed: the value is only a guess that the CAS verifies.
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            let state = State(old);
            if meant.is_some_and(|meant| meant != state.generation()) {
                return Pushed::Dropped;
            }
            let count = state.count() + u64::from(batch.list.count);
            let (new, pushed) = match state.status() {
                OWNED => (state.with(OWNED, head, count, 0), Pushed::Queued),
                ABANDONED => (state.held(), Pushed::Claimed),
                // More than there were: the program has freed one twice.
                _ if count >= state.live() => (state.held(), Pushed::ClaimedEmpty),
                _ => (state.with(LISTED, head, count, state.live()), Pushed::Listed),
            };
            // SAFETY: invariant 3: the tail is still ours. The old head is linked, not read.
            unsafe { Block::set_next(batch.tail, state.head(base)) };
            // Release: the links and the last writes to the blocks become visible to whoever
            // takes the list. Acquire: a claimer sees the span as its last owner left it.
            match self.0.compare_exchange_weak(old, new.0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return pushed,
                Err(now) => old = now,
            }
        }
    }

    /// Takes what is pending; owner only.
    pub(crate) fn collect(&self, base: *mut u8) -> FreeList {
        // Relaxed: a stale "nothing" only delays the blocks to the next visit.
        let held = match State(self.0.load(Ordering::Relaxed)) {
            state if state.count() == 0 => return FreeList::EMPTY,
            state => state.held(),
        };
        // Acquire: pairs with the pushers' Release. The owner stays the owner, so nothing
        // of its own needs to be released, and the generation is what it was.
        let state = State(self.0.swap(held.0, Ordering::Acquire));
        debug_assert_eq!(state.status(), OWNED);
        state.list(base)
    }

    /// Lets go of a full span; owner only. Refused (false) if frees are pending: invariant 4.
    pub(crate) fn abandon(&self) -> bool {
        let held = State(self.0.load(Ordering::Relaxed)).held();
        let new = held.with(ABANDONED, 0, 0, 0);
        // Release: the next owner sees the span's fields as they are now.
        self.0.compare_exchange(held.0, new.0, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Which span this is the word of.
    pub(crate) fn generation(&self) -> Generation {
        // Acquire: who finds the next one finds that the descriptors do not name the span's heap any more.
        State(self.0.load(Ordering::Acquire)).generation()
    }

    /// Ends the generation, with all that is pending; owner only, whose span nobody else can find any more.
    pub(crate) fn destroy(&self) {
        let held = State(self.0.load(Ordering::Relaxed)).held();
        // Wraps to 0: a free is not under way while 16 million spans are destroyed in one place.
        let next = held.0.wrapping_add(1 << GENERATION_SHIFT);
        // Release: pairs with `generation`. What was pushed is dropped unseen.
        self.0.swap(next, Ordering::Release);
    }

    /// Lets go of a span with `live > 0` blocks in use; owner only, who has put it in an
    /// list of abandoned spans and holds that list's lock. Refused (false) if pending frees are all of
    /// them: then the caller keeps the span.
    pub(crate) fn list(&self, live: u32) -> bool {
        debug_assert!(live > 0);
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            let state = State(old);
            debug_assert_eq!(state.status(), OWNED);
            if state.count() == u64::from(live) {
                return false;
            }
            let new = state.with(LISTED, state.head_field(), state.count(), u64::from(live));
            // Release: as in `abandon`.
            match self.0.compare_exchange_weak(old, new.0, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
    }

    /// Becomes the owner of a listed span and takes what is pending; the caller holds the
    /// list's lock. None if a push has claimed it first and waits for that lock.
    pub(crate) fn reclaim(&self, base: *mut u8) -> Option<FreeList> {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            let state = State(old);
            if state.status() != LISTED {
                return None;
            }
            // Acquire: the blocks' links and the last owner's fields.
            let new = state.held();
            match self.0.compare_exchange_weak(old, new.0, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(state.list(base)),
                Err(now) => old = now,
            }
        }
    }

    /// Blocks in use in a listed span, pending ones not counted; a hint. None if not listed.
    pub(crate) fn listed_live(&self) -> Option<u32> {
        self.listed().map(|(_, live)| live)
    }

    /// The same beside how many there were when it was listed.
    pub(crate) fn listed(&self) -> Option<(u32, u32)> {
        let state = State(self.0.load(Ordering::Relaxed));
        let (then, pending) = (state.live() as u32, state.count() as u32);
        (state.status() == LISTED).then(|| (then, then.saturating_sub(pending)))
    }

    /// Whether some thread holds the span; a hint.
    pub(crate) fn is_owned(&self) -> bool {
        State(self.0.load(Ordering::Relaxed)).status() == OWNED
    }

    /// Whether the next push makes its thread the owner; a hint.
    pub(crate) fn is_claimable(&self) -> bool {
        // Relaxed: the push finds out.
        State(self.0.load(Ordering::Relaxed)).status() == ABANDONED
    }

    /// The first of them, or `END`, while others may be at work.
    pub(crate) fn pending_head(&self, base: *mut u8) -> *mut Block {
        State(self.0.load(Ordering::Relaxed)).head(base)
    }

    /// How many frees are pending; a hint.
    pub(crate) fn pending(&self) -> u32 {
        State(self.0.load(Ordering::Relaxed)).count() as u32
    }
}
