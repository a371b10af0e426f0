//! The hardened build: what nurseries promise there.
#![cfg(feature = "hardened")]

use super::alone::alone;
use super::forks::child_does;
use super::heaps::{Other, free};
use super::misuse::last_words;
use crate::base::SLICE_SIZE;
use crate::large::{self, NURSERY_BYTES};
use crate::slices::fences;
use crate::{
    Heap, HeapId, PARTITIONS, Resized, allocate_in, base, check, may_have_size, purge, reallocate,
    try_expand, usable_size,
};
use std::collections::{HashMap, HashSet};
use std::vec::Vec;

fn in_nursery(block: *mut u8) -> bool {
    large::nursery_around(block).is_some()
}

fn is_noticed(says: &str, work: impl FnOnce()) {
    let said = last_words(work);
    assert!(said.starts_with("cairn: ") && said.contains(says), "{said:?} {says}");
}

/// What the program writes anywhere.
fn write(block: *mut u8, bytes: usize) {
    // SAFETY: none where the block is free: that is what is tried.
    unsafe { block.write_bytes(0xa5, bytes) };
}

fn is_zero(block: *const u8, bytes: usize) -> bool {
    // SAFETY: memory of the process's.
    (0..bytes).all(|at| unsafe { block.add(at).read() } == 0)
}

/// Blocks of a heap's nursery, written to.
fn dirty(heap: &Heap, sizes: impl IntoIterator<Item = usize>) -> Vec<*mut u8> {
    let blocks = sizes.into_iter().map(|size| {
        let block = heap.allocate(size, 16);
        assert!(in_nursery(block));
        write(block, size);
        block
    });
    blocks.collect()
}

/// On every way on which a block comes back, and whatever the program has written to it.
#[test]
fn what_is_free_is_certain() {
    const TWICE: &str = "freed twice, or never allocated";
    const INSIDE: &str = "inside a block";
    const NONE: &str = "no block is here";
    alone(|| {
        let (heap, other) = (Heap::new().expect("memory"), Other::new());
        let blocks = dirty(&heap, [100; 10]);
        free(blocks[0]);
        other.frees(&blocks[1..2]);
        let places = [
            (blocks[0], TWICE),
            (blocks[1], TWICE),
            (blocks[2].wrapping_add(8), INSIDE),
            (blocks[2].wrapping_add(16), INSIDE),
            (blocks[9].wrapping_sub(16), NONE),
        ];
        let is_told = |places: &[(*mut u8, &str)]| {
            for &(place, says) in places {
                let calls: [fn(*mut u8); 6] = [
                    free,
                    |place| {
                        write(place, 16);
                        free(place);
                    },
                    // SAFETY: none: that is what is tried, here and below.
                    |place| assert!(!unsafe { reallocate(place, 100) }.is_null()),
                    // SAFETY: as above.
                    |place| assert!(!unsafe { reallocate(place, 5000) }.is_null()),
                    // SAFETY: as above.
                    |place| assert!(unsafe { try_expand(place, 50) }),
                    // SAFETY: as above.
                    |place| assert!(unsafe { usable_size(place) } > 0),
                ];
                calls.iter().for_each(|call| is_noticed(says, || call(place)));
                is_noticed(says, || {
                    // As a sized free asks.
                    assert!(may_have_size(place, 100, 1, Resized::Never));
                    free(place);
                });
            }
        };
        is_told(&places);
        let twice = blocks[0].expose_provenance();
        is_noticed(TWICE, || {
            let again = move || free(core::ptr::with_exposed_provenance_mut(twice));
            assert!(std::thread::spawn(again).join().is_ok());
        });
        is_noticed(TWICE, || {
            // SAFETY: as above.
            assert!(!unsafe { heap.reallocate(blocks[0], 300, 16) }.is_null());
        });
        assert!(!may_have_size(blocks[3], 200, 1, Resized::Perhaps));
        // Deleted, destroyed, and with all of it gone.
        let (second, third) = (Heap::new().expect("memory"), Heap::new().expect("memory"));
        let (mine, gone) = (dirty(&second, [100; 10]), dirty(&third, [100; 10]));
        mine[1..].iter().copied().for_each(free);
        drop(second);
        third.destroy();
        is_told(&[(mine[1], TWICE), (gone[1], NONE)]);
        free(mine[0]);
        is_told(&[(mine[0], NONE), (mine[1], NONE)]);
        purge();
        is_told(&[(gone[1], NONE)]);
        drop(heap);
        other.leaves();
    });
}

