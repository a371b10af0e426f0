//! The remote word alone, on blocks in the reservation: its invariants 1 to 4.

use crate::harness::{ALL, Model, check, finish, spawn};
use crate::map::address_map;
use crate::map::block::{Block, Chain, END, FreeList};
use crate::map::remote::{Pushed, RemoteWord};
use crate::slices::reservation;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread::JoinHandle;

/// With three threads and more.
const DEEP: Model = Model { preemptions: [Some(4), Some(4)], ..ALL };

/// A span of a few blocks: the word, and what stands for the fields that belong to its owner.
struct Blocks {
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
        assert!(reservation::commit(address_map::CHUNK_SLICES));
        let blocks = Blocks { returned: UnsafeCell::new(0), listed: Mutex::new(false) };
        assert!(blocks.word().is_owned());
        for i in 0..4 {
            // SAFETY: in the reservation, and nobody else's yet.
            unsafe { Block::set_next(blocks.block(i), END) };
        }
        Arc::new(blocks)
    }

    fn word(&self) -> &'static RemoteWord {
        // SAFETY: a committed slice.
        unsafe { address_map::remote_word(0) }
    }

    fn base(&self) -> *mut u8 {
        address_map::slice_address(0)
    }

    fn block(&self, i: usize) -> *mut Block {
        self.base().wrapping_add(i * size_of::<Block>()).cast()
    }

    /// Counts a list and follows its links: invariant 3.
    fn take(&self, list: FreeList) {
        let mut at = list.head;
        for _ in 0..list.count {
            assert!(at != END);
            // SAFETY: the list is ours.
            at = unsafe { Block::next(at) };
        }
        assert!(list.count == 0 || at == END);
        self.claimed(list.count);
    }

    /// Frees these blocks at once.
    fn push(&self, blocks: &[usize]) -> Pushed {
        let mut chain = Chain::EMPTY;
        // SAFETY: they are in use, and this thread's to free.
        unsafe {
            blocks.iter().for_each(|&i| chain.push(self.block(i)));
            self.word().push(self.base(), chain, None)
        }
    }

    /// Counts blocks that came with a claim. Holders only; loom reports it if there are two (invariant 1).
    fn claimed(&self, count: u32) {
        // SAFETY: as said.
        self.returned.with_mut(|n| unsafe { *n += count });
    }

    /// Frees blocks of a full span; whether that claims it.
    fn push_full(&self, blocks: &[usize]) -> bool {
        let pushed = self.push(blocks);
        if pushed == Pushed::Claimed {
            self.claimed(blocks.len() as u32);
        } else {
            assert_eq!(pushed, Pushed::Queued);
        }
        pushed == Pushed::Claimed
    }

    /// Frees block `i` of a listed span; whether that was the last one. Then it is unlisted.
    fn push_listed(&self, i: usize, live: u32) -> bool {
        let empty = self.push(&[i]) == Pushed::ClaimedEmpty;
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

/// Starts a thread that reaches the span, too.
fn share<T: Send + 'static>(
    span: &Arc<Blocks>,
    body: impl FnOnce(&Blocks) -> T + Send + 'static,
) -> JoinHandle<T> {
    let span = span.clone();
    spawn(move || body(&span))
}

/// How many threads say so.
fn count(threads: impl IntoIterator<Item = JoinHandle<bool>>) -> usize {
    finish(threads).into_iter().filter(|&said| said).count()
}

/// Threads free, one block and two at once, while the owner collects: every block comes back
/// once, links intact (3). Two threads and the owner; in full a third thread.
#[test]
fn pushes_and_a_collecting_holder() {
    check(DEEP, |full| {
        let span = Blocks::new();
        let freed: &[&'static [usize]] =
            if full { &[&[0], &[1, 2], &[3]] } else { &[&[0], &[1, 2]] };
        let free = |&blocks: &&'static [usize]| {
            share(&span, move |span| assert_eq!(span.push(blocks), Pushed::Queued))
        };
        let threads: Vec<_> = freed.iter().map(free).collect();
        span.collect();
        finish(threads);
        span.collect();
        assert_eq!(span.total() as usize, freed.concat().len());
    });
}

/// The owner lets go of a full span while others free into it: either the owner is refused
/// and finds a block, or one of the others becomes the owner (1, 4). One other; in full two.
#[test]
fn a_push_and_a_holder_that_lets_go() {
    check(ALL, |full| {
        let span = Blocks::new();
        let others = if full { 2 } else { 1 };
        let threads: Vec<_> =
            (0..others).map(|i| share(&span, move |span| span.push_full(&[i]))).collect();
        let left = span.word().abandon();
        if !left {
            span.collect();
        }
        assert_eq!(usize::from(left), count(threads));
        span.collect();
        assert_eq!(span.total() as usize, others);
    });
}

