//! Forked children: what they have, what they take over, what they pay.

mod old_handlers;

use super::alone::{alone, panics};
use super::heaps::{Other, SIZE, blocks, free};
use super::reservation::is_watched;
use crate::base::size_class::class_of;
use crate::heap::Heap;
use crate::map::address_map;
use crate::slices::arena;
use crate::spans::{Span, abandoned};
use crate::thread::pool::{self, shared};
use crate::{Stats, allocate, check, purge, thread};
use core::ptr::null_mut;
use std::boxed::Box;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use std::vec::Vec;

/// Runs `work` in a forked child; true if it neither panics nor dies.
pub(super) fn child_does(work: impl FnOnce()) -> bool {
    // SAFETY: the child ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let failed = panics(work);
        // SAFETY: no preconditions.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    let mut status = -1;
    // SAFETY: the status is valid for writing.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status == 0
}

/// A heap keeps another run in place of one that goes to the arena: while that is on its way, a child
/// forked just then must not find it kept, for somebody else may have it already. It takes a release
/// build to see the compiler leave out the store between.
#[test]
fn a_child_finds_no_run_that_is_on_its_way() {
    alone(|| {
        // One thread reads what another writes, as a child would find it.
        if is_watched() {
            return;
        }
        let heap = AtomicPtr::new(null_mut::<Heap>());
        let go = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                // A thread without a heap keeps nothing.
                free(allocate(64));
                let (first, second) = (allocate(200_000), allocate(200_000));
                free(first);
                heap.store(thread::heap(), Ordering::Release);
                while !go.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                // Waits for the arena's lock, with the first one in hand.
                free(second);
            });
            let mut seen = null_mut::<Heap>();
            while seen.is_null() {
                seen = heap.load(Ordering::Acquire);
                std::thread::yield_now();
            }
            // SAFETY: a heap; read as a child would find it.
            let kept = || unsafe { (*seen).large_cache.load(Relaxed) };
            let kept_first = !kept().is_null();
            let held = arena::ARENA.lock();
            go.store(true, Ordering::Release);
            let start = Instant::now();
            while !kept().is_null() && start.elapsed() < Duration::from_secs(5) {
                std::thread::yield_now();
            }
            let gone = kept().is_null();
            drop(held);
            assert!(kept_first && gone, "kept at first: {kept_first}; not any more: {gone}");
            // The scope's end does not wait for a thread's last words, in which it gives its heap up.
            other.join().expect("it ends");
        });
        check();
    });
}

pub(super) fn in_use(size: usize) -> usize {
    Stats::take().classes[class_of(size).index()].in_use
}

/// The fork finds another thread at describing a new span of several slices: the last of them is
/// still described as the head of what was there before.
#[test]
fn a_child_finds_half_a_span() {
    alone(|| {
        let other = Other::new();
        let block = other.allocates(5000, 1)[0];
        let last = address_map::slice_of(block) | 3;
        let d = address_map::descriptor_at(last);
        let slot = d.slot.swap(address_map::slot(last), Relaxed);
        d.owner.store(address_map::OWNER_NONE, Relaxed);
        assert!(child_does(|| {
            check();
            blocks(5000, 20).into_iter().for_each(free);
            check();
        }));
        d.slot.store(slot, Relaxed);
        free(block);
    });
}

/// The same before a block of it has been handed out: nothing of it is used, and nobody is led to its last slices.
#[test]
fn a_child_gives_back_half_a_span() {
    alone(|| {
        let other = Other::new();
        let block = other.allocates(5000, 1)[0];
        let last = address_map::slice_of(block) | 3;
        let span: *mut Span = address_map::descriptor(block).slot.load(Relaxed).cast();
        // SAFETY: the other thread waits.
        unsafe {
            let carved = std::mem::take(&mut (*span).carved);
            assert!(child_does(|| {
                pool::salvage::all();
                assert_eq!(
                    address_map::descriptor_at(last).owner.load(Relaxed),
                    address_map::OWNER_NONE
                );
                check();
            }));
            (*span).carved = carved;
        }
        free(block);
    });
}

