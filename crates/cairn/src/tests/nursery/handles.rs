//! Handles, and what a thread keeps for its next heaps: which there are, who has them, and that they come again.

use super::super::alone::alone;
use super::super::heaps::{Other, free};
use crate::base::SMALL_MAX;
use crate::heap::{Handle, handle};
use crate::{Heap, HeapId, Stats, allocate, check, heap_of, large, purge};
use core::ptr::{NonNull, null};
use std::collections::BTreeSet;
use std::vec::Vec;

/// The number of a nursery, or null.
fn nursery(block: *mut u8) -> *const large::Nursery {
    large::nursery_around(block).map_or(null(), core::ptr::from_ref)
}

fn shared(count: usize) -> Vec<HeapId> {
    (0..count).map(|_| HeapId::new_shared().expect("memory")).collect()
}

fn destroy(heaps: Vec<HeapId>) {
    // SAFETY: nobody uses them any more.
    heaps.into_iter().for_each(|heap| unsafe { heap.destroy() });
}

/// The nurseries of the blocks that a heap gives before classes serve it.
fn nurseries_of(heap: &Heap) -> BTreeSet<*const large::Nursery> {
    let blocks = (0..200).map(|_| heap.allocate(300, 16));
    blocks.map(nursery).take_while(|nursery| !nursery.is_null()).collect()
}

#[test]
fn any_address_may_be_a_handle() {
    alone(|| {
        let heaps = shared(500);
        let made: BTreeSet<*mut Handle> = handle::made().collect();
        assert_eq!(made.len(), 500);
        for &handle in &made {
            for at in [handle, handle.wrapping_add(1), handle.wrapping_sub(1)] {
                assert_eq!(handle::is_made(at), made.contains(&at), "{at:?}");
            }
            for inside in [1, 8, 64, size_of::<Handle>() - 8] {
                assert!(!handle::is_made(handle.wrapping_byte_add(inside)));
            }
        }
        let here = 0_u64;
        assert!(!handle::is_made(null()) && !handle::is_made(NonNull::from(&here).as_ptr().cast()));
        destroy(heaps);
    });
}

/// There are as many handles as there have been heaps at once, whoever ends them.
#[test]
fn handles_come_again() {
    alone(|| {
        // A thread without a heap keeps none.
        free(allocate(64));
        destroy(shared(100));
        for _ in 0..20 {
            destroy(shared(100));
            let other = Other::new();
            other.does(|| destroy(shared(20)));
            other.leaves();
        }
        assert_eq!(handle::made().count(), 100);
        check();
    });
}

/// What a thread keeps of nurseries serves by the rules for new ones.
#[test]
fn kept_nurseries_serve_as_new_ones_do() {
    alone(|| {
        let heaps = [(); 2].map(|()| Heap::new().expect("memory"));
        assert!(heaps.iter().all(|heap| nurseries_of(heap).len() == 8));
        heaps.into_iter().for_each(Heap::destroy);
        let heap = Heap::new().expect("memory");
        for _ in 0..1000 {
            free(heap.allocate(300, 16));
        }
        assert_eq!(heap.stats().spans, large::NURSERY_BYTES, "an empty one begins anew");
        let mut limited = Heap::new().expect("memory");
        assert!(limited.set_limits(0, 3 * large::NURSERY_BYTES, None, [0; 2]));
        assert_eq!(nurseries_of(&limited).len(), 3);
        let full = Heap::new().expect("memory");
        assert_eq!(nurseries_of(&full).len(), 8);
        [heap, limited, full].into_iter().for_each(Heap::destroy);
        purge();
        assert_eq!(Stats::take().nurseries.bytes, 0);
    });
}

/// However often a heap gives an empty nursery back, it has another one; and of two it keeps the one in use.
#[test]
fn a_purge_leaves_nurseries_in_use() {
    alone(|| {
        let heap = Heap::new().expect("memory");
        for _ in 0..20 {
            let block = heap.allocate(300, 16);
            assert!(!nursery(block).is_null() && heap_of(block) == Some(heap.id()));
            free(block);
            heap.purge();
            assert_eq!(heap.stats().spans, 0);
        }
        let first = heap.allocate(1000, 16);
        let mut blocks = std::vec![first];
        while nursery(first) == nursery(blocks[blocks.len() - 1]) {
            blocks.push(heap.allocate(300, 16));
        }
        let newest = nursery(blocks.pop().expect("a block"));
        blocks.into_iter().for_each(free);
        heap.purge();
        assert_eq!(heap.stats().spans, large::NURSERY_BYTES);
        let next = heap.allocate(300, 16);
        assert!(nursery(next) == newest && heap_of(next) == Some(heap.id()));
        heap.destroy();
        check();
    });
}

/// A block of up to `SMALL_MAX` bytes has a nursery taken for it, and no larger one.
#[test]
fn the_largest_block_of_a_nursery() {
    alone(|| {
        let heap = Heap::new().expect("memory");
        // The other way round a nursery would have room for both, if the hardened build's chance has it so.
        assert!(nursery(heap.allocate(SMALL_MAX + 1, 16)).is_null());
        assert!(!nursery(heap.allocate(SMALL_MAX, 16)).is_null());
        heap.destroy();
    });
}

/// Another nursery, if less than half of the newest is free again; else classes use what comes free.
#[test]
fn half_a_nursery_decides() {
    alone(|| {
        for (freed, is_nursery) in [(0, true), (3, true), (6, true), (7, false), (11, false)] {
            let heap = Heap::new().expect("memory");
            let blocks: Vec<_> = (0..12).map(|_| heap.allocate(100, 16)).collect();
            let stats = Stats::take();
            assert_eq!((stats.nursery_blocks, stats.nursery_used), (12, 12 * 112));
            blocks[..freed].iter().copied().for_each(free);
            let next = heap.allocate(1000, 16);
            assert_eq!(!nursery(next).is_null(), is_nursery, "{freed}");
            heap.destroy();
        }
    });
}
