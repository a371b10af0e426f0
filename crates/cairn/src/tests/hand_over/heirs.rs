//! What a forked child inherits: heaps, nurseries and handles of threads that it does not have.

use super::super::alone::alone;
use super::super::forks::child_does;
use super::super::heaps::{Other, free};
use super::shared;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{NOBODY, SizeClass};
use crate::heap::{Handle, Heap, handle};
use crate::map::address_map;
use crate::os::Got;
use crate::store::Store;
use crate::thread::pool;
use crate::{HeapId, Stats, allocate, check, closed, heap_of, large, purge, thread, thread_number};
use core::ptr::{from_ref, null_mut};
use std::boxed::Box;
use std::collections::HashSet;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Acquire, Ordering::Release};
use std::vec::Vec;

/// As a fork may find a closed heap: its lists and caches are another moment's.
pub(in crate::tests) fn tear(heap: *mut Heap) {
    // SAFETY: nobody uses it in this process any more.
    unsafe {
        (*heap).caches = Heap::empty().caches;
        (*heap).active.fill(null_mut());
        (*heap).partial = Heap::empty().partial;
        (*heap).full = Heap::empty().full;
        (*heap).full_slices = 0;
    }
}

/// What a thread is in the middle of when another one forks: a heap, blocks of that and of a shared one, its part there.
fn torn(parts: HeapId) -> (HeapId, Vec<*mut u8>, *mut Heap) {
    // SAFETY: heaps that are there; the owned one is this thread's.
    unsafe {
        let heap = HeapId::new_owned().expect("memory");
        let mut held: Vec<_> = (0..30).map(|_| heap.allocate(300, 16)).collect();
        heap.use_no_nursery();
        held.extend((0..500).map(|nth| heap.allocate(1000 + nth % 2 * 1000, 16)));
        let theirs = (0..500).map(|_| parts.allocate(1000, 16));
        let theirs: Vec<_> = theirs.collect();
        let spare = [(); 3].map(|()| HeapId::new_owned().expect("memory"));
        spare.iter().for_each(|heap| _ = heap.allocate(100, 16));
        spare.iter().for_each(|heap| heap.destroy());
        let name: *mut Handle = heap.into_raw().as_ptr().cast();
        tear((*name).heap);
        (*name).tear();
        let thread = thread::own().expect("a heap");
        let part = (*thread).own.last.1;
        tear(part);
        (*thread).spares.tear();
        held.extend(theirs);
        (heap, held, part)
    }
}

/// Each handle is some new heap's, and only one's.
fn expect_handles_free() {
    let handles = handle::made().count();
    let again: HashSet<_> =
        (0..handles).map(|_| HeapId::new_owned().expect("memory").into_raw()).collect();
    let made = handle::made().count();
    assert_eq!((again.len(), made), (handles, handles), "each is free, once");
}