#[test]
fn a_child_of_a_lonely_thread_goes_on() {
    alone(|| {
        let held = blocks(SIZE, 20);
        assert!(child_does(|| {
            check();
            assert_eq!(Stats::take().heaps, (1, 1));
            held.iter().copied().for_each(free);
            purge();
            assert_eq!((in_use(SIZE), Stats::take().spans.bytes), (0, 0));
        }));
        held.into_iter().for_each(free);
        check();
    });
}

/// In a forked child the other threads' heaps are free again, and their spans whoever's needs
/// them; blocks that were in use stay so.
#[test]
fn a_child_takes_over_what_other_threads_had() {
    alone(|| {
        let mine = blocks(SIZE, 20);
        let others: Vec<Other> = (0..3).map(|_| Other::new()).collect();
        let held: Vec<_> = others.iter().map(|other| other.allocates(SIZE, 60)).collect();
        let large: Vec<_> = others.iter().map(|other| other.allocates(200 << 10, 2)).collect();
        others[0].frees(&large[0][..1]); // its heap keeps it
        others[1].frees(&mine[..3]);
        // A whole span of the third's.
        let emptied = 3 + 16..3 + 32;
        // One has left full spans and a listed one, in which frees are pending; of another's,
        // all blocks of a span are.
        let gone = Other::new();
        let left = gone.allocates(512, 5 + 2 * 32 + 20);
        gone.leaves();
        let last = left.len() - 1;
        others[1].frees(&left[last - 4..last]);
        held[2][emptied.clone()].iter().copied().for_each(free);
        let before = Stats::take();
        assert!(child_does(|| {
            check();
            let now = Stats::take();
            assert_eq!(now.heaps, (1, before.heaps.1));
            assert_eq!(now.large_blocks, before.large_blocks);
            still_held(&held, &emptied).for_each(free);
            mine[3..].iter().copied().for_each(free);
            left[..last - 4].iter().copied().for_each(free);
            let again = blocks(SIZE, 500);
            check();
            // A thread of the child's gets one of those heaps.
            let other = Other::new();
            other.frees(&again);
            other.allocates(SIZE, 20);
            assert_eq!(Stats::take().heaps, (now.heaps.0 + 1, before.heaps.1));
            other.leaves();
            purge();
            check();
        }));
        // Nothing of it is seen here.
        check();
        mine[3..].iter().copied().for_each(free);
        left[..last - 4].iter().chain(&left[last..]).copied().for_each(free);
        still_held(&held, &emptied).for_each(free);
        for (other, large) in others.into_iter().zip(large) {
            other.frees(&large[1..]);
            other.leaves();
        }
        assert_eq!(Stats::take().heaps.0, 1);
        purge();
        assert_eq!((in_use(SIZE), in_use(512)), (0, 0));
        check();
    });
}

fn still_held<'a>(
    held: &'a [Vec<*mut u8>],
    emptied: &'a std::ops::Range<usize>,
) -> impl Iterator<Item = *mut u8> + 'a {
    let all = held.iter().enumerate();
    all.flat_map(move |(i, blocks)| {
        let each = blocks.iter().copied().enumerate();
        each.filter(move |(at, _)| i != 2 || !emptied.contains(at)).map(|(_, block)| block)
    })
}

/// Spans that were full in other threads are as good as any in the child, the shared heap go on.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn a_child_frees_what_other_threads_had() {
    alone(|| {
        free(allocate(64));
        // Each holds what it has been given, and no block besides.
        let others: Vec<Other> = (0..2).map(|_| Other::new()).collect();
        let mut held: Vec<_> = others.iter().flat_map(|o| o.allocates(SIZE, 3 + 64)).collect();
        held.extend(others.iter().flat_map(|o| o.allocates(64 << 10, 3 + 8)));
        assert!(child_does(|| {
            let common = Heap::tag(shared::heap());
            let owner = |block: &*mut u8| address_map::descriptor(*block).owner.load(Relaxed);
            assert_eq!(held.iter().filter(|block| owner(block) == common).count(), 4 * 3);
            pool::salvage::all();
            // Full ones are nobody's: a refill would find nothing in them.
            assert_eq!([SIZE, 64 << 10].map(|size| abandoned::count(class_of(size))), [0, 0]);
            held.iter().copied().for_each(free);
            check();
            // Both heaps are used again.
            let others = [Other::new(), Other::new()];
            let more: Vec<_> = others.iter().flat_map(|other| other.allocates(SIZE, 2)).collect();
            assert!(more.iter().all(|block| owner(block) == common));
            assert_eq!(Stats::take().heaps, (3, 4));
            more.into_iter().for_each(free);
            purge();
            check();
            assert_eq!((in_use(SIZE), Stats::take().spans.bytes), (0, 0));
        }));
        others.into_iter().for_each(Other::leaves);
        held.into_iter().for_each(free);
    });
}

