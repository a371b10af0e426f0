//! The lock of the slow paths: one thread at a time, sleepers woken, and what a fork asks of it.

use super::alone::alone;
use crate::heap::{commons, pool};
use crate::os::{Fork, Lock, set_forking};
use crate::{allocate, arena, deallocate, large, orphans, thread};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
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

/// The forking thread goes through locks that it holds; others wait until it is over.
#[test]
fn the_forking_thread_goes_through() {
    alone(|| {
        static LOCK: Lock<Count> = Lock::new(Count(0));
        static ENTERED: AtomicBool = AtomicBool::new(false);
        LOCK.at_fork(Fork::Prepare);
        set_forking(true);
        LOCK.lock().0 += 1;
        LOCK.lock().0 += 1;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                LOCK.lock().0 += 1;
                ENTERED.store(true, Ordering::Release);
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!ENTERED.load(Ordering::Acquire), "the lock is still held");
            // Once more, with a sleeper in line.
            assert_eq!(LOCK.lock().0, 2);
            assert!(!ENTERED.load(Ordering::Acquire));
            set_forking(false);
            let start = Instant::now();
            LOCK.at_fork(Fork::Parent);
            while !ENTERED.load(Ordering::Acquire) {
                assert!(start.elapsed() < Duration::from_secs(20), "the sleeper is not woken");
                std::thread::yield_now();
            }
        });
        assert_eq!(LOCK.lock().0, 3);
        // In the child it is free, whatever it was.
        LOCK.at_fork(Fork::Prepare);
        LOCK.at_fork(Fork::Child);
        assert_eq!(LOCK.lock().0, 3);
    });
}

/// A lock: its name, its part in a fork, and something that needs it.
type Known = (&'static str, fn(Fork), fn());

/// Each of the locks is held over a fork: who needs it waits, and goes on afterwards.
#[test]
fn every_lock_is_held_over_a_fork() {
    alone(|| {
        assert!(thread::start());
        let locks: [Known; 5] = [
            ("arena", arena::at_fork, || _ = arena::clean_and_purged()),
            ("orphans", orphans::at_fork, orphans::clear),
            ("mappings", large::at_fork, || _ = large::mapping_base(core::ptr::null())),
            ("pool", pool::at_fork, || _ = pool::counts()),
            ("commons", commons::at_fork, || _ = commons::heap()),
        ];
        for (name, at_fork, needs_it) in locks {
            at_fork(Fork::Prepare);
            let waiting = std::thread::spawn(needs_it);
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished(), "the lock of the {name} is free");
            at_fork(Fork::Parent);
            waiting.join().expect("no panic");
            // In a child nobody waits.
            at_fork(Fork::Prepare);
            at_fork(Fork::Child);
            needs_it();
        }
        // SAFETY: allocated and freed once.
        unsafe { deallocate(allocate(100)) };
    });
}
