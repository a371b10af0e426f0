//! What one heap does with its spans, step by step, as the statistics and the descriptors show it.
//! The figures are those of docs/design/heap.md: a change of policy changes them here.

use super::alone::{Random, alone, panics};
use super::filling;
use super::heaps::{self, Other, SIZE};
use crate::base::Ordering;
use crate::base::size_class::class_of;
use crate::heap::{Heap, Role};
use crate::map::{Block, Chain, END, OWNER_ABANDONED, address_map};
use crate::report::stats;
use crate::spans::Span;
use crate::{ClassRow, Stats, allocate, check, deallocate, os, purge, thread};
use std::vec::Vec;

/// Blocks in a span of 1 KiB blocks, which is one slice.
pub(super) const IN_SPAN: usize = 16;

/// Blocks of 1 KiB.
pub(super) fn blocks(count: usize) -> Vec<*mut u8> {
    (0..count).map(|_| allocate(SIZE)).collect()
}

pub(super) fn free(block: *mut u8) {
    // SAFETY: these tests free each block once.
    unsafe { deallocate(block) };
}

pub(super) fn row(size: usize) -> ClassRow {
    Stats::take().classes[class_of(size).index()]
}

/// (spans, in use, cached, free, untouched) of a class.
fn counts(size: usize) -> (usize, usize, usize, usize, usize) {
    let row = row(size);
    (row.spans, row.in_use, row.cached, row.free, row.untouched)
}

fn owner(block: *mut u8) -> u32 {
    address_map::descriptor(block).owner.load(Ordering::Relaxed)
}

fn my_tag() -> u32 {
    Heap::tag(thread::heap())
}

/// A thread that often frees to others gathers blocks, but not in front of a span that it would have then.
#[test]
#[cfg_attr(feature = "hardened", ignore = "a heap keeps all full spans")]
fn a_free_has_a_full_span_of_nobody_s_at_once() {
    alone(|| {
        let other = Other::new();
        let blocks = other.does(|| blocks(4000));
        other.leaves();
        let (first, rest) = blocks.split_at(2000);
        first.iter().for_each(|&block| free(block));
        for span in rest.chunks_exact(10 * IN_SPAN).skip(1) {
            assert_eq!(owner(span[0]), OWNER_ABANDONED);
            free(span[0]);
            assert_eq!(owner(span[0]), my_tag());
        }
        check();
    });
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn refills_carve_a_page_and_later_more() {
    alone(|| {
        let mut held = blocks(1);
        assert_eq!(counts(SIZE), (1, 1, 3, 0, 12));
        held.extend(blocks(4));
        assert_eq!(counts(SIZE), (1, 5, 3, 0, 8));
        held.extend(blocks(12));
        assert_eq!(counts(SIZE), (2, 17, 3, 0, 12));
        // The seventh time takes more: all that is left of the span.
        held.extend(blocks(4));
        assert_eq!(counts(SIZE), (2, 21, 11, 0, 0));
        // At most so many blocks, and at least one.
        allocate(16);
        assert_eq!(counts(16), (1, 1, 63, 0, 1024 - 64));
        allocate(64 << 10);
        assert_eq!(counts(64 << 10), (1, 1, 0, 0, 7));
        check();
    });
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn freed_blocks_come_before_untouched_ones() {
    alone(|| {
        let mut held = blocks(4);
        held.drain(..).for_each(free);
        assert_eq!(counts(SIZE), (1, 0, 0, 4, 12));
        held = blocks(4);
        assert_eq!(counts(SIZE), (1, 4, 0, 0, 12));
        // Also those of a span that is not the active one: all of the first come before the
        // rest of the second.
        held.extend(blocks(IN_SPAN - 4 + 1));
        assert_eq!(row(SIZE).spans, 2);
        held.drain(..IN_SPAN).for_each(free);
        let cached = row(SIZE).cached;
        let again = blocks(cached + IN_SPAN);
        assert!(again[cached..].iter().all(|&block| owner(block) == my_tag()));
        assert_eq!((row(SIZE).spans, row(SIZE).free), (2, 0));
        check();
    });
}

/// A quarter of its blocks makes a short span that was full worth a refill, one less does not.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn a_full_span_is_used_again_when_that_pays() {
    alone(|| {
        let held = blocks(3 * IN_SPAN);
        assert_eq!(counts(SIZE), (3, 48, 0, 0, 0));
        const PAYS: usize = IN_SPAN / 4;
        held[..PAYS - 1].iter().copied().for_each(free);
        let next = allocate(SIZE);
        assert_eq!(row(SIZE).spans, 4, "one less does not pay");
        free(next);
        free(held[PAYS - 1]);
        // What the youngest span has goes first.
        let young = row(SIZE).cached + row(SIZE).untouched + 1;
        let more = blocks(young + 1);
        assert_eq!(row(SIZE).spans, 4, "a quarter does");
        assert!(held[..PAYS].contains(more.last().expect("some")));
        check();
    });
}

/// Of a span of few blocks a quarter is enough.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn a_quarter_of_a_span_of_few_blocks_pays() {
    alone(|| {
        let held: Vec<_> = (0..24).map(|_| allocate(64 << 10)).collect();
        assert_eq!(counts(64 << 10), (3, 24, 0, 0, 0));
        held[..2].iter().copied().for_each(free);
        let next = allocate(64 << 10);
        assert!(held[..2].contains(&next));
        assert_eq!(counts(64 << 10), (3, 23, 1, 0, 0));
        check();
    });
}

