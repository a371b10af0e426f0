//! What is one thread's, one heap's, one process's, and what another gets of it. Each field is named here: a new one does not
//! compile until somebody has decided (docs/design/closed-heaps.md).

pub(super) mod heirs;

use super::alone::alone;
use super::forks::child_does;
use super::heaps::{Other, crowd, free};
use crate::base::sync::Ordering::Relaxed;
use crate::base::{NOBODY, SizeClass};
use crate::heap::{Handle, Heap, Member, Own, Role};
use crate::large::NURSERY_BYTES;
use crate::map::{END, OWNER_NONE, address_map};
use crate::os::Got;
use crate::samples::ThreadCounts;
use crate::spans::Span;
use crate::store::Store;
use crate::thread::pool;
use crate::thread::pool::User;
use crate::{
    HeapId, HeapStats, allocate, check, closed, count, deallocate, heap_of, owner_thread, purge,
    thread, thread_counts, thread_number,
};
use core::ptr::null_mut;
use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::vec::Vec;

fn shared() -> HeapId {
    HeapId::new_shared().expect("memory")
}

/// A heap that a thread has left has nothing, and the next thread finds nothing of the one before.
#[test]
fn a_thread_hands_on_nothing_of_its_own() {
    alone(|| {
        let heap = shared();
        let other = Other::new();
        let left = other.does(move || {
            count(true);
            // SAFETY: the heap is there.
            unsafe {
                let held: Vec<_> = (0..100).map(|_| heap.allocate(100, 16)).collect();
                held.into_iter().for_each(free);
                HeapId::new_owned().expect("memory").destroy();
            }
            (0..5000).map(|_| allocate(100)).collect::<Vec<_>>().into_iter().for_each(free);
            count(false);
            assert_ne!(thread_counts(), ThreadCounts::default());
            thread::own().expect("a heap")
        });
        other.leaves();
        // SAFETY: a heap that no thread has.
        expect_empty(unsafe { &*left });
        let other = Other::new();
        other.does(move || {
            free(allocate(100));
            assert_eq!(thread::own(), Some(left), "the next thread gets it");
            // SAFETY: this thread's.
            let own = unsafe { &(*left).own };
            let Own { last, counts, beats } = own;
            assert!(*last == (0, null_mut()) && *counts == ThreadCounts::default());
            assert_eq!(*beats, Own::NEW.beats);
        });
        other.leaves();
        check();
    });
}

/// What a thread gives up when it ends. What the match names without a word is the heap's, not the thread's: what it has
/// learned, and its cadence.
fn expect_empty(heap: &Heap) {
    let Heap { caches, active, partial, full, full_slices, large_cache, .. } = heap;
    for class in SizeClass::all() {
        assert!(caches.is_empty(class) && caches.left(class) <= 0);
        assert!(caches.first(class) == END);
        assert!(active[class.index()].is_null() && partial[class.index()].len() == 0);
    }
    assert!(full.len() == 0 && *full_slices == 0 && large_cache.load(Relaxed).is_null());
    let Heap { role, partitions, partition, head, member, spares, .. } = heap;
    assert!(*role == Role::Free && spares.is_empty());
    assert!(partitions.iter().all(|heap| heap.is_null()) && *partition == 0 && *head == 0);
    let Member { user: _, user_heap, turn: _, of, next } = member;
    assert!(user_heap.is_null() && of.is_null() && next.is_null());
    // Learned, or the next one's: sampling, deferred, refilled, slow_ticks, and what only `heap` sees.
    let Heap { sampling: _, deferred: _, refilled: _, slow_ticks: _, own: _, .. } = heap;
}

/// Three threads, one after the other with the same heap: each has a part of its own.
#[test]
fn two_live_threads_have_two_parts() {
    alone(|| {
        let heap = shared();
        let part = move || {
            // It has its heap before it comes here.
            free(allocate(10));
            // SAFETY: the heap is there.
            let block = unsafe { heap.allocate(2000, 16) };
            (thread_number(), block, owner_thread(block))
        };
        let first = Other::new();
        let (number, ..) = first.does(part);
        first.leaves();
        let second = Other::new();
        let (mine, block, owner) = second.does(part);
        assert_eq!(mine, owner, "it claims the part that it uses");
        // Until one comes that looks in the same list as the first.
        loop {
            let third = Other::new();
            let (its, _, owner) = third.does(part);
            assert_eq!(its, owner);
            third.leaves();
            if its % 16 == number % 16 {
                break;
            }
        }
        assert_eq!(owner_thread(block), mine, "its part is its own still");
        second.leaves();
        // SAFETY: nobody uses it any more.
        unsafe { heap.destroy() };
        check();
    });
}

