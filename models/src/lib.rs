//! Models of the remote word, on the production code: the files below are the allocator's own,
//! compiled against loom's atomics and cells. Loom runs every interleaving and every value that
//! the orderings allow; a cell touched by two threads without a happens-before is an error.
//! Each model names the invariants of `remote.rs` that it proves. docs/protocol.md has the
//! bounds.
#![cfg(test)]

#[path = "../../crates/cairn/src/block.rs"]
mod block;
#[path = "../../crates/cairn/src/remote.rs"]
#[allow(dead_code)] // Not every call has a model of its own.
mod remote;
#[path = "../../crates/cairn/src/sync.rs"]
mod sync;

use block::{Block, Chain};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;
use remote::{Pushed, RemoteWord};

/// A span of a few blocks: the word, and the fields that belong to its holder.
struct Span {
    word: RemoteWord,
    blocks: Vec<Block>,
    /// Blocks that have come back, by whoever held the span then.
    returned: UnsafeCell<u32>,
    listed: Mutex<bool>,
}

// SAFETY: loom checks each access; the blocks' memory lives as long as the span.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    fn new(blocks: usize) -> Arc<Span> {
        Arc::new(Span {
            word: RemoteWord::default(),
            blocks: (0..blocks).map(|_| Block::default()).collect(),
            returned: UnsafeCell::new(0),
            listed: Mutex::new(false),
        })
    }

    fn block(&self, i: usize) -> *mut Block {
        (&raw const self.blocks[i]).cast_mut()
    }

    fn base(&self) -> *mut u8 {
        self.block(0).cast()
    }

    /// Counts a chain and follows its links: invariant 3.
    fn take(&self, chain: Chain) {
        let mut at = chain.head;
        for _ in 0..chain.count {
            assert!(!at.is_null());
            // SAFETY: the chain is ours.
            at = unsafe { Block::next(at) };
        }
        assert!(at.is_null());
        // SAFETY: holders only; loom reports it if there are two (invariant 1).
        self.returned.with_mut(|n| unsafe { *n += chain.count });
    }

    fn push(&self, i: usize) -> Pushed {
        // SAFETY: block i is in use, and this thread's to free.
        unsafe { self.word.push(self.base(), Chain::one(self.block(i))) }
    }

    fn push_two(&self, i: usize) -> Pushed {
        let mut chain = Chain::EMPTY;
        // SAFETY: both blocks are in use, and this thread's to free.
        unsafe {
            chain.push(self.block(i));
            chain.push(self.block(i + 1));
            self.word.push(self.base(), chain)
        }
    }

    /// Counts a block that came with a claim.
    fn claimed(&self, count: u32) {
        // SAFETY: as in `take`.
        self.returned.with_mut(|n| unsafe { *n += count });
    }

    fn total(&self) -> u32 {
        // SAFETY: all threads have ended.
        self.returned.with(|n| unsafe { *n })
    }
}

/// Two threads free while the holder collects: every block comes back once, links intact.
#[test]
fn pushes_and_a_collecting_holder() {
    loom::model(|| {
        let span = Span::new(3);
        let one = span.clone();
        let two = span.clone();
        let a = thread::spawn(move || assert_eq!(one.push(0), Pushed::Queued));
        let b = thread::spawn(move || assert_eq!(two.push_two(1), Pushed::Queued));
        span.take(span.word.collect(span.base()));
        a.join().unwrap();
        b.join().unwrap();
        span.take(span.word.collect(span.base()));
        assert_eq!(span.total(), 3);
    });
}

/// The holder lets go of a full span while another thread frees into it: either the holder is
/// refused and finds the block, or the other one becomes the holder. Invariants 1 and 4.
#[test]
fn a_push_and_a_holder_that_lets_go() {
    loom::model(|| {
        let span = Span::new(2);
        let other = span.clone();
        let a = thread::spawn(move || {
            if other.push(0) == Pushed::Claimed {
                other.claimed(1);
                return true;
            }
            false
        });
        let left = span.word.orphan();
        if !left {
            span.take(span.word.collect(span.base()));
        }
        let claimed = a.join().unwrap();
        assert_eq!(left, claimed);
        assert_eq!(span.total(), 1);
    });
}

/// Two threads free into a full span that nobody holds: one becomes the holder, and the
/// other's blocks reach it.
#[test]
fn two_pushes_into_an_orphan() {
    loom::model(|| {
        let span = Span::new(3);
        assert!(span.word.orphan());
        let other = span.clone();
        let a = thread::spawn(move || match other.push_two(1) {
            Pushed::Claimed => {
                other.claimed(2);
                true
            }
            pushed => {
                assert_eq!(pushed, Pushed::Queued);
                false
            }
        });
        let mine = span.push(0) == Pushed::Claimed;
        if mine {
            span.claimed(1);
        }
        assert_ne!(mine, a.join().unwrap());
        span.take(span.word.collect(span.base()));
        assert_eq!(span.total(), 3);
    });
}

/// The holder lists a span with two blocks in use while both are freed: exactly one thread
/// finds it empty, the holder (refused) or a pusher (which then unlists it).
#[test]
fn listing_against_the_last_frees() {
    loom::model(|| {
        let span = Span::new(2);
        let free = |i| {
            let span = span.clone();
            thread::spawn(move || {
                let pushed = span.push(i);
                if pushed == Pushed::ClaimedEmpty {
                    let mut listed = span.listed.lock().unwrap();
                    assert!(*listed);
                    *listed = false;
                    span.claimed(2);
                }
                pushed == Pushed::ClaimedEmpty
            })
        };
        let (a, b) = (free(0), free(1));
        let mut listed = span.listed.lock().unwrap();
        *listed = true;
        let left = span.word.list(2);
        if !left {
            *listed = false;
            span.take(span.word.collect(span.base()));
        }
        drop(listed);
        let found = [a.join().unwrap(), b.join().unwrap(), !left];
        assert_eq!(found.iter().filter(|&&f| f).count(), 1);
        assert_eq!(span.total(), 2);
    });
}

/// A thread adopts a listed span while its last block is freed: exactly one of them holds it,
/// and no block is lost.
#[test]
fn adoption_against_the_last_free() {
    loom::model(|| {
        let span = Span::new(2);
        *span.listed.lock().unwrap() = true;
        assert!(span.word.list(2));
        assert_eq!(span.push(1), Pushed::Queued);
        let other = span.clone();
        let a = thread::spawn(move || {
            if other.push(0) == Pushed::ClaimedEmpty {
                let mut listed = other.listed.lock().unwrap();
                assert!(*listed);
                *listed = false;
                other.claimed(2);
                return true;
            }
            false
        });
        let mut listed = span.listed.lock().unwrap();
        let adopted = *listed && {
            match span.word.adopt(span.base()) {
                Some(chain) => {
                    *listed = false;
                    span.take(chain);
                    true
                }
                None => false,
            }
        };
        drop(listed);
        let emptied = a.join().unwrap();
        assert_ne!(adopted, emptied);
        if adopted {
            span.take(span.word.collect(span.base()));
        }
        assert_eq!(span.total(), 2);
    });
}

/// What the last holder wrote is seen by the one that claims, through letting go and claiming.
#[test]
fn the_holders_fields_travel_with_the_span() {
    loom::model(|| {
        let span = Span::new(2);
        let other = span.clone();
        let a = thread::spawn(move || {
            other.claimed(10);
            if !other.word.orphan() {
                other.take(other.word.collect(other.base()));
            }
        });
        if span.push(0) == Pushed::Claimed {
            span.claimed(1);
        }
        a.join().unwrap();
        assert_eq!(span.total(), 11);
    });
}
