//! Blocks that are freed twice, and blocks that are written to when they are free: in each place where a
//! free block can be, the process says so and ends. Legal programs do not meet the check.

use super::alone::{alone, shares_its_address_space};
use super::filling;
use super::heaps::{Other, SIZE, blocks, free};
use super::misuse::last_words;
use crate::base::{HARDENED, MEDIUM_MAX, Ordering, SizeClass};
use crate::map::{Block, combined};
use crate::store::canary;
use crate::{Heap, HeapId, allocate, allocate_zeroed, check, os, purge, reallocate};
use core::ptr::null_mut;
use std::vec::Vec;

fn is_noticed(block: *mut u8, place: &str) {
    let said = last_words(|| free(block));
    assert!(said.starts_with("cairn: free(0x") && said.contains("freed"), "{place}: {said:?}");
    // SAFETY: none: that is what is tried.
    let said = last_words(|| unsafe { assert!(reallocate(block, 40).is_null()) });
    assert!(said.contains("freed"), "{place}, by realloc: {said:?}");
    let said = last_words(|| {
        let heap = Heap::new().expect("memory");
        for size in [16, 40, 100, 600, 1000, 3000, 5000, 20_000, 60_000] {
            // SAFETY: none: that is what is tried.
            assert!(unsafe { heap.reallocate(block, size, 16) } != block, "{size} bytes");
        }
    });
    // Hardened, a block's end is looked at first.
    let is_said = said.contains("freed") || HARDENED && said.contains("beyond the end");
    assert!(is_said, "{place}, by a heap's realloc: {said:?}");
}

/// The mark of a free block, where the program has all bytes of it or some, in the block's second word.
#[test]
fn a_program_may_make_a_mark() {
    alone(|| {
        let mut heap = super::closed::new();
        for (size, new) in (9..=24).flat_map(|size| [9, 13, 16, 30, 5000].map(|new| (size, new))) {
            for block in [allocate(size), heap.attach().allocate(size, 16)] {
                let mark = combined(null_mut(), block.cast()).addr().to_ne_bytes();
                let count = (size - 8).min(mark.len());
                let kept = count.min(new - 8);
                // SAFETY: live blocks of those sizes.
                unsafe {
                    block.add(8).copy_from_nonoverlapping(mark.as_ptr(), count);
                    let moved = reallocate(block, new);
                    let bytes = core::slice::from_raw_parts(moved.add(8), kept);
                    assert_eq!(bytes, &mark[..kept], "{size} to {new}");
                    free(moved);
                }
            }
        }
        check();
    });
}

/// Where a freed block goes: into its thread's cache, and if that is full, into its span.
#[test]
fn blocks_of_the_thread_s_own_spans() {
    alone(|| {
        for class in SizeClass::all() {
            let held = blocks(canary::room(class), 60);
            held.iter().copied().for_each(free);
            for at in [0, 1, 30, 58, 59] {
                is_noticed(held[at], "an own span");
            }
        }
        check();
    });
}

#[test]
fn large_blocks() {
    alone(|| {
        for size in [MEDIUM_MAX + 1, 1 << 20, 33 << 20] {
            let held = blocks(size, 2);
            held.iter().copied().for_each(free);
            for block in held {
                assert!(!last_words(|| free(block)).is_empty(), "{size}");
            }
        }
    });
}

/// Others' blocks: in the freeing thread's cache, in its batch, in the word of the span, and with the owner once
/// that has collected them.
#[test]
fn blocks_of_others() {
    alone(|| {
        for size in [16, 64, 600, 5000] {
            let other = Other::new();
            let held = other.allocates(size, 900);
            // The last ones are in the cache, or in batches that have not left.
            held.iter().copied().for_each(free);
            for at in [0, 400, 890, 897, 898, 899] {
                is_noticed(held[at], "freed by another");
            }
            // By its owner, too. A child has its heap, if not its thread.
            let (first, last) = (held[0].addr(), held[899].addr());
            other.does(move || {
                for block in [first, last] {
                    is_noticed(
                        core::ptr::with_exposed_provenance_mut(block),
                        "freed by another, then here",
                    );
                }
            });
            // What it allocates next, it may free.
            let next = other.allocates(size, 900);
            other.frees(&next);
            let freed_there: Vec<_> = next.iter().step_by(300).copied().collect();
            freed_there.into_iter().for_each(|block| is_noticed(block, "freed by its owner"));
            other.leaves();
            is_noticed(next[0], "of a thread that has gone");
        }
        check();
    });
}

#[test]
fn blocks_of_a_closed_heap() {
    alone(|| {
        let mut heap = super::closed::new();
        let held: Vec<_> = (0..200).map(|_| heap.attach().allocate(64, 16)).collect();
        held.iter().copied().for_each(free);
        for at in [0, 100, 199] {
            is_noticed(held[at], "a closed heap");
        }
        let mut attached = heap.attach();
        let again = attached.allocate(64, 16);
        free(again);
        is_noticed(again, "a closed heap's cache");
    });
}

#[test]
fn a_block_that_nobody_has_been_given() {
    alone(|| {
        let block = allocate(SIZE);
        is_noticed(block.wrapping_add(1024), "the next of the cache");
    });
}

