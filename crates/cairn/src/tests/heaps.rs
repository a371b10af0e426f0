//! Several heaps: what a thread frees for another, what it leaves behind, what it shares.

use super::alone::alone;
use super::filling;
use crate::base::size_class::class_of;
use crate::base::{CLASSES, SHARED_REFILLS, in_hardened};
use crate::heap::Heap;
use crate::map::address_map;
use crate::slices::arena;
use crate::thread::pool::{self, shared};
use crate::thread::tuning::CROWD;
use crate::{ClassRow, Stats, allocate, check, deallocate, purge, reallocate, thread, usable_size};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::boxed::Box;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::vec::Vec;

/// Blocks in a span of 1 KiB blocks, which is one slice.
pub(super) const IN_SPAN: usize = 16;
/// What fills such a block.
pub(super) const SIZE: usize = filling(1024);
/// Blocks of that size that a thread gets from the shared heap, if there are others.
pub(super) const SHARED: usize = SHARED_REFILLS as usize;

/// Goes to another thread while this one waits for the answer.
struct Sent<T>(T);

// SAFETY: one thread at a time is at work.
unsafe impl<T> Send for Sent<T> {}

type Job = Sent<Box<dyn FnOnce()>>;

/// Another thread, which does one thing after the other for a test.
pub(super) struct Other {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

impl Other {
    pub(super) fn new() -> Other {
        let (jobs, inbox) = channel::<Job>();
        let thread = std::thread::spawn(move || inbox.iter().for_each(|job| job.0()));
        Other { jobs, thread }
    }

    /// Does `work` there.
    pub(super) fn does<T: 'static>(&self, work: impl FnOnce() -> T + 'static) -> T {
        let (answer, answers) = channel();
        let job = move || answer.send(Sent(work())).unwrap_or_else(|_| unreachable!());
        assert!(self.jobs.send(Sent(Box::new(job))).is_ok());
        answers.recv().expect("the other thread does not panic").0
    }

    /// Does `work` in a thread that has ended then.
    pub(super) fn once<T: 'static>(work: impl FnOnce() -> T + 'static) -> T {
        let other = Other::new();
        let answer = other.does(work);
        other.leaves();
        answer
    }

    /// One that has a heap, in which nothing has happened.
    pub(super) fn with_heap() -> Other {
        let other = Other::new();
        assert!(other.does(|| thread::number_of_user().is_some()));
        other
    }

    /// Begins with `work` there, which has no answer.
    pub(super) fn begins(&self, work: impl FnOnce() + 'static) {
        assert!(self.jobs.send(Sent(Box::new(work))).is_ok());
    }

    pub(super) fn allocates(&self, size: usize, count: usize) -> Vec<*mut u8> {
        self.does(move || blocks(size, count))
    }

    pub(super) fn frees(&self, blocks: &[*mut u8]) {
        let blocks = blocks.to_vec();
        self.does(move || blocks.into_iter().for_each(free));
    }

    /// Has the thread end, some time.
    pub(super) fn begins_to_leave(self) {
        drop(self.jobs);
    }

    /// Ends the thread.
    pub(super) fn leaves(self) {
        drop(self.jobs);
        self.thread.join().expect("the other thread does not panic");
    }
}

/// So many heaps are in use that the next thread has to show that it needs one.
pub(super) fn crowd() {
    free(allocate(64));
    (0..CROWD).for_each(|_| assert!(!pool::take().is_null()));
}

pub(super) fn blocks(size: usize, count: usize) -> Vec<*mut u8> {
    (0..count).map(|_| allocate(size)).collect()
}

pub(super) fn free(block: *mut u8) {
    // SAFETY: these tests free each block once.
    unsafe { deallocate(block) };
}

pub(super) fn row(size: usize) -> ClassRow {
    Stats::take().classes[class_of(size).index()]
}

pub(super) fn owner(block: *mut u8) -> u32 {
    address_map::descriptor(block).owner.load(Ordering::Relaxed)
}

pub(super) fn my_tag() -> u32 {
    Heap::tag(thread::heap())
}