/// At once of what is freed, the first 128 bytes; and all of what the next heap gets.
#[test]
fn what_was_there_is_gone() {
    alone(|| {
        let (heap, other) = (Heap::new().expect("memory"), Other::new());
        let sizes = [1, 16, 40, 100, 128, 129, 500];
        let blocks = dirty(&heap, sizes);
        other.frees(&blocks[..3]);
        blocks[3..].iter().copied().for_each(free);
        assert!(blocks.iter().zip(sizes).all(|(&block, size)| is_zero(block, size.min(128))));
        heap.destroy();
        for round in 0..200 {
            let heap = Heap::new().expect("memory");
            for nth in 0..round % 50 + 1 {
                let (size, align) = (1 + nth * 37 % 1024, 16);
                let block = heap.allocate(size, align);
                if in_nursery(block) {
                    // SAFETY: in use.
                    assert!(is_zero(block, unsafe { usable_size(block) }), "{round} {nth}");
                }
                write(block, size);
                if nth % 3 == 0 {
                    free(block);
                }
            }
            // Some go at once, some with what is freed later.
            if round % 2 == 0 { heap.destroy() } else { drop(heap) }
        }
        other.leaves();
        check();
    });
}

/// The same nursery of one heap, when it is empty, too.
#[test]
fn an_empty_nursery_is_zero_when_it_begins_anew() {
    alone(|| {
        let heap = Heap::new().expect("memory");
        for _ in 0..100 {
            let block = heap.allocate(1000, 16);
            assert!(in_nursery(block) && is_zero(block, 1000));
            write(block, 1000);
            free(block);
        }
        heap.destroy();
    });
}

#[test]
fn a_write_to_what_nobody_has_is_noticed() {
    const SAYS: &str = "the program has written to it";
    alone(|| {
        let heap = Heap::new().expect("memory");
        // It has some room left.
        let blocks = dirty(&heap, [100, 16, 300, 600, 16]);
        blocks[1..4].iter().copied().for_each(free);
        for at in [blocks[1], blocks[1].wrapping_add(15), blocks[2], blocks[3].wrapping_add(127)] {
            is_noticed(SAYS, || {
                write(at, 1);
                // SAFETY: nobody uses it any more.
                unsafe { heap.id().destroy() };
            });
            is_noticed(SAYS, || {
                write(at, 1);
                free(blocks[0]);
                free(blocks[4]);
                // There is no room for it: the nursery, which is empty, begins anew.
                assert!(!heap.allocate(1000, 16).is_null());
            });
        }
        // What an earlier heap had, all of it.
        for at in [blocks[0], blocks[0].wrapping_add(99), blocks[3].wrapping_add(500), blocks[4]] {
            is_noticed(SAYS, || {
                // SAFETY: nobody uses it any more.
                unsafe { heap.id().destroy() };
                write(at, 1);
                for _ in 0..20 {
                    let heap = HeapId::new_owned().expect("memory");
                    // SAFETY: it is there, and this thread's.
                    assert!(unsafe { !heap.allocate(100, 16).is_null() });
                }
            });
        }
        heap.destroy();
        check();
    });
}

