//! Pages inside spans that go and come back: none with a live byte goes, no block is lost or
//! handed out twice, and a heap that has time finds them.

mod thinning;

use super::alone::{Random, alone, taken};
use crate::base::{HARDENED, SLICE_SIZE, SizeClass};
use crate::map::{Block, END, FreeList, address_map};
use crate::slices::arena;
use crate::spans::Span;
use crate::store::{Known, Live};
use crate::{Stats, allocate, check, deallocate, os, purge, thread};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use std::vec::Vec;

const TAG: u32 = 0x7000;

/// Fills a block in front of its link and behind it.
fn fill(block: *mut u8, size: usize) {
    // SAFETY: the test's block, of that size.
    unsafe {
        block.write_bytes(block.addr() as u8 | 1, 8);
        block.add(16).write_bytes(block.addr() as u8 | 1, size - 16);
    }
}

fn is_filled(block: *mut u8, size: usize) -> bool {
    // SAFETY: as above.
    let bytes = unsafe { std::slice::from_raw_parts(block, size) };
    bytes[..8].iter().chain(&bytes[16..]).all(|&byte| byte == block.addr() as u8 | 1)
}

fn take(span: &mut Span, list: FreeList, into: &mut Vec<*mut u8>) {
    if HARDENED {
        into.extend(taken(span, list.count).into_iter().map(<*mut Block>::cast::<u8>));
        return;
    }
    let mut at = list.head;
    for _ in 0..list.count {
        into.push(at.cast());
        // SAFETY: links of blocks that the span has handed out.
        at = unsafe { Block::next(at) };
    }
    assert!(list.count == 0 || at == END);
}

/// Bytes of a span that are resident.
fn resident(span: &Span) -> usize {
    os::resident(span.base(), span.class().span_slices() * SLICE_SIZE)
}

fn give(span: &mut Span, block: *mut u8) {
    // SAFETY: in use, the test's.
    unsafe {
        assert!(Live::take_back(block));
        span.push_local(block.cast());
    }
}

/// Spans of each class go through random frees, searches for holes and carves, beside a plain set.
#[test]
fn no_live_page_goes_and_no_block_is_lost() {
    alone(|| {
        assert!(thread::start());
        let mut random = Random(0x1234_5678_9abc_def1);
        let (mut holes, mut hidden) = (0, 0);
        for round in 0..6 {
            for class in SizeClass::all() {
                let layout = class.layout();
                let size = layout.size as usize;
                let run = arena::take_span(layout.slices as usize).expect("there is memory");
                // SAFETY: made of a run of its own; one reference.
                let span = unsafe { &mut *Span::create(run.index, run.zero, class, TAG) };
                let mut live = Vec::new();
                // Some are never carved in half of the rounds.
                let carved = usize::from(layout.blocks) >> (round % 2);
                while live.len() < carved {
                    let list = span.carve(carved - live.len()).list;
                    take(span, list, &mut live);
                }
                live.iter().for_each(|&block| fill(block, size));
                for step in 0..12 {
                    let leave = random.below(live.len()) >> (step % 3 * 2);
                    while live.len() > leave.max(1) {
                        let block = live.swap_remove(random.below(live.len()));
                        give(span, block);
                    }
                    let (before, had) = (resident(span), span.hidden);
                    span.make_holes();
                    hidden += usize::from(span.hidden > had);
                    span.check();
                    let after = resident(span);
                    holes += usize::from(after < before);
                    assert!(after <= before);
                    assert!(live.iter().all(|&block| is_filled(block, size)), "{size}");
                    // Take back some, or all.
                    let wanted = random.below(carved - live.len() + 1).max(1);
                    span.set_active();
                    while live.len() < carved.min(leave + wanted) {
                        let from = live.len();
                        let list = span.take_local();
                        take(span, list, &mut live);
                        if live.len() == from {
                            let list = span.carve(1).list;
                            take(span, list, &mut live);
                        }
                        live[from..].iter().for_each(|&block| fill(block, size));
                    }
                    span.clear_event();
                    span.check();
                    let distinct: BTreeSet<_> = live.iter().collect();
                    assert_eq!(distinct.len(), live.len(), "{size}");
                    assert_eq!(span.used() as usize, live.len());
                    let d = address_map::descriptor_at(span.index());
                    // SAFETY: a span.
                    let misses = |p| unsafe { d.probe(p) }.1 & span.layout().mask;
                    assert!(live.iter().all(|&block| misses(block) == 0));
                }
                span.empty(FreeList::EMPTY);
                span.release();
            }
        }
        // What is in a hole is not at home until it is carved again.
        assert!(holes.min(hidden) > 500 || os::page_size() > 4096, "{holes} {hidden}");
        purge();
        check();
    });
}

/// Bytes of the pages that hold a part of these blocks.
fn floor(live: &[(*mut u8, usize)]) -> usize {
    let page = os::page_size();
    let pages: BTreeSet<_> = live
        .iter()
        .flat_map(|&(block, size)| block.addr() / page..(block.addr() + size).div_ceil(page))
        .collect();
    pages.len() * page
}