/// Of two empty spans one stays for its class, one for any; of large ones none does.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn one_empty_span_of_a_class_may_stay() {
    alone(|| {
        let held = blocks(3 * IN_SPAN);
        held[..IN_SPAN].iter().copied().for_each(free);
        assert_eq!(counts(SIZE), (3, 32, 0, 16, 0));
        held[IN_SPAN..2 * IN_SPAN].iter().copied().for_each(free);
        assert_eq!(counts(SIZE), (3, 16, 0, 32, 0));
        let other: Vec<_> = (0..32).map(|_| allocate(512)).collect();
        assert_eq!(counts(SIZE), (2, 16, 0, 16, 0));
        other.into_iter().for_each(free);
        let large: Vec<_> = (0..17).map(|_| allocate(64 << 10)).collect();
        assert_eq!(row(64 << 10).spans, 3);
        large[..8].iter().copied().for_each(free);
        assert_eq!(row(64 << 10).spans, 2);
        check();
    });
}

/// In whatever order: they are half a MiB each, and with huge pages all of it is resident.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn a_burst_of_frees_leaves_no_long_span() {
    const COUNT: usize = 210;
    alone(|| {
        for size in [5_000, 20_000, 65_536] {
            for step in [1, 11, 89, COUNT - 1] {
                let held: Vec<_> = (0..COUNT).map(|_| allocate(size)).collect();
                assert!(row(size).spans > 1);
                (1..=COUNT).for_each(|nth| free(held[nth * step % COUNT]));
                assert_eq!(counts(size), (0, 0, 0, 0, 0), "{size} bytes, every {step}th");
            }
            // A block that comes and goes keeps its span.
            free(allocate(size));
            let blocks = counts(size);
            (0..100).for_each(|_| free(allocate(size)));
            assert!(row(size).spans == 1 && row(size).untouched <= blocks.4);
        }
        check();
    });
}

#[test]
fn purge_gives_up_what_is_free() {
    alone(|| {
        let held = blocks(3 * IN_SPAN + 1);
        held[..IN_SPAN].iter().copied().for_each(free);
        assert!(purge() > 0);
        check();
        // The cached ones went back to their span, which is nobody's now.
        assert_eq!(counts(SIZE), (3, 33, 0, 15, 0));
        assert!(held[IN_SPAN..].iter().all(|&block| owner(block) != my_tag()));
        held[IN_SPAN..].iter().copied().for_each(free);
        purge();
        assert_eq!(counts(SIZE), (0, 0, 0, 0, 0));
        check();
    });
}

