//! Spans that nobody holds: the lists of abandoned spans, with real spans in a real arena. Loom watches the
//! owner's fields, the lists, the arena's state, the words, the locks and the owners in the
//! descriptors; the arena's hints are numbers here.

use crate::base::policy::CANARY_BYTES;
use crate::base::size_class::{SizeClass, class_of};
use crate::harness::{
    ALL, HINTS, Model, Sent, TAG, assert_released, carve, check, finish, give_up, listable_span,
    span, spawn,
};
use crate::map::address_map::{self, OWNER_ABANDONED, OWNER_CLOSED};
use crate::map::block::{Block, Chain};
use crate::spans::span::Span;
use crate::{closed, heap, slices::arena, spans::abandoned};
use loom::thread::JoinHandle;

/// Blocks of 16 bytes.
const CLASS: SizeClass = SizeClass::FIRST;
const SPANS: Model = Model { preemptions: [Some(3), Some(4)], quiet: HINTS, ..ALL };

/// Frees a block as a thread without a heap does.
fn free(index: usize, block: Sent<*mut Block>) -> JoinHandle<()> {
    // SAFETY: the block is in use, and freed once.
    spawn(move || unsafe { heap::send_without_heap(index, Chain::one(block.get()), None) })
}

/// A thread gives a span up while its last two blocks are freed: exactly one of the three finds
/// it empty and gives its slice back, once, and the list keeps nothing of it.
#[test]
fn leaving_against_the_last_frees() {
    check(SPANS, |_| {
        let (span, index, blocks) = listable_span(CLASS, 2);
        let threads: Vec<_> = blocks.iter().map(|&b| free(index, b)).collect();
        // SAFETY: held until then.
        unsafe { give_up(span) };
        finish(threads);
        assert_eq!(abandoned::count(CLASS), 0);
        assert_released(index);
    });
}

/// A thread reclaims a listed span while its last blocks are freed, and gives it up again: exactly
/// one thread finds it empty. One block; in full two.
#[test]
fn reclaim_against_the_last_frees() {
    check(SPANS, |full| {
        let used = if full { 2 } else { 1 };
        let (span, index, blocks) = listable_span(CLASS, used);
        // SAFETY: held until then.
        unsafe { give_up(span) };
        let threads: Vec<_> = blocks.iter().map(|&b| free(index, b)).collect();
        if let Some((reclaimed, pending)) = abandoned::reclaim(CLASS) {
            assert_eq!(reclaimed, span);
            // SAFETY: reclaimed.
            unsafe {
                (*span).own(TAG);
                (*span).absorb(pending);
                give_up(span);
            }
        }
        finish(threads);
        assert_eq!(abandoned::count(CLASS), 0);
        assert_released(index);
    });
}

/// Two threads want the one listed span, in full while its last block is freed: at most one gets
/// it, and it alone touches the fields.
#[test]
fn two_threads_reclaim() {
    check(SPANS, |full| {
        let (span, index, blocks) = listable_span(CLASS, 1);
        // SAFETY: held until then.
        unsafe { give_up(span) };
        let reclaim = || {
            let Some((span, pending)) = abandoned::reclaim(CLASS) else { return false };
            // SAFETY: reclaimed.
            unsafe {
                (*span).own(TAG);
                (*span).absorb(pending);
                (*span).used() > 0 || {
                    (*span).release();
                    false
                }
            }
        };
        let other = spawn(reclaim);
        let last = full.then(|| free(index, blocks[0]));
        let freed = last.is_some();
        let mine = reclaim();
        let others = other.join().unwrap();
        finish(last);
        assert!(!(mine && others), "two threads hold it");
        if mine || others {
            // SAFETY: the one that has it has ended, or is this one; the block is in use, or waits in the word.
            unsafe {
                if !freed {
                    (*span).push_local(blocks[0].get());
                } else {
                    (*span).absorb((*span).collect());
                }
                assert_eq!((*span).used(), 0);
                (*span).release();
            }
        }
        assert_released(index);
    });
}

/// Two spans are listed. The last block of the first is freed while a thread reclaims: it gets the other
/// one, or the first before the free; the list's links stay whole.
#[test]
fn a_claimed_span_is_passed_by() {
    check(SPANS, |_| {
        let (first, index, its) = listable_span(CLASS, 1);
        let (second, ..) = span(CLASS, 2);
        // SAFETY: held until then.
        unsafe {
            give_up(second);
            give_up(first);
        }
        let thread = free(index, its[0]);
        let got = abandoned::reclaim(CLASS).map(|(span, _)| span);
        finish([thread]);
        if got == Some(first) {
            // SAFETY: a committed slice.
            let word = unsafe { address_map::remote_word(index) };
            assert_eq!((abandoned::count(CLASS), word.pending()), (1, 1));
        } else {
            assert_eq!((got, abandoned::count(CLASS)), (Some(second), 0));
            assert_released(index);
        }
    });
}

