//! Heaps whose free memory others may be reading.

use super::alone::{Random, alone};
use super::forks::child_does;
use super::heaps::Other;
use crate::base::HARDENED;
use crate::large::{self, Kept};
use crate::{
    HeapId, Resized, Stats, allocate, check, deallocate, heap_of, may_have_size, purge, reallocate,
    set_purge_delay_ms, thread::pool, try_expand, usable_size, visit,
};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::vec::Vec;

const HEAD: usize = 32;

/// Runs a test where there are such heaps.
fn with_readers<F: FnOnce()>(test: F) {
    if HARDENED {
        assert!(HeapId::new_concurrent(HEAD).is_none());
    } else {
        alone(test);
    }
}

fn concurrent() -> HeapId {
    HeapId::new_concurrent(HEAD).expect("memory")
}

/// A block of the heap whose first bytes say which it is.
fn block(heap: HeapId, size: usize, number: usize) -> *mut u8 {
    // SAFETY: the heap is there; the block is as long.
    unsafe {
        let p = heap.allocate(size, 16);
        assert!(!p.is_null() && p.addr().is_multiple_of(16));
        p.write_bytes(number as u8, size);
        write_head(p, number);
        p
    }
}

fn write_head(p: *mut u8, number: usize) {
    // SAFETY: a block that is at least as long.
    (0..HEAD / 8).for_each(|nth| unsafe { p.cast::<usize>().add(nth).write(number * 1000 + nth) });
}

/// Whether the first bytes of a block, free or not, are as they have been left.
fn has_head(p: *mut u8, number: usize) -> bool {
    // SAFETY: memory of a heap whose readers have not gone.
    (0..HEAD / 8).all(|nth| unsafe { p.cast::<usize>().add(nth).read() } == number * 1000 + nth)
}

fn free(p: *mut u8) {
    // SAFETY: the test's block.
    unsafe { deallocate(p) };
}

#[test]
fn what_is_free_keeps_its_head() {
    with_readers(|| {
        let heap = concurrent();
        for size in
            [0, 1, 16, 33, 64, 100, 512, 1000, 4000, 30_000, 65_536, 70_000, 1 << 20, 40 << 20]
        {
            let least = size.max(HEAD);
            let blocks: Vec<_> = (0..40).map(|n| block(heap, least, n)).collect();
            assert_eq!(blocks.iter().collect::<HashSet<_>>().len(), 40);
            // Every other one here, the rest elsewhere; then what waits is put back into spans.
            let (here, there): (Vec<_>, Vec<_>) = (0..40).partition(|n| n % 2 == 0);
            here.iter().for_each(|&n| free(blocks[n]));
            let others: Vec<_> = there.iter().map(|&n| blocks[n].addr()).collect();
            let other = Other::new();
            other.does(move || {
                others.iter().for_each(|&p| free(core::ptr::with_exposed_provenance_mut(p)))
            });
            other.leaves();
            check();
            // SAFETY: the heap is there.
            unsafe { heap.purge() };
            check();
            assert!((0..40).all(|n| has_head(blocks[n], n)), "{size}");
        }
        // SAFETY: nobody reads it.
        unsafe { heap.destroy() };
        check();
    });
}

#[test]
fn empty_spans_wait_for_their_epoch() {
    with_readers(|| {
        let heap = concurrent();
        // SAFETY: the heap is there.
        let held = || unsafe { heap.stats() }.spans;
        let blocks: Vec<_> = (0..20_000).map(|n| block(heap, 100, n)).collect();
        let most = held();
        // SAFETY: the heap is there; nobody reads.
        let declare = |now, safe| unsafe {
            heap.set_epoch(now, safe);
            heap.purge();
        };
        declare(5, 5);
        blocks.iter().for_each(|&p| free(p));
        declare(6, 5);
        assert_eq!(held(), most, "epoch 5 is not safe");
        // Not one of another size where they are.
        let of = |p: *mut u8| p.addr() >> 14;
        let slices: HashSet<_> = blocks.iter().map(|&p| of(p)).collect();
        let other: Vec<_> = (0..2000).map(|n| block(heap, 1000, n)).collect();
        assert!(other.iter().all(|&p| !slices.contains(&of(p))));
        assert!(blocks.iter().enumerate().all(|(n, &p)| has_head(p, n)));
        // One in use, and free again, is as if it had been so all the time.
        let again = block(heap, 100, 1);
        assert!(slices.contains(&of(again)));
        free(again);
        // What has become free in epoch 6 again waits longer.
        declare(6, 6);
        assert!(held() < most);
        let waits = slices.contains(&of(again)) && has_head(again, 1);
        assert!(waits);
        declare(7, 7);
        other.iter().for_each(|&p| free(p));
        // What is noticed late waits for the epoch of that.
        declare(8, 8);
        declare(9, 9);
        declare(10, 10);
        assert_eq!(held(), 0);
        // SAFETY: nobody uses it.
        unsafe { heap.destroy() };
    });
}

