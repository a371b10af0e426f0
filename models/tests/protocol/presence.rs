//! A heap's spans, its thread at work and away, and others that let go of them: one at a time touches them.
//! The hardened build has none.
#![cfg(not(feature = "hardened"))]

use crate::base::policy::CANARY_BYTES;
use crate::base::size_class::{self, SizeClass};
use crate::base::sync::{self, touched};
use crate::harness::{ALL, FORKER, Model, Sent, assert_released, check, finish, spawn};
use crate::heap::Heap;
use crate::map::address_map::slice_of;
use crate::map::block::Block;
use crate::spans::abandoned;
use crate::store::{Caches, Store};
use crate::{api, thread, thread::pool};

/// What the lists of spans decide is worth doing are numbers.
const HEAPS: Model = Model { preemptions: [Some(3), Some(4)], quiet: NUMBERS, ..ALL };
const NUMBERS: sync::Quiet = &[
    FORKER,
    ("arena/mod.rs", "usize"),
    ("heap/upkeep.rs", "usize"),
    ("pool/mod.rs", "usize"),
    ("shares.rs", "usize"),
];

/// 16 blocks in a span of one slice, carved four at a time.
const BYTES: usize = 1024 - CANARY_BYTES;

/// A heap of a thread, with one span of which two blocks are in use and the rest at home, and that span's slice.
unsafe fn made() -> (Sent<*mut Heap>, [Sent<*mut Block>; 2], usize) {
    assert!(thread::start());
    let heap = pool::take();
    let class = size_class::class_of(BYTES);
    // SAFETY: this thread's heap; each block is freed once.
    unsafe {
        let blocks = [(*heap).refill(class), Caches::pop(&raw mut (*heap).caches, class)];
        (*heap).empty_cache(class);
        (Sent(heap), blocks.map(Sent), slice_of(blocks[0].cast()))
    }
}

/// Looks at a heap, as who needs a span does: all of it, or one of a long class.
fn look_for(heap: Sent<*mut Heap>, wanted: Option<SizeClass>) -> bool {
    // SAFETY: heaps are never unmapped.
    unsafe { Heap::let_go_of(heap.get(), Heap::epoch(heap.get()), wanted) }
}

fn look(heap: Sent<*mut Heap>) -> bool {
    look_for(heap, None)
}

/// A thread frees and allocates while another one looks twice, and lets go if it may; it frees the rest then.
#[test]
fn a_thread_comes_back_while_another_lets_go() {
    comes_back(None);
}

/// The same where the other one lets go of one class, and the heap is no emptier for it than it says.
#[test]
fn a_thread_comes_back_while_another_takes_a_class() {
    comes_back(Some(size_class::class_of(BYTES)));
}

fn comes_back(wanted: Option<SizeClass>) {
    check(HEAPS, move |full| {
        // SAFETY: the heap is one thread's at a time; each block is freed once.
        unsafe {
            let (heap, blocks, index) = made();
            // It has been looked at, and may be let go of at the next look.
            assert!(!look_for(heap, wanted));
            let others = (0..1 + u32::from(full)).map(|_| spawn(move || look_for(heap, wanted)));
            let others: Vec<_> = others.collect();
            let class = size_class::class_of(BYTES);
            {
                let _inside = (*heap.get()).presence.enter();
                (*heap.get()).put_back(class, blocks[0].get());
            }
            let let_go = finish(others).into_iter().filter(|&is| is).count();
            assert!(let_go <= 1);
            let _inside = (*heap.get()).presence.enter();
            (*heap.get()).put_back(class, blocks[1].get());
            (*heap.get()).abandon_all();
            assert_released(index);
        }
    });
}

/// The same where the thread begins by a free alone, and nobody has looked yet. Time is a fence here.
#[test]
fn a_free_home_while_another_lets_go() {
    check(HEAPS, |_| {
        // SAFETY: as above.
        unsafe {
            let (heap, blocks, index) = made();
            let other = spawn(move || look(heap) || look(heap));
            let class = size_class::class_of(BYTES);
            let [first, second] = blocks.map(|block| block.get());
            let span = crate::map::address_map::slot(index).cast();
            Heap::free_home(heap.get(), span, first, || {
                let _inside = (*heap.get()).presence.enter();
                (*heap.get()).put_back(class, first);
            });
            other.join().unwrap();
            let _inside = (*heap.get()).presence.enter();
            (*heap.get()).put_back(class, second);
            (*heap.get()).abandon_all();
            assert_released(index);
        }
    });
}