/// Two threads free into a full span that nobody holds: one becomes the owner, and the other's
/// blocks reach it (1, 3).
#[test]
fn two_pushes_into_an_abandoned() {
    check(ALL, |_| {
        let span = Blocks::new();
        assert!(span.word().abandon());
        let other = share(&span, |span| span.push_full(&[1, 2]));
        let mine = span.push_full(&[0]);
        assert_ne!(mine, other.join().unwrap());
        span.collect();
        assert_eq!(span.total(), 3);
    });
}

/// The owner lists a span while its last blocks are freed: exactly one thread finds it empty,
/// the owner (refused) or a pusher, which then unlists it (1, 2). Two blocks and pushers; in
/// full three.
#[test]
fn listing_against_the_last_frees() {
    check(DEEP, |full| {
        let live = if full { 3 } else { 2 };
        let span = Blocks::new();
        let free = |i| share(&span, move |span| span.push_listed(i, live));
        let others: Vec<_> = (0..live as usize).map(free).collect();
        let mut listed = span.listed.lock().unwrap();
        *listed = true;
        let left = span.word().list(live);
        if !left {
            *listed = false;
            span.collect();
        }
        drop(listed);
        assert_eq!(count(others) + usize::from(!left), 1);
        assert_eq!(span.total(), live);
    });
}

/// A thread reclaims a listed span while its last blocks are freed: exactly one thread holds it,
/// and no block is lost (1, 2). One block; in full two, by two threads.
#[test]
fn reclaim_against_the_last_free() {
    check(DEEP, |full| {
        let last = if full { 2 } else { 1 };
        let live = last as u32 + 1;
        let span = Blocks::new();
        *span.listed.lock().unwrap() = true;
        assert!(span.word().list(live));
        assert_eq!(span.push(&[3]), Pushed::Listed);
        let free = |i| share(&span, move |span| span.push_listed(i, live));
        let others: Vec<_> = (0..last).map(free).collect();
        let mut listed = span.listed.lock().unwrap();
        let pending = if *listed { span.word().reclaim(span.base()) } else { None };
        let reclaimed = pending.is_some();
        if let Some(chain) = pending {
            *listed = false;
            span.take(chain);
        }
        drop(listed);
        assert_eq!(count(others) + usize::from(reclaimed), 1);
        if reclaimed {
            span.collect();
        }
        assert_eq!(span.total(), live);
    });
}

/// The last owner of a span writes and lets go of it, while a block is freed: what it wrote is seen
/// by the thread whose push is answered with `claim`, and that needs no lock (1).
fn fields_travel(let_go: fn(&RemoteWord) -> bool, claim: Pushed) {
    let span = Blocks::new();
    let owner = share(&span, move |span| {
        span.claimed(10);
        if !let_go(span.word()) {
            span.collect();
        }
    });
    if span.push(&[0]) == claim {
        span.claimed(1);
    }
    owner.join().unwrap();
    assert_eq!(span.total(), 11);
}

/// Of a full span: by the thread that claims it.
#[test]
fn the_holders_fields_travel_to_a_claimer() {
    check(ALL, |_| fields_travel(RemoteWord::abandon, Pushed::Claimed));
}

/// Of a listed span: by the thread that frees its last block.
#[test]
fn the_holders_fields_travel_to_the_last_free() {
    check(ALL, |_| fields_travel(|word| word.list(1), Pushed::ClaimedEmpty));
}

/// What was written into a block before it was freed happens before whatever its next owner
/// writes, by way of `collect`, of `reclaim`, and of a claim that finds others' blocks later (3).
#[test]
fn a_blocks_contents_travel_with_it() {
    check(ALL, |_| {
        let span = Blocks::new();
        let other = share(&span, |span| {
            crate::base::sync::touched(span.block(1).wrapping_byte_add(8));
            span.push(&[1])
        });
        let take = |list: FreeList| {
            if list.count > 0 {
                crate::base::sync::touched(list.head.wrapping_byte_add(8));
            }
            list.count
        };
        let mut got = 0;
        if span.word().list(2) {
            got += take(span.word().reclaim(span.base()).expect("two are in use, one is freed"));
        }
        got += take(span.word().collect(span.base()));
        assert!(matches!(other.join().unwrap(), Pushed::Queued | Pushed::Listed));
        got += take(span.word().collect(span.base()));
        assert_eq!(got, 1);
    });
}