/// Of what another thread's heaps were in the middle of the child loses nothing: spans, nurseries, handles.
#[test]
fn a_child_believes_no_list_of_a_heap() {
    alone(|| {
        free(allocate(64));
        purge();
        let before = Stats::take();
        let (other, parts) = (Other::new(), shared());
        let (mine, spare) = (HeapId::new_owned().expect("memory"), HeapId::new_owned());
        // SAFETY: this thread's.
        let first = unsafe {
            spare.expect("memory").destroy();
            mine.allocate(100, 16)
        };
        let (heap, held, part) = other.does(move || torn(parts));
        assert!(child_does(|| {
            let late = Other::new();
            late.does(|| _ = (0..9).map(|_| free(allocate(100))).count());
            // SAFETY: a heap that no thread of this process has, and one of all threads; blocks in use.
            unsafe {
                heap.attach();
                check();
                // What this thread had is as it was; parts still have their turns.
                let name: *mut Handle = mine.into_raw().as_ptr().cast();
                assert!(
                    (*name).user.load(Relaxed) == thread_number() && closed::is_mine(name.cast())
                );
                let second = mine.allocate(100, 16);
                assert_eq!(
                    large::nursery_around(first).map(from_ref),
                    large::nursery_around(second).map(from_ref)
                );
                mine.destroy();
                assert!((*part).member.turn.enter() == Got::Turn);
                (*part).member.turn.leave();
                assert!(held[..530].iter().all(|&block| heap_of(block) == Some(heap)));
                assert!(held[530..].iter().all(|&block| heap_of(block) == Some(parts)));
                let more: Vec<_> = (0..500).map(|_| heap.allocate(1000, 16)).collect();
                assert!(more.iter().all(|block| !held.contains(block)));
                held.iter().for_each(|block| block.write_bytes(7, 100));
                held.iter().chain(&more).copied().for_each(free);
                check();
                heap.destroy();
                parts.destroy();
            }
            assert!(held.iter().all(|&block| heap_of(block).is_none()));
            late.leaves();
            purge();
            check();
            let now = Stats::take();
            assert_eq!((now.spans.bytes, now.nurseries.bytes), (before.spans.bytes, 0));
            assert_eq!(now.heaps.0, 1);
            expect_handles_free();
        }));
        // It is torn here, too.
        core::mem::forget(other);
    });
}

/// Upkeep finds what threads had that a child does not have, nobody asking for it.
#[test]
fn a_child_salvages_by_ticks() {
    alone(|| {
        let other = Other::new();
        let held = other.allocates(1000, 100);
        assert!(child_does(|| {
            assert!(pool::has_dead());
            (0..100).for_each(|_| _ = crate::tick());
            assert!(!pool::has_dead());
            held.iter().copied().for_each(free);
            purge();
            check();
            assert!(!crate::tick(), "there is nothing more to purge");
        }));
        other.leaves();
    });
}

/// What a thread without a heap works on in a destructor, and what it has of it.
type Work = (HeapId, Vec<*mut u8>);
/// When it is in the middle of that.
static AT_WORK: AtomicPtr<Work> = AtomicPtr::new(null_mut());

/// An owned heap has nothing ready: an allocation asks whose the heap is.
fn expect_nothing_ready(heap: HeapId) {
    let name: *mut Handle = heap.into_raw().as_ptr().cast();
    // SAFETY: the heap is there, and this thread's.
    unsafe {
        assert!(Handle::allocate(name, 16).is_none());
        assert!(SizeClass::all().all(|class| (*(*name).heap).caches.is_empty(class)));
    }
}

/// A destructor that comes after the allocator's attaches a heap and allocates from it.
extern "C" fn late(work: *mut libc::c_void) {
    fn told(heap: HeapId, [work, _]: [usize; 2]) {
        let name: *mut Handle = heap.into_raw().as_ptr().cast();
        // SAFETY: the heap is there, and this thread's, which does nothing more with it.
        unsafe {
            tear((*name).heap);
            (*name).tear();
        }
        AT_WORK.store(core::ptr::with_exposed_provenance_mut(work), Release);
        loop {
            // SAFETY: no preconditions.
            unsafe { libc::pause() };
        }
    }
    let work: *mut Work = work.cast();
    // SAFETY: the test's, for this call; the heap is there, and no thread has it attached.
    unsafe {
        assert_eq!(thread_number(), 0, "the allocator's destructor has run");
        let (heap, held) = &mut *work;
        heap.attach();
        expect_nothing_ready(*heap);
        for nth in 0..500 {
            held.push(heap.allocate(100 + nth % 2 * 2000, 16));
            expect_nothing_ready(*heap);
        }
        heap.purge();
        expect_nothing_ready(*heap);
        assert!(heap.set_limits(1, 0, Some(told), [work.expose_provenance(), 0]));
        heap.allocate(5000, 16);
    }
}

