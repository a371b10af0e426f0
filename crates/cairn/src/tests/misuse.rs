//! What a process says of wrong pointers, and what Rust asks of its allocator.

use super::alone::alone;
use super::forks::{child_does, in_use};
use super::heaps::{Other, SIZE, blocks, free};
use crate::base::HARDENED;
use crate::base::size_class::class_of;
use crate::map::address_map;
use crate::thread::pool::left::{self, LEFT};
use crate::thread::pool::{salvage, shared};
use crate::{Cairn, Stats, allocate, check, deallocate_named, purge};
use core::alloc::{GlobalAlloc, Layout};
use std::string::String;
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn as_a_global_allocator_it_keeps_layouts() {
    alone(|| {
        for align in [1, 8, 16, 32, 64, 4096, 1 << 20] {
            let layout = |size| Layout::from_size_align(size, align).expect("a layout");
            // SAFETY: layouts of sizes above 0; each block is freed as it was allocated.
            unsafe {
                let block = Cairn.alloc(layout(300));
                block.write_bytes(0x55, 300);
                Cairn.dealloc(block, layout(300));
                let block = Cairn.alloc_zeroed(layout(300));
                assert!(block.addr().is_multiple_of(align));
                assert!((0..300).all(|at| block.add(at).read() == 0));
                block.add(299).write(7);
                let block = Cairn.realloc(block, layout(300), 9000);
                assert!(block.addr().is_multiple_of(align) && block.add(299).read() == 7);
                block.add(99).write(8);
                let block = Cairn.realloc(block, layout(9000), 100);
                assert!(block.addr().is_multiple_of(align) && block.add(99).read() == 8);
                let huge = isize::MAX as usize - (2 << 20);
                assert!(Cairn.realloc(block, layout(100), huge).is_null());
                assert_eq!(block.add(99).read(), 8);
                Cairn.dealloc(block, layout(100));
                assert!(Cairn.alloc_zeroed(layout(huge)).is_null());
            }
        }
        assert_eq!(Stats::take().allocated(), 0);
        assert!(!allocate(1).is_null());
    });
}

/// Each of these ends the process.
#[test]
fn misuse_ends_the_process() {
    alone(|| {
        let held = blocks(SIZE, 20);
        let large = allocate(100 << 10);
        let mapping = allocate(33 << 20);
        let gone = Other::new();
        let nobodys = gone.allocates(SIZE, 40)[20];
        gone.leaves();
        let released = allocate(5000);
        free(released);
        purge();
        // Its heap keeps this one.
        let kept = allocate(200 << 10);
        free(kept);
        let stack = core::ptr::from_ref(&held).cast_mut().cast();
        let resize = |p: *mut u8| {
            // SAFETY: none: that is what is tried.
            unsafe { crate::reallocate(p, 5000) };
        };
        let usable = |p: *mut u8| {
            // SAFETY: none: that is what is tried.
            unsafe { crate::usable_size(p) };
        };
        for p in [
            held[0].wrapping_add(8),
            nobodys.wrapping_add(16),
            large.wrapping_add(16),
            large.wrapping_add(40_000),
            mapping.wrapping_add(16),
            released,
            kept,
            stack,
        ] {
            assert!(!child_does(|| free(p)), "{p:p} can be freed");
            assert!(!child_does(|| resize(p)), "{p:p} can be resized");
            assert!(!child_does(|| usable(p)), "{p:p} has a size");
        }
        // Also if there is nowhere to say so.
        assert!(!child_does(|| {
            // SAFETY: the child needs it for nothing else.
            unsafe { libc::close(2) };
            free(stack);
        }));
        check();
    });
}

/// What a child that ends so has said.
pub(super) fn last_words(work: impl FnOnce()) -> String {
    let mut ends = [0; 2];
    // SAFETY: two ends are valid for writing.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    assert!(!child_does(|| {
        // SAFETY: both are open.
        unsafe { libc::dup2(ends[1], 2) };
        work();
    }));
    let mut said = std::vec![0; 1000];
    // SAFETY: the ends are open, and this process has no other use for them.
    let count = unsafe {
        libc::close(ends[1]);
        let count = libc::read(ends[0], said.as_mut_ptr().cast(), said.len());
        libc::close(ends[0]);
        count
    };
    said.truncate(usize::try_from(count).expect("it has been read"));
    String::from_utf8(said).expect("plain text")
}

#[test]
fn it_says_what_is_wrong_with_a_pointer() {
    alone(|| {
        free(allocate(100));
        let mine = blocks(SIZE, 1)[0];
        let [large, twice] = [allocate(100 << 10), allocate(100 << 10)];
        let mapping = allocate(33 << 20);
        let gone = allocate(5000);
        free(gone);
        purge();
        let stack = core::ptr::from_ref(&mapping).cast_mut().cast();
        for (p, says) in [
            (mine.wrapping_add(16), "inside a block"),
            (large.wrapping_add(70_000), "inside a block"),
            (mapping.wrapping_add(16), "inside a block"),
            (gone, "no block is here"),
            (stack, "not from this allocator"),
        ] {
            let said = last_words(|| free(p));
            assert!(said.contains(says) && said.contains("free"), "{said}");
            // SAFETY: none: that is what is tried.
            let said = last_words(|| unsafe { deallocate_named(p, "a name") });
            assert!(said.contains(says) && said.contains("a name"), "{said}");
        }
        // But for that it is a free like any other.
        for block in [mine, large, mapping] {
            // SAFETY: live blocks.
            unsafe { deallocate_named(block, "a name") };
        }
        let left = Stats::take();
        assert_eq!((in_use(SIZE), left.large_blocks, left.mapping_blocks), (0, 1, 0));
        // Two threads at once, one of which was faster.
        address_map::descriptor(twice).owner.store(address_map::OWNER_NONE, Relaxed);
        let said = last_words(|| free(twice));
        assert!(said.contains("freed twice"), "{said}");
    });
}

