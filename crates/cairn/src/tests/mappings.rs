//! Blocks with a mapping of their own.

use super::alone::{Random, alone, shares_its_address_space};
use super::filling;
use super::large::{KIB, MIB, free, is_mapped, mapped, resize, roomy, usable};
use crate::base::CANARY_BYTES;
use crate::map::address_map;
use crate::os::{self, fault};
use crate::{allocate, allocate_aligned, base, check, reallocate};
use std::vec::Vec;

#[test]
fn mappings_grow_and_shrink_by_pages() {
    alone(|| {
        let block = allocate(filling(40 * MIB));
        let lead = block.addr() % 4096;
        let round = |n: usize| n.next_multiple_of(4096);
        assert_eq!(mapped(), (round(40 * MIB + lead), 1));
        assert_eq!(usable(block), filling(round(40 * MIB + lead) - lead));
        let block = resize(block, filling(48 * MIB));
        assert_eq!(block.addr() % 4096, lead);
        let exact = round(48 * MIB + lead);
        assert_eq!(mapped(), (roomy(exact), 1));
        // Within that it stays where it is.
        assert_eq!(resize(block, filling(56 * MIB)), block);
        assert_eq!(mapped().0, roomy(exact));
        // A fifth may stay unused; more goes.
        let bytes = mapped().0;
        assert_eq!(resize(block, filling(bytes / 5 * 4 + 4096 * 2)), block);
        assert_eq!(mapped().0, bytes);
        assert_eq!(resize(block, filling(20 * MIB)), block);
        assert_eq!(mapped().0, round(20 * MIB + lead));
        // Far below it is copied.
        let small = resize(block, 500 * KIB);
        assert!(address_map::contains(small));
        assert_eq!(mapped().1, 0);
        free(small);
        let block = allocate(filling(40 * MIB));
        assert_eq!(resize(block, MIB), block);
        // SAFETY: a live block; the system has no such memory.
        unsafe {
            assert!(reallocate(block, isize::MAX as usize).is_null());
            assert!(reallocate(block, usize::MAX).is_null());
        }
        assert_eq!(mapped().1, 1);
        check();
    });
}

/// What a block shrinks by goes, not a page more or less; as much as it would get to grow stays.
#[test]
fn a_mapping_gives_its_tail_back() {
    alone(|| {
        let block = allocate_aligned(filling(40 * MIB), 64 * KIB);
        assert_eq!(mapped().0, 40 * MIB);
        let behind = block.wrapping_add(40 * MIB);
        // Or there is something already.
        os::map_at(behind, 4096);
        assert!(is_mapped(behind));
        // With a quarter more, more than 38 MiB.
        let least = 38 * MIB / 5 * 4 / 4096 * 4096 + 4096;
        assert_eq!((roomy(least), roomy(least - 4096)), (40 * MIB, 38 * MIB));
        assert_eq!((resize(block, filling(least)), mapped().0), (block, 40 * MIB));
        assert_eq!((resize(block, filling(least - 4095)), mapped().0), (block, 40 * MIB));
        assert_eq!((resize(block, filling(least - 4096)), mapped().0), (block, least - 4096));
        for (at, there) in [(least - 8192, true), (least - 4096, false), (40 * MIB, true)] {
            assert_eq!(is_mapped(block.wrapping_add(at)), there);
        }
        assert!(!is_mapped(behind.wrapping_sub(4096)));
        // A mebibyte is not copied yet.
        let bytes = (MIB + CANARY_BYTES).next_multiple_of(4096);
        assert_eq!((resize(block, MIB), mapped().0), (block, bytes));
        assert_ne!(resize(block, MIB - 1), block);
        assert_eq!(mapped().1, 0);
        check();
    });
}

/// If the system does not take a mapping back it takes at least its pages.
#[test]
fn freed_mappings_go() {
    alone(|| {
        for refused in [false, true] {
            let block = allocate_aligned(40 * MIB, os::page_size());
            // SAFETY: a live block.
            unsafe { block.write_bytes(1, MIB) };
            if refused {
                fault::arm(0, false);
            }
            free(block);
            assert_eq!(fault::disarm(), refused);
            assert_eq!((is_mapped(block), os::resident(block, MIB)), (refused, 0));
        }
        assert_eq!(mapped(), (0, 0));
    });
}

/// The table of mappings, with hundreds of them coming and going.
#[test]
fn every_mapping_is_found_from_inside() {
    alone(|| {
        let mut random = Random(5);
        let mut held: Vec<*mut u8> = Vec::new();
        for round in 0..1500 {
            if held.len() > 300 || (round % 3 == 0 && !held.is_empty()) {
                free(held.swap_remove(random.below(held.len())));
            } else {
                held.push(allocate((32 + random.below(5)) * MIB + random.below(MIB)));
            }
            if let Some(&block) = held.get(random.below(held.len().max(1))) {
                let at = random.below(usable(block));
                assert_eq!(base(block.wrapping_add(at)), Some(block));
                assert_eq!(base(block.wrapping_add(usable(block) - 1)), Some(block));
                assert_ne!(base(block.wrapping_add(usable(block) + CANARY_BYTES)), Some(block));
            }
            if round % 250 == 0 {
                assert_eq!(mapped().1, held.len());
            }
        }
        assert_eq!(base(core::ptr::without_provenance(4096)), None);
        assert_eq!(base(core::ptr::without_provenance(usize::MAX)), None);
        held.into_iter().for_each(free);
        assert_eq!(mapped(), (0, 0));
    });
}

/// What the system has no memory for it refuses at once, however the block would come to its mapping.
#[test]
fn the_system_checks_every_mapping() {
    alone(|| {
        let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory");
        if shares_its_address_space() || mode.is_ok_and(|mode| mode.trim() != "0") {
            return;
        }
        let is_refused = |&size: &usize| {
            let p = os::map(size);
            // SAFETY: mapped just now, if at all.
            p.is_null() || !unsafe { os::release(p, size) }
        };
        let much = (30..).map(|shift| 1 << shift).find(is_refused).expect("an end");
        assert!(allocate(much).is_null());
        for align in [64 * KIB, 4 * MIB] {
            assert!(allocate_aligned(much, align).is_null());
        }
        let run = allocate(MIB);
        let neighbour = allocate(MIB);
        // SAFETY: live blocks.
        unsafe {
            run.write_bytes(0xa5, MIB);
            assert!(reallocate(run, much).is_null());
            assert!((0..MIB).all(|at| run.add(at).read() == 0xa5));
            let grown = reallocate(run, 20 * MIB);
            assert!(!address_map::contains(grown));
            assert!(reallocate(grown, much).is_null());
            assert!((0..MIB).all(|at| grown.add(at).read() == 0xa5));
            free(grown);
        }
        free(neighbour);
        check();
    });
}