#[test]
fn large_blocks_wait_for_their_epoch() {
    with_readers(|| {
        let heap = concurrent();
        for size in [100_000, 3 << 20, 50 << 20] {
            // SAFETY: the heap is there; nobody reads what has gone.
            unsafe {
                let start = heap.stats().large;
                let p = block(heap, size, 3);
                heap.set_epoch(10, 10);
                free(p);
                assert!(heap.stats().large >= start + size);
                assert!(has_head(p, 3));
                let mut seen = 0;
                assert!(visit(Some(heap), true, |_, _| {
                    seen += 1;
                    true
                }));
                assert_eq!(seen, 0);
                // It is not resized: that would unmap what others read.
                let q = block(heap, size, 4);
                let moved = reallocate(q, size * 2);
                assert!(moved != q && has_head(q, 4) && has_head(moved, 4));
                free(moved);
                let q = block(heap, size, 5);
                let usable = usable_size(q);
                assert!(try_expand(q, size / 2) && usable_size(q) == usable);
                free(q);
                // Readers of epoch 10 may have begun just now.
                heap.set_epoch(11, 11);
                assert!(heap.stats().large >= start + size);
                heap.set_epoch(12, 12);
                assert_eq!(heap.stats().large, start);
            }
        }
        // SAFETY: nobody uses it.
        unsafe { heap.destroy() };
        check();
    });
}

/// Nobody reads what was a heap's: empty spans and freed blocks go with it.
#[test]
fn what_waits_goes_with_its_heap() {
    with_readers(|| {
        let held = || (Stats::take().spans.bytes, Stats::take().large.bytes);
        free(allocate(64));
        purge();
        let before = held();
        for is_deleted in [false, true] {
            let heap = concurrent();
            // SAFETY: the heap is there; nobody uses it, or reads.
            unsafe {
                heap.set_epoch(5, 5);
                let blocks: Vec<_> = (0..5000).map(|n| block(heap, 1000, n)).collect();
                blocks.iter().chain(&[block(heap, 200_000, 1)]).for_each(|&p| free(p));
                assert!(held().0 > before.0 && held().1 > before.1);
                if is_deleted { heap.delete() } else { heap.destroy() }
            }
            assert_eq!(held().0, before.0, "at once, nobody asking for it");
            purge();
            assert_eq!(held(), before, "{is_deleted}");
        }
        check();
    });
}

#[test]
fn blocks_outlive_a_deleted_heap() {
    with_readers(|| {
        let heap = concurrent();
        let blocks: Vec<_> = (0..5000).map(|n| block(heap, 100, n)).collect();
        let large = block(heap, 200_000, 7);
        // SAFETY: nobody uses the heap, its blocks live on.
        unsafe { heap.delete() };
        blocks.iter().step_by(2).for_each(|&p| free(p));
        check();
        assert!((1..5000).step_by(2).all(|n| has_head(blocks[n], n)));
        assert!(heap_of(blocks[1]).is_none() && has_head(large, 7));
        // SAFETY: live.
        let resized = unsafe { reallocate(blocks[1], 400) };
        assert!(has_head(resized, 1));
        free(resized);
        blocks[3..].iter().step_by(2).for_each(|&p| free(p));
        free(large);
        purge();
        check();
    });
}

#[test]
fn blocks_are_told_apart_and_have_their_sizes() {
    with_readers(|| {
        let heap = concurrent();
        let blocks: Vec<_> = (0..3000).map(|n| block(heap, 40, n)).collect();
        blocks.iter().step_by(3).for_each(|&p| free(p));
        let mut seen = HashSet::new();
        // SAFETY: nothing is done meanwhile.
        let whole = unsafe {
            visit(Some(heap), true, |_, block| {
                seen.extend(block);
                true
            })
        };
        let live: HashSet<_> = (0..3000).filter(|n| n % 3 > 0).map(|n: usize| blocks[n]).collect();
        assert!(whole && seen == live);
        for &p in &live {
            assert!(heap.contains(p) && heap.contains(p.wrapping_add(5)));
            // SAFETY: live.
            assert!(unsafe { usable_size(p) } >= HEAD + 32);
            assert!(
                may_have_size(p, 40, 8, Resized::Never)
                    && !may_have_size(p, 4000, 8, Resized::Never)
            );
        }
        // SAFETY: as above; a block that is handed out again is zero where that is asked for.
        unsafe {
            let zero = heap.allocate_zeroed(40, 16);
            assert!((0..40).all(|at| zero.add(at).read() == 0));
            heap.destroy();
        }
    });
}

