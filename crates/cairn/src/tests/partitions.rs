//! Partitions: in the hardened build, memory of one is never another's.
#![cfg(feature = "hardened")]

use super::alone::alone;
use super::forks::child_does;
use super::heaps::{Other, blocks, free};
use super::misuse::last_words;
use crate::slices::arena;
use crate::thread::pool::{self, partitions::FREE};
use crate::{
    PARTITIONS, Stats, allocate, allocate_in, check, purge, reallocate, reallocate_in,
    set_address_space,
};
use std::any::Any;
use std::boxed::Box;
use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use std::vec::Vec;

fn in_partition(partition: usize, size: usize, count: usize) -> Vec<*mut u8> {
    let held: Vec<_> = (0..count).map(|_| allocate_in(partition, size, 16)).collect();
    for block in &held {
        // SAFETY: a live block.
        unsafe { block.write_bytes(0xa5, size) };
    }
    held
}

fn addresses(blocks: &[*mut u8]) -> HashSet<usize> {
    blocks.iter().map(|block| block.addr()).collect()
}

/// Slices under blocks.
fn slices(blocks: &[*mut u8]) -> HashSet<usize> {
    blocks.iter().map(|block| block.addr() >> 14).collect()
}

#[test]
fn memory_of_a_partition_is_never_another_s() {
    alone(|| {
        for size in [16, 100, 1024, 4096, 20_000] {
            let first = in_partition(1, size, 300);
            let was = slices(&first);
            first.into_iter().for_each(free);
            purge();
            let others: Vec<_> =
                (2..PARTITIONS).flat_map(|of| in_partition(of, size, 100)).collect();
            let plain = blocks(size, 600);
            let large = blocks(1 << 20, 4);
            assert!(slices(&others).is_disjoint(&was) && slices(&plain).is_disjoint(&was));
            assert!(large.iter().all(|block| !was.contains(&(block.addr() >> 14))));
            // Its own blocks come from there.
            let again = in_partition(1, size, 300);
            assert!(!slices(&again).is_disjoint(&was));
            others.into_iter().chain(plain).chain(large).chain(again).for_each(free);
            check();
        }
    });
}

#[test]
fn what_a_thread_leaves_goes_to_the_next_one_of_the_partition() {
    alone(|| {
        let of_thread = |partition| {
            let held = thread::spawn(move || {
                let held = in_partition(partition, 64, 200);
                held.iter().step_by(2).copied().for_each(free);
                held.iter().map(|block| block.expose_provenance()).collect::<Vec<_>>()
            });
            let held = held.join().expect("a thread");
            held.into_iter().map(core::ptr::with_exposed_provenance_mut).collect::<Vec<*mut u8>>()
        };
        let first = of_thread(3);
        assert!(slices(&of_thread(4)).is_disjoint(&slices(&first)));
        let again = of_thread(3);
        assert!(!slices(&again).is_disjoint(&slices(&first)));
        // What is in use is nobody's again, and can be freed here.
        let live: Vec<_> = first.iter().skip(1).step_by(2).copied().collect();
        let reused: Vec<_> = again.iter().copied().filter(|block| live.contains(block)).collect();
        assert!(reused.is_empty());
        live.iter().copied().for_each(free);
        let said = last_words(|| free(live[3]));
        assert!(said.contains("free"), "{said}");
        check();
    });
}

#[test]
fn blocks_of_partitions_are_blocks_like_others() {
    alone(|| {
        for partition in 0..2 * PARTITIONS {
            let mut block = allocate_in(partition, 100, 64);
            assert!(block.addr().is_multiple_of(64));
            // SAFETY: live blocks.
            unsafe {
                block.write_bytes(7, 100);
                block = reallocate(block, 5000);
                assert!((0..100).all(|at| block.add(at).read() == 7));
            }
            free(block);
        }
        let large = in_partition(5, 1 << 20, 2);
        assert_eq!(addresses(&large).len(), 2);
        assert!(child_does(|| {
            large.iter().copied().for_each(free);
            in_partition(5, 64, 100).into_iter().for_each(free);
            in_partition(6, 64, 100).into_iter().for_each(free);
            check();
        }));
        large.into_iter().for_each(free);
        free(allocate(1));
        purge();
        assert_eq!(Stats::take().allocated(), 0);
        // No span serves such an alignment.
        for align in [32 << 10, 1 << 20] {
            let block = allocate_in(1, 1000, align);
            assert!(!block.is_null() && block.addr().is_multiple_of(align), "{align}");
            free(block);
        }
        assert!(allocate_in(1, usize::MAX - 100, 16).is_null());
    });
}

