//! Parts of a shared heap: each has one live user, who takes it over from one that has ended.

use crate::base::sync::{self, Ordering, touched};
use crate::closed;
use crate::harness::{ALL, FORKER, Model, Sent, check, finish, spawn};
use crate::heap::Heap;
use crate::heap::handle::SHARED;
use crate::{os, thread, thread::pool};

/// Three threads.
const FEW: Model = Model { preemptions: [Some(2), Some(3)], quiet: NUMBERS, ..ALL };
const NUMBERS: sync::Quiet = &[FORKER, ("shares.rs", "usize"), ("pool/mod.rs", "usize")];

/// Numbers of threads whose parts are in one list.
const FIRST: usize = 16;
const STEP: usize = 16;

/// Gives the calling thread a heap, and a number.
fn arrive(nth: usize) {
    let heap = pool::take();
    // SAFETY: taken just now.
    unsafe { (*heap).begin_thread(FIRST + nth * STEP) };
    os::set_own_heap(heap);
}

/// Takes the calling thread's heap away.
fn leave() {
    let heap = os::own_heap();
    os::set_own_heap(core::ptr::null_mut());
    // SAFETY: the calling thread's, which does not use it any more.
    unsafe { pool::put(heap) };
}

/// Makes a shared heap, of a thread that has arrived.
fn shared() -> Sent<*mut ()> {
    assert!(thread::start());
    // Heaps that there are: here loom gets to know what the threads look at.
    let heaps = [(); 6].map(|()| pool::take_any(1));
    for heap in heaps {
        // SAFETY: this thread's alone.
        unsafe {
            (*heap).member.user.load(Ordering::Relaxed);
            pool::put_closed(heap);
        }
    }
    arrive(0);
    Sent(closed::create(SHARED, None).cast::<()>())
}

/// Two threads come to a shared heap while a third one, which has a part, leaves: those two have two parts, and who takes
/// over the third one's finds it left.
#[test]
fn a_part_has_one_user() {
    check(FEW, |_| {
        let shared = shared();
        let part = move || {
            // SAFETY: the heap is there.
            unsafe {
                closed::of_thread(shared.get().cast(), |part: *mut Heap| {
                    touched(part);
                    Sent(part.addr())
                })
            }
        };
        let first = part();
        let others = [1, 2].map(|nth| {
            spawn(move || {
                arrive(nth);
                let got = part();
                // As long as it is at work it is its own.
                assert_eq!(part().get(), got.get());
                got
            })
        });
        assert_eq!(part().get(), first.get());
        leave();
        let parts = finish(others);
        assert_ne!(parts[0].get(), parts[1].get(), "two threads at work use one part");
    });
}

/// A thread has the parts of ended ones give back, while another one comes for one of them, and goes on with it.
#[test]
fn a_part_that_gives_back_has_one_user() {
    check(FEW, |_| {
        let shared = shared();
        let part = move || {
            // SAFETY: the heap is there.
            unsafe { closed::of_thread(shared.get().cast(), |part: *mut Heap| part.addr()) }
        };
        part();
        // Two, for who has them give back takes one over.
        let second = spawn(move || {
            arrive(3);
            part();
            leave();
        });
        finish([second]);
        leave();
        let comes = spawn(move || {
            arrive(1);
            let got: *mut Heap = core::ptr::with_exposed_provenance_mut(part());
            touched(got);
            Sent(got.addr())
        });
        arrive(2);
        // SAFETY: the heap is there.
        unsafe { closed::trim_mine(shared.get().cast()) };
        for got in finish([comes]) {
            let got: *mut Heap = core::ptr::with_exposed_provenance_mut(got.get());
            // SAFETY: parts are there as long as their heap.
            let user = unsafe { (*got).member.user.load(Ordering::Relaxed) };
            assert_eq!(user, FIRST + STEP, "its thread, which is at work");
        }
    });
}
