//! The hardened build: what becomes of a block between two uses, and what is noticed in between.
#![cfg(feature = "hardened")]

mod held;

use super::alone::alone;
use super::filling;
use super::forks::child_does;
use super::heaps::{Other, SHARED, blocks, free, my_tag, owner, row};
use super::misuse::last_words;
use crate::base::size_class::guards;
use crate::base::{Ordering, SLICE_SIZE, SizeClass};
use crate::map::{Block, CHUNK_SLICES, address_map};
use crate::store::filling::READY;
use crate::store::{Bits, Known, canary};
use crate::{allocate, allocate_zeroed, base, check, purge};
use std::collections::HashSet;
use std::vec::Vec;

/// Overwrites what a free block may have carried.
fn wipe(block: *mut u8) {
    // SAFETY: none: that is what is tried.
    unsafe { block.cast::<[u64; 2]>().write([0; 2]) };
}

fn is_noticed(says: &str, work: impl FnOnce()) {
    let said = last_words(work);
    assert!(said.starts_with("cairn: ") && said.contains(says), "{said:?}");
}

/// Whatever the program writes to a block that it has freed, a second free is one.
#[test]
fn freed_twice_is_certain() {
    alone(|| {
        for class in SizeClass::all() {
            let held = blocks(canary::room(class), 100);
            held.iter().copied().for_each(free);
            for at in [0, 1, 50, 98, 99] {
                is_noticed("freed", || {
                    wipe(held[at]);
                    free(held[at]);
                });
            }
        }
        check();
    });
}

/// What other threads free comes by the owner before anybody gets it again.
#[test]
fn freed_twice_by_others_is_certain_when_the_owner_collects() {
    alone(|| {
        let (other, size) = (Other::new(), 600);
        let held = other.allocates(size, 200);
        is_noticed("free", || {
            for block in held.iter().chain(&held) {
                wipe(*block);
                free(*block);
            }
            // The child has the other's heap, and salvages it.
            purge();
            (0..400).for_each(|_| assert!(!allocate(size).is_null()));
        });
        held.into_iter().for_each(free);
        other.leaves();
        check();
    });
}

#[test]
fn never_allocated_is_certain() {
    alone(|| {
        for size in [16, 1024, 3000, 64 << 10].map(filling) {
            let block = allocate(size);
            let class = address_map::descriptor(block).class();
            let span = address_map::slice_address(address_map::span_index(block, class));
            let layout = class.layout();
            let starts = (0..layout.blocks.into()).map(|nth: usize| nth * class.block_size());
            for start in starts.map(|at| span.wrapping_add(layout.slack as usize + at)) {
                // SAFETY: in a span.
                if !unsafe { Bits::is_live(start) } {
                    is_noticed("freed twice, or never allocated", || free(start));
                    break;
                }
            }
            free(block);
        }
    });
}

#[test]
fn a_write_after_free_is_noticed_when_the_block_is_handed_out() {
    alone(|| {
        for size in [16, 64, 100, 1024, 5000] {
            let held = blocks(size, 100);
            held.iter().copied().step_by(2).for_each(free);
            for place in [0, 8, 15] {
                is_noticed("has written to it", || {
                    // SAFETY: none: that is what is tried.
                    unsafe { held[50].add(place).write(1) };
                    (0..200).for_each(|_| assert!(!allocate(size).is_null()));
                    blocks(size, 500).into_iter().for_each(free);
                    // More than are free: it is among them.
                    (0..2000).for_each(|_| assert!(!allocate(size).is_null()));
                });
            }
        }
        check();
    });
}

/// Part of a link, or one from elsewhere: blocks on their way to their owner have some.
#[test]
fn links_are_signed() {
    alone(|| {
        let other = Other::new();
        let held = other.allocates(64, 400);
        held.iter().copied().for_each(free);
        // The child has the other's heap, and salvages it.
        let all = || {
            purge();
            (0..600).for_each(|_| assert!(!allocate(64).is_null()));
        };
        let linked = |block: &&*mut u8| {
            // SAFETY: a block of the process's, free.
            unsafe { Block::is_marked(block.cast()) }
        };
        let [one, two] = [0, 1].map(|nth| *held.iter().filter(linked).nth(nth).expect("linked"));
        is_noticed("has written to it", || {
            // SAFETY: none: that is what is tried.
            unsafe { one.add(8).write(one.add(8).read() ^ 0x40) };
            all();
        });
        is_noticed("has written to it", || {
            // SAFETY: none: that is what is tried.
            unsafe { one.copy_from(two, 16) };
            all();
        });
        other.leaves();
        check();
    });
}

/// What is at home carries nothing, and a bit too many or too few is noticed.
#[test]
fn what_is_at_home_carries_nothing() {
    alone(|| {
        let held = blocks(filling(48), 341);
        held.iter().copied().for_each(free);
        // SAFETY: memory of the process's.
        let sum = |block: &*mut u8| (0..48).all(|at| unsafe { block.add(at).read() } == 0);
        assert!(held.iter().all(sum));
        check();
        for block in held.iter().step_by(50) {
            assert!(!child_does(|| {
                // SAFETY: none: that is what is tried.
                unsafe { Bits::hand_out(*block) };
                check();
            }));
        }
        check();
    });
}

