//! Whole heaps and the public calls: threads that end, free, claim and let go at the same time.
//! Loom watches what the models of spans watch; the hints are numbers here.

use crate::base::policy::CANARY_BYTES;
use crate::base::size_class::{self, SizeClass};
use crate::harness::{
    ALL, HINTS, Model, Sent, assert_released, check, finish, listable_span, spawn,
};
use crate::heap::Heap;
use crate::map::address_map::{self, slice_of};
use crate::map::block::{Block, Chain};
use crate::store::{Caches, Known, Live, Store};
use crate::thread::pool;
use crate::{api, heap, thread};

/// What fills a block of 1 KiB: 16 in a span of one slice, carved four at a time.
const BYTES: usize = 1024 - CANARY_BYTES;
const HEAPS: Model = Model { preemptions: [Some(3), Some(4)], quiet: HINTS, ..ALL };

fn class() -> SizeClass {
    size_class::class_of(BYTES)
}

/// Makes the reservation, and uses everything once that the threads will share.
fn begin() {
    assert!(thread::start());
    let (span, _, blocks) = listable_span(class(), 1);
    // SAFETY: the span is ours, and the block in use.
    unsafe {
        assert!(Live::take_back(blocks[0].get().cast()));
        (*span).push_local(blocks[0].get());
        (*span).release();
    }
}

/// A thread ends, with blocks in hand, while others free the last blocks of its span: the span
/// goes to the list and out of it again, or never gets there; its slice goes back once. One
/// other thread; in full two.
#[test]
fn a_thread_ends_while_others_free() {
    check(HEAPS, |full| {
        begin();
        let heap = pool::take();
        let class = class();
        // SAFETY: this thread's heap; each block is freed once.
        unsafe {
            let first = (*heap).refill(class);
            let second = Caches::pop(&raw mut (*heap).caches, class);
            let index = slice_of(first.cast());
            assert!(!second.is_null() && slice_of(second.cast()) == index);
            let blocks = [Sent(first), Sent(second)];
            let free = |block: Sent<*mut Block>| {
                spawn(move || heap::send_without_heap(index, Chain::one(block.get()), None))
            };
            let mut threads = vec![free(blocks[0])];
            if full {
                threads.push(free(blocks[1]));
            } else {
                assert!(
                    !(*address_map::slot(index).cast::<crate::spans::span::Span>())
                        .push_local(second)
                );
            }
            (*heap).abandon_all();
            pool::put(heap);
            finish(threads);
            assert_released(index);
        }
    });
}

/// A thread lets go of a full span, since it needs another one, and goes on freeing into it, while
/// a second thread frees into it and ends. Whoever reads its own tag in the descriptor holds the
/// span: nobody else touches its fields.
#[test]
fn who_reads_its_own_tag_holds_the_span() {
    check(HEAPS, |full| {
        begin();
        let all: usize = class().layout().blocks.into();
        let blocks: Vec<_> = (0..all).map(|_| Sent(api::allocate(BYTES))).collect();
        let index = slice_of(blocks[0].get());
        assert!(blocks.iter().all(|b| slice_of(b.get()) == index), "one span, and full");
        let [one, two] = [blocks[0], blocks[1]];
        // SAFETY: each block is freed once.
        unsafe {
            let other = spawn(move || {
                api::deallocate(one.get());
                if full {
                    api::deallocate(two.get());
                }
            });
            let more = api::allocate(BYTES);
            assert!(!more.is_null());
            api::deallocate(blocks[2].get());
            other.join().unwrap();
            let rest = if full { 3 } else { 1 };
            for block in blocks[rest..].iter().filter(|b| b.get() != blocks[2].get()) {
                api::deallocate(block.get());
            }
            api::deallocate(more);
        }
        thread::trim(crate::os::notify_all);
        assert_released(index);
    });
}
