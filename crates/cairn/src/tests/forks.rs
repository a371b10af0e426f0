//! The ends of threads and of what a process knows of itself: late frees, forked children, bad
//! pointers.

use super::alone::{alone, panics};
use super::heaps::{Other, blocks, crowd, free};
use super::reservation::is_watched;
use crate::heap::{Heap, pool, shared};
use crate::size_class::class_of;
use crate::{
    Cairn, Stats, abandoned, address_map, allocate, allocate_zeroed, arena, check,
    deallocate_named, purge, thread,
};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use std::boxed::Box;
use std::collections::HashSet;
use std::string::String;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering, Ordering::Relaxed};
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
            let held = arena::hold();
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

fn in_use(size: usize) -> usize {
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

#[test]
fn a_child_of_a_lonely_thread_goes_on() {
    alone(|| {
        let held = blocks(1024, 20);
        assert!(child_does(|| {
            check();
            assert_eq!(Stats::take().heaps, (1, 1));
            held.iter().copied().for_each(free);
            purge();
            assert_eq!((in_use(1024), Stats::take().spans.bytes), (0, 0));
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
        let mine = blocks(1024, 20);
        let others: Vec<Other> = (0..3).map(|_| Other::new()).collect();
        let held: Vec<_> = others.iter().map(|other| other.allocates(1024, 60)).collect();
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
            let again = blocks(1024, 500);
            check();
            // A thread of the child's gets one of those heaps.
            let other = Other::new();
            other.frees(&again);
            other.allocates(1024, 20);
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
        assert_eq!((in_use(1024), in_use(512)), (0, 0));
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
fn a_child_frees_what_other_threads_had() {
    alone(|| {
        free(allocate(64));
        // Each holds what it has been given, and no block besides.
        let others: Vec<Other> = (0..2).map(|_| Other::new()).collect();
        let mut held: Vec<_> = others.iter().flat_map(|o| o.allocates(1024, 3 + 64)).collect();
        held.extend(others.iter().flat_map(|o| o.allocates(64 << 10, 3 + 8)));
        assert!(child_does(|| {
            let common = Heap::tag(shared::heap());
            let owner = |block: &*mut u8| address_map::descriptor(*block).owner.load(Relaxed);
            assert_eq!(held.iter().filter(|block| owner(block) == common).count(), 4 * 3);
            held.iter().copied().for_each(free);
            check();
            // Both heaps are used again.
            let others = [Other::new(), Other::new()];
            let more: Vec<_> = others.iter().flat_map(|other| other.allocates(1024, 2)).collect();
            assert!(more.iter().all(|block| owner(block) == common));
            assert_eq!(Stats::take().heaps, (3, 4));
            more.into_iter().for_each(free);
            purge();
            check();
            assert_eq!((in_use(1024), Stats::take().spans.bytes), (0, 0));
        }));
        others.into_iter().for_each(Other::leaves);
        held.into_iter().for_each(free);
    });
}

/// A span that was listed is listed in the child, with all that was free in it.
#[test]
fn a_child_uses_what_threads_had_left() {
    alone(|| {
        let _mine = blocks(512, 1);
        let gone = Other::new();
        // Three are the shared heap'.
        let left = gone.allocates(1024, 3 + 5);
        gone.leaves();
        let other = Other::new();
        other.allocates(512, 1);
        let last = left[7].addr() >> 14;
        let in_it = left[3..].iter().filter(|block| block.addr() >> 14 == last).count();
        assert_eq!(in_it, 5);
        assert!(child_does(|| {
            let more = blocks(1024, 11);
            assert!(more.iter().all(|block| block.addr() >> 14 == last));
            check();
            left.iter().chain(&more).copied().for_each(free);
            purge();
            assert_eq!(in_use(1024), 0);
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
        let held = other.allocates(1024, 3 + 5);
        let owner = Other::new();
        static INSIDE: AtomicBool = AtomicBool::new(false);
        static GO: AtomicBool = AtomicBool::new(false);
        owner.begins(|| {
            let _held = abandoned::hold(class_of(1024));
            INSIDE.store(true, Ordering::Release);
            while !GO.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        });
        while !INSIDE.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        other.begins(thread::trim);
        // It waits for the lock, with a span that is nobody's in name only.
        let owner_of = || address_map::descriptor(held[7]).owner.load(Relaxed);
        while owner_of() != address_map::OWNER_ABANDONED {
            std::thread::yield_now();
        }
        assert!(child_does(|| {
            check();
            held.iter().copied().for_each(free);
            blocks(1024, 100).into_iter().for_each(free);
            check();
            purge();
            assert_eq!(in_use(1024), 0);
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
        assert_eq!(in_use(1024), 0);
    });
}

/// A thread that has no heap itself forks.
#[test]
fn a_child_may_have_no_heap() {
    alone(|| {
        let other = Other::new();
        other.allocates(1024, 1);
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
        let held = other.allocates(1024, 40);
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
        assert_eq!(in_use(1024), 0);
    });
}

/// What a thread's later destructors do, when its heap is another's already.
extern "C" fn late(work: *mut libc::c_void) {
    let work: *mut Vec<*mut u8> = work.cast();
    // SAFETY: made by the test below, for this call.
    let held = unsafe { Box::from_raw(work) };
    held.into_iter().for_each(free);
    for size in [16, 1000, 5000, 100 << 10, 33 << 20] {
        let block = allocate_zeroed(size);
        // SAFETY: a live block.
        assert!(!block.is_null() && unsafe { block.add(size - 1).read() } == 0);
        free(block);
    }
    LATE.fetch_add(1, Ordering::Relaxed);
}

static LATE: AtomicU32 = AtomicU32::new(0);

#[test]
fn destructors_may_free_when_the_heap_is_gone() {
    alone(|| {
        let mine = blocks(1024, 40);
        // Of a larger number than the allocator's own key: its turn is later.
        let mut key = 0;
        // SAFETY: the key is valid for writing, the destructor stays loaded.
        assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(late)) }, 0);
        let other = Other::new();
        // Full spans of its own, which are nobody's then, one whole; and blocks of this thread's.
        let own = other.allocates(1024, 3 + 3 * 16 + 4);
        let mut work: Vec<*mut u8> = own[3 + 16..].to_vec();
        work.extend(&mine[..30]);
        other.does(move || {
            let work: *mut Vec<*mut u8> = Box::into_raw(Box::new(work));
            // SAFETY: the key exists.
            assert_eq!(unsafe { libc::pthread_setspecific(key, work.cast()) }, 0);
        });
        other.leaves();
        assert_eq!(LATE.load(Ordering::Relaxed), 1);
        check();
        assert_eq!(in_use(1024), 10 + 3 + 16);
        mine[30..].iter().chain(&own[..3 + 16]).copied().for_each(free);
        purge();
        let left = Stats::take();
        assert_eq!((in_use(1024), left.large_blocks, left.mapping_blocks), (0, 0, 0));
        assert_eq!(left.spans.bytes, 0, "a span is lost");
        check();
    });
}

/// Comes back until the C library has had enough, and allocates each time.
extern "C" fn again(left: *mut libc::c_void) {
    free(allocate(1000));
    LATE.fetch_add(1, Ordering::Relaxed);
    if left.addr() > 1 {
        let key = AGAIN.load(Ordering::Relaxed);
        let left = core::ptr::without_provenance(left.addr() - 1);
        // SAFETY: the key exists.
        assert_eq!(unsafe { libc::pthread_setspecific(key, left) }, 0);
    }
}

static AGAIN: AtomicU32 = AtomicU32::new(0);

/// A thread that has given its heap back does not get another that nobody would take back.
#[test]
fn the_last_destructor_loses_no_heap() {
    alone(|| {
        // What the thread sanitizer knows of a thread is gone by then.
        if is_watched() {
            return;
        }
        free(allocate(64));
        let mut key = 0;
        // SAFETY: the key is valid for writing, the destructor stays loaded.
        assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(again)) }, 0);
        AGAIN.store(key, Ordering::Relaxed);
        let other = Other::new();
        other.does(move || {
            free(allocate(64));
            let rounds = core::ptr::without_provenance(100);
            // SAFETY: the key exists.
            assert_eq!(unsafe { libc::pthread_setspecific(key, rounds) }, 0);
        });
        assert_eq!(Stats::take().heaps.0, 2);
        other.leaves();
        // PTHREAD_DESTRUCTOR_ITERATIONS
        assert!(LATE.load(Ordering::Relaxed) >= 4);
        assert_eq!(Stats::take().heaps.0, 1);
        check();
    });
}

/// Makes more slow_ticks than a thread may without a heap when the C library asks for the last time.
extern "C" fn many_at_last(left: *mut libc::c_void) {
    // PTHREAD_DESTRUCTOR_ITERATIONS is 4.
    if LATE.fetch_add(1, Ordering::Relaxed) < 3 {
        let key = AGAIN.load(Ordering::Relaxed);
        // SAFETY: the key exists.
        assert_eq!(unsafe { libc::pthread_setspecific(key, left) }, 0);
    } else {
        blocks(1024, 32).into_iter().for_each(free);
    }
}

/// Nor does a thread that leaves before it had one.
#[test]
fn a_newcomers_last_destructor_makes_no_heap() {
    alone(|| {
        // As above.
        if is_watched() {
            return;
        }
        crowd();
        let mut key = 0;
        // SAFETY: the key is valid for writing, the destructor stays loaded.
        assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(many_at_last)) }, 0);
        AGAIN.store(key, Ordering::Relaxed);
        let other = Other::new();
        other.does(move || {
            // 16 slow_ticks, as many as a newcomer makes.
            blocks(64, 8).into_iter().for_each(free);
            let left = core::ptr::without_provenance(1);
            // SAFETY: the key exists.
            assert_eq!(unsafe { libc::pthread_setspecific(key, left) }, 0);
        });
        other.leaves();
        assert_eq!(LATE.load(Ordering::Relaxed), 4);
        assert_eq!(Stats::take().heaps, (pool::CROWD + 1, pool::CROWD + 2));
        assert_eq!(in_use(1024), 0);
        check();
    });
}

/// A thread without a heap forks: its child finds the blocks, and heaps that nobody has.
#[test]
fn a_newcomer_may_fork() {
    alone(|| {
        crowd();
        let mine = blocks(1024, 40);
        let other = Other::new();
        other.does(move || {
            let held = blocks(512, 4);
            assert!(child_does(|| {
                held.iter().chain(&mine).copied().for_each(free);
                blocks(1024, 100).into_iter().for_each(free);
                assert_eq!(Stats::take().heaps, (1, pool::CROWD + 2));
                assert_eq!(in_use(512), 0);
                check();
            }));
            held.into_iter().chain(mine).for_each(free);
        });
        other.leaves();
        assert_eq!((in_use(512), in_use(1024)), (0, 0));
        check();
    });
}

/// Without a key threads are not seen to leave: they share the shared heap, and no heap is lost.
#[test]
fn it_works_without_a_thread_key() {
    alone(|| {
        let mut key = 0;
        // SAFETY: the key is valid for writing.
        while unsafe { libc::pthread_key_create(&mut key, None) } == 0 {}
        let held = blocks(1024, 4000);
        let other = Other::new();
        let others = other.allocates(1024, 20);
        other.leaves();
        assert_eq!(Stats::take().heaps, (0, 1));
        // The shared heap hold on to no full span.
        let tag = Heap::tag(shared::heap());
        let theirs: HashSet<usize> = held
            .iter()
            .chain(&others)
            .filter(|&&block| address_map::descriptor(block).owner.load(Relaxed) == tag)
            .map(|block| block.addr() >> 14)
            .collect();
        assert!(theirs.len() <= 1, "{} spans", theirs.len());
        held.into_iter().chain(others).for_each(free);
        check();
    });
}

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
        let held = blocks(1024, 20);
        let large = allocate(100 << 10);
        let mapping = allocate(33 << 20);
        let gone = Other::new();
        let nobodys = gone.allocates(1024, 40)[20];
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
fn last_words(work: impl FnOnce()) -> String {
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
        let mine = blocks(1024, 1)[0];
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
        assert_eq!((in_use(1024), left.large_blocks, left.mapping_blocks), (0, 1, 0));
        // Two threads at once, one of which was faster.
        address_map::descriptor(twice).owner.store(address_map::OWNER_NONE, Relaxed);
        let said = last_words(|| free(twice));
        assert!(said.contains("freed twice"), "{said}");
    });
}