/// A list of what a heap holds is as long as the heap's room for full spans, 256 slices; with it the heap goes on when they
/// are let go.
fn expect_room_for_full_spans(size: usize, in_span: usize, room: usize) {
    let fill = |spans| (0..spans * in_span).map(|_| allocate(size)).collect::<Vec<_>>();
    let is_mine = |block: &&*mut u8| owner(**block) == my_tag();
    let held = fill(room + room / 6 + 2);
    let mine = held.iter().step_by(in_span).filter(is_mine).count();
    assert!((room - room / 40..=room + 1).contains(&mine), "{mine} of {size} bytes");
    held.into_iter().for_each(free);
    check();
    purge();
    assert_eq!(counts(size), (0, 0, 0, 0, 0));
    // The room is there again, also when they were given up while in use.
    for _ in 0..2 {
        let held = fill(room - room / 40);
        assert!(held.iter().all(|&block| owner(block) == my_tag()));
        purge();
        assert!(held.iter().all(|&block| owner(block) != my_tag()));
        held.into_iter().for_each(free);
        purge();
    }
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn full_spans_beyond_the_room_are_let_go() {
    alone(|| expect_room_for_full_spans(SIZE, IN_SPAN, 256));
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn long_full_spans_beyond_the_room_are_let_go() {
    alone(|| expect_room_for_full_spans(64 << 10, 8, 8));
}

/// Beside other threads a heap keeps few full spans, until its thread has freed into them itself. It keeps fewer again when
/// others do.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn own_frees_earn_room_for_full_spans() {
    const SPANS: usize = 200;
    alone(|| {
        let others = [(); 3].map(|()| Other::new());
        others.iter().for_each(|other| other.does(|| free(allocate(64))));
        let mine = |held: &[*mut u8]| held.iter().filter(|&&p| owner(p) == my_tag()).count();
        let mut held = blocks(SPANS * IN_SPAN);
        let whole = held.len();
        assert!(mine(&held) < whole / 4, "a share for each of four");
        let mut random = Random(1);
        for _ in 0..20 * whole {
            let place = &mut held[random.below(whole)];
            free(core::mem::replace(place, allocate(SIZE)));
        }
        assert!(mine(&held) > whole * 9 / 10, "{} of {whole} are mine", mine(&held));
        check();
        // It earns more than it needs: none has to leave for others' frees to be found.
        for _ in 0..3 {
            held.drain(..).for_each(free);
            held = blocks(SPANS * IN_SPAN);
        }
        let addresses: Vec<_> = held.drain(..).map(|p| p.addr()).collect();
        others[0].does(move || {
            addresses.into_iter().for_each(|at| free(core::ptr::with_exposed_provenance_mut(at)));
        });
        // To grow it looks into those first, as far as it must.
        held = blocks(SPANS * IN_SPAN);
        assert!(row(SIZE).spans < SPANS * 3 / 2, "{} spans", row(SIZE).spans);
        check();
        held.into_iter().for_each(free);
    });
}

/// Frees of what others have allocated earn none, in a span that is its own by then, too.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn frees_of_others_blocks_earn_no_room() {
    alone(|| {
        free(allocate(64));
        let others = [(); 4].map(|()| Other::new());
        others.iter().for_each(|other| other.does(|| free(allocate(64))));
        let at = Other::once(|| {
            blocks(8 * IN_SPAN).into_iter().map(|p| p.expose_provenance()).collect::<Vec<_>>()
        });
        let mut held: Vec<*mut u8> =
            at.into_iter().map(core::ptr::with_exposed_provenance_mut).collect();
        let block = held.remove(4 * IN_SPAN);
        assert_eq!(owner(block), address_map::OWNER_ABANDONED);
        let heap = thread::heap();
        let span: *mut Span = address_map::descriptor(block).slot.load(Ordering::Relaxed).cast();
        // SAFETY: no thread but this one is at work; the block is this test's to free, and then the span is its own.
        unsafe {
            let _inside = (*heap).presence.enter();
            (*heap).push((*span).index(), Chain::one(block.cast()), None);
            assert_eq!(owner(block), Heap::tag(heap));
            let limit = (*heap).full_limit;
            // 15 blocks are in use; each four that are freed make the full span worth a refill.
            for _ in 0..3 {
                (*heap).earn_full(span);
                assert_eq!((*heap).full_limit, limit);
            }
            (*heap).earn_full(span);
            assert!((*heap).full_limit > limit);
        }
        held.into_iter().for_each(free);
        check();
    });
}