/// The first 64 remote frees go at once, and as many as upkeep forgets; then they travel in
/// batches: of sixteen blocks, eight in the hardened build, or 8 KiB.
#[test]
fn frees_to_another_thread_are_batched_once_they_are_many() {
    alone(|| {
        // Seldom as they are here, they would go at once.
        arena::set_purge_delay_ms(1 << 40);
        let most = in_hardened(16, 8);
        for (bytes, batch) in [(64, most), (1024, 8), (2048, 4), (4096, 2), (20_000, 1)] {
            let size = filling(bytes);
            let held = blocks(size, 230);
            let other = Other::with_heap();
            for (i, &block) in (1..).zip(&held) {
                other.frees(&[block]);
                let withheld = row(size).in_use - (held.len() - i);
                if bytes == 64 {
                    // The first heap's first upkeep, at the 64th, forgets half of them.
                    assert_eq!(withheld, i.saturating_sub(96) % batch, "free {i}");
                }
                assert!(i > 64 || withheld == 0, "free {i} of {size} bytes");
                // Of one span, and of the one before it.
                assert!(withheld <= 2 * (batch - 1), "{withheld} of {size} bytes wait at {i}");
            }
            other.leaves();
            assert_eq!(row(size).in_use, 0);
            purge();
            check();
        }
    });
}

/// Two spans whose batches have the same place drive each other out: nothing stays behind.
#[test]
fn a_batch_makes_room_for_another_spans() {
    alone(|| {
        // The first 96 make the other thread batch; the rest are a block of each of 20 spans.
        let held = blocks(filling(64), 21 * 256);
        let spans: Vec<*mut u8> = held.iter().skip(256).step_by(256).copied().collect();
        let slot = |block: *mut u8| {
            let span = address_map::slice_of(block);
            (span ^ span >> 4) % 16
        };
        let pairs = spans.iter().flat_map(|&a| spans.iter().map(move |&b| (a, b)));
        let (first, second) = pairs
            .into_iter()
            .find(|&(a, b)| a != b && slot(a) == slot(b))
            .expect("20 spans have 16 places");
        let other = Other::with_heap();
        other.frees(&held[..96]);
        let before = row(filling(64)).in_use;
        // One waits; the next drives it out; that one waits.
        for (i, step) in [0usize, 64, 128, 192].into_iter().enumerate() {
            other.frees(&[first.wrapping_add(step)]);
            assert_eq!(row(filling(64)).in_use, before - 2 * i);
            other.frees(&[second.wrapping_add(step)]);
            assert_eq!(row(filling(64)).in_use, before - 2 * i - 1);
        }
        // One that leaves alone drives nothing out.
        let large = blocks(filling(8192), 64 * 16);
        let third = large.iter().find(|&&b| slot(b) == slot(first) && slot_is_span(b));
        let &third = third.expect("64 spans have 4 places or more");
        other.frees(&[first.wrapping_add(256)]);
        let (small, all) = (row(filling(64)).in_use, row(filling(8192)).in_use);
        other.frees(&[third]);
        assert_eq!((row(filling(64)).in_use, row(filling(8192)).in_use), (small, all - 1));
        other.leaves();
        assert_eq!(row(filling(64)).in_use, before - 9);
        check();
    });
}

/// Whether the slice that `block` starts in is its span's first, one of four.
fn slot_is_span(block: *mut u8) -> bool {
    address_map::slice_of(block).is_multiple_of(4)
}

/// What a block is does not depend on who holds its span.
#[test]
fn blocks_of_others_are_told_by_their_spans() {
    alone(|| {
        let other = Other::new();
        // The first few are shared ones; the first span is full, the last not.
        let theirs = other.allocates(SIZE, 2 * IN_SPAN + 10);
        let are_told = || {
            for &p in &theirs {
                // SAFETY: live blocks.
                unsafe {
                    assert_eq!(usable_size(p), SIZE);
                    assert_eq!(reallocate(p, 600), p);
                    assert_eq!(usable_size(p), SIZE);
                    assert_eq!(reallocate(p, SIZE), p);
                }
            }
        };
        are_told();
        other.leaves();
        are_told();
        theirs.iter().copied().for_each(free);
        assert_eq!(row(SIZE).in_use, 0);
        check();
    });
}

