//! The ends of threads: late frees, destructors that allocate, newcomers.

use super::alone::alone;
use super::forks::{child_does, in_use};
use super::heaps::{Other, SIZE, blocks, crowd, free, owner, row};
use super::reservation::is_watched;
use crate::heap::Heap;
use crate::map::address_map;
use crate::thread::pool::shared;
use crate::thread::tuning::CROWD;
use crate::{Stats, allocate, allocate_zeroed, check, purge, thread};
use std::boxed::Box;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering, Ordering::Relaxed};
use std::vec::Vec;

/// What a thread's later destructors do, when its heap is another's already.
extern "C" fn late(work: *mut libc::c_void) {
    let work: *mut Vec<*mut u8> = work.cast();
    // SAFETY: made by the test below, for this call.
    let held = unsafe { Box::from_raw(work) };
    held.into_iter().for_each(free);
    for size in [16, 1000, 5000, 100 << 10, 33 << 20] {
        let block = allocate_zeroed(size);
        // SAFETY: a live block.
        assert!(!block.is_null() && unsafe { block.add(size - 1).read() } == 0);
        free(block);
    }
    LATE.fetch_add(1, Ordering::Relaxed);
}

static LATE: AtomicU32 = AtomicU32::new(0);

#[test]
fn destructors_may_free_when_the_heap_is_gone() {
    alone(|| {
        let mine = blocks(SIZE, 40);
        // Of a larger number than the allocator's own key: its turn is later.
        let mut key = 0;
        // SAFETY: the key is valid for writing, the destructor stays loaded.
        assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(late)) }, 0);
        let other = Other::new();
        // Full spans of its own, which are nobody's then, one whole; and blocks of this thread's.
        let own = other.allocates(SIZE, 3 + 3 * 16 + 4);
        let mut work: Vec<*mut u8> = own[3 + 16..].to_vec();
        work.extend(&mine[..30]);
        other.does(move || {
            let work: *mut Vec<*mut u8> = Box::into_raw(Box::new(work));
            // SAFETY: the key exists.
            assert_eq!(unsafe { libc::pthread_setspecific(key, work.cast()) }, 0);
        });
        other.leaves();
        assert_eq!(LATE.load(Ordering::Relaxed), 1);
        check();
        assert_eq!(in_use(SIZE), 10 + 3 + 16);
        mine[30..].iter().chain(&own[..3 + 16]).copied().for_each(free);
        purge();
        let left = Stats::take();
        assert_eq!((in_use(SIZE), left.large_blocks, left.mapping_blocks), (0, 0, 0));
        assert_eq!(left.spans.bytes, 0, "a span is lost");
        check();
    });
}

/// Comes back until the C library has had enough, and allocates each time.
extern "C" fn again(left: *mut libc::c_void) {
    free(allocate(1000));
    LATE.fetch_add(1, Ordering::Relaxed);
    if left.addr() > 1 {
        let key = AGAIN.load(Ordering::Relaxed);
        let left = core::ptr::without_provenance(left.addr() - 1);
        // SAFETY: the key exists.
        assert_eq!(unsafe { libc::pthread_setspecific(key, left) }, 0);
    }
}

static AGAIN: AtomicU32 = AtomicU32::new(0);

/// A thread that has given its heap back does not get another that nobody would take back.
#[test]
fn the_last_destructor_loses_no_heap() {
    alone(|| {
        // What the thread sanitizer knows of a thread is gone by then.
        if is_watched() {
            return;
        }
        free(allocate(64));
        let mut key = 0;
        // SAFETY: the key is valid for writing, the destructor stays loaded.
        assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(again)) }, 0);
        AGAIN.store(key, Ordering::Relaxed);
        let other = Other::new();
        other.does(move || {
            free(allocate(64));
            let rounds = core::ptr::without_provenance(100);
            // SAFETY: the key exists.
            assert_eq!(unsafe { libc::pthread_setspecific(key, rounds) }, 0);
        });
        assert_eq!(Stats::take().heaps.0, 2);
        other.leaves();
        // PTHREAD_DESTRUCTOR_ITERATIONS
        assert!(LATE.load(Ordering::Relaxed) >= 4);
        assert_eq!(Stats::take().heaps.0, 1);
        check();
    });
}

/// Makes more slow_ticks than a thread may without a heap when the C library asks for the last time.
extern "C" fn many_at_last(left: *mut libc::c_void) {
    // PTHREAD_DESTRUCTOR_ITERATIONS is 4.
    if LATE.fetch_add(1, Ordering::Relaxed) < 3 {
        let key = AGAIN.load(Ordering::Relaxed);
        // SAFETY: the key exists.
        assert_eq!(unsafe { libc::pthread_setspecific(key, left) }, 0);
    } else {
        blocks(SIZE, 32).into_iter().for_each(free);
    }
}