/// A span that was listed is listed in the child, with all that was free in it.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn a_child_uses_what_threads_had_left() {
    alone(|| {
        let _mine = blocks(512, 1);
        let gone = Other::new();
        // Three are the shared heap'.
        let left = gone.allocates(SIZE, 3 + 5);
        gone.leaves();
        let other = Other::new();
        other.allocates(512, 1);
        let last = left[7].addr() >> 14;
        let in_it = left[3..].iter().filter(|block| block.addr() >> 14 == last).count();
        assert_eq!(in_it, 5);
        assert!(child_does(|| {
            let more = blocks(SIZE, 11);
            assert!(more.iter().all(|block| block.addr() >> 14 == last));
            check();
            left.iter().chain(&more).copied().for_each(free);
            purge();
            assert_eq!(in_use(SIZE), 0);
        }));
        other.leaves();
    });
}

/// A thread was about to leave a span when another forked: the span is lost to the child, what is in
/// it is not.
#[test]
fn a_child_can_free_what_was_changing_hands() {
    alone(|| {
        let _mine = blocks(512, 1);
        let other = Other::new();
        let held = other.allocates(SIZE, 3 + 5);
        let owner = Other::new();
        static INSIDE: AtomicBool = AtomicBool::new(false);
        static GO: AtomicBool = AtomicBool::new(false);
        owner.begins(|| {
            let _held = abandoned::hold(class_of(SIZE));
            INSIDE.store(true, Ordering::Release);
            while !GO.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        });
        while !INSIDE.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        other.begins(|| thread::trim(crate::os::notify_all));
        // It waits for the lock, with a span that is nobody's in name only.
        let owner_of = || address_map::descriptor(held[7]).owner.load(Relaxed);
        while owner_of() != address_map::OWNER_ABANDONED {
            std::thread::yield_now();
        }
        assert!(child_does(|| {
            check();
            held.iter().copied().for_each(free);
            blocks(SIZE, 100).into_iter().for_each(free);
            check();
            purge();
            assert_eq!(in_use(SIZE), 0);
            check();
        }));
        GO.store(true, Ordering::Release);
        owner.does(|| ());
        other.does(|| ());
        check();
        held.into_iter().for_each(free);
        other.leaves();
        owner.leaves();
        purge();
        assert_eq!(in_use(SIZE), 0);
    });
}

/// A thread that has no heap itself forks.
#[test]
fn a_child_may_have_no_heap() {
    alone(|| {
        let other = Other::new();
        other.allocates(SIZE, 1);
        assert_eq!(Stats::take().heaps, (1, 1));
        assert!(child_does(|| assert_eq!(Stats::take().heaps, (0, 1))));
        other.leaves();
    });
}

static LIBRARY: Mutex<()> = Mutex::new(());
static FORKING_IT: AtomicPtr<MutexGuard<'static, ()>> = AtomicPtr::new(null_mut());

extern "C" fn lock_library() {
    FORKING_IT.store(Box::into_raw(Box::new(LIBRARY.lock().expect("no panic"))), Relaxed);
}

extern "C" fn unlock_library() {
    // SAFETY: made by `lock_library` in the same thread, before the fork.
    drop(unsafe { Box::from_raw(FORKING_IT.swap(null_mut(), Relaxed)) });
}