/// Rust says with which layout a block is freed. In the hardened build it must be one that the block can have.
#[test]
fn a_layout_that_is_not_the_blocks_is_noticed() {
    if !HARDENED {
        return;
    }
    alone(|| {
        let layout = |size, align| Layout::from_size_align(size, align).expect("a layout");
        let sizes = [1, 16, 100, 1000, 5000, 60_000, 200_000, 40 << 20];
        for (size, align) in sizes.into_iter().flat_map(|size| [1, 16, 256].map(|at| (size, at))) {
            for size_after in [size, size * 3 / 4 + 1] {
                // SAFETY: a block, resized, and freed with the layout that it has then.
                unsafe {
                    let block = Cairn.alloc(layout(size, align));
                    let block = Cairn.realloc(block, layout(size, align), size_after);
                    Cairn.dealloc(block, layout(size_after, align));
                }
            }
        }
        for (size, wrong) in [(100, 10_000), (5000, 100), (200_000, 100), (1000, 200_000)] {
            let said = last_words(|| {
                // SAFETY: none: that is what is tried.
                unsafe { Cairn.dealloc(Cairn.alloc(layout(size, 8)), layout(wrong, 8)) };
            });
            assert!(said.contains("the size or the alignment is not the block's"), "{said}");
        }
        check();
    });
}

/// A process whose misuse is noticed catches the signal, and allocates in there: each size a few times, as what is shared
/// would serve it.
extern "C" fn allocates_and_ends(_signal: libc::c_int) {
    for size in (0..200).map(|nth| nth * 100).chain([200 << 10, 40 << 20]) {
        // No `Vec`: that is the system's memory, whose lock may be held.
        let held = [(); 3].map(|()| allocate(size));
        assert!(held.iter().all(|block| !block.is_null()));
        held.into_iter().for_each(free);
    }
    purge();
    // SAFETY: no preconditions.
    unsafe { libc::_exit(0) };
}

/// Whether `work`, in a child, is a misuse, and the handler of its end does what it likes.
fn ends_in_the_handler(work: impl FnOnce()) -> bool {
    child_does(|| {
        // SAFETY: a handler that stays loaded. The alarm ends a child that waits for ever.
        unsafe {
            libc::signal(libc::SIGABRT, allocates_and_ends as *const () as libc::sighandler_t);
            libc::alarm(60);
        }
        work();
        unreachable!("it is noticed");
    })
}

/// No lock is held that the handler takes: not where another thread's misuse of a shared block is noticed by who asks for one.
#[test]
fn the_handler_of_the_end_may_allocate_where_blocks_are_shared() {
    alone(|| {
        free(allocate(100));
        assert!(ends_in_the_handler(|| {
            let other = Other::with_heap();
            let held = other.allocates(SIZE, 3);
            other.frees(&held);
            if HARDENED {
                other.frees(&held);
            } else {
                // SAFETY: none: that is what is tried.
                held.iter().for_each(|&block| unsafe { block.write_bytes(0xa5, SIZE) });
            }
            for _ in 0..20 {
                Other::once(|| blocks(SIZE, 20));
            }
        }));
        assert!(ends_in_the_handler(|| {
            let _held = shared::SHARED.lock();
            free(allocate(100).wrapping_add(8));
        }));
    });
}

/// Who has found a misuse under such a lock passes by where it is taken.
#[test]
fn who_is_inside_passes_by() {
    alone(|| {
        free(allocate(100));
        let held = shared::SHARED.lock();
        assert_eq!(shared::take(class_of(100), 1).count, 0);
        shared::trim();
        drop(held);
        let held = LEFT.lock();
        assert!(!left::collect());
        drop(held);
        // Another thread's heap is dead in a child.
        let other = Other::with_heap();
        assert!(child_does(|| {
            // SAFETY: the child ends if it waits.
            unsafe { libc::alarm(60) };
            let held = salvage::NEXT.lock();
            salvage::all();
            drop(held);
            salvage::all();
        }));
        other.leaves();
        check();
    });
}

#[test]
fn the_handler_of_the_end_may_allocate_mappings() {
    if !HARDENED {
        return;
    }
    alone(|| {
        assert!(ends_in_the_handler(|| {
            let block = allocate(40 << 20);
            // SAFETY: none: that is what is tried.
            unsafe { *block.add(40 << 20) ^= 1 };
            free(block);
        }));
    });
}