/// A small block that no span serves comes back to its partition when it is resized.
#[test]
fn a_block_of_no_span_moves_to_its_partition() {
    alone(|| {
        let first = in_partition(1, 200, 300);
        let of_partition = slices(&first);
        first.into_iter().for_each(free);
        purge();
        for size in [200, 1000] {
            let apart = allocate_in(1, 1000, 32 << 10);
            // SAFETY: live blocks, of at least so many bytes.
            unsafe {
                apart.write_bytes(7, 1000);
                assert!(reallocate_in(1, apart, isize::MAX as usize + 1, 16).is_null());
                let block = reallocate_in(1, apart, size, 16);
                assert!(of_partition.contains(&(block.addr() >> 14)), "{size}");
                assert!((0..size).all(|at| block.add(at).read() == 7));
                free(block);
            }
        }
        let large = allocate(1 << 20);
        // SAFETY: no block starts there, and the process ends.
        let said = last_words(|| _ = unsafe { reallocate_in(1, large.add(64), 200, 16) });
        assert!(said.contains("realloc"), "{said}");
        check();
    });
}

/// Memory that a partition keeps while nobody uses it stays its own in a child that makes the arena's bitmaps anew.
#[test]
fn a_child_finds_what_partitions_keep() {
    alone(|| {
        let first = in_partition(1, 1024, 300);
        let was = slices(&first);
        first.into_iter().for_each(free);
        purge();
        let kept = arena::kept_slices()[0];
        assert!(kept > 0);
        let (told, holds) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let holder = thread::spawn(move || {
            let arena = arena::ARENA.lock();
            told.send(()).expect("it waits");
            wait.recv().expect("it says so");
            drop(arena);
        });
        holds.recv().expect("it holds");
        assert!(child_does(|| {
            let plain: Vec<_> = [100, 1000, 20_000].map(|size| blocks(size, 3000)).concat();
            assert!(slices(&plain).is_disjoint(&was));
            let again = in_partition(1, 1024, 300);
            assert!(!slices(&again).is_disjoint(&was));
            check();
        }));
        go.send(()).expect("it waits");
        holder.join().expect("it ends");
    });
}

/// And memory that is in no list, as another thread was giving it back.
#[test]
fn a_child_finds_what_partitions_are_about_to_keep() {
    alone(|| {
        let first = in_partition(1, 1024, 300);
        let was = slices(&first);
        first.into_iter().for_each(free);
        purge();
        let holds: [fn(); 2] = [
            || core::mem::forget(arena::partition_runs::KEPT.lock()),
            || core::mem::forget(arena::ARENA.lock()),
        ];
        let holders = holds.map(|hold| {
            let other = Other::new();
            other.does(hold);
            other
        });
        assert!(child_does(|| {
            let mut others = in_partition(2, 1024, 3000);
            others.extend([100, 1024, 20_000].into_iter().flat_map(|size| blocks(size, 3000)));
            assert!(slices(&others).is_disjoint(&was));
            in_partition(1, 1024, 300).into_iter().chain(others).for_each(free);
            check();
        }));
        core::mem::forget(holders);
    });
}