/// Who frees a block names the size that it was asked for with; heaps make it larger.
#[test]
fn blocks_have_the_sizes_that_they_were_asked_for_with() {
    with_readers(|| {
        for head in (0..=crate::HEAD_MAX).step_by(16) {
            let heap = HeapId::new_concurrent(head).expect("memory");
            let mut blocks = Vec::new();
            for (size, align) in (0..300).flat_map(|size| [(size, 16), (size, 64), (size, 512)]) {
                // SAFETY: the heap is there.
                let p = unsafe { heap.allocate(size, align) };
                assert!(may_have_size(p, size, align, Resized::Perhaps), "{head} {size} {align}");
                assert!(head == 0 || may_have_size(p, size, align, Resized::Never));
                assert!(!may_have_size(p, crate::room(p) + 1, align, Resized::Perhaps));
                blocks.push((p, size, align));
            }
            // SAFETY: live, and the test's.
            blocks[0].0 = unsafe { heap.reallocate(blocks[0].0, 1000, 16) };
            // SAFETY: as above.
            blocks[0].0 = unsafe { heap.reallocate(blocks[0].0, 0, 16) };
            // SAFETY: there are no readers; its blocks live on.
            unsafe { heap.delete() };
            for (p, size, align) in blocks {
                assert!(may_have_size(p, size, align, Resized::Perhaps), "{head} {size} {align}");
                free(p);
            }
        }
    });
}

#[test]
fn a_second_free_is_found() {
    with_readers(|| {
        for size in [40, 1000, 100_000] {
            let heap = concurrent();
            let p = block(heap, size, 1);
            free(p);
            assert!(child_does(|| assert!(has_head(p, 1))));
            assert!(!child_does(|| free(p)));
            // SAFETY: nobody uses it.
            unsafe { heap.destroy() };
        }
    });
}

/// Where it would stay, where it would move, and where it waits.
#[test]
fn a_free_block_is_not_resized() {
    with_readers(|| {
        for head in [0, HEAD] {
            let heap = HeapId::new_concurrent(head).expect("memory");
            for size in [100, 1000, 30_000, 100_000, 40 << 20] {
                let [kept, p] = [0, 1].map(|number| block(heap, size.max(HEAD), number));
                for new in [size, size - 8, 2 * size] {
                    // SAFETY: live, and the test's.
                    assert!(child_does(|| _ = unsafe { reallocate(kept, new) }), "{size} {new}");
                }
                free(p);
                for new in [size, size - 8, 2 * size] {
                    // SAFETY: the child is to end.
                    assert!(!child_does(|| _ = unsafe { reallocate(p, new) }), "{size} {new}");
                    // SAFETY: as above.
                    assert!(!child_does(|| _ = unsafe { try_expand(p, new) }), "{size} {new}");
                }
            }
            // SAFETY: nobody uses it.
            unsafe { heap.destroy() };
        }
    });
}

#[test]
fn threads_free_for_each_other_and_a_reader_sees_heads() {
    with_readers(|| {
        let heap = concurrent();
        let mut random = Random(5);
        let others: Vec<_> = (0..3).map(|_| Other::new()).collect();
        let mut blocks: Vec<(usize, usize, usize)> = Vec::new();
        let mut freed: Vec<(usize, usize)> = Vec::new();
        for round in 1..300 {
            let (size, count) = (HEAD + random.below(3000), random.below(60));
            let of = &others[random.below(3)];
            blocks.extend(of.does(move || {
                (0..count)
                    .map(|n| {
                        (block(heap, size, round * 100 + n).expose_provenance(), round * 100 + n, 0)
                    })
                    .collect::<Vec<_>>()
            }));
            // A free block is handed out again as another; that one is in `blocks` then.
            let live: HashSet<_> = blocks.iter().map(|b| b.0).collect();
            freed.retain(|f| !live.contains(&f.0));
            let gone: Vec<_> = (0..random.below(blocks.len().min(50) + 1))
                .map(|_| blocks.swap_remove(random.below(blocks.len())))
                .collect();
            freed.extend(gone.iter().map(|b| (b.0, b.1)));
            others[random.below(3)].does(move || {
                gone.iter().for_each(|b| free(core::ptr::with_exposed_provenance_mut(b.0)));
                // SAFETY: the heap is there.
                unsafe { heap.purge() };
            });
            let of = |p| core::ptr::with_exposed_provenance_mut(p);
            assert!(freed.iter().all(|&(p, n)| has_head(of(p), n)), "{round}");
            assert!(blocks.iter().all(|&(p, n, _)| has_head(of(p), n)), "{round}");
            check();
        }
        others.into_iter().for_each(Other::leaves);
        // SAFETY: nobody uses it.
        unsafe { heap.destroy() };
        check();
    });
}