/// Behind the first block there is a gap most often; the block does not have it.
#[test]
fn a_write_behind_the_first_block_is_noticed() {
    alone(|| {
        let (mut seen, mut gaps) = (0, 0);
        while gaps < 20 {
            let heap = Heap::new().expect("memory");
            let block = heap.allocate(64, 16);
            // SAFETY: in use.
            assert_eq!(unsafe { usable_size(block) }, 64);
            seen += 1;
            assert!(seen < 40, "of {seen} {gaps} have one");
            let behind = block.wrapping_add(64);
            if !behind.addr().is_multiple_of(NURSERY_BYTES) {
                gaps += 1;
                assert_eq!(base(behind), None);
                is_noticed("no block is here", || free(behind));
                is_noticed("the program has written to it", || {
                    write(block, 65);
                    // SAFETY: nobody uses it any more.
                    unsafe { heap.id().destroy() };
                });
            }
            heap.destroy();
        }
    });
}

/// Bits that an attacker has to guess of where a heap's first block lies. 16 places in each of the 16 nurseries that a
/// thread keeps would be 8 bits; 7.98 are found in so many tries, of which each address takes some. In the default build
/// it is 0: each heap is where the one before it was.
#[test]
fn where_the_first_block_lies_is_a_guess() {
    const TRIES: usize = 8192;
    alone(|| {
        let heaps: Vec<_> = (0..16).map(|_| Heap::new().expect("memory")).collect();
        heaps.iter().for_each(|heap| assert!(in_nursery(heap.allocate(64, 16))));
        heaps.into_iter().for_each(Heap::destroy);
        let firsts: Vec<_> = (0..TRIES)
            .map(|_| {
                let heap = Heap::new().expect("memory");
                let block = heap.allocate(64, 16);
                heap.destroy();
                block.addr()
            })
            .collect();
        let bits = |seen: &[usize]| {
            let mut counts = HashMap::new();
            seen.iter().for_each(|&at| *counts.entry(at).or_insert(0) += 1);
            let share = |&count: &i32| f64::from(count) / seen.len() as f64;
            counts.values().map(share).map(|share| -share * share.log2()).sum::<f64>()
        };
        let pieces: Vec<_> = firsts.iter().map(|at| at / NURSERY_BYTES).collect();
        let places: Vec<_> = firsts.iter().map(|at| at % NURSERY_BYTES).collect();
        let found = [bits(&firsts), bits(&pieces), bits(&places)];
        assert!(found[0] > 7.9 && found[1] > 3.9 && found[2] > 3.9, "{found:?}");
        let again = firsts.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(again < TRIES / 100, "{again}");
    });
}

/// Nurseries that a thread takes from the pool: those of a slice come in any order.
#[test]
fn which_nursery_of_a_slice_is_next_is_a_guess() {
    alone(|| {
        let heaps: Vec<_> = (0..600).map(|_| Heap::new().expect("memory")).collect();
        let at: Vec<_> =
            heaps.iter().map(|heap| heap.allocate(64, 16).addr() / NURSERY_BYTES).collect();
        let first = |slice: &[usize]| slice[0] % (SLICE_SIZE / NURSERY_BYTES);
        let firsts: HashSet<_> = at.chunks(6).map(first).collect();
        let ascending = at.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!(firsts.len() == 6 && ascending < 450, "{firsts:?} {ascending}");
        heaps.into_iter().for_each(Heap::destroy);
        purge();
        check();
    });
}

/// The last page of a slice: what overflows from there ends the process.
#[test]
fn a_slice_of_nurseries_ends_in_a_guard() {
    alone(|| {
        let heap = Heap::new().expect("memory");
        let block = heap.allocate(64, 16);
        let slice = block.wrapping_sub(block.addr() % SLICE_SIZE);
        let guard = slice.wrapping_add(SLICE_SIZE - fences::GUARD);
        assert!(block < guard);
        for place in [guard, slice.wrapping_add(SLICE_SIZE - 1)] {
            assert!(!child_does(|| {
                // SAFETY: none: that is what is tried.
                unsafe { place.write_volatile(1) };
            }));
            assert_eq!(base(place), None);
            is_noticed("no block is here", || free(place));
        }
        heap.destroy();
        // What comes there next finds none.
        for size in [16, 100_000, 3000, 1 << 20] {
            purge();
            let all = super::heaps::blocks(size, (4 << 20) / size);
            all.iter().for_each(|block| write(*block, size));
            all.into_iter().for_each(free);
        }
        let heap = Heap::new().expect("memory");
        assert!(in_nursery(heap.allocate(64, 16)));
        heap.destroy();
        check();
    });
}