/// In a forked child, too, where the heaps of threads that it does not have go to their partitions.
#[test]
fn a_child_keeps_partitions_apart() {
    alone(|| {
        let other = Other::new();
        let held =
            other.does(|| (1..PARTITIONS).map(|of| in_partition(of, 64, 50)).collect::<Vec<_>>());
        assert!(child_does(|| {
            held.iter().flatten().step_by(2).copied().for_each(free);
            purge();
            let others = |of: usize| held.iter().enumerate().filter(move |(nth, _)| nth + 1 != of);
            for of in (1..PARTITIONS).rev() {
                let mine = slices(&in_partition(of, 64, 500));
                assert!(others(of).all(|(_, theirs)| mine.is_disjoint(&slices(theirs))), "{of}");
                assert!(!mine.is_disjoint(&slices(&held[of - 1])), "it has what the thread had");
            }
            check();
        }));
        other.leaves();
    });
}

/// The program is called while a block is allocated in a partition, and gives back there what its thread has: another one may
/// use that at once.
#[test]
fn a_callback_may_give_back_what_its_thread_has() {
    static OTHER: std::sync::Mutex<Option<Other>> = std::sync::Mutex::new(None);
    fn told(_: bool, _: u64, _: [usize; 2]) {
        crate::thread_idle();
        // The other thread is called, too.
        if let Ok(other) = OTHER.try_lock() {
            other.as_ref().expect("it is there").does(|| _ = in_partition(3, 64, 100));
        }
    }
    alone(|| {
        let held = in_partition(3, 64, 100);
        *OTHER.lock().expect("nobody has it") = Some(Other::new());
        crate::on_deferred_free(Some(told), [0; 2]);
        let more = in_partition(3, 64, 300);
        crate::on_deferred_free(None, [0; 2]);
        let mine = crate::thread_number();
        assert!(more.iter().all(|&block| crate::owner_thread(block) == mine));
        held.into_iter().chain(more).for_each(free);
        OTHER.lock().expect("nobody has it").take().into_iter().for_each(Other::leaves);
        check();
    });
}

/// C++ programs may name any number as an alignment.
#[test]
fn an_alignment_of_zero_is_the_least() {
    alone(|| {
        let block = allocate_in(3, 100, 0);
        assert!(!block.is_null() && block.addr().is_multiple_of(16));
        free(block);
    });
}

/// What others have freed in partitions that their threads do not use goes with a purge, and at the hard limit.
#[test]
fn what_is_free_in_partitions_goes() {
    const MIB: usize = 1 << 20;
    alone(|| {
        free(in_partition(4, 64, 1)[0]);
        for leaves in [false, true] {
            let (other, last) = (Other::new(), Other::new());
            let mut held = other.does(|| in_partition(3, 1000, 5_000));
            let kept = || arena::kept_slices()[0];
            if leaves {
                other.leaves();
            } else {
                other.does(free_one);
                last.frees(&held);
                other.does(|| _ = purge());
                held = Vec::new();
                assert!(kept() >= 250, "{}", kept());
                other.leaves();
            }
            last.frees(&held);
            purge();
            assert!(kept() >= 250, "{}", kept());
            last.leaves();
        }
        assert!(crate::set_memory_limits(usize::MAX, 64 * MIB));
        let other = Other::new();
        let held = in_partition(3, 1000, 40_000);
        other.frees(&held);
        assert!(in_partition(4, 1000, 25_000).iter().all(|block| !block.is_null()));
        other.leaves();
        check();
    });
}

fn free_one() {
    free(allocate(64));
}

/// While one thread has what is free given back, others find the heaps of a partition, and make none.
#[test]
fn heaps_of_partitions_are_hidden_one_at_a_time() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static DONE: AtomicBool = AtomicBool::new(false);
    alone(|| {
        free(allocate(64));
        let others: Vec<_> = (0..40).map(|_| Other::new()).collect();
        others.iter().for_each(|other| other.does(|| _ = in_partition(3, 64, 1)));
        others.into_iter().for_each(Other::leaves);
        let purges = thread::spawn(|| {
            while !DONE.load(Ordering::Relaxed) {
                purge();
            }
        });
        let made = || crate::thread::pool::all().count();
        let before = made();
        for _ in 0..3000 {
            in_partition(3, 64, 1).into_iter().for_each(free);
            crate::thread_idle();
        }
        DONE.store(true, Ordering::Relaxed);
        purges.join().expect("it ends");
        assert!(made() < before + 10, "{} more", made() - before);
    });
}