/// A thread takes a listed span by its place, to thin it, while its last block is freed, and a span of another class begins
/// there and is listed: it gets the one that it meant, or none, and both lists stay whole.
#[test]
fn taken_by_its_place_against_the_next_span_there() {
    check(SPANS, |_| {
        let next_class = class_of(1024 - CANARY_BYTES);
        // As many are freed as make it thinner.
        let list_thinned = |span: *mut Span, index, blocks: &[Sent<*mut Block>]| {
            // SAFETY: held until then; freed once.
            unsafe {
                give_up(span);
                blocks
                    .iter()
                    .for_each(|b| heap::send_without_heap(index, Chain::one(b.get()), None));
            }
        };
        let (span, index, blocks) = listable_span(CLASS, 3);
        list_thinned(span, index, &blocks[1..]);
        let last = blocks[0];
        let other = spawn(move || {
            // SAFETY: in use, and freed once.
            unsafe { heap::send_without_heap(index, Chain::one(last.get()), None) };
            arena::take_exactly(index, 1).is_some() && {
                // SAFETY: the run is this thread's.
                let next = unsafe { Span::create(index, false, next_class, TAG) };
                // SAFETY: as above.
                let its = unsafe { carve(next, 3) };
                list_thinned(next, index, &its[1..]);
                true
            }
        });
        if let Some((taken, pending)) = abandoned::take_thinner(index, CLASS) {
            // SAFETY: taken.
            unsafe {
                assert_eq!((taken, Span::class_at(taken)), (span, CLASS));
                (*span).absorb(pending);
                give_up(span);
            }
        }
        let is_next = other.join().unwrap();
        assert_eq!(
            (abandoned::count(CLASS), abandoned::count(next_class)),
            (0, usize::from(is_next))
        );
        if !is_next {
            assert_released(index);
        }
    });
}

/// A full span that nobody holds: two threads free into it. One claims it and lists it; both
/// blocks are free in it then.
#[test]
fn frees_into_a_full_abandoned_span() {
    check(SPANS, |_| {
        let class = class_of(1024 - CANARY_BYTES);
        let all: usize = class.layout().blocks.into();
        let (span, index, blocks) = listable_span(class, all - 1);
        // SAFETY: held until the word says otherwise; as `Heap::abandon_full` does.
        unsafe {
            carve(span, 1);
            (*span).disown();
            assert!((*span).word().abandon());
        }
        let threads = [free(index, blocks[0]), free(index, blocks[1])];
        finish(threads);
        let (reclaimed, pending) = abandoned::reclaim(class).expect("it is listed");
        assert_eq!(reclaimed, span);
        // SAFETY: reclaimed; what the claimer freed is in place, what came later pends.
        unsafe {
            let in_place = (*span).free();
            assert_eq!(in_place + pending.count, 2);
            assert_eq!((*span).used(), all as u32 - in_place);
        }
        let owner =
            address_map::descriptor_at(index).owner.load(crate::base::sync::Ordering::Relaxed);
        assert_eq!(owner, OWNER_ABANDONED);
    });
}

/// A free comes upon a span of a closed heap while its owner destroys it: it arrives before, or not at all. The
/// next span in that place knows nothing of it.
#[test]
fn a_free_against_a_destroyed_span() {
    const CLOSED: u32 = TAG | OWNER_CLOSED;
    check(SPANS, |_| {
        let (span, index, blocks) = span(CLASS, 2);
        let block = blocks[0];
        // SAFETY: held.
        unsafe { (*span).own(CLOSED) };
        let other = spawn(move || {
            let block = block.get();
            if let Some(meant) = closed::free::generation_of(block.cast(), CLASS, CLOSED) {
                // SAFETY: as far as this thread can tell it is in use.
                unsafe { heap::send_without_heap(index, Chain::one(block), Some(meant)) };
            }
        });
        // SAFETY: held until then; the run is this thread's again after it.
        unsafe {
            (*span).destroy();
            assert!(arena::take_exactly(index, 1).is_some());
            Span::create(index, false, CLASS, TAG);
        }
        finish([other]);
        // SAFETY: a committed slice.
        assert_eq!(unsafe { address_map::remote_word(index) }.pending(), 0);
    });
}
