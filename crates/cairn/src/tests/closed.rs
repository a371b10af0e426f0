//! Closed heaps: whose their blocks are, where they go, and what is left.

use super::alone::alone;
use super::forks::child_does;
use super::heaps::{self, Other, free};
use crate::base::size_class::class_of;
use crate::base::{MEDIUM_MAX, Ordering, SLICE_SIZE};
use crate::map::{Chain, OWNER_ABANDONED, OWNER_CLOSED, Pushed, address_map};
use crate::report::stats;
use crate::{HeapId, Stats, allocate, check, purge, reallocate, thread, usable_size};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::vec::Vec;

/// Of all kinds: spans of each length, a run, a mapping.
const SIZES: [usize; 6] = [16, 1000, 4000, 60_000, 300_000, 40 << 20];

/// A heap that a thread has attached for a while only.
pub(super) struct Closed(HeapId);

/// In the hands of the calling thread.
pub(super) struct Attached<'a>(&'a Closed);

impl Closed {
    pub(super) fn attach(&mut self) -> Attached<'_> {
        // SAFETY: nobody else uses it.
        unsafe { self.0.attach() };
        Attached(self)
    }

    pub(super) fn destroy(self) {
        // SAFETY: these tests do not use its blocks after this.
        unsafe { self.0.destroy() };
        core::mem::forget(self);
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        // SAFETY: nobody uses it.
        unsafe { self.0.delete() };
    }
}

impl Attached<'_> {
    pub(super) fn allocate(&mut self, size: usize, align: usize) -> *mut u8 {
        // SAFETY: attached.
        unsafe { self.0.0.allocate(size, align) }
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        // SAFETY: attached.
        unsafe { self.0.0.detach() };
    }
}

pub(super) fn new() -> Closed {
    let heap = HeapId::new_owned().expect("there is memory");
    heap.use_no_nursery();
    // SAFETY: attached by this thread.
    unsafe { heap.detach() };
    Closed(heap)
}

fn blocks(heap: &mut Attached<'_>, size: usize, count: usize) -> Vec<*mut u8> {
    let block = |_| {
        let block = heap.allocate(size, 16);
        assert!(!block.is_null());
        // SAFETY: a new block of that size.
        unsafe { block.write_bytes(7, size.min(5000)) };
        block
    };
    (0..count).map(block).collect()
}

fn destroy(heap: Closed) {
    heap.destroy();
}

fn owner(block: *mut u8) -> u32 {
    address_map::descriptor(block).owner.load(Ordering::Relaxed)
}

fn in_use() -> usize {
    let stats = Stats::take();
    stats.spans.bytes + stats.large.bytes + stats.mappings.bytes
}

/// Blocks that the calling thread has ready of a size.
fn cached(size: usize) -> usize {
    // SAFETY: this thread's heap.
    unsafe {
        match size {
            ..=MEDIUM_MAX => stats::peek_cache(thread::heap(), class_of(size)),
            _ => usize::from(!(*thread::heap()).large_cache.load(Ordering::Relaxed).is_null()),
        }
    }
}

#[test]
fn a_destroyed_heap_leaves_nothing() {
    alone(|| {
        free(allocate(64));
        purge();
        let before = in_use();
        for round in 0..3 {
            let mut heap = new();
            for size in SIZES {
                let count = if size > 100_000 { 3 } else { 400 };
                let held = blocks(&mut heap.attach(), size, count);
                held.iter().step_by(2 + round).copied().for_each(free);
            }
            assert!(in_use() > before + 100 * SLICE_SIZE);
            check();
            destroy(heap);
            check();
            assert_eq!(in_use(), before);
        }
    });
}

