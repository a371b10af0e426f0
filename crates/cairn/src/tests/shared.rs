//! Shared heaps: each thread has a part, parts outlive their threads, and all go at once.

use super::alone::alone;
use super::forks::child_does;
use super::heaps::{Other, free};
use crate::base::SLICE_SIZE;
use crate::thread::pool;
use crate::{Heap, Stats, allocate, check, heap_of, owner_thread, purge, thread_number};
use std::sync::Arc;
use std::vec::Vec;

/// Of all kinds: spans of each length, a run, a mapping.
const SIZES: [usize; 6] = [16, 1000, 4000, 60_000, 300_000, 40 << 20];

fn in_use() -> usize {
    let stats = Stats::take();
    stats.spans.bytes + stats.large.bytes + stats.mappings.bytes
}

fn blocks(heap: &Heap<crate::Shared>, size: usize, count: usize) -> Vec<*mut u8> {
    let block = |_| {
        let block = heap.allocate(size, 16);
        assert!(!block.is_null());
        // SAFETY: a new block of that size.
        unsafe { block.write_bytes(7, size.min(5000)) };
        block
    };
    (0..count).map(block).collect()
}

#[test]
fn all_threads_allocate_and_all_of_it_goes() {
    alone(|| {
        free(allocate(64));
        purge();
        let before = in_use();
        for _ in 0..3 {
            let heap = Arc::new(Heap::shared().expect("memory"));
            let others: Vec<_> = (0..3).map(|_| Other::new()).collect();
            let mut held = Vec::new();
            for size in SIZES {
                let count = if size > 100_000 { 2 } else { 200 };
                for other in &others {
                    let heap = heap.clone();
                    held.extend(other.does(move || blocks(&heap, size, count)));
                }
                held.extend(blocks(&heap, size, count));
            }
            assert!(held.iter().all(|&block| heap_of(block) == Some(heap.id())));
            assert!(in_use() > before + 100 * SLICE_SIZE);
            assert_eq!(heap.stats().large_blocks, 16);
            // Frees by all of them, of all parts.
            for (nth, other) in others.iter().enumerate() {
                other.frees(&held[nth * 200..nth * 200 + 100]);
            }
            held[700..800].iter().copied().for_each(free);
            check();
            others.into_iter().for_each(Other::leaves);
            let heap = Arc::into_inner(heap).expect("the others have left");
            heap.destroy();
            purge();
            check();
            assert_eq!(in_use(), before);
        }
    });
}

/// A thread that comes takes over what one that has left had: the number of parts does not grow.
#[test]
fn parts_outlive_their_threads() {
    alone(|| {
        let heap = Arc::new(Heap::shared().expect("memory"));
        let mut held = Vec::new();
        let mut made = 0;
        for round in 0..200 {
            let (other, heap) = (Other::new(), heap.clone());
            held.push(other.does(move || blocks(&heap, 64, 10)));
            other.leaves();
            if round == 40 {
                made = pool::counts().1;
            }
        }
        assert_eq!(pool::counts().1, made);
        assert!(heap.stats().spans <= 17 * SLICE_SIZE);
        let mut all: Vec<_> = held.into_iter().flatten().collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 2000);
        all.into_iter().for_each(free);
        check();
    });
}

/// A heap at the place of an earlier one is another heap.
#[test]
fn a_part_is_of_one_heap() {
    alone(|| {
        let other = Other::new();
        for _ in 0..20 {
            let heaps = [(); 2].map(|()| Arc::new(Heap::shared().expect("memory")));
            for nth in [0, 1, 0, 1, 1] {
                let heap = heaps[nth].clone();
                let theirs = other.does(move || blocks(&heap, 100, 3));
                let mine = blocks(&heaps[nth], 100, 3);
                let ids = mine.iter().chain(&theirs).map(|&block| heap_of(block));
                assert!(ids.clone().count() == 6 && { ids }.all(|id| id == Some(heaps[nth].id())));
            }
            for heap in heaps {
                Arc::into_inner(heap).expect("nobody else's").destroy();
            }
            check();
        }
        other.leaves();
    });
}

#[test]
fn what_is_in_use_of_a_deleted_heap_lives_on() {
    alone(|| {
        free(allocate(64));
        purge();
        let before = in_use();
        let (heap, other) = (Arc::new(Heap::shared().expect("memory")), Other::new());
        let mut held = Vec::new();
        for size in SIZES {
            let heap = heap.clone();
            held.extend(blocks(&heap, size, 3));
            held.extend(other.does(move || blocks(&heap, size, 3)));
        }
        drop(heap);
        check();
        for &block in &held {
            // SAFETY: in use, and written.
            assert_eq!(unsafe { block.read() }, 7);
            assert_eq!(heap_of(block), None);
        }
        other.frees(&held[..18]);
        held[18..].iter().copied().for_each(free);
        other.leaves();
        purge();
        check();
        assert_eq!(in_use(), before);
    });
}

