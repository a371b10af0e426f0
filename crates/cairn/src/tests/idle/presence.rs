//! What others do with the spans of a thread that waits. The hardened build's keep theirs.
#![cfg(not(feature = "hardened"))]

use super::{Other, alone, free};
use crate::base::{SLICE_SIZE, size_class};
use crate::heap::Heap;
use crate::map::address_map::slice_of;
use crate::os::Round;
use crate::slices::arena;
use crate::tests::heaps::{IN_SPAN, SIZE, blocks, my_tag, owner, row};
use crate::{Stats, allocate, check, purge, set_purge_delay_ms, thread};
use std::cell::Cell;
use std::collections::HashSet;
use std::time::{Duration, Instant};
use std::vec::Vec;

const BYTES: usize = 200;
const BLOCKS: usize = 20_000;

fn some() -> Vec<*mut u8> {
    (0..BLOCKS).map(|_| allocate(BYTES)).collect()
}

fn slices(blocks: &[*mut u8]) -> HashSet<usize> {
    blocks.iter().map(|&block| slice_of(block)).collect()
}

/// Looks at a heap until its spans are let go.
fn let_go(heap: *mut Heap) {
    let begun = Instant::now();
    // SAFETY: a thread's heap, which is never unmapped.
    while !unsafe { Heap::let_go_of(heap, Heap::epoch(heap), None) } {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Who has been looked at in vain is not looked at again before the clock goes on; where somebody is found, at once.
#[test]
fn in_vain_each_is_looked_at_once() {
    let looks_of_nine = |is_found: bool| {
        let (round, looks) = (Round::new(), Cell::new(0));
        for _ in 0..9 {
            let any = round.any(5, 3, |_| {
                looks.set(looks.get() + 1);
                is_found
            });
            assert!(!any || is_found);
        }
        looks.get()
    };
    assert_eq!(looks_of_nine(true), 9);
    // Twice three of five; unless the clock has gone on meanwhile.
    assert!((0..100).any(|_| looks_of_nine(false) == 6));
}

/// What others free into the spans of a thread that waits serves them. The thread goes on as if nothing had been.
#[test]
fn a_waiting_threads_spans_serve_others() {
    alone(|| {
        let other = Other::new();
        let blocks = other.allocates(BYTES, BLOCKS);
        let theirs = slices(&blocks);
        let (kept, freed): (Vec<_>, Vec<_>) =
            blocks.into_iter().enumerate().partition(|(at, _)| at % 4 == 0);
        freed.into_iter().for_each(|(_, block)| free(block));
        let spans = Stats::take().spans.bytes;
        let begun = Instant::now();
        // Each round needs new spans, until it has found that the thread waits.
        let mut reused = 0;
        while reused < theirs.len() / 2 {
            assert!(begun.elapsed() < Duration::from_secs(60), "{reused} of {}", theirs.len());
            std::thread::sleep(Duration::from_millis(20));
            let mine = some();
            reused = theirs.intersection(&slices(&mine)).count();
            mine.into_iter().for_each(free);
            thread::trim(crate::os::notify_all);
        }
        assert!(Stats::take().spans.bytes <= spans + (1 << 20));
        // It frees what is left into spans that are others' by now, and allocates.
        let left: Vec<_> = kept.iter().map(|&(_, block)| block).collect();
        other.frees(&left);
        let again = other.allocates(BYTES, BLOCKS);
        other.frees(&again);
        other.does(check);
        other.leaves();
        purge();
        assert_eq!(Stats::take().sum(|row| row.in_use), 0);
        check();
    });
}

/// An empty span of one slice in hand does not do for blocks of longer spans: these come from threads that wait all the same.
#[test]
fn a_short_span_in_hand_is_none_for_long_ones() {
    const LONG: usize = 6000;
    assert!(size_class::class_of(SIZE).span_slices() == 1);
    assert!(size_class::class_of(LONG).span_slices() > 1);
    alone(|| {
        // However slow this is, what is in hand stays.
        set_purge_delay_ms(3_600_000);
        let other = Other::new();
        let theirs = other.allocates(LONG, 1000);
        blocks(SIZE, 8 * IN_SPAN).into_iter().for_each(free);
        theirs.iter().copied().for_each(free);
        // Those that it has not let go of itself.
        let tag = other.does(my_tag);
        let kept: Vec<_> = theirs.into_iter().filter(|&block| owner(block) == tag).collect();
        let has = slices(&kept);
        assert!(!has.is_empty());
        let mut mine = Vec::new();
        while has.is_disjoint(&slices(&mine)) {
            // It has waited long enough after six turns.
            assert!(mine.len() < 500, "{} blocks are of other spans", mine.len());
            std::thread::sleep(Duration::from_millis(20));
            mine.extend(blocks(LONG, 20));
        }
        assert!(row(SIZE).spans > 1, "none is in hand");
        mine.into_iter().for_each(free);
        other.leaves();
        check();
    });
}

/// Threads swap long blocks, and more of them are awake than there are processors: what others have freed to one that is away
/// serves them long before all that it has does. Its other spans stay.
#[test]
fn long_spans_of_a_class_go_after_a_turn() {
    const LONG: [usize; 2] = [6000, 20_000];
    alone(|| {
        let other = Other::new();
        let [theirs, kept] = LONG.map(|size| other.allocates(size, 64));
        let tag = other.does(my_tag);
        let at = other.does(|| thread::own().expect("it has one").expose_provenance());
        let heap = core::ptr::with_exposed_provenance_mut::<Heap>(at);
        let class = size_class::class_of(LONG[0]);
        // SAFETY: a thread's heap, which is never unmapped.
        let look = || unsafe { Heap::let_go_of(heap, Heap::epoch(heap), Some(class)) };
        let owned = |blocks: &[*mut u8]| blocks.iter().filter(|&&b| owner(b) == tag).count();
        let kept_before = owned(&kept);
        assert!(owned(&theirs) > 0 && kept_before > 0);
        assert!(!look(), "it has just been there");
        let begun = Instant::now();
        while !look() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!look(), "there is nothing more of that class");
        assert_eq!((owned(&theirs), owned(&kept)), (0, kept_before));
        // All that it has goes by the same date.
        let_go(heap);
        assert_eq!(owned(&kept), 0);
        other.frees(&theirs);
        other.frees(&kept);
        let again = other.allocates(LONG[0], 64);
        other.frees(&again);
        other.does(check);
        other.leaves();
        purge();
        assert_eq!(Stats::take().sum(|row| row.in_use), 0);
        check();
    });
}

/// Where nobody does anything at all, the purge thread finds who waits.
#[test]
fn the_purge_thread_reaches_threads_that_wait() {
    alone(|| {
        set_purge_delay_ms(20);
        assert!(crate::start_purge_thread());
        let others: Vec<_> = (0..4).map(|_| Other::new()).collect();
        for other in &others {
            other.allocates(BYTES, BLOCKS).into_iter().for_each(free);
        }
        let begun = Instant::now();
        while Stats::take().spans.bytes > 1 << 20 || arena::counts().dirty * SLICE_SIZE > 4 << 20 {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", Stats::take().spans.bytes);
            std::thread::sleep(Duration::from_millis(50));
        }
        others.into_iter().for_each(Other::leaves);
        check();
    });
}

/// A second call of `malloc_trim` finds that threads have waited since the first one.
#[test]
fn a_trim_reaches_threads_that_wait() {
    alone(|| {
        let others: Vec<_> = (0..4).map(|_| Other::new()).collect();
        for other in &others {
            let blocks = other.allocates(BYTES, BLOCKS);
            blocks.into_iter().for_each(free);
        }
        let begun = Instant::now();
        while Stats::take().spans.bytes > 1 << 20 {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", Stats::take().spans.bytes);
            std::thread::sleep(Duration::from_millis(50));
            purge();
        }
        others.into_iter().for_each(Other::leaves);
        check();
    });
}

/// Others send off what a thread that waits has gathered for spans that have become its own since. They do nothing else for it:
/// here the last of these frees would have its heap do upkeep.
#[test]
fn a_waiting_threads_batches_leave_for_its_own_spans() {
    // On a slow machine the thread may have sent them off itself.
    let round = || {
        let (other, gone) = (Other::new(), Other::new());
        // Who frees much to others gathers it.
        other.frees(&gone.allocates(BYTES, 100));
        let blocks = gone.allocates(BYTES, BLOCKS / 20);
        let spans: HashSet<_> = blocks.iter().map(|&block| slice_of(block)).collect();
        let mut kept = Vec::new();
        for &span in &spans {
            let all: Vec<_> = blocks.iter().copied().filter(|&b| slice_of(b) == span).collect();
            let (few, more) = all.split_at(all.len().min(3));
            other.frees(few);
            gone.frees(more.split_first().map_or(&[], |(_, rest)| rest));
            kept.extend(more.first());
        }
        gone.leaves();
        let tag = other.does(my_tag);
        let own = other.allocates(BYTES, 800);
        let taken: Vec<_> = kept.iter().copied().filter(|&block| owner(block) == tag).collect();
        assert!(taken.len() > 4, "{} of {}", taken.len(), spans.len());
        other.frees(&own);
        other.frees(&kept);
        let at = other.does(|| thread::own().expect("it has one").expose_provenance());
        let heap = move || core::ptr::with_exposed_provenance_mut::<Heap>(at);
        // SAFETY: the calling thread's.
        other.does(move || unsafe {
            let _inside = (*heap()).presence.enter();
            (*heap()).empty_cache(size_class::class_of(BYTES));
            (*heap()).deactivate(size_class::class_of(BYTES));
        });
        // SAFETY: a thread's heap, which is never unmapped.
        let is_held =
            |block: &*mut u8| unsafe { !Heap::peek_batch(heap(), slice_of(*block)).is_null() };
        let held = taken.iter().filter(|&block| is_held(block)).count();
        // It has not heard of that.
        thread::trim(crate::os::notify_all);
        let_go(heap());
        other.does(check);
        other.leaves();
        purge();
        assert_eq!(Stats::take().sum(|row| row.in_use), 0);
        check();
        held > 4
    };
    alone(|| {
        // However slow this is, no heap is quiet: what one has gathered stays.
        set_purge_delay_ms(3_600_000);
        assert!((0..50).any(|_| round()), "no batch was under way");
    });
}

/// Nobody lets go of what a thread is at work on, however long that takes, and of what it has come back to.
#[test]
fn a_thread_at_work_keeps_its_spans() {
    alone(|| {
        let other = Other::new();
        let blocks = other.allocates(BYTES, BLOCKS);
        let at = other.does(|| thread::own().expect("it has one").expose_provenance());
        let heap = move || core::ptr::with_exposed_provenance_mut::<Heap>(at);
        // SAFETY: a thread's heap, which is never unmapped.
        let look = move || unsafe { Heap::let_go_of(heap(), Heap::epoch(heap()), None) };
        let looks = move || {
            (0..40).any(|_| {
                std::thread::sleep(Duration::from_millis(5));
                look()
            })
        };
        assert!(!other.does(move || {
            // SAFETY: the calling thread's.
            let _inside = unsafe { (*heap()).presence.enter() };
            std::thread::spawn(looks).join().unwrap()
        }));
        assert!(!look(), "nobody had looked from outside");
        std::thread::sleep(Duration::from_millis(200));
        // It has come by meanwhile.
        other.does(|| free(allocate(50_000)));
        other.frees(&blocks[..1000]);
        assert!(!look());
        let_go(heap());
        // A few spans at a time, until there are none.
        while look() {}
        other.frees(&blocks[1000..]);
        other.does(check);
        other.leaves();
        check();
    });
}

/// A thread that ends finds its spans gone; one that comes gets the heap.
#[test]
fn heaps_that_were_let_go_of_are_used_again() {
    alone(|| {
        for round in 0..3 {
            let other = Other::new();
            let blocks = other.allocates(BYTES, 100 + round);
            let heap = other.does(|| thread::own().expect("it has one").expose_provenance());
            let_go(core::ptr::with_exposed_provenance_mut(heap));
            blocks.into_iter().for_each(free);
            other.leaves();
        }
        purge();
        assert_eq!(Stats::take().sum(|row| row.in_use), 0);
        check();
    });
}