#[test]
fn what_is_in_use_of_a_dropped_heap_lives_on() {
    alone(|| {
        free(allocate(64));
        purge();
        let before = in_use();
        let mut heap = new();
        let held: Vec<_> =
            SIZES.iter().flat_map(|&size| blocks(&mut heap.attach(), size, 3)).collect();
        drop(heap);
        check();
        let small = held.iter().filter(|&&block| address_map::span_block(block).is_some());
        assert!(
            small.clone().count() == 12 && small.into_iter().all(|&b| owner(b) == OWNER_ABANDONED)
        );
        for &block in &held {
            // SAFETY: in use, and written.
            assert_eq!(unsafe { block.read() }, 7);
        }
        // Another thread and this one, and the next large block of this one may be one of these.
        let other = Other::new();
        other.frees(&held[..9]);
        held[9..].iter().copied().for_each(free);
        other.leaves();
        purge();
        check();
        assert_eq!(in_use(), before);
    });
}

/// Others free its blocks while a heap is dropped: each comes back once, to the heap or to nobody.
#[test]
fn blocks_come_home_while_their_heap_goes() {
    alone(|| {
        free(allocate(64));
        let other = Other::new();
        for round in 0..2000 {
            let mut heap = new();
            let size = [64, 1000, 60_000, 200_000][round % 4];
            let held = blocks(&mut heap.attach(), size, 40);
            let go = Arc::new(AtomicBool::new(false));
            let wait = go.clone();
            other.begins(move || {
                while !wait.load(Ordering::Acquire) {}
                held.into_iter().for_each(free);
            });
            go.store(true, Ordering::Release);
            drop(heap);
            other.does(|| ());
            check();
        }
        other.does(purge);
        other.leaves();
        purge();
        check();
        assert_eq!(Stats::take().spans.bytes + Stats::take().large.bytes, 0);
    });
}

/// Whoever frees a block, it goes to its heap: not to a cache of a thread.
#[test]
fn blocks_come_home() {
    alone(|| {
        for size in [64, 1000, 5000, 60_000, 200_000] {
            // Used before: the caches take in what is freed.
            heaps::blocks(size, (4 << 20) / size).into_iter().for_each(free);
            let other = Other::new();
            other.does(move || heaps::blocks(size, (4 << 20) / size).into_iter().for_each(free));
            let mut heap = new();
            let mut attached = heap.attach();
            let held = blocks(&mut attached, size, 60);
            let before = cached(size);
            held[..20].iter().copied().for_each(free);
            drop(attached);
            held[20..40].iter().copied().for_each(free);
            other.frees(&held[40..50]);
            assert_eq!(cached(size), before);
            // Longer ones may be a span's only block, or a run: what is empty is anybody's.
            let is_mixed = |block: &*mut u8| size <= 5000 && held.contains(block);
            let mine = heaps::blocks(size, 200);
            assert!(!mine.iter().any(is_mixed), "{size}");
            let others = other.allocates(size, 200);
            assert!(!others.iter().any(is_mixed), "{size}");
            check();
            destroy(heap);
            mine.into_iter().chain(others).for_each(free);
            other.leaves();
            check();
        }
    });
}

/// Its spans stay its own, full or not, and nobody's become its.
#[test]
fn spans_stay_with_their_heap() {
    alone(|| {
        let other = Other::new();
        let left = other.allocates(1000, 100);
        other.leaves();
        left.iter().step_by(3).copied().for_each(free);
        purge();
        let mut heap = new();
        // More than any thread keeps of full spans.
        let held = blocks(&mut heap.attach(), 1000, 10_000);
        let tag = owner(held[0]);
        assert!(tag & OWNER_CLOSED != 0);
        assert!(held.iter().all(|&block| owner(block) == tag));
        assert!(left.iter().all(|&block| owner(block) != tag));
        let other = Other::new();
        other.frees(&held[..9000]);
        assert!(held.iter().all(|&block| owner(block) == tag));
        check();
        // What others have freed comes first: no new span.
        let spans = Stats::take().classes[class_of(1000).index()].spans;
        let again = blocks(&mut heap.attach(), 1000, 9000);
        assert!(again.iter().all(|&block| owner(block) == tag));
        let now = Stats::take().classes[class_of(1000).index()].spans;
        assert!(now <= spans + 1, "{spans} spans, then {now}");
        other.leaves();
        destroy(heap);
        check();
    });
}

