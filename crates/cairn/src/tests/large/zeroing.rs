//! What is asked for as zeros is zeros, whatever was there; and memory that nobody has used is not made resident for it.

use super::super::alone::{Random, alone};
use super::{MIB, free, resize};
use crate::tests::purges::locks;
use crate::{HeapId, allocate, allocate_zeroed, check, keep_memory, os, purge};
use std::vec::Vec;

const PAGE: usize = 4096;

/// The block, which is zero.
fn zeros(block: *mut u8, size: usize) -> *mut u8 {
    assert!(!block.is_null());
    // SAFETY: a live block of that size.
    let bytes = unsafe { core::slice::from_raw_parts(block, size) };
    assert!(bytes.iter().all(|&byte| byte == 0));
    block
}

/// Writes to one in `each` pages of a block, at its ends too.
fn write(block: *mut u8, size: usize, each: usize) {
    let at = (0..size).step_by(each * PAGE).chain([size - 1]);
    // SAFETY: a live block of that size.
    at.for_each(|at| unsafe { block.add(at).write(0xaa) });
}

fn resident(block: *mut u8, size: usize) -> usize {
    os::resident(block.map_addr(|at| at & !(os::page_size() - 1)), size) / os::page_size()
}

/// Sizes up, down and at random; written in full, in part, or hardly; kept, given back or resized meanwhile; in the
/// process's memory and in heaps of the program's.
#[test]
fn what_was_there_before_does_not_show() {
    alone(|| {
        let heap = HeapId::new_owned().expect("a heap");
        let mut random = Random(41);
        let mut held: Vec<(*mut u8, usize)> = Vec::new();
        for round in 0..240 {
            let size = match round / 60 {
                0 => MIB / 2 + round * MIB / 20,
                1 => 5 * MIB - (round - 60) * MIB / 16,
                _ => MIB / 2 + random.below(6 * MIB),
            };
            let block = match round % 5 {
                // SAFETY: the heap lives.
                4 => unsafe { heap.allocate_zeroed(size, 16) },
                _ => allocate_zeroed(size),
            };
            zeros(block, size);
            write(block, size, [1, 3, 9, 20, 400][random.below(5)]);
            held.push((block, size));
            if held.len() > 6 {
                let (block, size) = held.swap_remove(random.below(6));
                free(match random.below(3) {
                    0 => resize(block, size / 2),
                    1 => resize(block, size + MIB),
                    _ => block,
                });
            }
            if round % 50 == 49 {
                purge();
            }
        }
        check();
    });
}

/// The kernel refuses: all of it is written.
#[test]
fn memory_that_cannot_go_is_written() {
    alone(|| {
        let size = 3 * MIB;
        let block = allocate(size);
        write(block, size, 1);
        // Few of its pages are resident, and none may go.
        // SAFETY: a live block's own pages, whose contents are dead.
        unsafe {
            let first = block.map_addr(|at| at.next_multiple_of(PAGE));
            assert!(os::purge(first, size - 2 * PAGE));
            block.add(MIB).write(1);
        }
        if !locks(block.wrapping_add(MIB)) {
            return;
        }
        free(block);
        let again = zeros(allocate_zeroed(size), size);
        free(again);
        // Nor where the program wants nothing to go.
        keep_memory(true);
        let block = allocate(size);
        write(block, size, 1);
        free(block);
        let again = allocate_zeroed(size);
        assert_eq!(resident(again, size), size / PAGE);
        zeros(again, size);
        keep_memory(false);
        check();
    });
}

/// Of twenty blocks of 5 to 25 MiB that are replaced at random, two pages each are used: that much is resident, and
/// not what others left in between.
#[test]
fn what_nobody_uses_is_not_resident() {
    alone(|| {
        let mut random = Random(7);
        let mut held = [(core::ptr::null_mut::<u8>(), 0); 20];
        for _ in 0..400 {
            let place = &mut held[random.below(20)];
            if !place.0.is_null() {
                free(place.0);
            }
            let size = 5 * MIB + random.below(20 * MIB);
            *place = (allocate_zeroed(size), size);
            write(place.0, size, size / PAGE + 1);
        }
        let used: Vec<_> = held.iter().filter(|(block, _)| !block.is_null()).collect();
        let pages: usize = used.iter().map(|&&(block, size)| resident(block, size)).sum();
        assert!(pages <= 600, "{pages} pages");
        check();
    });
}

/// What a program fills again and again stays resident: it is written, and no page faults in anew.
#[test]
fn what_is_used_stays() {
    alone(|| {
        let size = 3 * MIB;
        for _ in 0..3 {
            let block = allocate_zeroed(size);
            write(block, size, 1);
            free(block);
        }
        let block = allocate_zeroed(size);
        assert!(resident(block, size) >= size / PAGE - 1);
        zeros(block, size);
    });
}