/// The same at once, by a call, whoever has freed: the owner before it left, or others after that.
#[test]
fn a_purge_gives_back_the_pages_without_a_live_byte() {
    alone(|| {
        let mut random = Random(0x5555_4321_aaaa_cba9);
        let size = |at: usize| 64 + at % 29 * 32;
        let thin = |live: &mut Vec<(usize, usize)>, to: usize, random: &mut Random| {
            while live.len() > to {
                let (block, _) = live.swap_remove(random.below(live.len()));
                // SAFETY: in use, the test's.
                unsafe { deallocate(std::ptr::with_exposed_provenance_mut(block)) };
            }
        };
        let left = std::thread::spawn(move || {
            let mut random = Random(77);
            let take = |at| (allocate(size(at)).expose_provenance(), size(at));
            let mut live: Vec<_> = (0..60_000).map(take).collect();
            thin(&mut live, 20_000, &mut random);
            live
        });
        let mut live = left.join().expect("no panic");
        thin(&mut live, 6_000, &mut random);
        let live: Vec<_> = live
            .into_iter()
            .map(|(block, size)| (std::ptr::with_exposed_provenance_mut::<u8>(block), size))
            .collect();
        live.iter().for_each(|&(block, size)| fill(block, size));
        let (before, given) = (Stats::take().spans.resident, Stats::take().given_back);
        let gone = purge();
        check();
        let after = Stats::take().spans.resident;
        assert!(gone >= before - after, "{gone} of {before}, {after} are left");
        assert!(Stats::take().given_back - given >= gone as u64);
        let floor = floor(&live);
        assert!(after <= floor + floor / 20 + (1 << 20), "{after} of {before}, floor {floor}");
        assert!(live.iter().all(|&(block, size)| is_filled(block, size)));
        // SAFETY: in use, the test's.
        live.iter().for_each(|&(block, _)| unsafe { deallocate(block) });
        purge();
        check();
        assert_eq!(Stats::take().spans.bytes, 0);
    });
}

/// What a thread has time for: after most of its blocks are freed at random, and little happens,
/// hardly more than the pages with a live byte stay, and everything works on.
#[test]
fn a_heap_with_time_gives_back_the_pages_without_a_live_byte() {
    alone(|| {
        let mut random = Random(0x9876_5432_1fed_cba9);
        let size = |at: usize| 64 + at % 29 * 32;
        let mut live: Vec<_> = (0..60_000).map(|at| (allocate(size(at)), size(at))).collect();
        live.iter().for_each(|&(block, size)| fill(block, size));
        let full = Stats::take().spans.resident;
        while live.len() > 6_000 {
            let (block, _) = live.swap_remove(random.below(live.len()));
            // SAFETY: in use, the test's.
            unsafe { deallocate(block) };
        }
        let floor = floor(&live);
        let (start, mut at) = (Instant::now(), 0);
        let mut resident = full;
        while resident > floor + floor / 20 + (1 << 20) {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{resident} of {full}, floor {floor}"
            );
            // So many of one class that both builds have to refill: who is served by what was freed last does not come by.
            at += 1;
            let some = || {
                std::thread::sleep(Duration::from_millis(2));
                allocate(size(at))
            };
            let held: Vec<_> = (0..50).map(|_| some()).collect();
            // SAFETY: in use, the test's.
            held.into_iter().for_each(|block| unsafe { deallocate(block) });
            resident = Stats::take().spans.resident;
        }
        assert!(live.iter().all(|&(block, size)| is_filled(block, size)));
        check();
        // All of it is used again, at full speed: no block comes twice.
        live.extend((0..54_000).map(|at| (allocate(size(at)), size(at))));
        live[6_000..].iter().for_each(|&(block, size)| fill(block, size));
        assert!(live.iter().all(|&(block, size)| is_filled(block, size)));
        assert_eq!(live.iter().map(|&(block, _)| block).collect::<BTreeSet<_>>().len(), 60_000);
        check();
        // SAFETY: in use, the test's.
        live.iter().for_each(|&(block, _)| unsafe { deallocate(block) });
        purge();
        check();
        assert_eq!(Stats::take().spans.bytes, 0);
        assert!(address_map::committed() > 0);
    });
}

/// As many blocks in use as at the last search may be others: what is free beside them has come back meanwhile.
#[test]
fn what_has_come_back_goes_again() {
    alone(|| {
        assert!(thread::start());
        for class in SizeClass::all() {
            let layout = class.layout();
            let (size, blocks) = (layout.size as usize, usize::from(layout.blocks));
            let run = arena::take_span(layout.slices as usize).expect("there is memory");
            // SAFETY: made of a run of its own; one reference.
            let span = unsafe { &mut *Span::create(run.index, run.zero, class, TAG) };
            let mut left = [0; 2];
            let mut live = Vec::new();
            for left in &mut left {
                span.set_active();
                while live.len() < blocks {
                    let (from, list) = (live.len(), span.take_local());
                    take(span, list, &mut live);
                    if live.len() == from {
                        let list = span.carve(blocks - from).list;
                        take(span, list, &mut live);
                    }
                }
                live.iter().for_each(|&block| fill(block, size));
                span.clear_event();
                live.sort();
                live.drain(1..).for_each(|block| give(span, block));
                span.make_holes();
                *left = resident(span);
            }
            assert_eq!(left[0], left[1], "{size}");
            give(span, live[0]);
            span.empty(FreeList::EMPTY);
            span.release();
        }
    });
}