/// Nor does a thread that leaves before it had one.
#[test]
fn a_newcomers_last_destructor_makes_no_heap() {
    alone(|| {
        // As above.
        if is_watched() {
            return;
        }
        crowd();
        let mut key = 0;
        // SAFETY: the key is valid for writing, the destructor stays loaded.
        assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(many_at_last)) }, 0);
        AGAIN.store(key, Ordering::Relaxed);
        let other = Other::new();
        other.does(move || {
            // 16 slow_ticks, as many as a newcomer makes.
            blocks(64, 8).into_iter().for_each(free);
            let left = core::ptr::without_provenance(1);
            // SAFETY: the key exists.
            assert_eq!(unsafe { libc::pthread_setspecific(key, left) }, 0);
        });
        other.leaves();
        assert_eq!(LATE.load(Ordering::Relaxed), 4);
        assert_eq!(Stats::take().heaps, (CROWD + 1, CROWD + 2));
        assert_eq!(in_use(SIZE), 0);
        check();
    });
}

/// A thread without a heap forks: its child finds the blocks, and heaps that nobody has.
#[test]
fn a_newcomer_may_fork() {
    alone(|| {
        crowd();
        let mine = blocks(SIZE, 40);
        let other = Other::new();
        other.does(move || {
            let held = blocks(512, 4);
            assert!(child_does(|| {
                held.iter().chain(&mine).copied().for_each(free);
                blocks(SIZE, 100).into_iter().for_each(free);
                assert_eq!(Stats::take().heaps, (1, CROWD + 2));
                assert_eq!(in_use(512), 0);
                check();
            }));
            held.into_iter().chain(mine).for_each(free);
        });
        other.leaves();
        assert_eq!((in_use(512), in_use(SIZE)), (0, 0));
        check();
    });
}

/// Without a key threads are not seen to leave: they share the shared heap, and no heap is lost.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn it_works_without_a_thread_key() {
    alone(|| {
        let mut key = 0;
        // SAFETY: the key is valid for writing.
        while unsafe { libc::pthread_key_create(&mut key, None) } == 0 {}
        let held = blocks(SIZE, 4000);
        let other = Other::new();
        let others = other.allocates(SIZE, 20);
        other.leaves();
        assert_eq!(Stats::take().heaps, (0, 1));
        // The shared heap hold on to no full span.
        let tag = Heap::tag(shared::heap());
        let theirs: HashSet<usize> = held
            .iter()
            .chain(&others)
            .filter(|&&block| address_map::descriptor(block).owner.load(Relaxed) == tag)
            .map(|block| block.addr() >> 14)
            .collect();
        assert!(theirs.len() <= 1, "{} spans", theirs.len());
        held.into_iter().chain(others).for_each(free);
        check();
    });
}

/// In a crowd a thread makes 16 slow ticks without a heap, unless one waits for it.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn a_crowd_gets_heaps_that_it_needs() {
    alone(|| {
        crowd();
        let few = Other::new();
        let held = few.allocates(64, 8);
        let common = Heap::tag(shared::heap());
        assert!(held.iter().all(|&block| owner(block) == common));
        few.frees(&held);
        few.leaves();
        assert_eq!(Stats::take().heaps, (CROWD + 1, CROWD + 2));
        let many = Other::new();
        let held = many.allocates(64, 16);
        assert_eq!(Stats::take().heaps.1, CROWD + 2);
        let last = many.allocates(64, 14);
        assert_eq!(Stats::take().heaps.1, CROWD + 3);
        // After one by one come two, four, eight.
        assert!(last.iter().all(|&block| owner(block) == common));
        let own = many.allocates(64, 1)[0];
        assert!(owner(own) != common);
        many.frees(&[&held[..], &last, &[own]].concat());
        many.leaves();
        // It waits, and the next one takes it at once.
        let next = Other::new();
        let block = next.allocates(64, 1)[0];
        assert_eq!(Stats::take().heaps, (CROWD + 2, CROWD + 3));
        next.frees(&[block]);
        next.leaves();
        check();
    });
}

/// What a thread without a heap gets may have been used before; `calloc` is zero all the same. And
/// it holds nothing back.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn a_newcomer_gets_zeroed_memory() {
    alone(|| {
        crowd();
        let used = blocks(64, 4096);
        // SAFETY: the blocks are ours.
        used.iter().for_each(|block| unsafe { block.write_bytes(0xa5, 64) });
        used.into_iter().for_each(free);
        thread::trim(crate::os::notify_all);
        let other = Other::new();
        // SAFETY: as above.
        let bytes = |block: *mut u8| unsafe { block.cast::<[u8; 64]>().read() };
        let old = other.allocates(64, 1)[0];
        assert_eq!(bytes(old)[32..], [0xa5; 32]);
        let zero = other.does(|| allocate_zeroed(64));
        assert_eq!(bytes(zero), [0; 64]);
        other.frees(&[old, zero]);
        assert_eq!((row(64).in_use, Stats::take().heaps.0), (0, CROWD + 1));
        other.leaves();
        check();
    });
}

/// Whose first acts are a few frees of others' blocks may be on its way out already, past all destructors: the C library
/// frees there what it has allocated for a detached thread.
#[test]
fn the_first_frees_of_a_thread_need_no_heap() {
    alone(|| {
        let held = blocks(SIZE, 40);
        let other = Other::new();
        other.frees(&held[..16]);
        assert_eq!((in_use(SIZE), Stats::take().heaps.0), (24, 1));
        other.frees(&held[16..]);
        assert_eq!(Stats::take().heaps.0, 2);
        other.leaves();
        assert_eq!((in_use(SIZE), Stats::take().heaps.0), (0, 1));
    });
}