/// The first blocks of a class come out of shared spans, one, two, four of them, or 1 KiB at a
/// time; after three times a thread has spans of its own.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn the_first_blocks_are_shared_ones() {
    alone(|| {
        // The only thread shares with nobody.
        let mine = allocate(64);
        assert_eq!(owner(mine), my_tag());
        assert!(shared::heap().is_null());
        for (size, shared) in [(64, 7), (512, 5), (1024, 3), (4096, 3)] {
            let other = Other::new();
            let held = other.allocates(size, shared + 1);
            let common = Heap::tag(shared::heap());
            assert!(held[..shared].iter().all(|&block| owner(block) == common), "{size}");
            let tag = other.does(my_tag);
            assert_eq!(owner(held[shared]), tag);
            assert!(tag != common && tag != my_tag());
            other.frees(&held);
            other.leaves();
            check();
        }
        // The next thread with that heap knows that it needs the class.
        let other = Other::new();
        let block = other.allocates(64, 1)[0];
        assert_eq!(owner(block), other.does(my_tag));
        other.frees(&[block]);
        other.leaves();
        free(mine);
        purge();
        assert_eq!(row(64).spans + row(512).spans + row(SIZE).spans, 0);
    });
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn heaps_are_used_by_one_thread_after_the_other() {
    alone(|| {
        free(allocate(64));
        assert_eq!(Stats::take().heaps, (1, 1));
        let (one, two) = (Other::new(), Other::new());
        let first = one.allocates(64, 1);
        // The shared heap have one.
        assert_eq!(Stats::take().heaps, (2, 3));
        let second = two.allocates(64, 1);
        assert_eq!(Stats::take().heaps, (3, 4));
        let tag = one.does(my_tag);
        one.frees(&first);
        one.leaves();
        assert_eq!(Stats::take().heaps, (2, 4));
        let three = Other::with_heap();
        three.frees(&second);
        assert_eq!(three.does(my_tag), tag);
        assert_eq!(Stats::take().heaps, (3, 4));
        three.leaves();
        two.leaves();
        assert_eq!(Stats::take().heaps, (1, 4));
        // A thread that only allocates nothing has none.
        let idle = Other::new();
        idle.does(|| free(core::ptr::null_mut()));
        assert_eq!(Stats::take().heaps, (1, 4));
        idle.leaves();
        check();
    });
}

#[test]
fn what_a_thread_leaves_another_takes_over() {
    alone(|| {
        // On a machine so busy that the heap looks slow it would put back what it keeps.
        arena::set_purge_delay_ms(1 << 40);
        free(allocate(64));
        let other = Other::new();
        let held = other.allocates(SIZE, SHARED + 5 * IN_SPAN + 4);
        other.leaves();
        check();
        let spans = row(SIZE).spans;
        assert_eq!(row(SIZE).in_use, held.len());
        // The listed one is reclaimed, with its untouched blocks.
        let mine = allocate(SIZE);
        assert_eq!((row(SIZE).spans, owner(mine)), (spans, my_tag()));
        assert!(held[SHARED..].iter().any(|&block| block.addr() >> 14 == mine.addr() >> 14));
        // Of the full ones a free makes this thread the owner, once it keeps no more.
        let full = &held[SHARED..SHARED + 4 * IN_SPAN - 5];
        assert!(full.iter().all(|&block| owner(block) != my_tag()));
        let before = row(SIZE);
        full.iter().copied().for_each(free);
        let now = row(SIZE);
        assert_eq!(now.cached + now.free, before.cached + before.free + full.len());
        assert!(now.cached > before.cached && now.free > before.free);
        check();
        held.iter().filter(|block| !full.contains(block)).copied().for_each(free);
        free(mine);
        purge();
        assert_eq!((row(SIZE).spans, row(SIZE).in_use), (0, 0));
        check();
    });
}

