//! The lock of the slow paths: one thread at a time, sleepers woken, and what a fork asks of it.

use super::alone::alone;
use super::forks::child_does;
use super::heaps::Other;
use crate::base::HARDENED;
use crate::base::size_class::class_of;
use crate::heap::handle;
use crate::map::address_map;
use crate::os::Lock;
use crate::samples::deferred_frees;
use crate::slices::arena;
use crate::spans::abandoned;
use crate::thread::low_memory;
use crate::thread::pool::{self, shared};
use crate::{
    HeapId, Stats, allocate, allocate_in, check, deallocate, large, on_low_memory, thread,
};
use std::boxed::Box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use std::vec::Vec;

/// A count that loses steps if two threads take one at once.
struct Count(u64);

#[test]
fn one_thread_at_a_time_is_inside() {
    alone(|| {
        const ROUNDS: u64 = 20_000;
        static LOCK: Lock<Count> = Lock::new(Count(0));
        static INSIDE: AtomicU32 = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        let mut count = LOCK.lock();
                        assert_eq!(INSIDE.fetch_add(1, Ordering::Relaxed), 0);
                        count.0 += 1;
                        if round % 512 == 0 {
                            // Long enough for the others to fall asleep.
                            std::thread::sleep(Duration::from_micros(200));
                        }
                        INSIDE.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(LOCK.lock().0, 4 * ROUNDS);
    });
}

/// Waiting costs no time: a sleeper sleeps, and each of many is woken.
#[test]
fn sleepers_sleep_and_are_woken() {
    alone(|| {
        static LOCK: Lock<Count> = Lock::new(Count(0));
        let begun = Barrier::new(6);
        let guard = LOCK.lock();
        std::thread::scope(|scope| {
            let sleepers: Vec<_> = (0..5)
                .map(|_| {
                    scope.spawn(|| {
                        begun.wait();
                        LOCK.lock().0 += 1;
                        thread_time()
                    })
                })
                .collect();
            begun.wait();
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(guard.0, 0);
            drop(guard);
            for sleeper in sleepers {
                let busy = sleeper.join().expect("no panic");
                assert!(busy < Duration::from_millis(150), "{busy:?} of 300 ms");
            }
        });
        assert_eq!(LOCK.lock().0, 5);
    });
}

/// Time that the calling thread has used.
fn thread_time() -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// What a child finds of a lock that another thread holds, that it holds itself, or nobody.
#[test]
fn a_child_frees_what_others_hold() {
    alone(|| {
        static LOCK: Lock<Count> = Lock::new(Count(0));
        let child = |torn: bool, free: bool| {
            assert!(child_does(|| {
                assert_eq!(LOCK.settle_in_child(), torn);
                if free {
                    LOCK.lock().0 += 1;
                }
            }));
        };
        child(false, true);
        let guard = LOCK.lock();
        child(false, false);
        let (held, done) = (Barrier::new(2), Barrier::new(2));
        drop(guard);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _guard = LOCK.lock();
                held.wait();
                done.wait();
            });
            held.wait();
            child(true, true);
            done.wait();
        });
        LOCK.lock().0 += 1;
        assert_eq!(LOCK.lock().0, 1);
    });
}

/// A lock: its name, and how to hold it.
pub(super) type Known = (&'static str, fn() -> Box<dyn Held>);

/// Something that is held until it is dropped.
pub(super) trait Held {}
impl<T> Held for T {}

const LOCKS: [Known; 5] = [
    ("arena", || Box::new(arena::ARENA.lock())),
    ("abandoned", || Box::new(abandoned::hold(class_of(1000)))),
    ("mappings", || Box::new(large::MAPPINGS.lock())),
    ("pool", || Box::new(pool::POOL.lock())),
    ("shared heap", || Box::new(shared::SHARED.lock())),
];

/// Allocates and frees so many blocks of all kinds.
fn use_all(count: usize) {
    let sizes = [24, 1000, 5000, 200 << 10, 5 << 20, 33 << 20];
    let blocks: Vec<_> = (0..count).map(|nth| allocate(sizes[nth % 6])).collect();
    assert!(blocks.iter().all(|block| !block.is_null()));
    // SAFETY: allocated once, used no more.
    blocks.into_iter().for_each(|block| unsafe { deallocate(block) });
}

/// A thread is inside each of the locks while another forks: the fork does not wait, and the child
/// goes on as if nobody had been.
#[test]
fn a_fork_waits_for_no_lock() {
    for (name, hold) in LOCKS {
        alone(|| {
            use_all(60);
            let left = Other::new();
            let theirs = left.allocates(1000, 40);
            left.leaves();
            let other = Other::new();
            let kept = other.allocates(1000, 40);
            let (held, done) = (Barrier::new(2), Barrier::new(2));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _guard = hold();
                    held.wait();
                    done.wait();
                });
                held.wait();
                let child = child_does(|| {
                    check();
                    use_all(600);
                    theirs.iter().chain(&kept).for_each(|&block| {
                        // SAFETY: allocated once, used no more.
                        unsafe { deallocate(block) };
                    });
                    // Each thread that comes has a heap that no other has.
                    let others: Vec<_> = (0..4).map(|_| Other::new()).collect();
                    let heap_of = |other: &Other| {
                        other.allocates(1000, 200);
                        other.does(thread::own)
                    };
                    let mut heaps: Vec<_> = others.iter().filter_map(heap_of).collect();
                    heaps.extend(thread::own());
                    let count = heaps.len();
                    heaps.sort_unstable();
                    heaps.dedup();
                    assert!(heaps.len() == count && count >= 4);
                    others.into_iter().for_each(Other::leaves);
                    use_all(600);
                    crate::purge();
                    check();
                });
                done.wait();
                assert!(child, "the lock of the {name}");
            });
            other.leaves();
            check();
        });
    }
}