/// Behind what a span has handed out: before the block has a second owner.
#[test]
fn a_block_behind_those_handed_out() {
    alone(|| {
        for bytes in [64, 80, 480, 2048] {
            let size = filling(bytes);
            let first = allocate(size);
            // Not on the pages that have been linked.
            let ahead = first.wrapping_add(8192usize.next_multiple_of(bytes));
            if cfg!(feature = "hardened") {
                assert!(!last_words(|| free(ahead)).is_empty(), "{size}");
                continue;
            }
            let taken_again = |from: fn(*mut u8)| {
                last_words(|| {
                    from(ahead);
                    for _ in 0..400 {
                        // SAFETY: a live block of that size.
                        unsafe { allocate(size).write_bytes(0xff, size) };
                    }
                })
            };
            let by_another = |block: *mut u8| {
                let other = Other::new();
                other.frees(&[block]);
                other.leaves();
            };
            for said in [taken_again(free), taken_again(by_another)] {
                assert!(said.contains("has written to it"), "{size}: {said:?}");
            }
        }
        check();
    });
}

/// What a program writes accuses nobody, not even if it is a link.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn a_program_may_write_what_it_likes() {
    alone(|| {
        let held = blocks(64, 100);
        held[..50].iter().copied().for_each(free);
        // SAFETY: freed blocks stay readable, and the others are this test's.
        unsafe {
            for (from, to) in held[..50].iter().zip(&held[50..]) {
                let link = from.cast::<usize>().add(1).read();
                assert!(Block::is_marked(from.cast()));
                to.cast::<usize>().add(1).write(link);
            }
        }
        for &block in &held[50..] {
            // SAFETY: live blocks. It grows, and moves.
            free(unsafe { reallocate(block, 300) });
        }
        check();
        purge();
        check();
    });
}

#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn a_write_to_a_free_block_is_noticed_before_it_matters() {
    alone(|| {
        for size in [16, 64, 2048, 40_000] {
            for value in
                [0, 1, usize::MAX, 0x4141_4141_4141_4141, (&raw const value_of_choice).addr()]
            {
                let block = allocate(size);
                free(block);
                let said = last_words(|| {
                    // SAFETY: none: that is what is tried.
                    unsafe { block.cast::<usize>().add(1).write(value) };
                    blocks(size, 300);
                });
                assert!(
                    said.contains("malloc") && said.contains("written to"),
                    "{value:#x}: {said:?}"
                );
            }
        }
        // And in a span's list.
        let held = blocks(64, 256);
        held.iter().copied().for_each(free);
        let said = last_words(|| {
            // SAFETY: none: that is what is tried.
            unsafe { held[250].cast::<usize>().add(1).write(0) };
            blocks(64, 256);
        });
        assert!(said.contains("written to"), "{said:?}");
    });
}

#[allow(non_upper_case_globals, reason = "it stands for something with an address")]
static value_of_choice: usize = 0;

/// What a block is handed out with shows no address.
/// A link of which the mark is left leads astray: what is named is no block, and not said to be one.
#[test]
#[cfg_attr(feature = "hardened", ignore = "there is no such link")]
fn a_link_that_is_changed_in_part_is_told_from_a_block() {
    alone(|| {
        let held = blocks(64, 40);
        held.iter().copied().for_each(free);
        let said = last_words(|| {
            let block = allocate(64);
            free(block);
            // SAFETY: freed blocks stay readable.
            unsafe { *block.cast::<usize>().add(1) ^= 0x10 };
            (0..100).for_each(|_| _ = allocate(64));
        });
        assert!(said.contains("link leads here"), "{said:?}");
    });
}

#[test]
fn no_link_is_handed_out() {
    alone(|| {
        for size in [16, 100, 1024, 30_000] {
            let held = blocks(size, 100);
            held.iter().copied().for_each(free);
            for block in
                blocks(size, 100).into_iter().chain((0..300).map(|_| allocate_zeroed(size)))
            {
                // SAFETY: live blocks of at least 16 bytes.
                assert_eq!(unsafe { block.cast::<[usize; 2]>().read() }, [0, 0], "{size}");
            }
        }
    });
}

/// To look for traces where nothing has been written yet takes no page fault besides the one of the first write.
#[test]
fn fresh_memory_takes_a_fault_a_page() {
    alone(|| {
        if shares_its_address_space() {
            return;
        }
        os::HUGE_PAGES.store(false, Ordering::Relaxed);
        let faults = || {
            // SAFETY: zeros are a value of it, and it is valid for writing.
            let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
            // SAFETY: as above.
            unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
            usage.ru_minflt as usize
        };
        for bytes in [16, 48, 112, 256, 3000, 20_000] {
            let (size, count) = (filling(bytes), (16 << 20) / bytes);
            let mut held = Vec::with_capacity(count);
            held.resize(count, core::ptr::null_mut());
            let before = faults();
            for block in &mut held {
                *block = allocate(size);
                // SAFETY: a live block.
                unsafe { block.write_bytes(1, size) };
            }
            let (took, pages) = (faults() - before, (16 << 20) / os::page_size());
            assert!(took < pages + pages / 8, "{took} faults for {pages} pages of {size}");
        }
    });
}

/// What a destroyed heap's span has written about itself is not taken for a large block that readers wait for.
#[test]
fn a_block_of_a_heap_that_is_destroyed() {
    alone(|| {
        let heap = HeapId::new_owned().expect("memory");
        heap.use_no_nursery();
        // SAFETY: this thread's.
        let all: Vec<_> = (0..30_000).map(|_| unsafe { heap.allocate(2000, 16) }).collect();
        // A slot whose third byte is zero, of a full span behind which there are others.
        let block =
            all[all.len() / 3..].iter().copied().find(|block| block.addr() >> 16 & 0xff == 0);
        let block = block.expect("16 MiB have one");
        all[..200].iter().chain([&block]).for_each(|&block| free(block));
        // SAFETY: nobody uses it, or a block of it.
        unsafe { heap.destroy() };
        let said = last_words(|| free(block));
        assert!(said.contains("cairn: free("), "{said}");
    });
}