static BEATS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Heartbeats count the calls on a thread; and one that has ended inside a call has no say in the next one.
#[test]
fn heartbeats_begin_with_the_thread() {
    alone(|| {
        crate::on_deferred_free(
            Some(|_, beat, _| {
                BEATS[0].fetch_add(usize::from(beat == 1), Ordering::Relaxed);
                BEATS[1].fetch_add(1, Ordering::Relaxed);
            }),
            [0; 2],
        );
        for round in 1..=3 {
            let other = Other::new();
            other.does(move || {
                (0..5000).map(|_| allocate(100)).collect::<Vec<_>>().into_iter().for_each(free);
                assert_eq!(BEATS[0].load(Ordering::Relaxed), round, "one first beat each");
                // As if it ended inside: its heap would be left like this.
                // SAFETY: this thread's.
                unsafe { (*thread::own().expect("a heap")).own.beats.begin() };
            });
            other.leaves();
        }
        crate::on_deferred_free(None, [0; 2]);
    });
}

/// The soft limit's callback refills the cache from which the block has come.
#[test]
fn zeroed_blocks_are_zero_whatever_the_program_does_meanwhile() {
    alone(|| {
        fn told(heap: HeapId, [count, _]: [usize; 2]) {
            // SAFETY: it allocates just now.
            (0..count).for_each(|_| _ = unsafe { heap.allocate(2000, 16) });
        }
        for count in 1..100 {
            let dirty: Vec<_> = (0..3000).map(|_| allocate(2000)).collect();
            // SAFETY: live blocks.
            dirty.iter().for_each(|&block| unsafe { block.write_bytes(0xff, 2000) });
            dirty.into_iter().for_each(free);
            let heap = if count % 2 == 0 { HeapId::new_owned() } else { HeapId::new_shared() };
            let heap = heap.expect("memory");
            // SAFETY: the heap is there, and this thread's.
            unsafe {
                assert!(heap.set_limits(1, 0, Some(told), [count, 0]));
                let block = heap.allocate_zeroed(2000, 16);
                assert!((0..2000).all(|at| block.add(at).read() == 0), "after {count} blocks");
                heap.destroy();
            }
        }
    });
}

static HEAP: AtomicUsize = AtomicUsize::new(0);

/// A destructor that comes after the allocator's: a heap is lent, and the callback may use the same shared heap.
extern "C" fn late(_: *mut libc::c_void) {
    let heap = core::ptr::NonNull::new(core::ptr::with_exposed_provenance_mut(
        HEAP.load(Ordering::Relaxed),
    ));
    // SAFETY: a shared heap, made by the test.
    unsafe {
        assert_eq!(thread_number(), 0, "the allocator's destructor has run");
        let heap = HeapId::from_raw(heap.expect("the test's"));
        let block = heap.allocate(2000, 16);
        assert!(!block.is_null() && heap_of(block) == Some(heap));
        deallocate(block);
        BEATS[0].fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn late_destructors_use_shared_heaps() {
    fn told(heap: HeapId, _: [usize; 2]) {
        // SAFETY: it allocates just now.
        BEATS[1].fetch_add(usize::from(unsafe { !heap.allocate(5000, 16).is_null() }), Relaxed);
    }
    alone(|| {
        free(allocate(100));
        let mut key = 0;
        // SAFETY: the key is valid for writing, the destructor stays loaded.
        assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(late)) }, 0);
        let heap = shared();
        // SAFETY: the heap is there.
        unsafe { assert!(heap.set_limits(1, 0, Some(told), [0; 2])) };
        HEAP.store(heap.into_raw().as_ptr().expose_provenance(), Ordering::Relaxed);
        let other = Other::new();
        other.does(move || {
            free(allocate(100));
            // SAFETY: the key exists.
            assert_eq!(unsafe { libc::pthread_setspecific(key, (&raw const BEATS).cast()) }, 0);
        });
        other.leaves();
        assert_eq!([0, 1].map(|at: usize| BEATS[at].load(Relaxed)), [1, 1]);
        // SAFETY: nobody uses it any more.
        unsafe { heap.destroy() };
        check();
    });
}