/// A request to give back reaches a thread at its next slow tick.
#[test]
fn other_threads_follow_a_purge() {
    alone(|| {
        let held = blocks(64, 120);
        let other = Other::with_heap();
        other.frees(&held[..97]);
        let own = other.allocates(SIZE, 40);
        let before = row(64).in_use;
        assert_eq!(before, 120 - 96, "the last one waits");
        // Half of each span: they stand in its list.
        own.iter().step_by(2).for_each(|&block| other.frees(&[block]));
        purge();
        assert_eq!(row(64).in_use, before);
        other.does(|| free(allocate(300)));
        assert_eq!(row(64).in_use, before - 1);
        check();
        other.leaves();
        check();
    });
}

/// A class that has not been needed for a round of upkeep is let go, if there are others who
/// might need it.
#[test]
fn idle_spans_are_let_go_if_there_are_others() {
    alone(|| idle_spans(true));
}

#[test]
fn idle_spans_stay_if_there_are_no_others() {
    alone(|| idle_spans(false));
}

fn idle_spans(others: bool) {
    let other = others.then(Other::new);
    let held = blocks(SIZE, 4 * IN_SPAN);
    if let Some(other) = &other {
        other.allocates(64, 1);
    }
    // Half of each.
    let (half, rest): (Vec<_>, Vec<_>) = held.iter().partition(|block| block.addr() >> 10 & 1 == 0);
    half.into_iter().for_each(free);
    assert!(rest[..3 * IN_SPAN / 2].iter().all(|&block| owner(block) == my_tag()));
    // Two rounds of upkeep: 14 each, after 64 slow_ticks each, a visit for 64 blocks at least.
    let busy = blocks(16, 2 * 14 * 64 * 70);
    let mine = rest[..3 * IN_SPAN / 2].iter().filter(|&&block| owner(block) == my_tag()).count();
    assert_eq!(mine, if others { 0 } else { 3 * IN_SPAN / 2 });
    check();
    busy.into_iter().chain(rest).for_each(free);
    check();
}

/// The room for full spans that a thread has taken comes back when it leaves.
#[test]
fn the_room_for_full_spans_is_given_back() {
    alone(|| {
        free(allocate(64));
        for _ in 0..6 {
            let other = Other::new();
            let held = other.allocates(SIZE, 130 * IN_SPAN);
            let tag = other.does(my_tag);
            let full = held.iter().step_by(IN_SPAN).filter(|&&block| owner(block) == tag).count();
            // Two threads: half of the room each.
            assert!((110..=130).contains(&full), "{full}");
            other.frees(&held);
            other.leaves();
        }
        let held = blocks(SIZE, 250 * IN_SPAN);
        let mine = held.iter().filter(|&&block| owner(block) == my_tag()).count();
        assert!(mine >= 245 * IN_SPAN, "{mine}");
    });
}

/// A thread that frees into spans of nobody's takes them in: four of a class, if there are others
/// who might need the rest.
#[test]
fn not_every_span_that_is_freed_into_is_taken_in() {
    alone(|| {
        for company in [false, true] {
            let gone = Other::new();
            let held = gone.allocates(SIZE, 3 + 12 * IN_SPAN);
            gone.leaves();
            // This thread's heap has none of the class, and keeps no block for the next one.
            free(allocate(64));
            let other = company.then(Other::new);
            if let Some(other) = &other {
                other.allocates(64, 1);
            }
            let spans: Vec<_> = held[3..].chunks(IN_SPAN).take(10).collect();
            spans.iter().for_each(|span| free(span[5]));
            let mine = spans.iter().filter(|span| owner(span[0]) == my_tag()).count();
            assert_eq!(mine, if company { 4 } else { 10 });
            check();
            for (i, span) in held[3..].chunks(IN_SPAN).enumerate() {
                let rest = span.iter().enumerate().filter(|(at, _)| i >= 10 || *at != 5);
                rest.for_each(|(_, &block)| free(block));
            }
            held[..3].iter().copied().for_each(free);
            purge();
            check();
            assert_eq!(row(SIZE).in_use, 0);
        }
    });
}

