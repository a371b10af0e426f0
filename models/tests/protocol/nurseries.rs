//! Nurseries: blocks are freed while their heap is deleted, and the last of them takes the nursery along.

use crate::base::policy::HARDENED;
use crate::base::sync::touched;
use crate::harness::{ALL, HINTS, Model, Sent, assert_released, check, finish, spawn};
use crate::large::{self, Care, Nurse, Nursery};
use crate::map::address_map;
use crate::slices::reservation;

/// Three threads.
const FEW: Model = Model { preemptions: [Some(2), Some(3)], quiet: HINTS, ..ALL };

/// The same with more of what is looked at; hardened, a free looks at many places.
const LESS: Model =
    Model { preemptions: if HARDENED { [Some(1), Some(2)] } else { FEW.preemptions }, ..FEW };

/// A nursery with two blocks, and its slice.
fn nursery() -> (Sent<*mut Nursery>, [Sent<*mut u8>; 2], usize) {
    assert!(address_map::exists() || reservation::init());
    let nursery = large::take_nursery();
    // SAFETY: this model's alone.
    let (base, states) = unsafe {
        ((*nursery).base.load(crate::base::sync::Ordering::Relaxed), (*nursery).states())
    };
    // SAFETY: places in it that nobody uses; any value but null will do for its heap, nobody asks it.
    unsafe {
        (*nursery).set_of(base.cast());
        Nursery::begin(states, 0);
        Nursery::begin(states, 2);
        // Who frees a block looks where the next one begins.
        assert_eq!((*nursery).count(), (2, 2));
    }
    (Sent(nursery), [0, 32].map(|at| Sent(base.wrapping_add(at))), address_map::slice_of(base))
}

fn free(block: Sent<*mut u8>) -> bool {
    free_as(block, false)
}

/// As the thread that uses the heap, or as another one.
fn free_as(block: Sent<*mut u8>, is_mine: bool) -> bool {
    large::free_in_nursery(block.get(), |_| is_mine)
}

/// Each block is freed once, and the nursery goes once, whoever is last.
#[test]
fn blocks_go_while_their_heap_is_deleted() {
    check(FEW, |_| {
        let (nursery, blocks, index) = nursery();
        let frees = blocks.map(|block| spawn(move || free(block)));
        // SAFETY: this model's alone.
        unsafe { Nursery::leave(nursery.get()) };
        assert_eq!(finish(frees), [true, true]);
        assert_released(index);
    });
}

/// Of two threads that free the same block one is told.
#[test]
fn a_block_is_freed_once_while_its_heap_is_deleted() {
    check(FEW, |_| {
        let (nursery, [block, other], index) = nursery();
        let frees = [block, block].map(|block| spawn(move || free(block)));
        // SAFETY: this model's alone.
        unsafe { Nursery::leave(nursery.get()) };
        let freed = finish(frees);
        assert_eq!(freed.iter().filter(|&&freed| freed).count(), 1);
        assert!(free(other));
        assert_released(index);
    });
}

/// Who uses the heap frees at the same time as another thread: two blocks, or, hardened, the same one, and one is told.
#[test]
fn a_user_and_another_free_at_once() {
    check(FEW, |_| {
        let (nursery, [block, other], index) = nursery();
        let theirs = if HARDENED { block } else { other };
        let another = spawn(move || free(theirs));
        let mine = free_as(block, true);
        let freed = [mine, finish([another])[0]];
        let count = freed.iter().filter(|&&freed| freed).count();
        assert_eq!(count, if HARDENED { 1 } else { 2 });
        // SAFETY: this model's alone.
        unsafe { Nursery::leave(nursery.get()) };
        assert!(!HARDENED || free(other));
        assert_released(index);
    });
}

/// Takes nurseries until one is of another slice: what is put into the first one's is taken next.
fn take_the_others(index: usize) {
    // SAFETY: nurseries are never unmapped.
    let of = |nursery: *mut Nursery| unsafe {
        (*nursery).base.load(crate::base::sync::Ordering::Relaxed)
    };
    while address_map::slice_of(of(large::take_nursery())) == index {}
}

/// Two threads write to their blocks and free them while the heap is deleted. Who gets the nursery next writes there, too.
#[test]
fn who_gets_a_nursery_next_finds_it_left() {
    check(LESS, |_| {
        let (nursery, blocks, index) = nursery();
        take_the_others(index);
        blocks.iter().for_each(|block| touched(block.get()));
        let frees = blocks.map(|block| {
            spawn(move || {
                touched(block.get());
                free(block)
            })
        });
        // SAFETY: this model's alone.
        unsafe { Nursery::leave(nursery.get()) };
        let is_next = || {
            let is_it = large::take_nursery() == nursery.get();
            if is_it {
                blocks.iter().for_each(|block| touched(block.get()));
            }
            is_it
        };
        let was_next = is_next();
        assert_eq!(finish(frees), [true, true]);
        assert!(was_next || is_next(), "it has gone back");
    });
}

/// Another thread writes to the last block and frees it. Who uses the heap finds the nursery empty, and uses it again.
#[test]
fn a_user_finds_a_nursery_empty() {
    check(FEW, |_| {
        let (nursery, [block, other], index) = nursery();
        touched(block.get());
        assert!(free_as(other, true));
        let another = spawn(move || {
            touched(block.get());
            free(block)
        });
        // SAFETY: this model's alone.
        unsafe {
            if (*nursery.get()).count().0 == 0 {
                touched(block.get());
                Nurse::reset(nursery.get());
            }
            assert_eq!(finish([another]), [true]);
            Nursery::leave(nursery.get());
        }
        assert_released(index);
    });
}