/// A heap goes from thread to thread; whoever had it frees like others.
#[test]
fn a_heap_may_change_its_thread() {
    alone(|| {
        let (mut heap, other) = (new(), Other::new());
        let mut held = blocks(&mut heap.attach(), 100, 300);
        for _ in 0..4 {
            held.drain(..100).for_each(free);
            let (back, more) = other.does(move || {
                let mut heap = heap;
                let more = blocks(&mut heap.attach(), 100, 200);
                more[..100].iter().copied().for_each(free);
                (heap, more[100..].to_vec())
            });
            heap = back;
            held.extend(more);
            check();
        }
        other.leaves();
        destroy(heap);
        check();
    });
}

/// A block that grows stays its heap's, as long as it need not be copied.
#[test]
fn a_large_block_that_grows_stays_with_its_heap() {
    alone(|| {
        free(allocate(64));
        let before = in_use();
        let mut heap = new();
        let mut block = heap.attach().allocate(1 << 20, 16);
        for size in [3 << 20, 20 << 20, 60 << 20, 100 << 20] {
            // SAFETY: in use, this test's.
            block = unsafe { reallocate(block, size) };
            // SAFETY: as above.
            assert!(unsafe { usable_size(block) } >= size);
        }
        let other = heap.attach().allocate(2 << 20, 16);
        free(other);
        destroy(heap);
        check();
        assert_eq!(in_use(), before);
    });
}

/// A free that was meant for a span which has been destroyed changes nothing.
#[test]
fn late_frees_are_dropped() {
    alone(|| {
        let mut heap = new();
        let block = heap.attach().allocate(1000, 16);
        let index = address_map::slice_of(block);
        // SAFETY: a committed slice.
        let word = unsafe { address_map::remote_word(index) };
        let meant = word.generation();
        destroy(heap);
        let late = Chain::one(block.cast());
        let base = address_map::slice_address(index);
        // SAFETY: what was a block is this test's alone.
        assert_eq!(unsafe { word.push(base, late, Some(meant)) }, Pushed::Dropped);
        assert!(word.is_owned() && word.pending() == 0 && word.generation() != meant);
        check();
        // The next span there knows nothing of it.
        let mine = heaps::blocks(1000, 100);
        assert!(mine.iter().any(|block| address_map::slice_of(*block) == index));
        mine.into_iter().for_each(free);
        check();
    });
}

#[test]
fn a_free_after_the_heap_is_told() {
    alone(|| {
        let mut heap = new();
        let block = heap.attach().allocate(1000, 16);
        destroy(heap);
        assert!(!child_does(|| free(block)));
    });
}

/// The child has the heaps that its thread had. Of those of others it has the blocks.
#[test]
fn a_forked_child_has_its_heaps() {
    alone(|| {
        let (mut mine, other) = (new(), Other::new());
        let mut attached = mine.attach();
        let held = blocks(&mut attached, 1000, 100);
        let (others, theirs) = other.does(|| {
            let heap = std::boxed::Box::leak(std::boxed::Box::new(new()));
            let mut attached = heap.attach();
            let held = blocks(&mut attached, 1000, 100);
            core::mem::forget(attached);
            (held, core::ptr::from_mut(heap))
        });
        assert!(child_does(|| {
            held.iter().step_by(2).copied().for_each(free);
            blocks(&mut attached, 1000, 300);
            let tag = owner(others[0]);
            assert!(tag & OWNER_CLOSED != 0);
            crate::tick();
            purge();
            assert!(others.iter().all(|&block| owner(block) == tag), "the heap has them still");
            others.iter().copied().for_each(free);
            check();
            // SAFETY: the thread that had it attached is not in this process.
            let theirs = unsafe { &mut *theirs };
            blocks(&mut theirs.attach(), 1000, 300);
            check();
        }));
        drop(attached);
        destroy(mine);
        other.leaves();
        // SAFETY: the thread that had it attached has ended.
        destroy(*unsafe { std::boxed::Box::from_raw(theirs) });
        check();
    });
}
