//! A span by itself: its counters through every step of its life, and lists of spans.

use super::alone::{Random, alone, panics, taken};
use super::filling;
use super::forks::child_does;
use crate::base::size_class::class_of;
use crate::base::{AtomicBool, HARDENED, Ordering, SizeClass};
use crate::map::{Block, Chain, END, FreeList, OWNER_ABANDONED, OWNER_NONE, Pushed, address_map};
use crate::slices::arena;
use crate::spans::{Carved, Span, SpanList, abandoned};
use crate::store::{Known, Live};
use crate::{allocate, thread};
use core::ptr::null_mut;
use std::collections::VecDeque;
use std::vec::Vec;

/// Stands for a heap's tag: a multiple of a page.
const TAG: u32 = 0x7000;

/// A new span for blocks of `size` bytes, whose memory is said to be zero.
fn span_of(size: usize) -> &'static mut Span {
    assert!(thread::start());
    let class = class_of(filling(size));
    let run = arena::take_span(class.span_slices()).expect("there is memory");
    // SAFETY: made of a run of its own; these tests hold on to one reference.
    unsafe { &mut *Span::create(run.index, run.zero, class, TAG) }
}

/// A span counts as thin until its last block has been in a list, or it ends, or when all are untouched again.
#[test]
fn a_span_is_thin_until_all_its_blocks_have_been_had() {
    alone(|| {
        let thin = || arena::THIN.0.load(Ordering::Relaxed);
        let span = span_of(2000);
        let (slices, before) = (span.class().span_slices(), thin());
        while span.untouched() > 0 {
            assert_eq!(thin(), before);
            assert!(!carved(span, 5).is_empty());
        }
        assert_eq!(thin(), before - slices);
        let other = span_of(2000);
        assert_eq!(thin(), before);
        carved(other, 1).into_iter().for_each(|block| _ = push(other, block));
        other.release();
        assert_eq!(thin(), before - slices, "it has ended");
        span_of(2000).release();
        assert_eq!(thin(), before - slices);
    });
}

/// The blocks of a list, in its order.
fn blocks(list: FreeList) -> Vec<*mut Block> {
    let (mut blocks, count) = (Vec::new(), list.count as usize);
    let mut list = list.head;
    while list != END {
        blocks.push(list);
        // SAFETY: links of blocks that the span has handed out.
        list = unsafe { Block::next(list) };
    }
    assert_eq!(blocks.len(), count);
    blocks
}

/// Blocks that the span has found, handed out; hardened, in the order of their addresses.
fn handed_out(span: &mut Span, list: FreeList) -> Vec<*mut Block> {
    if HARDENED { taken(span, list.count) } else { blocks(list) }
}

fn carved(span: &mut Span, limit: usize) -> Vec<*mut Block> {
    let list = span.carve(limit).list;
    handed_out(span, list)
}

fn freed(span: &mut Span) -> Vec<*mut Block> {
    let list = span.take_local();
    handed_out(span, list)
}

fn push(span: &mut Span, block: *mut Block) -> bool {
    // SAFETY: the test holds the span; the block is in use.
    unsafe { Live::take_back(block.cast()) && span.push_local(block) }
}

fn chain_of(blocks: &[*mut Block]) -> Chain {
    let mut chain = Chain::EMPTY;
    for &block in blocks {
        // SAFETY: the blocks are the test's.
        unsafe { chain.push(block) };
    }
    chain
}

fn assert_counts(span: &Span, used: u32, free: u32, untouched: usize) {
    assert_eq!((span.used(), span.free(), span.untouched()), (used, free, untouched));
    assert_eq!(span.has_local_free(), free > 0);
    assert_eq!(span.has_blocks(), free > 0 || untouched > 0);
    // SAFETY: a span.
    let peeked = unsafe { crate::thread::search::peek_span(span) };
    assert_eq!(peeked, (used as usize, (used + free) as usize));
    span.check();
}

