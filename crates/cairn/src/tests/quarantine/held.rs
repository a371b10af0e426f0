//! The hardened build: blocks that a cache holds while their spans become empty, or are given up.

use super::super::alone::alone;
use super::super::filling;
use super::super::heaps::{blocks, free, my_tag, owner};
use crate::base::size_class::class_of;
use crate::base::{SLICE_SIZE, SizeClass};
use crate::heap::Heap;
use crate::map::address_map;
use crate::store::{Caches, Store};
use crate::{allocate, check, thread};
use std::vec::Vec;

/// Blocks of a size, of which what is freed next waits in the cache: it has been filled with freed ones.
fn of_warm_cache(size: usize, count: usize) -> Vec<*mut u8> {
    let mut held = blocks(size, count);
    let again = held.len() / 2;
    held.drain(..again).for_each(free);
    held.extend(blocks(size, again));
    // None is ready.
    // SAFETY: this thread's.
    while unsafe { (*thread::heap()).caches.ready(class_of(size)) } > 0 {
        held.push(allocate(size));
    }
    held
}

/// Where the span of a block begins.
fn base(block: *mut u8, class: SizeClass) -> *mut u8 {
    address_map::slice_address(address_map::span_index(block, class))
}

/// Whether the cache has a block that is meant. It is home after that.
fn has(heap: &mut Heap, class: SizeClass, is_meant: impl Fn(*mut u8) -> bool) -> bool {
    // SAFETY: this thread's heap.
    unsafe {
        let block = Caches::take_one(&raw mut heap.caches, class, |it| is_meant(it.cast()));
        if !block.is_null() {
            heap.put_back(class, block);
        }
        !block.is_null()
    }
}

/// Of two spans side by side one's last block is freed, and the other's first one: where one's blocks are to leave the cache,
/// the other's stays.
#[test]
fn blocks_of_one_span_leave_the_cache() {
    alone(|| {
        for size in [filling(1024), 5000] {
            let class = class_of(size);
            let held = of_warm_cache(size, 400);
            let of = |span: *mut u8| held.iter().copied().filter(move |&p| base(p, class) == span);
            let bytes = class.span_slices() * SLICE_SIZE;
            let is_whole = |span: &*mut u8| of(*span).count() == class.layout().blocks.into();
            let spans = held.iter().map(|&block| base(block, class)).filter(is_whole);
            let beside = |span: &*mut u8| is_whole(&span.wrapping_add(bytes));
            let span = { spans }.find(beside).expect("two side by side");
            let (last, next) = (of(span).max(), of(span.wrapping_add(bytes)).min());
            let (last, next) = (last.expect("a block"), next.expect("a block"));
            [last, next].into_iter().for_each(free);
            // SAFETY: this thread's.
            let heap = unsafe { &mut *thread::heap() };
            assert_eq!(heap.caches.len(class), 2, "both wait");
            heap.empty_quarantine_into(class, span);
            assert!(!has(heap, class, |block| base(block, class) == span));
            assert!(has(heap, class, |block| block == next));
            held.into_iter().filter(|&block| block != last && block != next).for_each(free);
            check();
        }
    });
}

/// A full span of which the cache has a block is not given up: the block comes home first.
#[test]
fn a_full_span_is_given_up_without_blocks_in_the_cache() {
    alone(|| {
        for size in [filling(1024), 5000] {
            let class = class_of(size);
            let mut held = of_warm_cache(size, 400);
            // SAFETY: this thread's.
            let heap = unsafe { &mut *thread::heap() };
            // SAFETY: a member of the list.
            let span = unsafe { (*heap.full.last()).base() };
            let nth = held.iter().position(|&block| base(block, class) == span);
            let block = held.swap_remove(nth.expect("a block of it"));
            free(block);
            assert_eq!((heap.caches.len(class), owner(block)), (1, my_tag()));
            heap.drop_oldest_full();
            assert_eq!((heap.caches.len(class), owner(block)), (0, my_tag()));
            check();
            // SAFETY: as above. What is full goes.
            let next = unsafe { (*heap.full.last()).base() };
            heap.drop_oldest_full();
            assert_eq!(owner(next), address_map::OWNER_ABANDONED);
            held.into_iter().for_each(free);
            check();
            heap.empty_cache(class);
            while !heap.full.last().is_null() {
                heap.drop_oldest_full();
            }
        }
    });
}

/// A long span that allocations come from goes when nothing of it is in use, and with it what waits of other spans: each such
/// block would hold one.
#[test]
fn an_empty_active_span_takes_along_what_waits() {
    alone(|| {
        let (size, class) = (20_000, class_of(20_000));
        assert!(class.is_long());
        let held = of_warm_cache(size, 60);
        // SAFETY: this thread's.
        let heap = unsafe { &mut *thread::heap() };
        let waits = |heap: &Heap| heap.caches.len(class);
        // SAFETY: this heap's.
        let active = unsafe { (*heap.active[class.index()]).base() };
        let (mut last, others): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|&block| base(block, class) == active);
        let mut others = others.into_iter();
        assert!(!last.is_empty() && waits(heap) == 0);
        // Until no more may wait.
        loop {
            let before = waits(heap);
            free(others.next().expect("enough"));
            if waits(heap) == before {
                break;
            }
        }
        assert!(waits(heap) > 0);
        let kept = last.pop();
        last.into_iter().for_each(free);
        assert!(waits(heap) > 0, "something of it is in use");
        kept.into_iter().for_each(free);
        assert_eq!(waits(heap), 0);
        assert!(heap.active[class.index()].is_null());
        others.for_each(free);
        check();
    });
}
