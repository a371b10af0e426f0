//! Forks as handlers meet them that are older than ours, and heaps that a fork cuts from their thread in the middle of a step.

use super::super::alone::alone;
use super::super::heaps::{Other, free, row};
use super::super::lock::Known;
use super::child_does;
use crate::base::size_class::class_of;
use crate::heap::handle;
use crate::slices::arena;
use crate::thread::pool::{self, shared};
use crate::{HeapId, allocate, check, large, purge};
use std::boxed::Box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::vec::Vec;

/// What operations on heaps lock.
const LOCKS: [Known; 4] = [
    ("arena", || Box::new(arena::ARENA.lock())),
    ("pool", || Box::new(pool::POOL.lock())),
    ("handles", || Box::new(handle::FREE_HANDLES.lock())),
    ("nurseries", || Box::new(large::hold_nurseries())),
];

/// What the handler below uses.
static THEIRS: Mutex<Option<HeapId>> = Mutex::new(None);
static DONE: AtomicBool = AtomicBool::new(false);

/// In the child, before the allocator's own handler.
extern "C" fn uses_heaps() {
    // SAFETY: in a child no other thread has the heap.
    unsafe {
        if let Some(theirs) = *THEIRS.lock().expect("no panic") {
            theirs.attach();
            assert!(!theirs.allocate(1000, 16).is_null());
            theirs.purge();
            theirs.destroy();
        }
        let new = HeapId::new_owned().expect("memory");
        for size in [16, 1000, 100 << 10] {
            assert!(!new.allocate(size, 16).is_null());
        }
        new.destroy();
    }
    crate::tick();
    DONE.store(true, Ordering::Relaxed);
}

/// Operations on heaps find that the thread is a child's: what another thread had attached is nobody's, what it had locked
/// is free.
#[test]
fn handlers_older_than_ours_may_use_heaps() {
    alone(|| {
        // SAFETY: the handler stays loaded.
        assert_eq!(unsafe { libc::pthread_atfork(None, None, Some(uses_heaps)) }, 0);
        free(allocate(64));
        let other = Other::new();
        let theirs = other.does(|| {
            let heap = HeapId::new_owned().expect("memory");
            // SAFETY: this thread's.
            assert!(!unsafe { heap.allocate(100, 16) }.is_null());
            heap
        });
        *THEIRS.lock().expect("no panic") = Some(theirs);
        assert!(child_does(|| assert!(DONE.load(Ordering::Relaxed))));
        *THEIRS.lock().expect("no panic") = None;
        for (name, hold) in LOCKS {
            let (inside, done) = (Barrier::new(2), Barrier::new(2));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _held = hold();
                    inside.wait();
                    done.wait();
                });
                inside.wait();
                assert!(child_does(|| assert!(DONE.load(Ordering::Relaxed))), "{name}");
                done.wait();
            });
        }
        other.leaves();
    });
}

/// What another thread was about to do in the shared heap at a fork is done by whoever salvages, also if it has no heap.
#[test]
#[cfg_attr(feature = "hardened", ignore = "newcomers have heaps of their own")]
fn a_shared_heap_that_a_fork_cuts_is_salvaged() {
    alone(|| {
        free(allocate(64));
        let one = |_| shared::unlisted(shared::take(class_of(1000), 1)).cast::<u8>();
        let blocks: Vec<_> = (0..20).map(one).collect();
        assert!(!shared::heap().is_null());
        let (inside, done) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _held = shared::SHARED.lock();
                inside.wait();
                done.wait();
            });
            inside.wait();
            assert!(child_does(|| {
                assert!(pool::has_dead());
                blocks.iter().copied().for_each(free);
                purge();
                check();
                // But for what lay ready in that heap.
                assert!(row(1000).spans <= 1 && !pool::has_dead());
            }));
            done.wait();
        });
    });
}

/// A heap that is free but admits others yet, as one is that is being given back, is barred when a child makes the pool anew:
/// the next who has it may be a heap of the program's.
#[test]
fn a_free_heap_of_a_new_pool_is_worked_on() {
    alone(|| {
        free(allocate(64));
        let other = Other::new();
        let heap = other.does(|| {
            free(allocate(64));
            crate::thread::heap()
        });
        other.leaves();
        let (inside, done) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _held = pool::POOL.lock();
                inside.wait();
                done.wait();
            });
            inside.wait();
            // SAFETY: made, and nobody's.
            unsafe {
                (*heap).presence.admit();
                assert!(child_does(|| {
                    let closed = pool::take_closed(core::ptr::null_mut());
                    assert_eq!(closed, heap);
                    assert!((*closed).presence.is_worked_on());
                }));
            }
            done.wait();
        });
    });
}