/// Where there are few places for heaps, threads take turns at those of partitions.
#[test]
fn there_may_be_more_threads_than_places() {
    alone(|| {
        // 64 places.
        set_address_space(256 << 20);
        let others: Vec<_> = (0..8).map(|_| Other::new()).collect();
        for partition in 0..PARTITIONS {
            for other in &others {
                let held = other.does(move || in_partition(partition, 100, 40));
                assert!(held.iter().all(|block| !block.is_null()), "{partition}");
                other.frees(&held);
            }
        }
        others.into_iter().for_each(Other::leaves);
        check();
    });
}

/// And at the same time: who finds the heap of a partition in another's hands waits for it.
#[test]
fn threads_wait_for_their_turn() {
    alone(|| {
        set_address_space(256 << 20);
        let begin = std::sync::Barrier::new(8);
        let works = || {
            begin.wait();
            for nth in 0..2000 {
                let block = allocate_in(nth % PARTITIONS, 100, 16);
                assert!(!block.is_null(), "{nth}");
                free(block);
            }
        };
        thread::scope(|scope| {
            // A scope does not wait for destructors; who is joined has given its heaps back.
            let threads = [(); 8].map(|()| scope.spawn(works));
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        });
        check();
    });
}

/// Two threads have kept the heap of a partition each, as there were places; now there are none, and each needs the other's.
#[test]
fn who_waits_keeps_no_heap_that_another_waits_for() {
    alone(|| {
        set_address_space(256 << 20);
        let others = [0, 1].map(|partition| {
            let other = Other::new();
            other.does(move || in_partition(partition, 100, 10).into_iter().for_each(free));
            (other, 1 - partition)
        });
        while !pool::is_all_but_full() {
            assert!(!pool::take().is_null());
        }
        let asks = |(other, partition): &(Other, usize)| {
            let partition = *partition;
            other.does(move || allocate_in(partition, 100, 16).expose_provenance())
        };
        let blocks = thread::scope(|scope| {
            let asked = others.each_ref().map(|other| scope.spawn(move || asks(other)));
            asked.map(|asked| asked.join().expect("no panic"))
        });
        assert!(!blocks.contains(&0), "{blocks:?}");
        others.into_iter().for_each(|(other, _)| other.leaves());
        check();
    });
}

/// A thread that keeps the heap of a partition may wait elsewhere for ever: others have one all the same.
#[test]
fn who_sleeps_keeps_no_heap_that_another_needs() {
    alone(|| {
        set_address_space(256 << 20);
        let asks = || {
            let blocks: Vec<_> = (0..PARTITIONS).map(|of| allocate_in(of, 100, 16)).collect();
            assert!(blocks.iter().all(|block| !block.is_null()), "{blocks:?}");
            blocks.into_iter().for_each(free);
        };
        // It has one of each, made while there were places.
        let sleeper = Other::with_heap();
        sleeper.does(asks);
        let others = [(); 2].map(|()| Other::with_heap());
        while !pool::is_all_but_full() {
            assert!(!pool::take().is_null());
        }
        for other in &others {
            other.does(asks);
        }
        // This one has given back what it had.
        sleeper.does(asks);
        asks();
        purge();
        others.into_iter().for_each(Other::leaves);
        sleeper.leaves();
        check();
    });
}

/// Threads that have no heap, as all places for theirs are taken, are lent one in turns.
#[test]
fn threads_without_a_place_take_turns() {
    alone(|| {
        // 64 places, of which 46 are for threads.
        set_address_space(512 << 20);
        let others: Vec<_> = (0..60).map(|_| Other::new()).collect();
        others.iter().for_each(|other| other.does(|| _ = crate::thread::number_of_user()));
        // One without a place comes first everywhere, and makes the shared heap before.
        others.iter().last().into_iter().for_each(|other| other.does(|| free(allocate(64))));
        for partition in 0..PARTITIONS {
            for other in others.iter().rev() {
                let held = other.does(move || in_partition(partition, 100, 10));
                assert!(held.iter().all(|block| !block.is_null()), "{partition}");
                other.frees(&held);
            }
        }
        others.into_iter().for_each(Other::leaves);
        check();
        // There is room again: each keeps its own.
        assert!(!pool::is_all_but_full());
    });
}

