//! The lock of the slow paths, with simulated futexes: `wait` sleeps only if the word still is
//! what the caller saw, `wake` wakes the one that has slept longest.

use crate::base::sync::Plain;
use crate::harness::{ALL, FORKER, Model, check, finish, spawn};
use crate::os::Lock;

static LOCK: Lock<Plain<usize>> = Lock::new(Plain::new(0));

/// Takes the lock and counts. Loom reports it if two threads are inside, or if one does not see
/// what the last one wrote.
fn count() {
    let guard = LOCK.lock();
    guard.set(guard.get() + 1);
}

fn counted() -> usize {
    LOCK.lock().get()
}

/// Two threads, once each: every order of the spin, the exchange and the sleep. One is inside,
/// the next one sees what it wrote, and nobody sleeps for ever.
#[test]
fn two_threads_and_one_lock() {
    check(Model { quiet: &[FORKER], ..ALL }, |_| {
        drop(LOCK.lock());
        let a = spawn(count);
        count();
        a.join().unwrap();
        assert_eq!(counted(), 2);
    });
}

/// Three threads: a sleeper among others that come and go. Whoever is woken does not forget
/// those that sleep still. In full each comes twice but the first.
#[test]
fn three_threads_and_one_lock() {
    const THREE: Model = Model { preemptions: [Some(4), Some(4)], quiet: &[FORKER], growth: false };
    check(THREE, |full| {
        drop(LOCK.lock());
        let rounds = if full { 2 } else { 1 };
        let often = move || (0..rounds).for_each(|_| count());
        let others = [spawn(often), spawn(often)];
        count();
        finish(others);
        assert_eq!(counted(), 1 + 2 * rounds);
    });
}
