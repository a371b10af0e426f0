//! Large blocks that wait for readers: each goes once, and not before the last reader that may have seen it.
//! The hardened build has none.
#![cfg(not(feature = "hardened"))]

use crate::base::sync::{self, AtomicUsize, Ordering, seen, touched};
use crate::harness::{ALL, FORKER, Model, Sent, assert_released, check, finish, spawn};
use crate::large::budget::HeapStats;
use crate::large::{self, Kept, Owned};
use crate::map::address_map::{self, OWNER_NONE};
use crate::{os, slices::reservation};

/// Three threads. What a heap holds is numbers, and so is what is guessed of large blocks.
const FEW: Model = Model { preemptions: [Some(2), Some(3)], quiet: NUMBERS, ..ALL };
const NUMBERS: sync::Quiet = &[
    FORKER,
    ("arena/mod.rs", "usize"),
    ("arena/purge.rs", "usize"),
    ("large/fill_guess.rs", "usize"),
    // Where a block is, and how long: nobody resizes one.
    ("large/mod.rs", "usize"),
    ("large/mod.rs", "*mut u8"),
    // The last two: what a heap holds.
    ("budget.rs", "usize"),
    ("budget.rs", "bool"),
];
/// All but the last two.
const GUESSES: sync::Quiet = NUMBERS.split_at(NUMBERS.len() - 2).0;

/// A size that no span serves.
const BYTES: usize = 70_000;
/// The epoch of a thread that does not read.
const NONE: usize = usize::MAX;

/// The epoch that the program has told its readers, and which of them a reader has said that it is in.
static EPOCH: AtomicUsize = AtomicUsize::new(1);
static READS: AtomicUsize = AtomicUsize::new(NONE);
/// Leads to the block.
static LINK: AtomicUsize = AtomicUsize::new(1);

/// A large block: where it is, and its first slice.
type Block = (Sent<*mut u8>, usize);

/// A heap in epoch 1, and so many blocks of it.
fn made<const N: usize>() -> (&'static Owned, [Block; N]) {
    assert!(address_map::exists() || reservation::init());
    let at: *mut Owned = os::map(4096).cast();
    // SAFETY: memory of zeros, which nobody else uses.
    let owned = unsafe {
        (*at).grace.begin(16);
        &*at
    };
    // Before there is another thread: here loom gets to know what they share.
    owned.grace.set(1, 0);
    for word in [&EPOCH, &READS, &LINK] {
        word.load(Ordering::Relaxed);
    }
    let blocks = [(); N].map(|()| {
        let block = large::allocate_owned(owned, BYTES, 16).block;
        assert!(!block.is_null());
        touched(block);
        (Sent(block), address_map::slice_of(block))
    });
    assert!(!large::waits(blocks[0].0.get()));
    large::free_due(owned);
    (owned, blocks)
}

/// Frees a block as `api` does; whether it is told that it has.
fn free(block: Sent<*mut u8>) -> bool {
    // SAFETY: one call is the block's owner's; another one is the misuse that is told.
    match unsafe { large::keep(block.get(), "free") } {
        Kept::No => large::free(block.get(), "free"),
        Kept::Waits => true,
        Kept::Twice => false,
    }
}

/// Whether the block that was there is gone.
fn is_gone(index: usize) -> bool {
    address_map::descriptor_at(index).owner.load(Ordering::Relaxed) == OWNER_NONE
}

/// A thread unlinks a block and frees it, one reads what it finds, and one counts epochs.
#[test]
fn a_reader_keeps_what_it_has_found() {
    check(FEW, |_| {
        let (owned, [(block, index)]) = made();
        let freer = spawn(move || {
            LINK.swap(0, Ordering::AcqRel);
            assert!(free(block));
        });
        let reader = spawn(move || {
            READS.store(EPOCH.load(Ordering::Acquire), Ordering::Relaxed);
            loom::sync::atomic::fence(Ordering::SeqCst);
            if LINK.load(Ordering::Acquire) == 1 {
                seen(block.get());
            }
            READS.store(NONE, Ordering::Release);
        });
        let mut gone = false;
        let mut next = |now: usize| {
            loom::sync::atomic::fence(Ordering::SeqCst);
            let least = READS.load(Ordering::Acquire);
            owned.grace.set(now, now.min(least));
            large::free_due(owned);
            EPOCH.store(now, Ordering::Release);
            if !gone && is_gone(index) {
                gone = true;
                // Whoever gets the memory writes there.
                touched(block.get());
            }
        };
        next(2);
        next(3);
        freer.join().expect("a thread");
        reader.join().expect("a thread");
        next(4);
        next(5);
        assert!(gone);
        assert_released(index);
    });
}