/// As above, when the reservation has been made and nothing has been allocated.
#[test]
fn a_fork_may_come_before_the_first_allocation() {
    alone(|| {
        for (name, hold) in LOCKS {
            assert!(thread::start() && address_map::committed() == 0);
            let (held, done) = (Barrier::new(2), Barrier::new(2));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _guard = hold();
                    held.wait();
                    done.wait();
                });
                held.wait();
                let child = child_does(|| {
                    use_all(600);
                    check();
                });
                done.wait();
                assert!(child, "the lock of the {name}");
            });
        }
        use_all(60);
        check();
    });
}

/// Functions that the program has registered: who looks at one, or ends a call of it, does not change it.
#[test]
fn a_forked_child_has_the_functions_that_are_looked_at() {
    alone(|| {
        use_all(60);
        on_low_memory(Some(|_, _| ()), [0; 2]);
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        crate::on_deferred_free(
            Some(|_, _, _| {
                CALLS.fetch_add(1, Ordering::Relaxed);
            }),
            [0; 2],
        );
        let (held, done) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _guards = (low_memory::CALL.lock(), deferred_frees::CALL.lock());
                held.wait();
                done.wait();
            });
            held.wait();
            let child = child_does(|| {
                assert!(low_memory::call(1, || true));
                let before = CALLS.load(Ordering::Relaxed);
                Other::once(|| use_all(600));
                assert!(CALLS.load(Ordering::Relaxed) > before);
            });
            done.wait();
            assert!(child);
        });
    });
}

const OF_HEAPS: [Known; 6] = [
    ("deferred frees", || Box::new(deferred_frees::CALL.lock())),
    ("handles", || Box::new(handle::FREE_HANDLES.lock())),
    ("nurseries", || Box::new(large::hold_nurseries())),
    ("owned", || Box::new(large::OWNED.lock())),
    ("partitions", || Box::new(pool::partitions::FREE.lock())),
    ("salvage", || Box::new(pool::salvage::NEXT.lock())),
];

/// Makes heaps and partitions, uses and ends them.
fn use_heaps() {
    crate::on_deferred_free(None, [0; 2]);
    let heaps: Vec<_> = (0..100).map(|_| HeapId::new_owned().expect("memory")).collect();
    for heap in &heaps {
        for size in [100, 100, 2000, 200 << 10, 33 << 20] {
            // SAFETY: the heap is there, and this thread's.
            let block = unsafe { heap.allocate(size, 16) };
            assert!(!block.is_null());
        }
        // SAFETY: live blocks.
        (0..3).for_each(|of| unsafe { deallocate(allocate_in(of, 100, 16)) });
    }
    // SAFETY: nobody uses them any more.
    heaps.into_iter().for_each(|heap| unsafe { heap.destroy() });
}

/// The same of the locks of the program's heaps. What waits for readers waits in the child, too.
#[test]
fn a_fork_waits_for_no_lock_of_heaps() {
    alone(|| {
        use_heaps();
        let readers = (!HARDENED).then(|| HeapId::new_concurrent(32).expect("memory"));
        if let Some(heap) = readers {
            // SAFETY: the heap is there; blocks of its.
            unsafe {
                heap.set_epoch(5, 5);
                heap.allocate(300 << 10, 16);
                for size in [200 << 10, 33 << 20] {
                    deallocate(heap.allocate(size, 16));
                }
                assert!(heap.stats().large > 33 << 20);
            }
        }
        for (name, hold) in OF_HEAPS {
            let other = Other::new();
            other.does(use_heaps);
            let theirs = other.allocates(1000, 40);
            let (held, done) = (Barrier::new(2), Barrier::new(2));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _guard = hold();
                    held.wait();
                    done.wait();
                });
                held.wait();
                let child = child_does(|| {
                    use_heaps();
                    let late = Other::new();
                    late.does(use_heaps);
                    late.leaves();
                    // SAFETY: live blocks; the heap is there, and nobody reads in this process.
                    unsafe {
                        theirs.iter().for_each(|&block| deallocate(block));
                        readers.into_iter().for_each(|heap| {
                            heap.set_epoch(6, 6);
                            assert!(heap.stats().large > 33 << 20, "it waits");
                            heap.set_epoch(7, 7);
                            assert!(heap.stats().large < 400 << 10);
                            heap.destroy();
                        });
                    }
                    crate::purge();
                    check();
                    assert_eq!(Stats::take().nurseries.bytes, 0);
                });
                done.wait();
                assert!(child, "the lock of the {name}");
            });
            // SAFETY: live blocks.
            theirs.into_iter().for_each(|block| unsafe { deallocate(block) });
            other.leaves();
        }
        check();
    });
}