/// A free that has seen a heap's span before the heap was deleted, and goes on when another heap stands in its place.
#[test]
#[cfg_attr(feature = "hardened", ignore = "its heaps have no heads, and its free blocks no links")]
fn a_free_does_not_take_one_heap_for_another() {
    alone(|| {
        let other = Other::new();
        let (heap, blocks) = other.does(|| {
            // SAFETY: a heap that is there, and this thread's.
            unsafe {
                let heap = HeapId::new_owned().expect("memory");
                heap.use_no_nursery();
                (heap, (0..64).map(|_| heap.allocate(64, 16)).collect::<Vec<_>>())
            }
        });
        let nth =
            (0..63).find(|&n| blocks[n + 1] == blocks[n].wrapping_add(64)).expect("neighbours");
        let (class, owner) = address_map::span_block(blocks[nth]).expect("a block");
        let neighbour = blocks[nth + 1];
        let next = other.does(move || {
            // What stands behind the head of the other heap is the link of this one.
            free(neighbour);
            // SAFETY: as above; another heap that is there.
            unsafe {
                heap.delete();
                let next = HeapId::new_concurrent(64).expect("memory");
                next.allocate(64, 16);
                next
            }
        });
        // SAFETY: each block is freed once; nobody uses the heap any more.
        unsafe {
            assert!(!closed::deallocate(blocks[nth], class, owner, "free"), "it is another's");
            free(blocks[nth]);
            other.leaves();
            next.destroy();
        }
        check();
    });
}

/// The same of a thread that has no heap yet, or no more: it is the user of none, and so not of one that nobody has.
#[test]
fn a_free_without_a_heap_has_none_attached() {
    alone(|| {
        // SAFETY: a heap that is there, and this thread's; its block lives on.
        let (block, class, owner) = unsafe {
            let heap = HeapId::new_owned().expect("memory");
            let block = heap.allocate(2000, 16);
            let (class, owner) = address_map::span_block(block).expect("a block");
            heap.delete();
            (block, class, owner)
        };
        let other = Other::new();
        other.does(move || {
            assert!(thread::own().is_none());
            // SAFETY: freed once, by the second call.
            unsafe {
                assert!(!closed::deallocate(block, class, owner, "free"), "nobody has that heap");
                free(block);
            }
        });
        other.leaves();
        check();
    });
}

/// A child is forked while other threads are anywhere in their work: it believes no list of theirs, gets what they kept, and
/// all heaps are whole.
#[test]
fn a_child_inherits_what_others_kept() {
    alone(|| {
        let other = Other::new();
        let (heap, block) = other.does(|| {
            // SAFETY: heaps that are there, and this thread's.
            unsafe {
                let heaps: Vec<_> = (0..4).map(|_| HeapId::new_owned().expect("memory")).collect();
                heaps.iter().for_each(|heap| _ = heap.allocate(100, 16));
                heaps[1..].iter().for_each(|heap| heap.destroy());
                let blocks: Vec<_> = (0..500).map(|_| heaps[0].allocate(1000, 16)).collect();
                // Between any two stores of a change.
                (*thread::own().expect("a heap")).spares.tear();
                (heaps[0], blocks[0])
            }
        });
        assert!(child_does(|| {
            purge();
            check();
            // SAFETY: a heap that no thread of this process has.
            unsafe {
                heap.attach();
                let more: Vec<_> = (0..500).map(|_| heap.allocate(1000, 16)).collect();
                assert!(more.iter().chain([&block]).all(|&p| heap_of(p) == Some(heap)));
                let late = Other::new();
                late.does(move || _ = (0..9).map(|_| free(allocate(100))).count());
                late.leaves();
                check();
                heap.destroy();
            }
            assert_eq!(heap_of(block), None);
            purge();
            check();
        }));
        // It is torn here, too.
        core::mem::forget(other);
    });
}