/// A heap lets go of its full spans while another thread frees a block of each; `sizes` are those
/// of the spans, in the order in which they go.
fn race_for_spans(sizes: &[usize]) {
    const ROUNDS: usize = 1500;
    static TURN: AtomicUsize = AtomicUsize::new(0);
    static DONE: AtomicUsize = AtomicUsize::new(0);
    static THEIRS: [AtomicPtr<u8>; 64] = [const { AtomicPtr::new(null_mut()) }; 64];
    let wait_for = |what: &AtomicUsize, round| {
        while what.load(Ordering::Acquire) < round {
            std::thread::yield_now();
        }
    };
    let count = sizes.len();
    let other = std::thread::spawn(move || {
        for round in 1..=ROUNDS {
            wait_for(&TURN, round);
            THEIRS[..count].iter().for_each(|block| free(block.load(Ordering::Relaxed)));
            DONE.store(round, Ordering::Release);
        }
        // Its heap must not go while the last round is being checked.
        wait_for(&TURN, ROUNDS + 1);
    });
    for round in 1..=ROUNDS {
        let mut held = Vec::new();
        for (&size, theirs) in sizes.iter().rev().zip(THEIRS[..count].iter().rev()) {
            let mut span = blocks(size, usize::from(class_of(size).layout().blocks));
            theirs.store(span.pop().expect("some"), Ordering::Relaxed);
            held.append(&mut span);
        }
        TURN.store(round, Ordering::Release);
        thread::trim(crate::os::notify_all);
        wait_for(&DONE, round);
        check();
        held.into_iter().for_each(free);
        thread::trim(crate::os::notify_all);
    }
    TURN.store(ROUNDS + 1, Ordering::Release);
    other.join().expect("it does not panic");
    purge();
    assert!(sizes.iter().all(|&size| (row(size).spans, row(size).in_use) == (0, 0)));
    check();
}

#[test]
fn full_spans_are_given_up_while_others_free_into_them() {
    alone(|| race_for_spans(&[SIZE; 40]));
}

#[test]
fn active_spans_are_given_up_while_others_free_into_them() {
    alone(|| {
        let sizes = CLASSES.iter().map(|class| class.size as usize);
        let some = sizes.filter(|size| (256..=4096).contains(size)).map(filling);
        race_for_spans(&some.collect::<Vec<_>>());
    });
}

/// A thread leaves while another frees what it has allocated: its full spans may get frees between
/// being looked at and being let go. Nothing stays with its heap.
#[test]
fn a_thread_that_leaves_during_frees_keeps_nothing() {
    alone(|| {
        free(allocate(64));
        for round in 0..3000 {
            let (send, receive) = channel();
            let thread = std::thread::spawn(move || {
                let held: Vec<_> = (0..200).map(|_| Sent(allocate(4000))).collect();
                send.send(held).expect("it waits");
            });
            let held = receive.recv().expect("it sends");
            // Another moment of its leaving in each round.
            (0..round % 100 * 20).for_each(|_| core::hint::spin_loop());
            held.into_iter().for_each(|block| free(block.0));
            thread.join().expect("no panic");
            purge();
            assert_eq!(Stats::take().spans.bytes, 0, "round {round}");
        }
        check();
    });
}

/// Safe functions take any number for an alignment.
#[test]
fn no_alignment_does_harm() {
    alone(|| {
        let (own, shared) =
            (crate::Heap::new().expect("memory"), crate::Heap::shared().expect("memory"));
        for align in [0, 3, 24, 40_000, 48 << 10, (1 << 20) + 1, usize::MAX] {
            for size in [1, 100, 2000, 100_000] {
                let mut batch = [core::ptr::null_mut(); 2];
                let got = own.allocate_batch(size, align, &mut batch);
                let all = [
                    own.allocate(size, align),
                    own.allocate_zeroed(size, align),
                    shared.allocate(size, align),
                    shared.allocate_zeroed(size, align),
                ];
                for block in all.into_iter().chain(batch.into_iter().take(got)) {
                    // SAFETY: null, or a new block.
                    unsafe {
                        assert!(block.is_null() || crate::usable_size(block) >= size);
                        if !block.is_null() {
                            block.write_bytes(7, size);
                        }
                    }
                    free(block);
                }
            }
        }
        check();
    });
}