/// Partitions have no nurseries, and their memory never becomes any.
#[test]
fn partitions_have_none() {
    alone(|| {
        let slices = |blocks: &[*mut u8]| -> HashSet<_> {
            blocks.iter().map(|block| block.addr() / SLICE_SIZE).collect()
        };
        let blocks: Vec<_> = (0..PARTITIONS)
            .flat_map(|of| (0..100).map(move |nth| allocate_in(of, 16 + nth, 16)))
            .collect();
        assert!(!blocks.iter().any(|&block| in_nursery(block)));
        let were = slices(&blocks);
        blocks.into_iter().for_each(free);
        purge();
        let heaps: Vec<_> = (0..2000).map(|_| Heap::new().expect("memory")).collect();
        let firsts: Vec<_> = heaps.iter().map(|heap| heap.allocate(64, 16)).collect();
        assert!(firsts.iter().all(|&block| in_nursery(block)));
        assert!(slices(&firsts).is_disjoint(&were));
        heaps.into_iter().for_each(Heap::destroy);
        check();
    });
}

/// A heap whose first block ends where its nursery ends: full of blocks of 16 bytes, by address.
fn full() -> (HeapId, Vec<*mut u8>) {
    loop {
        let heap = HeapId::new_owned().expect("memory");
        // SAFETY: it is there, and this thread's.
        unsafe {
            let first = heap.allocate(16, 16);
            if (first.addr() + 16).is_multiple_of(NURSERY_BYTES) {
                // The very last bytes are no block of 16.
                let size = |nth| if nth == NURSERY_BYTES / 16 - 1 { 1 } else { 16 };
                let rest = (1..NURSERY_BYTES / 16).map(|nth| heap.allocate(size(nth), 16));
                let mut blocks: Vec<_> = core::iter::once(first).chain(rest).collect();
                blocks.reverse();
                return (heap, blocks);
            }
            heap.destroy();
        }
    }
}

/// Whatever the states of a nursery have in common.
#[test]
fn a_full_nursery_is_looked_at_as_another_one() {
    alone(|| {
        let (heap, blocks) = full();
        blocks.iter().for_each(|&block| write(block, 16));
        // Two that stand alike in their words, the first of all among them; all of them; and one.
        for freed in [&[0, 8][..], &(0..128).collect::<Vec<_>>(), &[64]] {
            let at = blocks[freed[0]].wrapping_add(8);
            is_noticed(&std::format!("{:x}", at.addr()), || {
                freed.iter().for_each(|&nth| free(blocks[nth]));
                assert!(freed.iter().all(|&nth| is_zero(blocks[nth], 16)));
                write(at, 1);
                // SAFETY: nobody uses it any more.
                unsafe { heap.destroy() };
            });
        }
        // The same twice.
        is_noticed("the program has written to it", || {
            free(blocks[9]);
            write(blocks[9], 16);
            // SAFETY: as above.
            unsafe { heap.destroy() };
        });
        // Half of it is free: it is zero when the next heap has it.
        blocks[..64].iter().copied().for_each(free);
        // SAFETY: as above.
        unsafe { heap.destroy() };
        for _ in 0..100 {
            let heap = Heap::new().expect("memory");
            let block = heap.allocate(1000, 16);
            assert!(is_zero(block, 1000));
            heap.destroy();
        }
        check();
    });
}