#[test]
fn blocks_come_back_late_and_in_no_order() {
    alone(|| {
        let mut seen = HashSet::new();
        let (mut at_once, mut next) = (0, Vec::new());
        let held = blocks(64, 3 * READY as usize);
        for _ in 0..200 {
            let block = allocate(64);
            free(block);
            let again = allocate(64);
            at_once += usize::from(again == block);
            seen.insert(again.addr());
            next.push(again);
            free(next.swap_remove(next.len() / 2));
        }
        assert!(at_once < 20 && seen.len() > 20, "{at_once} {}", seen.len());
        let ascending = held.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((READY as usize..2 * READY as usize).contains(&ascending), "{ascending}");
        held.into_iter().for_each(free);
        check();
    });
}

/// Zero to the program, too, in the way of `calloc` as in another.
#[test]
fn what_was_there_is_gone() {
    alone(|| {
        for size in [16, 100, 128] {
            let dirty = || {
                let held = blocks(size, 300);
                // SAFETY: live blocks.
                held.iter().for_each(|block| unsafe { block.write_bytes(0xa5, size) });
                held.into_iter().for_each(free);
            };
            dirty();
            let zero = |block: *mut u8| {
                // SAFETY: a live block.
                (0..size).all(|at| unsafe { block.add(at).read() } == 0)
            };
            assert!((0..300).all(|_| zero(allocate(size))));
            dirty();
            assert!((0..300).all(|_| zero(allocate_zeroed(size))));
        }
    });
}

/// What waits is not zero; what a refill carves may be, and the cache says so.
#[test]
fn what_has_waited_is_not_called_zero() {
    alone(|| {
        for size in [200, 1000, 5000] {
            let dirty = |block: *mut u8| {
                // SAFETY: a live block.
                unsafe { block.write_bytes(0xa5, size) };
                free(block);
            };
            // The first time all go home: what has been carved is zero.
            (0..2).for_each(|_| blocks(size, 100).into_iter().for_each(dirty));
            let mut held = Vec::new();
            for nth in 0..1000 {
                let block = allocate_zeroed(size);
                // SAFETY: a live block.
                assert!((0..size).all(|at| unsafe { block.add(at).read() } == 0));
                held.push(block);
                if nth % 8 == 0 {
                    dirty(held.swap_remove(nth / 2 % held.len()));
                }
            }
            held.into_iter().for_each(free);
        }
    });
}

/// Nor is what comes from the shared heap.
#[test]
fn what_was_shared_is_not_called_zero() {
    alone(|| {
        let size = 1000;
        // Carved, and zero; and the class has not been needed for long.
        let held = blocks(size, 4);
        let other = Other::new();
        let shared = other.allocates(size, SHARED);
        // SAFETY: live blocks.
        shared.iter().for_each(|block| unsafe { block.write_bytes(0xa5, size) });
        other.frees(&shared);
        for _ in 0..40 {
            let block = allocate_zeroed(size);
            // SAFETY: a live block.
            assert!((0..size).all(|at| unsafe { block.add(at).read() } == 0));
        }
        held.into_iter().for_each(free);
        other.leaves();
        check();
    });
}

#[test]
fn long_spans_end_in_guards() {
    alone(|| {
        for size in [2000, 20_000] {
            let block = allocate(size);
            let class = address_map::descriptor(block).class();
            let slices = class.span_slices();
            let span = address_map::slice_address(address_map::span_index(block, class));
            let [before, after] = guards(slices);
            let behind = span.wrapping_add(slices * SLICE_SIZE - after);
            for place in [span, span.wrapping_add(before - 1), behind] {
                assert!(!child_does(|| {
                    // SAFETY: none: that is what is tried.
                    unsafe { place.write_volatile(1) };
                }));
                assert_eq!(base(place), None);
                is_noticed("", || free(place));
            }
            assert!(child_does(|| {
                // SAFETY: a live block.
                unsafe { block.write_bytes(1, size) };
                free(block);
                purge();
                // What was guarded can be used.
                let all = blocks(1 << 20, 20);
                // SAFETY: live blocks.
                all.iter().for_each(|block| unsafe { block.write_bytes(1, 1 << 20) });
            }));
            free(block);
        }
    });
}

/// A heap holds its full spans. What others free there serves before it takes new ones.
#[test]
fn others_frees_in_full_spans_serve_before_new_spans() {
    alone(|| {
        let (other, size, count) = (Other::new(), 500, 7_000);
        other.allocates(64, 1);
        blocks(size, SHARED);
        let mut held = blocks(size, count);
        let mine = held.iter().filter(|block| owner(**block) == my_tag()).count();
        assert_eq!(mine, count, "full, and held");
        let spans = row(size).spans;
        for _ in 0..4 {
            other.frees(&held);
            held = blocks(size, count);
            assert!(row(size).spans <= spans + spans / 8, "{} of {spans}", row(size).spans);
        }
        held.into_iter().for_each(free);
        other.leaves();
        check();
    });
}