fn owner(index: usize) -> u32 {
    address_map::descriptor_at(index).owner.load(Ordering::Relaxed)
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn a_new_span_is_described_and_untouched() {
    alone(|| {
        for (size, slices, count) in [(1024, 1, 16), (3000, 4, 21), (60_000, 32, 8), (48, 1, 341)] {
            let span = span_of(size);
            assert_counts(span, 0, 0, count);
            assert!(!span.is_full());
            assert_eq!(span.class(), class_of(filling(size)));
            assert!(core::ptr::eq(span.layout(), span.class().layout()));
            assert_eq!(span.base(), address_map::slice_address(span.index()));
            for i in 0..slices {
                let d = address_map::descriptor_at(span.index() + i);
                assert_eq!(d.owner.load(Ordering::Relaxed), TAG);
                assert!(core::ptr::eq(d.slot.load(Ordering::Relaxed).cast(), &*span));
            }
            span.disown();
            assert_eq!(owner(span.index() + slices - 1), OWNER_ABANDONED);
            span.own(TAG + 0x1000);
            assert_eq!(owner(span.index()), TAG + 0x1000);
            let (index, free) = (span.index(), arena::counts().clean);
            span.release();
            assert_eq!((owner(index), owner(index + slices - 1)), (OWNER_NONE, OWNER_NONE));
            assert_eq!(arena::counts().clean, free, "what was a span counts as dirty");
            assert_eq!(arena::purge_all(), slices << 14);
        }
    });
}

#[test]
fn blocks_are_carved_in_the_order_of_their_addresses() {
    alone(|| {
        let span = span_of(1024);
        let start = span.base();
        let at = |i: usize| start.wrapping_add(i * 1024).cast::<Block>();
        assert_eq!(span.carve(0).list.count, 0);
        let Carved { list, zeroed } = span.carve(5);
        assert!(zeroed);
        assert_eq!(handed_out(span, list), (0..5).map(at).collect::<Vec<_>>());
        assert_counts(span, 5, 0, 11);
        assert_eq!(carved(span, 1), [at(5)]);
        assert_eq!(carved(span, 100), (6..16).map(at).collect::<Vec<_>>());
        assert_counts(span, 16, 0, 0);
        let Carved { list, zeroed } = span.carve(100);
        assert!(list.head.is_null() && !zeroed);
        // Exactly these are blocks.
        let described = address_map::descriptor_at(span.index());
        for offset in 0..20_000 {
            let p = start.wrapping_add(offset);
            // SAFETY: a span; any address will do.
            let is = unsafe { described.probe(p) }.1 & span.layout().mask == 0;
            assert_eq!(is, offset % 1024 == 0 && offset < 16 * 1024, "{offset}");
        }
    });
}

#[test]
fn memory_that_was_used_before_is_not_called_zero() {
    alone(|| {
        let span = span_of(1024);
        span.release();
        let span = span_of(1024);
        assert!(!span.carve(1).zeroed);
        // And slack stands in front.
        let span = span_of(48);
        let first = carved(span, 1)[0];
        assert_eq!(first.addr() - span.base().addr(), 16384 - 341 * 48);
    });
}

#[test]
fn what_is_freed_is_handed_out_again() {
    alone(|| {
        let span = span_of(1024);
        let all = carved(span, 7);
        for (i, &block) in all.iter().enumerate() {
            assert_eq!(push(span, block), i == 6, "an event comes with the last");
            assert_counts(span, 6 - i as u32, i as u32 + 1, 9);
        }
        span.set_active();
        let mut again = freed(span);
        again.sort();
        assert_eq!(again, all);
        assert_counts(span, 7, 0, 9);
        if HARDENED {
            all[..4].iter().for_each(|&block| _ = push(span, block));
        } else {
            // SAFETY: the test holds the span; the blocks are in use.
            unsafe { span.push_list(chain_of(&all[..4]).list.head) };
        }
        assert_counts(span, 3, 4, 9);
        again = freed(span);
        again.sort();
        assert_eq!(again, all[..4].to_vec());
        // An active span has no event, not even with the last free.
        assert!(all.iter().all(|&block| !push(span, block)));
        assert_counts(span, 0, 7, 9);
    });
}

#[test]
fn a_full_span_has_an_event_after_some_frees() {
    alone(|| {
        let span = span_of(1024);
        let all = carved(span, 16);
        span.set_full(3);
        assert!(span.is_full());
        assert_counts(span, 16, 0, 0);
        assert!(!push(span, all[0]) && !push(span, all[1]));
        assert_counts(span, 14, 2, 0);
        assert!(push(span, all[2]));
        assert_counts(span, 13, 3, 0);
        span.clear_event();
        assert!(!span.is_full());
        assert_counts(span, 13, 3, 0);
        for &block in &all[3..15] {
            assert!(!push(span, block));
        }
        assert!(push(span, all[15]));
        assert_counts(span, 0, 16, 0);
        // More than there are in use: the event is the last free.
        span.set_active();
        freed(span);
        span.clear_event();
        let others = chain_of(&all[2..]);
        span.absorb(others.list);
        span.set_full(3);
        assert!(!push(span, all[0]) && push(span, all[1]));
        assert_counts(span, 0, 16, 0);
    });
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn the_last_free_is_an_event_whichever_others_frees_have_passed() {
    alone(|| {
        let span = span_of(1024);
        let all = carved(span, 16);
        // One is free here already, and three are left until the event: others free six.
        span.set_full(4);
        assert!(!push(span, all[0]));
        span.absorb(chain_of(&all[1..7]).list);
        assert_counts(span, 9, 7, 0);
        for &block in &all[7..15] {
            assert!(!push(span, block));
        }
        assert!(push(span, all[15]));
        assert_counts(span, 0, 16, 0);
    });
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn blocks_freed_by_others_are_absorbed_claimed_or_salvaged() {
    alone(|| {
        let span = span_of(1024);
        let all = carved(span, 16);
        span.absorb(FreeList::EMPTY);
        assert_counts(span, 16, 0, 0);
        span.set_full(8);
        span.absorb(chain_of(&all[..5]).list);
        assert_counts(span, 11, 5, 0);
        span.clear_event();
        span.set_active();
        assert_eq!(freed(span).len(), 5);
        span.clear_event();
        span.claim(chain_of(&all[10..]).list);
        assert_counts(span, 10, 6, 0);
        // After a fork only what is pending is believed.
        span.forget_lists();
        span.absorb(chain_of(&all[..2]).list);
        assert!(!span.is_full());
        assert_counts(span, 14, 2, 0);
        let young = span_of(1024);
        let some = carved(young, 4);
        young.set_full(2);
        young.forget_lists();
        young.absorb(chain_of(&some[..1]).list);
        assert!(!young.is_full());
        assert_counts(young, 15, 1, 0);
        // And of what comes back by a way that does not count, there is nothing left.
        young.empty(FreeList::EMPTY);
        assert_eq!((young.used(), young.has_local_free()), (0, false));
    });
}

/// Blocks come back through the word of the right span, wherever it stands in its chunk.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn every_span_has_a_word_of_its_own() {
    alone(|| {
        let spans: Vec<&mut Span> = (0..130).map(|_| span_of(1024)).collect();
        let mut given = Vec::new();
        for span in spans {
            let all = carved(span, 16);
            // SAFETY: blocks of that span, in use.
            let pushed = unsafe { span.word().push(span.base(), chain_of(&all[3..6]), None) };
            assert_eq!(pushed, Pushed::Queued);
            given.push((span, all));
        }
        for (span, all) in given {
            let mut back = blocks(span.collect());
            back.reverse();
            assert_eq!(back, all[3..6].to_vec());
            assert_eq!(span.collect().count, 0);
        }
    });
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "there are no links; tests/quarantine.rs has its bits")]
fn the_check_notices_wrong_links_and_counts() {
    alone(|| {
        let span = span_of(1024);
        let all = carved(span, 8);
        all.iter().take(3).for_each(|&block| {
            push(span, block);
        });
        span.check();
        // SAFETY: free blocks of a span that the test holds.
        unsafe {
            Block::set_next(all[1], all[0].wrapping_byte_add(16));
            assert!(panics(|| span.check()), "a link into a block");
            Block::set_next(all[1], END);
            assert!(panics(|| span.check()), "a block too few");
            Block::set_next(all[0], all[3]);
            Block::set_next(all[1], all[0]);
            Block::set_next(all[3], END);
            assert!(panics(|| span.check()), "a block too many");
            Block::set_next(all[0], all[2]);
            assert!(panics(|| span.check()), "a list without an end");
            Block::set_next(all[0], END);
        }
        span.check();
        // SAFETY: the span is ours, and no block of it is used any more.
        unsafe {
            address_map::describe(
                span.index(),
                1,
                address_map::slot(span.index()),
                TAG,
                SizeClass::in_turn(3),
            );
        }
        assert!(panics(|| span.check()), "another class");
    });
}

#[test]
fn a_list_of_spans_is_a_list() {
    alone(|| {
        let spans: Vec<*mut Span> = (0..12).map(|_| &raw mut *span_of(1024)).collect();
        let mut list = SpanList::EMPTY;
        let mut model: VecDeque<*mut Span> = VecDeque::new();
        let mut random = Random(3);
        for _ in 0..2000 {
            let span = spans[random.below(spans.len())];
            // SAFETY: the spans are the test's, and in the list exactly if the model says so.
            unsafe {
                if let Some(at) = model.iter().position(|&other| other == span) {
                    list.remove(span);
                    model.remove(at);
                } else if random.below(2) == 0 {
                    list.push_front(span);
                    model.push_front(span);
                } else {
                    list.push_back(span);
                    model.push_back(span);
                }
            }
            assert_eq!(list.len(), model.len());
            assert_eq!(list.first(), model.front().copied().unwrap_or(null_mut()));
            assert_eq!(list.last(), model.back().copied().unwrap_or(null_mut()));
            assert!(
                list.iter().map(|span| (&raw const *span).cast_mut()).eq(model.iter().copied())
            );
            let after = |i: usize| model.get(i + 1).copied().unwrap_or(null_mut());
            for (i, &span) in model.iter().enumerate() {
                // SAFETY: members of the list.
                assert_eq!(unsafe { SpanList::after(span) }, after(i));
            }
        }
    });
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn the_latest_abandoned_span_is_reclaimed() {
    alone(|| {
        let class = class_of(filling(1024));
        assert!(abandoned::reclaim(class).is_none());
        let mut spans = Vec::new();
        for live in [3, 9, 12, 1] {
            let span = span_of(1024);
            let all = carved(span, live);
            // SAFETY: the test holds the span.
            assert!(unsafe { abandoned::list(span) });
            assert_eq!(owner(span.index()), OWNER_ABANDONED);
            spans.push((&raw mut *span, all));
        }
        // What is pending comes with it.
        let (span, all) = &spans[2];
        // SAFETY: blocks of that span, in use; as below.
        unsafe {
            let (word, base) = ((**span).word(), (**span).base());
            assert_eq!(word.push(base, chain_of(&all[..5]), None), Pushed::Listed);
        }
        // The last one goes by a push that frees its only block: it stands before the others.
        let (span, all) = &spans[3];
        // SAFETY: as above; nobody else looks at the list.
        unsafe {
            let (word, base) = ((**span).word(), (**span).base());
            assert_eq!(word.push(base, chain_of(all), None), Pushed::ClaimedEmpty);
            assert_eq!(SpanList::after(*span), spans[2].0);
            abandoned::remove(*span, class);
            assert!(SpanList::after(*span).is_null());
        }
        for (expected, pending) in [(2, 5), (1, 0), (0, 0)] {
            let (span, chain) = abandoned::reclaim(class).expect("some are left");
            assert_eq!(span, spans[expected].0);
            assert_eq!(chain.count, pending);
        }
        assert!(abandoned::reclaim(class).is_none());
    });
}

/// A child that is forked while a span changes its owner finds it owned by whom it does not have, as a whole, or nobody's.
#[test]
fn a_child_finds_no_slices_of_a_span_that_is_nobodys() {
    alone(|| {
        static ENDS: AtomicBool = AtomicBool::new(false);
        let span = span_of(60_000);
        let (first, slices) = (span.index(), span.layout().slices as usize);
        let at = (&raw mut *span).expose_provenance();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: the test holds the span.
                let span = unsafe { &*core::ptr::with_exposed_provenance::<Span>(at) };
                while !ENDS.load(Ordering::Relaxed) {
                    span.disown();
                    span.own(TAG);
                }
            });
            let is_whole = |_| {
                child_does(|| {
                    let is_owned = |slice: usize| owner(first + slice) == TAG;
                    assert!(is_owned(0) || !(1..slices).any(is_owned));
                })
            };
            let are_whole = (0..200).all(is_whole);
            ENDS.store(true, Ordering::Relaxed);
            assert!(are_whole);
        });
    });
}