/// In a crowd threads get no heap at once. One that makes a heap of the program's is known as its user all the same: what it was
/// just doing there a child does not believe.
#[test]
fn a_heap_has_a_user_in_a_crowd() {
    alone(|| {
        crowd();
        let other = Other::new();
        let (user, number) = other.does(|| {
            let heap = HeapId::new_owned().expect("memory");
            // SAFETY: the heap is there, and this thread's.
            (owner_thread(unsafe { heap.allocate(100, 16) }), thread_number())
        });
        assert!(user != 0 && user == number);
        other.leaves();
        check();
    });
}

/// In a crowd, too, it is the number that its blocks have later.
#[test]
fn a_thread_has_its_number_in_a_crowd() {
    alone(|| {
        crowd();
        let heap = HeapId::new_shared().expect("memory");
        let other = Other::new();
        let (first, user, second) = other.does(move || {
            let first = thread_number();
            // SAFETY: the heap is there.
            (first, owner_thread(unsafe { heap.allocate(100, 16) }), thread_number())
        });
        assert!(first != 0 && first == user && first == second, "{first}, {user}, {second}");
        other.leaves();
    });
}

/// A thread that had ended before the fork has left its heap whole: the child may attach, destroy or delete it.
#[test]
fn a_child_uses_heaps_of_threads_that_had_ended() {
    alone(|| {
        let (ended, waiting) = (Other::new(), Other::new());
        let heap = ended.does(|| {
            let heap = HeapId::new_owned().expect("memory");
            // SAFETY: the heap is there, and this thread's.
            (0..500).for_each(|_| _ = unsafe { heap.allocate(1000, 16) });
            heap
        });
        ended.leaves();
        waiting.does(|| free(allocate(100)));
        for end in 0..3 {
            assert!(child_does(|| {
                let late = Other::new();
                late.does(|| free(allocate(100)));
                late.leaves();
                // SAFETY: heaps that are there, and this thread's.
                unsafe {
                    if end == 0 {
                        heap.attach();
                        assert_eq!(heap_of(heap.allocate(1000, 16)), Some(heap));
                    }
                    if end == 2 {
                        heap.delete()
                    } else {
                        heap.destroy()
                    }
                    let two = [0, 1].map(|_| HeapId::new_owned().expect("memory"));
                    for heap in two {
                        let blocks: Vec<_> = (0..500).map(|_| heap.allocate(1000, 16)).collect();
                        assert!(blocks.iter().all(|&block| heap_of(block) == Some(heap)));
                    }
                    two[0].destroy();
                    check();
                    two[1].destroy();
                    check();
                }
            }));
        }
        waiting.leaves();
        // SAFETY: the heap is there, and no thread's.
        unsafe { heap.destroy() };
        check();
    });
}

/// Who has attached a heap, and is at work, is not overlooked.
#[test]
fn nobody_ends_a_heap_that_another_thread_has() {
    alone(|| {
        let other = Other::new();
        let heap = other.does(|| HeapId::new_owned().expect("memory"));
        for with_blocks in [false, true] {
            assert!(!child_may_end(heap, with_blocks));
        }
        other.leaves();
        // SAFETY: its thread has ended.
        unsafe { heap.destroy() };
    });
}

/// Whether a thread may end a heap that another one has attached. It is a child that tries: it ends if not.
fn child_may_end(heap: HeapId, with_blocks: bool) -> bool {
    child_does(|| {
        let owner = Other::new();
        // SAFETY: the heap is there, and no thread's of this process.
        owner.does(move || unsafe { heap.attach() });
        // SAFETY: what must not be.
        unsafe { if with_blocks { heap.destroy() } else { heap.delete() } }
    })
}