/// A library that has asked for its handlers before anything was allocated holds a lock over forks under
/// which threads allocate: nobody waits for ever, and its handlers may allocate, in the child too.
#[test]
fn handlers_older_than_ours_may_lock_and_allocate() {
    alone(|| {
        extern "C" fn in_child() {
            for size in [64, 1000, 100 << 10, 5 << 20, 33 << 20] {
                free(allocate(size));
            }
            unlock_library();
        }
        // SAFETY: the handlers stay loaded.
        let asked = unsafe {
            libc::pthread_atfork(Some(lock_library), Some(unlock_library), Some(in_child))
        };
        assert_eq!(asked, 0);
        // Ours are there before the first fork begins, and this thread has no heap.
        Other::once(|| free(allocate(64)));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let start = |thread: usize| {
                let done = &done;
                scope.spawn(move || {
                    while !done.load(Relaxed) {
                        let inside = LIBRARY.lock().expect("no panic");
                        free(allocate(300 << 10));
                        free(allocate((1 + thread) << 20));
                        free(allocate(33 << 20));
                        drop(inside);
                        blocks(100 << thread, 20).into_iter().for_each(free);
                    }
                })
            };
            let others = [0, 1, 2].map(start);
            for _ in 0..200 {
                assert!(child_does(|| blocks(1000, 10).into_iter().for_each(free)));
            }
            done.store(true, Relaxed);
            for other in others {
                other.join().expect("it ends");
            }
        });
        check();
    });
}

/// A child that only ends touches as few pages, however many threads and blocks there are.
#[test]
fn a_child_pays_for_what_it_does() {
    if is_watched() {
        return;
    }
    alone(|| {
        let faults = || {
            let work = || {
                let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
                // SAFETY: the struct is valid for writing.
                unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
                // SAFETY: filled in.
                let faults = unsafe { usage.assume_init() }.ru_minflt;
                // SAFETY: no preconditions.
                unsafe { libc::_exit(faults.min(250) as i32) };
            };
            // SAFETY: the child ends by `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                work();
            }
            let mut status = -1;
            // SAFETY: the status is valid for writing.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            status >> 8
        };
        free(allocate(64));
        let few = faults();
        let others: Vec<Other> = (0..4).map(|_| Other::new()).collect();
        let held: Vec<_> = others.iter().flat_map(|other| other.allocates(1000, 20_000)).collect();
        let mine = blocks(1000, 20_000);
        let many = faults();
        // The C library touches each thread's descriptor.
        assert!(many <= few + 20, "{few} page faults, {many} in a large process");
        held.into_iter().chain(mine).for_each(free);
        others.into_iter().for_each(Other::leaves);
    });
}

/// Another's handler, registered later than ours and therefore called before: nothing is held.
extern "C" fn before_fork() {
    FORKING.store(true, Ordering::SeqCst);
    for _ in 0..500 {
        if ENTERED.load(Ordering::SeqCst) {
            return IN_TIME.store(true, Ordering::SeqCst);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

static FORKING: AtomicBool = AtomicBool::new(false);
static ENTERED: AtomicBool = AtomicBool::new(false);
static IN_TIME: AtomicBool = AtomicBool::new(false);

#[test]
fn forks_are_seen_once_and_from_the_start() {
    alone(|| {
        assert!(thread::start());
        // SAFETY: the handler stays loaded.
        assert_eq!(unsafe { libc::pthread_atfork(Some(before_fork), None, None) }, 0);
        free(allocate(64));
        let other = Other::new();
        other.allocates(64, 1);
        other.begins(|| {
            while !FORKING.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            pool::counts();
            ENTERED.store(true, Ordering::SeqCst);
        });
        assert!(child_does(check));
        assert!(IN_TIME.load(Ordering::SeqCst));
        other.leaves();
    });
}

/// The first thread has no one to share with, the second only frees: there are no shared heap.
#[test]
fn a_child_may_have_no_shared_heap() {
    alone(|| {
        let other = Other::new();
        let held = other.allocates(SIZE, 40);
        assert!(thread::number_of_user().is_some());
        held[..2].iter().copied().for_each(free);
        assert_eq!(Stats::take().heaps, (2, 2));
        assert!(child_does(|| {
            check();
            assert_eq!(Stats::take().heaps, (1, 2));
            held[2..].iter().copied().for_each(free);
            purge();
            check();
        }));
        other.frees(&held[2..]);
        other.leaves();
        purge();
        assert_eq!(in_use(SIZE), 0);
    });
}