/// The oldest one has been claimed by a push whose thread waits for the lock, or, in a forked child, is not there.
#[test]
fn a_claimed_span_is_passed_by_when_others_are_thinned() {
    alone(|| {
        let class = class_of(filling(1024));
        let some: fn() = || (0..4).for_each(|_| abandoned::thin_next());
        for thin in [some, abandoned::make_holes] {
            let [(claimed, its), (other, all)] = [1, 14].map(|live| {
                let span = span_of(1024);
                let all = carved(span, live);
                // SAFETY: the test holds the span.
                assert!(unsafe { abandoned::list(span) });
                (span, all)
            });
            // SAFETY: blocks of these spans, in use.
            unsafe {
                let pushed = claimed.word().push(claimed.base(), chain_of(&its), None);
                assert_eq!(pushed, Pushed::ClaimedEmpty);
                let pushed = other.word().push(other.base(), chain_of(&all[1..]), None);
                assert_eq!(pushed, Pushed::Listed);
            }
            thin();
            assert_eq!((other.word().pending(), other.used()), (0, 1), "it was taken in");
            // SAFETY: as the push has said; and the only span left.
            unsafe { abandoned::remove(claimed, class) };
            assert!(abandoned::reclaim(class).is_some_and(|(span, _)| core::ptr::eq(span, other)));
        }
    });
}