/// Another thread's spans stay the heap's in a forked child: no other heap finds links where they stand here.
#[test]
fn a_forked_child_keeps_heads_apart() {
    with_readers(|| {
        let heap = concurrent();
        let other = Other::new();
        let blocks = other.does(move || {
            (0..900).map(|n| block(heap, 100, n).expose_provenance()).collect::<Vec<_>>()
        });
        assert!(child_does(move || {
            let of = |n: usize| core::ptr::with_exposed_provenance_mut::<u8>(blocks[n]);
            (0..900).step_by(2).for_each(|n| free(of(n)));
            crate::thread::pool::tick();
            // SAFETY: the heap is there.
            unsafe { heap.purge() };
            check();
            // Those of threads, of the same class, lie elsewhere and where they should.
            let plain: Vec<_> = (0..2000).map(|_| crate::allocate(100)).collect();
            let mine: Vec<_> = (0..600).map(|n| block(heap, 100, n + 5000)).collect();
            for &p in &plain {
                assert!(heap_of(p).is_none() && crate::base(p) == Some(p));
                // SAFETY: a new block.
                unsafe { p.write_bytes(0xee, 100) };
            }
            assert!(mine.iter().all(|&p| crate::base(p) == Some(p)));
            assert!((1..900).step_by(2).all(|n| has_head(of(n), n) && heap.contains(of(n))));
            (1..900).step_by(2).for_each(|n| free(of(n)));
            assert!((0..600).all(|n| has_head(mine[n], n + 5000)));
            plain.into_iter().for_each(free);
            check();
        }));
        other.leaves();
        // SAFETY: nobody uses it.
        unsafe { heap.destroy() };
    });
}

/// Large blocks are freed by several threads, at the places of others that have waited, while one says what is safe.
#[test]
fn large_blocks_go_while_others_are_freed() {
    with_readers(|| {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static AT_WORK: AtomicUsize = AtomicUsize::new(3);
        let heap = concurrent();
        let held = |allocate: &dyn Fn() -> *mut u8| {
            let blocks: Vec<_> = (0..40).map(|_| allocate()).collect();
            blocks.iter().for_each(|&p| write_head(p, 1));
            blocks.into_iter().for_each(free);
        };
        std::thread::scope(|scope| {
            let threads = [0, 1, 2].map(|nth| {
                scope.spawn(move || {
                    for _ in 0..300 {
                        held(&|| match nth {
                            0 => crate::allocate_aligned(102_400, 4096),
                            // SAFETY: the heap is there.
                            _ => unsafe { heap.allocate(100_000, 4096) },
                        });
                    }
                    AT_WORK.fetch_sub(1, Ordering::Relaxed);
                })
            });
            let mut epoch = 1;
            while AT_WORK.load(Ordering::Relaxed) > 0 {
                // SAFETY: the heap is there, and nobody reads what is free.
                unsafe { heap.set_epoch(epoch + 1, epoch) };
                epoch += 1;
            }
            // SAFETY: as above.
            unsafe {
                heap.set_epoch(epoch + 1, epoch);
                heap.set_epoch(epoch + 2, epoch + 1);
                assert_eq!(heap.stats().large_blocks, 0);
                heap.destroy();
            }
            // They have left then, too: a scope does not wait for that.
            threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
        });
        check();
    });
}

/// What waits is freed when the heap is deleted, and what is in use lives on.
#[test]
fn a_deleted_heap_leaves_nothing_that_waits() {
    with_readers(|| {
        let heap = concurrent();
        for size in [100_000, 40 << 20] {
            let [kept, waits] = [0, 1].map(|number| block(heap, size, number));
            free(waits);
            assert!(crate::large::waits(waits) && !crate::large::waits(kept));
        }
        let stats = crate::Stats::take();
        assert_eq!((stats.large_blocks, stats.mapping_blocks), (2, 2));
        // SAFETY: nobody uses the heap any more.
        unsafe { heap.delete() };
        let stats = crate::Stats::take();
        assert_eq!((stats.large_blocks, stats.mapping_blocks), (1, 1));
        check();
    });
}