/// A fork finds the lists being changed: the child makes them of the heaps that are nobody's, and makes no others.
#[test]
fn a_child_finds_the_heaps_that_nobody_has() {
    alone(|| {
        let other = Other::new();
        other.does(|| {
            (0..PARTITIONS).for_each(|nth| in_partition(nth, 64, 10).into_iter().for_each(free))
        });
        other.leaves();
        // As this thread gives them back: no other heap is made in the child for it.
        free(allocate(64));
        let other = Other::with_heap();
        other.does(|| core::mem::forget(FREE.lock()));
        let made = pool::all().count();
        assert!(child_does(move || {
            (0..PARTITIONS).for_each(|nth| in_partition(nth, 64, 10).into_iter().for_each(free));
            assert_eq!(pool::all().count(), made);
            check();
        }));
        core::mem::forget(other);
    });
}

/// The first act of a handler that is older than ours, in the child.
extern "C" fn allocates_in_all() {
    let held: Vec<_> = (0..PARTITIONS).flat_map(|of| in_partition(of, 100, 10)).collect();
    assert!(held.iter().all(|block| !block.is_null()));
    held.into_iter().for_each(free);
}

/// Such a handler allocates in partitions while threads that are not there hold the locks that this takes.
#[test]
fn handlers_older_than_ours_may_allocate_in_partitions() {
    let locks: [fn() -> Box<dyn Any>; 2] =
        [|| Box::new(pool::POOL.lock()), || Box::new(FREE.lock())];
    alone(|| {
        // SAFETY: the handler stays loaded.
        assert_eq!(unsafe { libc::pthread_atfork(None, None, Some(allocates_in_all)) }, 0);
        free(allocate(64));
        for hold in locks {
            let (inside, done) = (Barrier::new(2), Barrier::new(2));
            thread::scope(|scope| {
                scope.spawn(|| {
                    let _held = hold();
                    inside.wait();
                    done.wait();
                });
                inside.wait();
                assert!(child_does(check));
                done.wait();
            });
        }
    });
}

/// Where places are scarce, too, the program's function may allocate in the partition in which the allocation is that has called it,
/// and give back what the thread has.
#[test]
fn a_function_within_an_allocation_has_its_turn() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    alone(|| {
        set_address_space(256 << 20);
        free(allocate(64));
        (0..40).for_each(|_| assert!(!pool::take().is_null()));
        let allocates = |_, _, _: [usize; 2]| {
            CALLS.fetch_add(1, Ordering::Relaxed);
            for partition in [0, 1] {
                let held = in_partition(partition, 100, 3);
                assert!(held.iter().all(|block| !block.is_null()));
                crate::thread_idle();
                held.into_iter().for_each(free);
            }
        };
        crate::on_deferred_free(Some(allocates), [0; 2]);
        let held = in_partition(0, 100, 20_000);
        assert!(held.iter().all(|block| !block.is_null()) && CALLS.load(Ordering::Relaxed) > 1);
        crate::on_deferred_free(None, [0; 2]);
        held.into_iter().for_each(free);
        check();
    });
}

/// Others get slices while what partitions keep is given back.
#[test]
fn a_purge_of_partitions_stops_nobody() {
    alone(|| {
        in_partition(1, 100, 1).into_iter().for_each(free);
        let kept = arena::partition_runs::KEPT.lock();
        let purges = thread::spawn(arena::purge_all);
        thread::sleep(Duration::from_millis(100));
        let (tell, told) = channel();
        let asks = thread::spawn(move || tell.send(arena::taken()).expect("it waits"));
        let answer = told.recv_timeout(Duration::from_secs(10));
        drop(kept);
        purges.join().expect("no panic");
        asks.join().expect("no panic");
        assert!(answer.is_ok(), "the arena's lock is held");
    });
}
