//! The remote word alone, on blocks in the reservation: its invariants 1 to 4.

use crate::address_map;
use crate::block::{Block, Chain};
use crate::harness::{ALL, Model, Size, check, spawn};
use crate::remote::{Pushed, RemoteWord};
use crate::reservation;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};

/// With three threads and more.
const DEEP: Model = Model { preemptions: [Some(4), Some(4)], ..ALL };

/// A span of a few blocks: the word, and what stands for the fields that belong to its owner.
struct Blocks {
    index: usize,
    /// Blocks that have come back, by whoever held the span then.
    returned: UnsafeCell<u32>,
    listed: Mutex<bool>,
}

// SAFETY: loom checks each access.
unsafe impl Send for Blocks {}
// SAFETY: as above.
unsafe impl Sync for Blocks {}

impl Blocks {
    fn new() -> Arc<Blocks> {
        assert!(reservation::init());
        let index = address_map::first_slice();
        assert!(reservation::commit(address_map::CHUNK_SLICES));
        let blocks = Blocks { index, returned: UnsafeCell::new(0), listed: Mutex::new(false) };
        assert!(blocks.word().is_owned());
        for i in 0..4 {
            // SAFETY: in the reservation, and nobody else's yet.
            unsafe { Block::set_next(blocks.block(i), core::ptr::null_mut()) };
        }
        Arc::new(blocks)
    }

    fn word(&self) -> &'static RemoteWord {
        // SAFETY: a committed slice.
        unsafe { address_map::remote_word(self.index) }
    }

    fn base(&self) -> *mut u8 {
        address_map::slice_address(self.index)
    }

    fn block(&self, i: usize) -> *mut Block {
        self.base().wrapping_add(i * size_of::<Block>()).cast()
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
        self.claimed(chain.count);
    }

    fn push(&self, i: usize) -> Pushed {
        // SAFETY: block i is in use, and this thread's to free.
        unsafe { self.word().push(self.base(), Chain::one(self.block(i)), None) }
    }

    fn push_two(&self, i: usize) -> Pushed {
        let mut chain = Chain::EMPTY;
        // SAFETY: both blocks are in use, and this thread's to free.
        unsafe {
            chain.push(self.block(i));
            chain.push(self.block(i + 1));
            self.word().push(self.base(), chain, None)
        }
    }

    /// Counts blocks that came with a claim. Holders only; loom reports it if there are two
    /// (invariant 1).
    fn claimed(&self, count: u32) {
        // SAFETY: as said.
        self.returned.with_mut(|n| unsafe { *n += count });
    }

    /// Frees block `i` of a listed span; whether that was the last one. Then it is unlisted.
    fn push_listed(&self, i: usize, live: u32) -> bool {
        let empty = self.push(i) == Pushed::ClaimedEmpty;
        if empty {
            let mut listed = self.listed.lock().unwrap();
            assert!(*listed);
            *listed = false;
            self.claimed(live);
        }
        empty
    }

    fn collect(&self) {
        self.take(self.word().collect(self.base()));
    }

    fn total(&self) -> u32 {
        // SAFETY: all threads have ended.
        self.returned.with(|n| unsafe { *n })
    }
}

/// Threads free, one block and two at once, while the owner collects: every block comes back
/// once, links intact (3). Two threads and the owner; in full a third thread.
#[test]
fn pushes_and_a_collecting_holder() {
    check(DEEP, |size| {
        let span = Blocks::new();
        let [one, two, three] = [(); 3].map(|()| span.clone());
        let a = spawn(move || assert_eq!(one.push(0), Pushed::Queued));
        let b = spawn(move || assert_eq!(two.push_two(1), Pushed::Queued));
        let c =
            (size == Size::Full).then(|| spawn(move || assert_eq!(three.push(3), Pushed::Queued)));
        let all = if c.is_some() { 4 } else { 3 };
        span.collect();
        a.join().unwrap();
        b.join().unwrap();
        c.into_iter().for_each(|c| c.join().unwrap());
        span.collect();
        assert_eq!(span.total(), all);
    });
}

/// The owner lets go of a full span while others free into it: either the owner is refused
/// and finds a block, or one of the others becomes the owner (1, 4). One other; in full two.
#[test]
fn a_push_and_a_holder_that_lets_go() {
    check(ALL, |size| {
        let span = Blocks::new();
        let others = if size == Size::Full { 2 } else { 1 };
        let free = |i| {
            let other = span.clone();
            spawn(move || {
                let claimed = other.push(i) == Pushed::Claimed;
                if claimed {
                    other.claimed(1);
                }
                claimed
            })
        };
        let others: Vec<_> = (0..others).map(free).collect();
        let count = others.len() as u32;
        let left = span.word().abandon();
        if !left {
            span.collect();
        }
        let claimed = others.into_iter().map(|t| t.join().unwrap()).filter(|&c| c).count();
        assert_eq!(usize::from(left), claimed);
        span.collect();
        assert_eq!(span.total(), count);
    });
}