/// Who uses a heap is told wherever it is asked; whoever does not have it does not get from it.
#[test]
fn a_heap_is_its_users() {
    alone(|| {
        free(allocate(100));
        // This thread keeps nurseries.
        let spare = HeapId::new_owned().expect("memory");
        // SAFETY: this thread's.
        unsafe {
            spare.allocate(100, 16);
            spare.destroy();
        }
        let heap = HeapId::new_owned().expect("memory");
        let name: *mut Handle = heap.into_raw().as_ptr().cast();
        // SAFETY: heaps that are there; what must not be ends a child.
        unsafe {
            let block = heap.allocate(5000, 16);
            assert!(!block.is_null());
            let users =
                move || [(*name).user.load(Relaxed), (*(*name).heap).member.user.load(Relaxed)];
            assert!(users() == [thread_number(); 2] && closed::is_mine(name.cast()));
            heap.detach();
            assert_eq!(users(), [NOBODY; 2]);
            let other = Other::new();
            other.does(move || {
                free(allocate(100));
                heap.attach();
                assert!(users() == [thread_number(); 2] && closed::is_mine(name.cast()));
            });
            assert!(!closed::is_mine(name.cast()));
            // A free by who does not have it takes no turn, and gives none back.
            free(block);
            assert!((*(*name).heap).member.turn.enter() == Got::Alone);
            for size in [100, 3000, 5000] {
                assert!(!child_does(|| _ = heap.allocate(size, 16)), "{size}");
            }
            other.does(move || heap.detach());
            assert!(child_does(|| assert!(!heap.allocate(5000, 16).is_null())), "nobody has it");
            other.leaves();
            heap.destroy();
            for size in [100, 3000, 5000] {
                assert!(!child_does(|| _ = heap.allocate(size, 16)), "it is gone: {size}");
            }
        }
        check();
    });
}

/// The parts of a handle that pass from one heap to the next.
#[test]
fn a_handle_hands_on_nothing() {
    alone(|| {
        // SAFETY: heaps that are there, and this thread's.
        unsafe {
            let heap = HeapId::new_owned().expect("memory");
            heap.set_tag(7);
            assert!(heap.set_limits(1, 0, Some(|_, _| ()), [1, 2]));
            (0..300).for_each(|_| _ = heap.allocate(1000, 16));
            heap.allocate(1 << 20, 16);
            heap.destroy();
            let next = HeapId::new_owned().expect("memory");
            assert_eq!(next.into_raw(), heap.into_raw(), "the same handle");
            assert_eq!((next.tag(), next.stats()), (0, HeapStats::default()));
            let name: *mut Handle = next.into_raw().as_ptr().cast();
            assert_eq!((*name).user.load(Relaxed), thread_number());
            next.delete();
        }
    });
}

/// What a child allocates in a nursery that it has inherited, when all blocks of that one are free, are blocks of their own.
#[test]
fn a_child_uses_inherited_nurseries_again() {
    alone(|| {
        let other = Other::new();
        let (heap, blocks) = other.does(|| {
            let new = || HeapId::new_owned().expect("memory");
            // SAFETY: the heap is there, and this thread's.
            let block = |heap: HeapId| unsafe { heap.allocate(200, 16) };
            // Two heaps take turns: what they leave the next one takes in another order than it lies in.
            let two = [new(), new()];
            (0..100).for_each(|nth| _ = block(two[nth / 9 % 2]));
            // SAFETY: nobody uses them any more.
            two.into_iter().for_each(|heap| unsafe { heap.destroy() });
            let heap = new();
            (heap, (0..60).map(|_| block(heap)).collect::<Vec<_>>())
        });
        let nursery = |p: *mut u8| p.addr() / NURSERY_BYTES;
        let nurseries: HashSet<_> = blocks.iter().map(|&p| nursery(p)).collect();
        assert!(nurseries.len() > 3);
        // One of them comes first; which, the child decides.
        for first in nurseries {
            assert!(child_does(|| {
                let is_freed = |&p: &*mut u8| nursery(p) == first;
                let (freed, kept): (Vec<_>, Vec<_>) = blocks.iter().copied().partition(is_freed);
                // SAFETY: the heap is there, and no thread's of this process.
                unsafe {
                    heap.attach();
                    freed.into_iter().for_each(free);
                    let again = (0..50).map(|_| heap.allocate(200, 16));
                    let mut all: Vec<_> = again.chain(kept).map(|p| p.addr()).collect();
                    all.sort_unstable();
                    assert!(all.windows(2).all(|two| two[0] + 200 <= two[1]), "they are apart");
                    check();
                    heap.destroy();
                    check();
                }
            }));
        }
        other.leaves();
    });
}