/// A fork finds a thread at work on an owned heap that has given up its own heap before.
#[test]
fn a_child_believes_no_list_of_a_thread_without_a_heap() {
    alone(|| {
        free(allocate(64));
        let mut key = 0;
        // SAFETY: the key is valid for writing, the destructor stays loaded.
        assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(late)) }, 0);
        // It comes with a nursery and classes, and with blocks that are ready.
        let heap = HeapId::new_owned().expect("memory");
        // SAFETY: this thread's until it is detached.
        let held = unsafe {
            let held = [100, 2000, 100].map(|size| heap.allocate(size, 16));
            heap.detach();
            held.to_vec()
        };
        let other = Other::new();
        other.begins(move || {
            free(allocate(64));
            let work = Box::into_raw(Box::new((heap, held)));
            // SAFETY: the key exists.
            assert_eq!(unsafe { libc::pthread_setspecific(key, work.cast()) }, 0);
        });
        // It does not end: the heap is torn there, too.
        other.begins_to_leave();
        while AT_WORK.load(Acquire).is_null() {
            std::thread::yield_now();
        }
        // SAFETY: the other thread does nothing more with it.
        let (heap, held) = unsafe { &*AT_WORK.load(Acquire) };
        assert!(child_does(|| {
            // SAFETY: a heap that no thread of this process has; blocks in use.
            unsafe {
                heap.attach();
                check();
                assert!(held.iter().all(|&block| heap_of(block) == Some(*heap)));
                let more: Vec<_> = (0..500).map(|_| heap.allocate(1000, 16)).collect();
                assert!(more.iter().all(|block| !block.is_null() && !held.contains(block)));
                held.iter().chain(&more).copied().for_each(free);
                check();
                heap.destroy();
            }
            assert!(held.iter().all(|&block| heap_of(block).is_none()));
            purge();
            check();
            let now = Stats::take();
            assert_eq!((now.spans.bytes, now.nurseries.bytes, now.heaps.0), (0, 0, 1));
            expect_handles_free();
        }));
    });
}

/// A destructor that comes after the allocator's goes on with a heap that its thread has attached.
extern "C" fn goes_on(work: *mut libc::c_void) {
    let work: *mut Work = work.cast();
    // SAFETY: the test's, for this call; the heap is there, and this thread's.
    unsafe {
        assert_eq!(thread_number(), 0, "the allocator's destructor has run");
        let (heap, held) = &mut *work;
        held.drain(..50).for_each(free);
        for nth in 0..3000 {
            let block = heap.allocate(100 + nth % 2 * 2000, 16);
            assert!(!block.is_null());
            held.push(block);
        }
        expect_nothing_ready(*heap);
        heap.purge();
    }
}

#[test]
fn a_late_destructor_goes_on_with_what_its_thread_has_attached() {
    alone(|| {
        free(allocate(64));
        let mut key = 0;
        // SAFETY: the key is valid for writing, the destructor stays loaded.
        assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(goes_on)) }, 0);
        for is_attached in [true, false] {
            let other = Other::new();
            let work = other.does(move || {
                free(allocate(64));
                let heap = HeapId::new_owned().expect("memory");
                // SAFETY: this thread's.
                let held: Vec<_> = (0..500).map(|_| unsafe { heap.allocate(2000, 16) }).collect();
                let work = Box::into_raw(Box::new((heap, held)));
                if !is_attached {
                    // SAFETY: as above.
                    unsafe { heap.detach() };
                }
                // SAFETY: the key exists.
                assert_eq!(unsafe { libc::pthread_setspecific(key, work.cast()) }, 0);
                AtomicPtr::new(work)
            });
            other.leaves();
            // SAFETY: the thread has ended.
            let (heap, held) = *unsafe { Box::from_raw(work.into_inner()) };
            assert!(held.iter().all(|&block| heap_of(block) == Some(heap)));
            let each: HashSet<_> = held.iter().collect();
            assert_eq!(each.len(), 3450);
            held.into_iter().for_each(free);
            // SAFETY: no thread's.
            unsafe { heap.destroy() };
            check();
        }
    });
}