/// Two threads free into a full span that nobody holds: one becomes the owner, and the other's
/// blocks reach it (1, 3).
#[test]
fn two_pushes_into_an_abandoned() {
    check(ALL, |_| {
        let span = Blocks::new();
        assert!(span.word().abandon());
        let other = span.clone();
        let a = spawn(move || match other.push_two(1) {
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
        span.collect();
        assert_eq!(span.total(), 3);
    });
}

/// The owner lists a span while its last blocks are freed: exactly one thread finds it empty,
/// the owner (refused) or a pusher, which then unlists it (1, 2). Two blocks and pushers; in
/// full three.
#[test]
fn listing_against_the_last_frees() {
    check(DEEP, |size| {
        let live = if size == Size::Full { 3 } else { 2 };
        let span = Blocks::new();
        let free = |i| {
            let span = span.clone();
            spawn(move || span.push_listed(i, live))
        };
        let others: Vec<_> = (0..live as usize).map(free).collect();
        let mut listed = span.listed.lock().unwrap();
        *listed = true;
        let left = span.word().list(live);
        if !left {
            *listed = false;
            span.collect();
        }
        drop(listed);
        let found = others.into_iter().map(|t| t.join().unwrap()).filter(|&f| f).count();
        assert_eq!(found + usize::from(!left), 1);
        assert_eq!(span.total(), live);
    });
}

/// A thread reclaims a listed span while its last blocks are freed: exactly one thread holds it,
/// and no block is lost (1, 2). One block; in full two, by two threads.
#[test]
fn reclaim_against_the_last_free() {
    check(DEEP, |size| {
        let last = if size == Size::Full { 2 } else { 1 };
        let live = last as u32 + 1;
        let span = Blocks::new();
        *span.listed.lock().unwrap() = true;
        assert!(span.word().list(live));
        assert_eq!(span.push(3), Pushed::Queued);
        let free = |i| {
            let span = span.clone();
            spawn(move || span.push_listed(i, live))
        };
        let others: Vec<_> = (0..last).map(free).collect();
        let mut listed = span.listed.lock().unwrap();
        let pending = if *listed { span.word().reclaim(span.base()) } else { None };
        let reclaimed = pending.is_some();
        if let Some(chain) = pending {
            *listed = false;
            span.take(chain);
        }
        drop(listed);
        let emptied = others.into_iter().map(|t| t.join().unwrap()).filter(|&f| f).count();
        assert_eq!(emptied + usize::from(reclaimed), 1);
        if reclaimed {
            span.collect();
        }
        assert_eq!(span.total(), live);
    });
}

/// What the last owner of a full span wrote is seen by the thread that claims it (1).
#[test]
fn the_holders_fields_travel_to_a_claimer() {
    check(ALL, |_| {
        let span = Blocks::new();
        let other = span.clone();
        let a = spawn(move || {
            other.claimed(10);
            if !other.word().abandon() {
                other.collect();
            }
        });
        if span.push(0) == Pushed::Claimed {
            span.claimed(1);
        }
        a.join().unwrap();
        assert_eq!(span.total(), 11);
    });
}

/// What the last owner of a listed span wrote is seen by the thread that frees its last block,
/// and needs no lock for that (1).
#[test]
fn the_holders_fields_travel_to_the_last_free() {
    check(ALL, |_| {
        let span = Blocks::new();
        let other = span.clone();
        let a = spawn(move || {
            other.claimed(10);
            if !other.word().list(1) {
                other.collect();
            }
        });
        if span.push(0) == Pushed::ClaimedEmpty {
            span.claimed(1);
        }
        a.join().unwrap();
        assert_eq!(span.total(), 11);
    });
}

/// What was written into a block before it was freed happens before whatever its next owner
/// writes, by way of `collect`, of `reclaim`, and of a claim that finds others' blocks later (3).
#[test]
fn a_blocks_contents_travel_with_it() {
    check(ALL, |_| {
        let span = Blocks::new();
        let other = span.clone();
        let a = spawn(move || {
            let block = other.block(1);
            crate::sync::touched(block.wrapping_byte_add(8));
            other.push(1)
        });
        let take = |chain: Chain| {
            if chain.count > 0 {
                crate::sync::touched(chain.head.wrapping_byte_add(8));
            }
            chain.count
        };
        let listed = span.word().list(2);
        let mut got = 0;
        if listed {
            got += take(span.word().reclaim(span.base()).expect("two are in use, one is freed"));
        }
        got += take(span.word().collect(span.base()));
        assert_eq!(a.join().unwrap(), Pushed::Queued);
        got += take(span.word().collect(span.base()));
        assert_eq!(got, 1);
    });
}
