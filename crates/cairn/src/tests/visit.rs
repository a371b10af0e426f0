//! The walk over areas and blocks: it finds what is in use, all of it, and nothing else.

use super::alone::alone;
use super::heaps::{Other, free};
use crate::{Heap, HeapId, allocate, purge, thread_number, visit};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::vec::Vec;

const SIZES: [usize; 7] = [16, 100, 1000, 4000, 60_000, 300_000, 40 << 20];

/// The blocks in use of a heap, or of all. Room is made before: nothing may be allocated meanwhile.
fn seen(heap: Option<HeapId>) -> BTreeSet<usize> {
    let mut all = Vec::with_capacity(100_000);
    let own = all.as_ptr() as usize;
    let (mut used, mut count) = (0, 0);
    // SAFETY: other threads rest.
    let whole = unsafe {
        visit(heap, true, |area, block| {
            match block {
                None => {
                    assert_eq!(used, count, "an area says how many of its blocks are in use");
                    (used, count) = (area.used, 0);
                    assert!(heap.is_none() || area.heap == heap);
                    assert!(
                        area.used <= area.blocks && area.bytes >= area.blocks * area.block_size
                    );
                }
                Some(block) => {
                    assert!((block.addr() - area.start.addr()).is_multiple_of(area.block_size));
                    count += 1;
                    all.push(block.addr());
                }
            }
            true
        })
    };
    assert!(whole && used == count);
    assert!(all.len() <= 100_000);
    let found: BTreeSet<_> = all.iter().copied().filter(|&block| block != own).collect();
    found
}

fn set(blocks: &[*mut u8]) -> BTreeSet<usize> {
    blocks.iter().map(|block| block.addr()).collect()
}

/// Frees every third, keeps the rest.
fn thinned(blocks: Vec<*mut u8>) -> Vec<*mut u8> {
    blocks.iter().step_by(3).copied().for_each(free);
    blocks.into_iter().enumerate().filter(|(nth, _)| nth % 3 != 0).map(|(_, block)| block).collect()
}

#[test]
fn what_is_in_use_of_a_heap_is_visited() {
    alone(|| {
        let other = Other::new();
        let (first, second) = (Heap::new().expect("memory"), Heap::new().expect("memory"));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for size in SIZES {
            let count = if size > 100_000 { 6 } else { 500 };
            ours.extend(thinned((0..count).map(|_| first.allocate(size, 16)).collect()));
            theirs.extend(thinned((0..count).map(|_| second.allocate(size, 16)).collect()));
        }
        // Another thread's frees lie in the spans' words.
        let (freed, kept) = ours.split_at(100);
        other.frees(freed);
        assert_eq!(seen(Some(first.id())), set(kept));
        assert_eq!(seen(Some(second.id())), set(&theirs));
        // Without blocks, and no further than one wants.
        let mut areas = 0;
        // SAFETY: other threads rest.
        let whole = unsafe {
            visit(Some(first.id()), false, |_, block| {
                areas += 1;
                block.is_none() && areas < 3
            })
        };
        assert!(!whole && areas == 3);
        other.leaves();
    });
}

#[test]
fn what_is_in_use_of_threads_is_visited() {
    alone(|| {
        let other = Other::new();
        let before = seen(None);
        let mut mine: Vec<_> =
            SIZES.iter().flat_map(|&size| super::heaps::blocks(size, 60)).collect();
        let theirs: Vec<_> =
            SIZES[..5].iter().flat_map(|&size| other.allocates(size, 60)).collect();
        // In caches of both, in batches, in words.
        mine.drain(..100).for_each(free);
        theirs[..100].iter().copied().for_each(free);
        other.frees(&mine[..50]);
        let shared = Arc::new(Heap::shared().expect("memory"));
        let there = shared.clone();
        let more = other.does(move || (0..100).map(|_| there.allocate(64, 16)).collect::<Vec<_>>());
        let new = |now: BTreeSet<usize>| now.difference(&before).copied().collect::<BTreeSet<_>>();
        let expected: BTreeSet<_> =
            set(&mine[50..]).into_iter().chain(set(&theirs[100..])).chain(set(&more)).collect();
        let found = new(seen(None));
        assert!(expected.is_subset(&found), "{:?}", expected.difference(&found).next());
        // What the harness has of its own is a handful.
        assert!(found.len() < expected.len() + 20, "{} {}", found.len(), expected.len());
        // A thread that is gone leaves its blocks.
        other.leaves();
        purge();
        let found = new(seen(None));
        assert!(expected.is_subset(&found));
        assert!(found.len() < expected.len() + 20);
    });
}

#[test]
fn an_area_names_its_thread() {
    alone(|| {
        let block = allocate(300);
        for _ in 0..50 {
            allocate(300);
        }
        assert!(thread_number() > 0);
        let mut found = 0;
        // SAFETY: other threads rest.
        unsafe {
            visit(None, true, |area, at| {
                if at == Some(block) {
                    found = area.thread;
                }
                true
            });
        }
        assert_eq!(found, crate::owner_thread(block));
    });
}