/// One says that a reader has left, another takes what is due then, and writes there.
#[test]
fn who_takes_what_is_due_finds_the_readers_gone() {
    check(FEW, |_| {
        let (owned, [(block, index)]) = made();
        READS.store(1, Ordering::Relaxed);
        assert!(free(block));
        owned.grace.set(2, 1);
        let reader = spawn(move || {
            seen(block.get());
            READS.store(NONE, Ordering::Release);
        });
        let taker = spawn(move || {
            large::free_due(owned);
            if is_gone(index) {
                touched(block.get());
            }
        });
        if READS.load(Ordering::Acquire) == NONE {
            owned.grace.set(3, 2);
        }
        finish([reader, taker]);
    });
}

/// Two threads free blocks while a third one takes those that have waited long enough.
#[test]
fn what_waits_goes_once() {
    check(FEW, |_| {
        let (owned, blocks) = made::<3>();
        assert!(free(blocks[0].0));
        owned.grace.set(2, 1);
        owned.grace.set(3, 2);
        let frees = [blocks[1], blocks[2]].map(|(block, _)| spawn(move || assert!(free(block))));
        large::free_due(owned);
        assert!(is_gone(blocks[0].1));
        owned.grace.set(4, 3);
        owned.grace.set(5, 4);
        large::free_due(owned);
        finish(frees);
        owned.grace.set(6, 5);
        owned.grace.set(7, 6);
        large::free_due(owned);
        assert!(!owned.grace.has_waiting());
        blocks.iter().for_each(|&(_, index)| assert_released(index));
    });
}

/// The last large block of a heap is freed while the heap is deleted: then another one may stand in its place.
#[test]
fn who_frees_a_block_leaves_a_heap_alone_that_is_deleted() {
    check(Model { quiet: GUESSES, ..FEW }, |_| {
        let (owned, [(block, index)]) = made();
        let freer = spawn(move || assert!(free(block)));
        large::end_readers(owned);
        large::set_free(owned);
        let HeapStats { spans, large, large_blocks, .. } = owned.budget.stats();
        assert_eq!((spans, large, large_blocks), (0, 0, 0));
        finish([freer]);
        assert_released(index);
    });
}

/// A block is freed while its heap is deleted: it goes once, whoever is first. In full two threads free it, and one is told
/// that it was late.
#[test]
fn a_block_goes_once_while_its_heap_is_deleted() {
    check(FEW, |full| {
        let (owned, [(block, index), (other, its)]) = made();
        let frees: Vec<_> =
            (0..if full { 2 } else { 1 }).map(|_| spawn(move || free(block))).collect();
        large::end_readers(owned);
        large::set_free(owned);
        let freed = finish(frees);
        assert_eq!(freed.iter().filter(|&&freed| freed).count(), 1);
        assert_released(index);
        // What was in use lives on, and belongs to nobody.
        assert!(!is_gone(its) && large::owner_of(other.get()).is_null());
        assert!(free(other));
        assert_released(its);
    });
}

/// Two threads free the same block: one is told.
#[test]
fn a_block_waits_once() {
    check(FEW, |_| {
        let (owned, [(block, index)]) = made();
        let frees = [(); 2].map(|()| spawn(move || free(block)));
        let freed = finish(frees);
        assert_eq!(freed.iter().filter(|&&freed| freed).count(), 1);
        large::end_readers(owned);
        large::set_free(owned);
        assert_released(index);
    });
}

/// Two threads free the same block while its heap's readers end: one is told, whether the block waits or not.
#[test]
fn a_block_waits_once_while_its_readers_end() {
    check(FEW, |_| {
        let (owned, [(block, index)]) = made();
        let frees = [(); 2].map(|()| spawn(move || free(block)));
        large::end_readers(owned);
        let freed = finish(frees);
        assert_eq!(freed.iter().filter(|&&freed| freed).count(), 1);
        large::set_free(owned);
        assert_released(index);
    });
}
