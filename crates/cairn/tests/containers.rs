//! Heaps as allocators of containers.

use allocator_api2::alloc::{AllocError, Allocator};
use allocator_api2::{boxed::Box, vec::Vec};
use allocator_api2_04::alloc::Allocator as Allocator04;
use cairn::{Cairn, Heap};
use core::alloc::Layout;
use core::ptr::NonNull;
use hashbrown::{DefaultHashBuilder, HashMap};

type Got = Result<NonNull<[u8]>, AllocError>;

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).expect("a layout")
}

/// The bytes of a block.
fn bytes<'a>(block: NonNull<[u8]>) -> &'a mut [u8] {
    // SAFETY: a live block of these tests.
    unsafe { &mut *block.as_ptr() }
}

/// Every call of the trait, for sizes of all kinds, with contents.
fn serves(allocator: &impl Allocator) {
    let sizes = [0, 1, 16, 100, 1000, 5000, 60_000, 70_000, 300_000, 3_000_000, 40_000_000];
    for (old, align) in sizes.into_iter().flat_map(|size| [1, 16, 64, 4096].map(|at| (size, at))) {
        let zeroed = allocator.allocate_zeroed(layout(old, align)).expect("memory");
        assert!(zeroed.len() >= old && bytes(zeroed).iter().all(|&byte| byte == 0));
        // SAFETY: blocks of this allocator, with their layouts.
        unsafe {
            allocator.deallocate(zeroed.cast(), layout(old, align));
            for (new, new_align) in sizes.into_iter().flat_map(|at| [(at, align), (at, 2 * align)])
            {
                let block = allocator.allocate(layout(old, align)).expect("memory");
                assert!(
                    block.len() >= old && block.cast::<u8>().addr().get().is_multiple_of(align)
                );
                let kept = old.min(new).min(5000);
                bytes(block)[..old.min(5000)].fill(7);
                let (from, to) = (layout(old, align), layout(new, new_align));
                let resized = if new < old {
                    allocator.shrink(block.cast(), from, to)
                } else if new % 3 == 0 {
                    allocator.grow_zeroed(block.cast(), from, to)
                } else {
                    allocator.grow(block.cast(), from, to)
                };
                let resized = resized.expect("memory");
                assert!(resized.len() >= new, "{old} {new}");
                assert!(resized.cast::<u8>().addr().get().is_multiple_of(new_align), "{old} {new}");
                assert!(bytes(resized)[..kept].iter().all(|&byte| byte == 7), "{old} {new}");
                if new >= old && new % 3 == 0 {
                    assert!(bytes(resized)[old..new].iter().all(|&byte| byte == 0), "{old} {new}");
                }
                allocator.deallocate(resized.cast(), to);
            }
        }
    }
    assert_eq!(allocator.allocate(layout(isize::MAX as usize - 4096, 16)), Err(AllocError));
}

/// An allocator of version 0.4, in the terms of 0.2.
struct Version04<A>(A);

// SAFETY: the other trait asks for the same.
unsafe impl<A: Allocator04> Allocator for Version04<A> {
    fn allocate(&self, layout: Layout) -> Got {
        self.0.allocate(layout).map_err(|_| AllocError)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Got {
        self.0.allocate_zeroed(layout).map_err(|_| AllocError)
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { self.0.deallocate(block, layout) }
    }

    unsafe fn grow(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Got {
        // SAFETY: the caller's.
        unsafe { self.0.grow(block, old, new) }.map_err(|_| AllocError)
    }

    unsafe fn grow_zeroed(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Got {
        // SAFETY: the caller's.
        unsafe { self.0.grow_zeroed(block, old, new) }.map_err(|_| AllocError)
    }

    unsafe fn shrink(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Got {
        // SAFETY: the caller's.
        unsafe { self.0.shrink(block, old, new) }.map_err(|_| AllocError)
    }
}

#[test]
fn each_call_serves_each_size() {
    serves(&Cairn);
    serves(&Version04(Cairn));
    let (owned, shared) = (Heap::new().expect("memory"), Heap::shared().expect("memory"));
    serves(&&owned);
    serves(&&shared);
    serves(&Version04(&owned));
    serves(&Version04(&shared));
    assert_eq!(owned.stats().large_blocks + shared.stats().large_blocks, 0);
}

#[test]
fn containers_live_and_die_with_a_heap() {
    for _ in 0..100 {
        let heap = Heap::new().expect("memory");
        let mut table = HashMap::with_hasher_in(DefaultHashBuilder::default(), &heap);
        for number in 0..200_u32 {
            let mut list = Vec::new_in(&heap);
            list.extend(0..number);
            table.insert(number, Box::new_in(list, &heap));
        }
        assert!(table.values().all(|list| heap.id().contains((&raw const **list).cast())));
        assert_eq!(table[&199].len(), 199);
        // They need not be dropped: the heap takes them along.
        core::mem::forget(table);
        heap.destroy();
    }
}

#[test]
fn a_limit_refuses_what_grows() {
    let mut heap = Heap::new().expect("memory");
    assert!(heap.set_limits(0, 1 << 20, None, [0; 2]));
    let mut list = Vec::new_in(&heap);
    while list.try_reserve(list.len() + 1).is_ok() {
        let more = list.capacity() - list.len();
        list.extend(core::iter::repeat_n(1_u8, more));
    }
    assert!(list.len() >= 256 << 10 && list.iter().all(|&byte| byte == 1), "{}", list.len());
}

#[test]
fn a_shared_heap_serves_threads() {
    let heap = Heap::shared().expect("memory");
    std::thread::scope(|scope| {
        let lists: std::vec::Vec<_> = (0..4_usize)
            .map(|thread| {
                let heap = &heap;
                scope.spawn(move || {
                    let mut list = Vec::new_in(heap);
                    list.extend((0..10_000).map(|number| number * thread));
                    list
                })
            })
            .collect();
        for (thread, list) in lists.into_iter().enumerate() {
            let list = list.join().expect("it does not panic");
            assert_eq!(list[9999], 9999 * thread);
        }
    });
    heap.destroy();
}