/// A block that waits is free, also while its heap is being deleted: readers have ended, and it has not gone yet.
#[test]
fn a_second_free_is_found_while_the_heap_ends() {
    with_readers(|| {
        for size in [100 << 10, 40 << 20] {
            let heap = concurrent();
            let p = block(heap, size, 1);
            // SAFETY: the heap's own, and its blocks; it is deleted after this.
            unsafe {
                let owned = large::owner_of(p).as_ref().expect("a heap's");
                assert_eq!(large::keep(p, "free"), Kept::Waits);
                assert_eq!(large::keep(p, "free"), Kept::Twice);
                large::end_readers(owned);
                assert_eq!(large::keep(p, "free"), Kept::Twice);
                heap.delete();
            }
            check();
        }
    });
}

/// What readers may use late stays a deleted heap's until its last block is freed, and is had by who comes to the hard limit.
#[test]
fn what_a_deleted_heap_leaves_serves_at_the_limit() {
    with_readers(|| {
        let heap = concurrent();
        let held: Vec<_> = (0..30_000).map(|number| block(heap, 1000, number)).collect();
        // SAFETY: there are no readers; its blocks live on.
        unsafe { heap.delete() };
        held.into_iter().for_each(free);
        let full = crate::slices::arena::counted();
        assert!(full > 20 << 20);
        assert!(crate::set_memory_limits(usize::MAX, full + (1 << 20)));
        let large = allocate(16 << 20);
        assert!(!large.is_null());
        free(large);
        check();
    });
}

/// Of a deleted heap nothing is left when its blocks have gone: who deletes many looks at all of them.
#[test]
fn deleted_heaps_end_with_their_blocks() {
    with_readers(|| {
        for number in 0..1000 {
            let heap = concurrent();
            let p = block(heap, 100, number);
            // SAFETY: there are no readers; its block lives on.
            unsafe { heap.delete() };
            free(p);
        }
        let made = pool::counts().1;
        assert!(made < 100, "{made}");
        check();
    });
}

/// Where nobody deletes another one, by time.
#[test]
fn what_a_deleted_heap_leaves_goes_by_time() {
    with_readers(|| {
        // What is said later counts.
        set_purge_delay_ms(usize::MAX);
        let other = concurrent();
        let kept = block(other, 100, 1);
        // SAFETY: as above.
        unsafe { other.delete() };
        crate::tick();
        set_purge_delay_ms(0);
        let heap = concurrent();
        let held: Vec<_> = (0..30_000).map(|number| block(heap, 1000, number)).collect();
        // SAFETY: as above.
        unsafe { heap.delete() };
        held.into_iter().for_each(free);
        for _ in 0..60_000 {
            crate::tick();
            if crate::slices::arena::counted() < 4 << 20 {
                free(kept);
                return check();
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("{} bytes are left", crate::slices::arena::counted());
    });
}

/// A child that is forked while what is due is being freed loses one block at most: all others go there.
#[test]
fn a_child_frees_what_was_due() {
    with_readers(|| {
        static LIVE: AtomicUsize = AtomicUsize::new(0);
        static ENDS: AtomicBool = AtomicBool::new(false);
        let heap = concurrent();
        let other = std::thread::spawn(move || {
            for epoch in 1.. {
                let new = |nth| {
                    LIVE.fetch_add(1, Ordering::SeqCst);
                    block(heap, 128 << 10, nth)
                };
                let blocks: Vec<_> = (0..32).map(new).collect();
                blocks.into_iter().for_each(|block| {
                    free(block);
                    LIVE.fetch_sub(1, Ordering::SeqCst);
                });
                // SAFETY: the heap is there, and nobody reads.
                unsafe {
                    heap.set_epoch(2 * epoch, 2 * epoch - 1);
                    heap.set_epoch(2 * epoch + 1, 2 * epoch);
                }
                if ENDS.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        for _ in 0..150 {
            assert!(child_does(|| {
                // SAFETY: as above.
                unsafe {
                    (1..4).for_each(|nth| heap.set_epoch((1 << 40) + nth, (1 << 40) + nth - 1));
                    // One that was being freed may be there.
                    let (blocks, live) = (heap.stats().large_blocks, LIVE.load(Ordering::SeqCst));
                    assert!(blocks <= live + 1, "{blocks}, {live} in use");
                }
            }));
        }
        ENDS.store(true, Ordering::Relaxed);
        other.join().expect("it ends");
        // SAFETY: the other thread has ended.
        unsafe { heap.destroy() };
        check();
    });
}