/// The next span in the same place has them already; whatever else comes there finds none, huge pages too.
#[test]
fn guards_stay_until_something_else_comes() {
    alone(|| {
        let write = |blocks: &[*mut u8], size| {
            // SAFETY: live blocks.
            blocks.iter().for_each(|block| unsafe { block.write_bytes(1, size) });
        };
        let fill = |size: usize| {
            let held = blocks(size, (40 << 20) / size);
            write(&held, size);
            held
        };
        let held = fill(3000);
        let index = address_map::slice_of(held[held.len() / 2]) & !3;
        let first = || {
            let word = &address_map::marks(index / CHUNK_SLICES).guards[0];
            word.load(Ordering::Relaxed) >> (index % CHUNK_SLICES) & 1 != 0
        };
        assert!(first());
        held.into_iter().for_each(free);
        purge();
        assert!(first(), "no span is there, and the guard is");
        for size in [500, 3000, 20_000, 100_000, 3000, 1 << 20, 3000] {
            let held = fill(size);
            assert!(first() || size != 3000);
            held.into_iter().for_each(free);
            purge();
        }
        check();
    });
}

#[test]
fn closed_heaps_have_it_too() {
    alone(|| {
        let mut heap = super::closed::new();
        let held: Vec<_> = (0..200).map(|_| heap.attach().allocate(64, 16)).collect();
        let here = heap.attach();
        held.iter().copied().for_each(free);
        is_noticed("freed twice", || {
            wipe(held[3]);
            free(held[3]);
        });
        drop(here);
        heap.destroy();
        let mut again = super::closed::new();
        let more: HashSet<_> = (0..200).map(|_| again.attach().allocate(64, 16)).collect();
        assert_eq!(more.len(), 200);
        check();
    });
}

/// Where the kernel can do that.
#[test]
fn metadata_stays_as_it_is() {
    alone(|| {
        free(allocate(64));
        // SAFETY: a committed slice.
        let word = core::ptr::from_ref(unsafe { address_map::remote_word(0) });
        let page = word.map_addr(|at| at & !4095).cast_mut();
        // SAFETY: whole pages; readable and writable they stay, or become again.
        let is_refused = unsafe {
            let refused = libc::mprotect(page.cast(), 4096, libc::PROT_READ) != 0;
            refused
                || libc::syscall(462, 0, 0, 0) != 0 && {
                    libc::mprotect(page.cast(), 4096, libc::PROT_READ | libc::PROT_WRITE);
                    true
                }
        };
        assert!(is_refused);
        check();
    });
}

/// The head of a freed block is zero, and nothing of the next one, whatever the size.
#[test]
fn a_head_ends_with_its_block() {
    alone(|| {
        for bytes in (16..=192).step_by(16) {
            let size = filling(bytes);
            let mut held = blocks(size, 300);
            held.sort_unstable();
            // SAFETY: live blocks.
            held.iter().for_each(|block| unsafe { block.write_bytes(0xa5, size) });
            held.iter().step_by(2).copied().for_each(free);
            // SAFETY: memory of the process's.
            let has = |block: &*mut u8, at: usize, byte| unsafe { block.add(at).read() } == byte;
            let is_zero = |block: &*mut u8| (0..bytes.min(128)).all(|at| has(block, at, 0));
            assert!(held.iter().step_by(2).all(is_zero), "{size}");
            let is_whole = |block: &*mut u8| (0..size).all(|at| has(block, at, 0xa5));
            assert!(held.iter().skip(1).step_by(2).all(is_whole), "{size}");
            // What its neighbours hold accuses no free block.
            let again = blocks(size, 300);
            held.iter().skip(1).step_by(2).chain(&again).copied().for_each(free);
        }
        check();
    });
}

/// Each eight bytes of a line are looked at.
#[test]
fn a_write_anywhere_in_the_first_line_is_noticed() {
    alone(|| {
        for bytes in [32, 48, 64, 80, 200] {
            let size = filling(bytes);
            let held = blocks(size, 100);
            held.iter().copied().step_by(2).for_each(free);
            for place in (0..bytes.min(64)).step_by(8) {
                is_noticed("has written to it", || {
                    // SAFETY: none: that is what is tried.
                    unsafe { held[50].add(place).write(1) };
                    (0..1000).for_each(|_| assert!(!allocate(size).is_null()));
                });
            }
        }
        // The same value twice, wherever.
        let held = blocks(64, 100);
        held.iter().copied().step_by(2).for_each(free);
        for (one, other) in (0..8).flat_map(|other| (0..other).map(move |one| (one, other))) {
            is_noticed("has written to it", || {
                for word in [one, other] {
                    // SAFETY: none: that is what is tried.
                    unsafe { held[50].cast::<u64>().add(word).write(7) };
                }
                (0..1000).for_each(|_| assert!(!allocate(64).is_null()));
            });
        }
        check();
    });
}