/// The heap of a thread that has ended is in use again before the next thread's number stands there: that one is gone all the
/// same, and what it has left attached may be attached.
#[test]
fn a_thread_that_has_ended_is_not_taken_for_the_next() {
    alone(|| {
        let other = Other::new();
        let (left, number) = other.does(|| {
            free(allocate(100));
            (thread::own().expect("a heap"), thread_number())
        });
        other.leaves();
        let next = pool::take_any(1);
        assert_eq!(next, left, "the next thread gets it");
        assert!(pool::find_user(left, number) == User::Gone);
        // SAFETY: taken just now, and not used.
        unsafe { pool::put_closed(next) };
    });
}

/// A child is forked while another thread ends a heap, whose spans are gone in part: nobody looks into it.
#[test]
fn a_child_looks_into_no_heap_that_was_ending() {
    alone(|| {
        // SAFETY: a heap that is there, and this thread's.
        unsafe {
            let heap = HeapId::new_owned().expect("memory");
            let blocks: Vec<_> = (0..500).map(|_| heap.allocate(1000, 16)).collect();
            let name: *mut Handle = heap.into_raw().as_ptr().cast();
            assert!(child_does(|| {
                (*(*name).heap).member.turn.shut();
                let last = blocks[blocks.len() - 1];
                let (class, _) = address_map::span_block(last).expect("a block");
                let index = address_map::span_index(last, class);
                address_map::set_owner(index, class.span_slices(), OWNER_NONE);
                check();
            }));
            heap.destroy();
        }
    });
}

/// A child is forked while another thread gives a heap back, which is half written: the child does not look into it, and the
/// next one there has nothing of it.
#[test]
fn a_child_gets_no_heap_that_was_half_written() {
    alone(|| {
        // SAFETY: heaps that are there, and this thread's.
        unsafe {
            let heap = HeapId::new_owned().expect("memory");
            let blocks: Vec<_> = (0..500).map(|_| heap.allocate(1000, 16)).collect();
            let name: *mut Handle = heap.into_raw().as_ptr().cast();
            let theirs = (*name).heap;
            let (held, done) = (Barrier::new(2), Barrier::new(2));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _pool = pool::POOL.lock();
                    held.wait();
                    done.wait();
                });
                held.wait();
                (*theirs).member.turn.shut();
                (*theirs).role = Role::Free;
                let child = child_does(|| {
                    check();
                    let others: Vec<_> = (0..4).map(|_| Other::new()).collect();
                    for other in &others {
                        let theirs = other.allocates(1000, 200);
                        assert!(theirs.iter().all(|p| !blocks.contains(p)));
                    }
                    others.into_iter().for_each(Other::leaves);
                    check();
                });
                (*theirs).role = Role::Thread;
                (*theirs).member.turn.close();
                done.wait();
                assert!(child);
            });
            heap.destroy();
        }
    });
}

/// A child is forked while another thread makes a span: only the first of its descriptors is written. It goes back.
#[test]
fn a_child_gives_back_a_span_in_the_making() {
    alone(|| {
        let other = Other::new();
        let (heap, p) = other.does(|| {
            let heap = shared();
            // SAFETY: the heap is there; the span is this thread's, which forgets its only block.
            unsafe {
                let p = heap.allocate(20_000, 16);
                let (class, owner) = address_map::span_block(p).expect("a block");
                let (index, slices) = (address_map::span_index(p, class), class.span_slices());
                let next = address_map::slot(index + 1);
                let small = SizeClass::all().next().expect("there are some");
                let made = Span::create(index, false, class, owner);
                address_map::describe(index + 1, slices - 1, next, OWNER_NONE, small);
                assert!((*made).carved == 0);
                (heap, p)
            }
        });
        assert!(child_does(|| {
            purge();
            check();
            assert!(address_map::span_block(p).is_none());
            // SAFETY: the heap is there.
            unsafe {
                let blocks: Vec<_> = (0..100).map(|_| heap.allocate(20_000, 16)).collect();
                assert!(blocks.iter().all(|&p| heap_of(p) == Some(heap)));
                heap.destroy();
            }
            check();
        }));
        // It is torn here, too.
        core::mem::forget(other);
    });
}