/// Another thread has ended the life of a heap's large block, and not taken it out of the heap's list yet, while a third one
/// takes slices: the child makes anew which slices are free, and finds no block in the list whose slices are.
#[test]
fn a_child_has_no_ended_block_in_a_list() {
    alone(|| {
        let (other, third) = (Other::new(), Other::new());
        let heap = HeapId::new_shared().expect("memory");
        // SAFETY: the heap is there.
        let block = unsafe { heap.allocate(200_000, 16) };
        other.does(|| free(allocate(64)));
        let owner = &address_map::descriptor(block).owner;
        owner.store(address_map::OWNER_NONE, Relaxed);
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (held, holds) = std::sync::mpsc::channel();
        third.begins(move || {
            let arena = crate::slices::arena::ARENA.lock();
            held.send(()).expect("it is waited for");
            wait.recv().expect("it is told");
            drop(arena);
        });
        holds.recv().expect("it holds");
        assert!(child_does(|| {
            let again: Vec<_> = (0..50).map(|_| allocate(200_000)).collect();
            // Where in their first page they begin differs.
            let slice = address_map::slice_of;
            assert!(again.iter().any(|&new| slice(new) == slice(block)), "its slices are free");
            // SAFETY: blocks of so many bytes; the heap's only block is none any more.
            unsafe {
                again.iter().for_each(|block| block.write_bytes(1, 200_000));
                heap.destroy();
            }
            let more: Vec<_> = (0..50).map(|_| allocate(200_000)).collect();
            let is_new = |block: &*mut u8| !again.iter().any(|&old| slice(old) == slice(*block));
            assert!(more.iter().all(is_new), "nobody has freed them");
            check();
        }));
        go.send(()).expect("it waits");
        owner.store(address_map::OWNER_LARGE, Relaxed);
        // SAFETY: nobody uses it.
        unsafe { heap.destroy() };
    });
}

/// A second thread of the child makes whole what others have left behind. Until an owned heap is, nobody finds it free.
#[test]
fn a_heap_is_nobodys_when_it_is_whole() {
    static GO: AtomicU32 = AtomicU32::new(0);
    extern "C" fn salvages(_: *mut libc::c_void) -> *mut libc::c_void {
        while GO.load(Acquire) == 0 {
            core::hint::spin_loop();
        }
        pool::salvage::all();
        null_mut()
    }
    alone(|| {
        let other = Other::new();
        let heap = other.does(|| {
            let heap = HeapId::new_owned().expect("memory");
            heap.use_no_nursery();
            // SAFETY: this thread's.
            (0..500).for_each(|_| unsafe { _ = heap.allocate(1000, 16) });
            let name: *mut Handle = heap.into_raw().as_ptr().cast();
            // SAFETY: this thread does nothing more with it.
            unsafe { tear((*name).heap) };
            heap
        });
        assert!(child_does(|| {
            // Not one of Rust's: such a one salvages as it begins.
            let thread = crate::start_small_thread(1 << 16, salvages).expect("memory");
            let name: *mut Handle = heap.into_raw().as_ptr().cast();
            let held = pool::POOL.lock();
            GO.store(1, Release);
            // Spans cannot be given to heaps meanwhile.
            for _ in 0..300 {
                std::thread::sleep(std::time::Duration::from_millis(1));
                // SAFETY: the heap is there.
                assert!(unsafe { (*name).user.load(Relaxed) } != NOBODY, "not whole yet");
            }
            drop(held);
            crate::os::join_thread(thread);
            // SAFETY: a heap that no thread of this process has.
            unsafe {
                heap.attach();
                assert!(!heap.allocate(1000, 16).is_null());
                check();
                heap.destroy();
            }
        }));
        core::mem::forget(other);
    });
}