#[test]
fn a_span_is_not_left_if_everything_in_it_is_pending() {
    alone(|| {
        let class = class_of(filling(1024));
        let span = span_of(1024);
        let all = carved(span, 4);
        // SAFETY: blocks of a span that the test holds, in use.
        unsafe {
            assert_eq!(span.word().push(span.base(), chain_of(&all), None), Pushed::Queued);
            assert!(!abandoned::list(span));
        }
        assert!(span.word().is_owned());
        assert!(abandoned::reclaim(class).is_none());
        // Lists are one per class.
        let other = span_of(64);
        carved(other, 1);
        // SAFETY: the test holds the span.
        assert!(unsafe { abandoned::list(other) });
        assert!(abandoned::reclaim(class).is_none());
        assert!(abandoned::reclaim(class_of(filling(64))).is_some());
    });
}

#[test]
fn a_link_shows_no_address() {
    alone(|| {
        let [first, second] = [allocate(64), allocate(64)].map(|block| block.cast::<Block>());
        // SAFETY: the two blocks are this test's, and nobody's list has them.
        unsafe {
            Block::set_next(first, second);
            let raw = |block: *mut Block| block.cast::<usize>().add(1).read();
            assert_ne!(raw(first), second.addr());
            assert_ne!(raw(first) << 16, second.addr() << 16);
            assert!(Block::is_marked(first));
            assert_eq!(Block::next(first), second);
            Block::set_next(first, END);
            assert_eq!(Block::next(first), END);
            // The same link elsewhere looks different in the hardened build.
            Block::set_next(second, END);
            assert_eq!(raw(first) == raw(second), !HARDENED);
        }
    });
}