/// The shared heap keeps no full spans, whatever is freed into those that it has let go of.
#[test]
#[cfg_attr(feature = "hardened", ignore = "its heaps let go of no full span so early")]
fn the_shared_heap_earns_no_room() {
    alone(|| {
        let others = [(); 3].map(|()| Other::new());
        others.iter().for_each(|other| other.does(|| free(allocate(64))));
        let held = blocks(200 * IN_SPAN);
        let heap = crate::thread::pool::shared::heap();
        let at = held.iter().position(|&p| owner(p) == address_map::OWNER_ABANDONED);
        let block = held[at.expect("a span that nobody owns")];
        let span: *mut Span = address_map::descriptor(block).slot.load(Ordering::Relaxed).cast();
        // SAFETY: no thread but this one is at work; the block is this test's to free.
        unsafe {
            assert_eq!((*heap).role, Role::Shared);
            (*span).let_go_by = Heap::tag(heap);
            (*heap).push((*span).index(), Chain::one(block.cast()), None);
            assert_eq!(owner(block), Heap::tag(heap));
            (*heap).check();
        }
        held.into_iter().filter(|&p| p != block).for_each(free);
        check();
    });
}

/// Frees are kept for the next allocations, 64 KiB or 48 blocks of a class, whether their span is
/// the heap's own or nobody's; blocks of others' up to half of that.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn freed_blocks_are_kept_for_the_next_allocation() {
    alone(|| {
        // A list of blocks that are zero takes in no others: nothing that was used goes back.
        crate::keep_memory(true);
        for (size, room) in [(1024, 48), (8192, 8), (64, 48), (48, 48)] {
            for (whose, room) in [("own", room), ("nobody's", room), ("another's", room / 2)] {
                // Used before.
                heaps::blocks(size, (3 << 20) / size).into_iter().for_each(free);
                let mut other = Some(Other::new());
                let held = match &other {
                    Some(other) if whose != "own" => other.allocates(size, 100),
                    _ => heaps::blocks(size, 100),
                };
                if whose == "nobody's" {
                    other.take().into_iter().for_each(Other::leaves);
                }
                // SAFETY: this thread's heap.
                let cached = || unsafe { stats::peek_cache(thread::heap(), class_of(size)) };
                let mut mine = Vec::from([allocate(size)]);
                while cached() > 0 {
                    mine.push(allocate(size));
                }
                mine.push(allocate(size));
                let before = cached();
                let shared = whose == "another's" && size < 64;
                let most = if shared { 0 } else { usize::saturating_sub(room, before) };
                let mut kept = Vec::new();
                for (at, &block) in held[..most + 3].iter().enumerate() {
                    let now = cached();
                    free(block);
                    kept.extend((cached() > now).then_some(block));
                    // Of blocks of nobody's each 16th goes to its span.
                    let probes = if whose == "nobody's" { (at + 16) / 16 } else { 0 };
                    let least = most.min(at + 1 - probes);
                    assert!((least..=most).contains(&kept.len()), "{whose}, {size}");
                }
                // The last that was kept comes first.
                for &block in kept.iter().rev() {
                    assert_eq!(allocate(size), block);
                }
                check();
                let rest = kept.iter().chain(&held[most + 3..]).chain(&mine);
                rest.copied().for_each(free);
                other.into_iter().for_each(Other::leaves);
                purge();
                assert_eq!(row(size).in_use, 0);
            }
        }
    });
}

/// What is kept for a class that is not needed goes home in time, to spans that it keeps alive.
#[test]
fn what_is_kept_and_not_needed_goes_home() {
    alone(|| {
        blocks(300).into_iter().for_each(free);
        let held = blocks(20 * IN_SPAN);
        held.into_iter().for_each(free);
        let others = heaps::blocks(16, 400_000);
        assert_eq!(row(SIZE).cached, 0);
        assert!(row(SIZE).spans <= 2, "{}", row(SIZE).spans);
        others.into_iter().for_each(free);
        check();
    });
}