/// In a forked child the heap works on, and what another thread had of it is the heap's still.
#[test]
fn a_forked_child_has_it() {
    alone(|| {
        let (heap, other) = (Arc::new(Heap::shared().expect("memory")), Other::new());
        let mine = blocks(&heap, 1000, 100);
        let there = heap.clone();
        let theirs = other.does(move || blocks(&there, 1000, 100));
        assert!(child_does(|| {
            mine.iter().step_by(2).copied().for_each(free);
            theirs.iter().step_by(2).copied().for_each(free);
            let more = blocks(&heap, 1000, 300);
            assert!(more.iter().all(|&block| heap_of(block) == Some(heap.id())));
            let there = heap.clone();
            let late = Other::new();
            let more = late.does(move || blocks(&there, 1000, 300));
            assert!(more.iter().all(|&block| heap_of(block) == Some(heap.id())));
            late.leaves();
            check();
            assert!(theirs.iter().all(|&block| heap_of(block) == Some(heap.id())));
            // SAFETY: nobody uses it any more, and nobody else ends it in this process.
            unsafe { heap.id().destroy() };
            purge();
            check();
            assert!(theirs.iter().all(|&block| heap_of(block).is_none()));
        }));
        other.leaves();
        check();
    });
}

/// However many threads are at work at once, each has a part that no other one has.
#[test]
fn no_part_is_two_threads() {
    alone(|| {
        let heap = Arc::new(Heap::shared().expect("memory"));
        let others: Vec<_> = (0..40).map(|_| Other::new()).collect();
        let of_each = others.iter().map(|other| {
            let heap = heap.clone();
            other.does(move || {
                free(allocate(64));
                (thread_number(), blocks(&heap, 2000, 3))
            })
        });
        let of_each: Vec<_> = of_each.collect();
        for (number, blocks) in &of_each {
            assert!(blocks.iter().all(|&block| owner_thread(block) == *number), "{number}");
        }
        others.into_iter().for_each(Other::leaves);
        check();
    });
}

/// Nobody comes for the parts of threads that have ended: they give back when the heap is purged, and at its limit.
#[test]
fn parts_of_ended_threads_give_back() {
    alone(|| {
        let heap = Arc::new(Heap::shared().expect("memory"));
        let (others, mut held) = ((0..5).map(|_| Other::new()).collect::<Vec<_>>(), Vec::new());
        let mine = blocks(&heap, 64, 10);
        for other in &others {
            let heap = heap.clone();
            held.extend(other.does(move || blocks(&heap, 4000, 300)));
        }
        others.into_iter().for_each(Other::leaves);
        let full = heap.stats().spans;
        assert!(full >= 5 * 300 * 4000, "{full}");
        let last = held.split_off(900);
        held.into_iter().for_each(free);
        // SAFETY: this thread's alone.
        unsafe { assert!(heap.id().set_limits(0, full, None, [0; 2])) };
        // At the limit what is free of theirs serves others.
        let run = heap.allocate(3 << 20, 16);
        assert!(!run.is_null());
        let small = blocks(&heap, 1000, 200);
        [run].into_iter().chain(small).chain(last).chain(mine).for_each(free);
        heap.purge();
        assert_eq!(heap.stats().spans, 0);
        check();
    });
}

/// The part of a thread that is there is out of others' reach. After a purge it gives back when its thread needs memory of it.
#[test]
fn a_part_in_use_gives_back_by_its_thread() {
    alone(|| {
        let (heap, other) = (Arc::new(Heap::shared().expect("memory")), Other::new());
        let theirs = heap.clone();
        let held = other.does(move || blocks(&theirs, 1000, 3500));
        // SAFETY: nobody else uses it now.
        unsafe { assert!(heap.id().set_limits(0, 4 << 20, None, [0; 2])) };
        held.into_iter().for_each(free);
        assert!(heap.allocate(1 << 20, 16).is_null());
        heap.purge();
        let theirs = heap.clone();
        let small = other.does(move || blocks(&theirs, 3000, 1));
        let run = heap.allocate(1 << 20, 16);
        assert!(!run.is_null() && heap.stats().spans < 1 << 20, "{:?}", heap.stats());
        small.into_iter().chain([run]).for_each(free);
        other.leaves();
        heap.purge();
        assert_eq!(heap.stats().spans, 0);
        check();
    });
}

/// What a thread had is nobody's when it has ended.
#[test]
fn an_ended_thread_owns_nothing() {
    alone(|| {
        let (shared, other) = (Arc::new(Heap::shared().expect("memory")), Other::new());
        let heap = shared.clone();
        let (all, number) = other.does(move || {
            let own = crate::HeapId::new_owned().expect("memory");
            // SAFETY: this thread's.
            let mut all = unsafe { std::vec![own.allocate(100, 16), own.allocate(5000, 16)] };
            all.extend(blocks(&heap, 3000, 1));
            (all, thread_number())
        });
        assert!(number > 0 && all.iter().all(|&block| owner_thread(block) == number));
        other.leaves();
        assert!(all.iter().all(|&block| owner_thread(block) == 0));
        all.into_iter().for_each(free);
    });
}