/// Those that are not needed again go back to their spans.
#[test]
fn kept_blocks_find_their_spans() {
    alone(|| {
        for (size, blocks) in [(filling(64), 600), (SIZE, 40), (filling(2048), 100), (6000, 200)] {
            let held: Vec<_> = (0..blocks).map(|_| allocate(size)).collect();
            // Nobody's from now on.
            purge();
            let mine = allocate(size);
            // From all over them.
            held.iter().step_by(9).copied().for_each(free);
            check();
            purge();
            let gone = held.iter().step_by(9).count();
            assert_eq!((row(size).in_use, row(size).cached), (blocks - gone + 1, 0), "{size}");
            let rest = held.iter().enumerate().filter(|(at, _)| at % 9 != 0);
            rest.for_each(|(_, &block)| free(block));
            free(mine);
            purge();
            assert_eq!(counts(size), (0, 0, 0, 0, 0));
        }
    });
}

#[test]
fn zeroed_blocks_are_zero_wherever_they_come_from() {
    alone(|| {
        for size in [16, 1000, SIZE, 5000, 60_000] {
            for round in 0..4 {
                let count = (40_000 / size).max(3);
                let held: Vec<_> = (0..count).map(|_| crate::allocate_zeroed(size)).collect();
                assert_eq!(row(size).in_use, count);
                for &block in &held {
                    // SAFETY: a live block of that many bytes.
                    unsafe {
                        let bytes = std::slice::from_raw_parts_mut(block, size);
                        assert!(bytes.iter().all(|&byte| byte == 0), "{size} in round {round}");
                        bytes.fill(0xaa);
                    }
                }
                held.into_iter().for_each(free);
                if round == 1 {
                    purge();
                }
            }
        }
    });
}

/// A block that has never been used is zero but for its link: the rest of it is not touched.
#[test]
fn fresh_blocks_are_not_written_to() {
    alone(|| {
        let block = crate::allocate_zeroed(60_000);
        let behind = block.wrapping_add(block.align_offset(4096) + 4096);
        assert_eq!(os::resident(behind, 40 << 10), 0);
        free(block);
    });
}

/// Whoever reads a list from outside goes no further than a list can be.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn a_list_seen_from_outside_has_an_end() {
    alone(|| {
        let block = allocate(SIZE);
        let (heap, class) = (thread::heap(), class_of(SIZE));
        let (next, last) = (block.wrapping_add(1024).cast(), block.wrapping_add(3072).cast());
        // SAFETY: this thread's heap; the next blocks of its list, which nobody has.
        unsafe {
            assert_eq!(stats::peek_cache(heap, class), 3);
            Block::set_next(last, next);
            assert_eq!(stats::peek_cache(heap, class), IN_SPAN + 48);
            Block::set_next(last, END);
        }
        check();
    });
}

/// The check itself.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn the_check_notices_a_wrong_link() {
    alone(|| {
        let block = allocate(SIZE);
        check();
        let (second, third) = (block.wrapping_add(1024).cast(), block.wrapping_add(2048).cast());
        // SAFETY: the next blocks of the list, which nobody has.
        unsafe {
            Block::set_next(second, block.wrapping_add(100).cast());
            assert!(panics(check), "a link into a block");
            Block::set_next(second, block.map_addr(|at| at ^ 1 << 40).cast());
            assert!(panics(check), "a link out of the reservation");
            Block::set_next(second, third);
        }
        check();
        // Blocks of the first class: its number is what stands in other slices, too.
        let smallest = allocate(16);
        let large = allocate(100 << 10);
        let unused = address_map::slice_address(address_map::committed() - 1);
        let (next, after): (*mut Block, _) =
            (smallest.wrapping_add(16).cast(), smallest.wrapping_add(32).cast());
        for elsewhere in [large, unused, block] {
            // SAFETY: as above.
            unsafe {
                Block::set_next(next, elsewhere.cast());
                assert!(panics(check), "{elsewhere:p} is no block of the class");
                Block::set_next(next, after);
            }
        }
        check();
        // And a span's own list is walked, whichever list the span is in.
        let held = blocks(2 * IN_SPAN);
        held[4..14].iter().copied().for_each(free);
        // SAFETY: a free block's link.
        unsafe {
            let next = Block::next(held[13].cast());
            Block::set_next(held[13].cast(), held[0].wrapping_add(8).cast());
            assert!(panics(check), "a link of a span");
            Block::set_next(held[13].cast(), next);
        }
        check();
    });
}
