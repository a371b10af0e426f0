//! A thread frees into its part of a shared heap while another one deletes the heap, and makes another of the same memory.

use crate::base::policy::{CANARY_BYTES, HARDENED};
use crate::base::size_class::{self, SizeClass};
use crate::base::sync::{self, Ordering};
use crate::closed::{self, Blocks};
use crate::harness::{ALL, FORKER, Model, Sent, assert_released, check, finish, spawn};
use crate::heap::Heap;
use crate::heap::handle::{Handle, OWNED, SHARED};
use crate::map::address_map::{self, OWNER_CLOSED, slice_of};
use crate::map::block::END;
use crate::store::caches::{Limit, Lists, Store};
use crate::{api, os, thread, thread::pool};

/// Two threads, and what a free of a closed heap's block and the end of a heap touch. What a heap holds is numbers.
const TWO: Model = Model { preemptions: [Some(2), Some(3)], quiet: NUMBERS, ..ALL };
const NUMBERS: sync::Quiet = &[
    FORKER,
    ("arena/mod.rs", "usize"),
    ("arena/purge.rs", "usize"),
    ("heap/upkeep.rs", "usize"),
    ("pool/mod.rs", "usize"),
    ("shares.rs", "usize"),
    ("budget.rs", "usize"),
    ("budget.rs", "bool"),
];

/// What fills a block of 1 KiB.
const BYTES: usize = 1024 - CANARY_BYTES;

fn class() -> SizeClass {
    size_class::class_of(BYTES)
}

/// The calling thread's part of a shared heap.
fn part_of(shared: *mut Handle) -> *mut Heap {
    // SAFETY: the heap is there, and the part is the calling thread's.
    unsafe { closed::of_thread(shared, |part| part) }
}

/// A heap keeps what is freed into it ready, as one does that has been refilled often.
fn keep_ready(heap: *mut Heap) {
    if !HARDENED {
        // SAFETY: the calling thread's, whose caches are lists.
        let lists = unsafe { &mut *(&raw mut (*heap).caches).cast::<Lists>() };
        lists.limits.left[class().index()] = Limit::of(class());
    }
}

/// The blocks that a heap has ready are its own.
fn has_its_own(heap: *mut Heap) {
    let mine = Heap::tag(heap) | OWNER_CLOSED;
    // SAFETY: nobody else uses the heap.
    unsafe {
        let first = if HARDENED { END } else { (*heap).caches.first(class()) };
        if first != END {
            let owner = &address_map::descriptor(first.cast()).owner;
            assert_eq!(owner.load(Ordering::Relaxed), mine, "a block came into another heap");
        }
    }
}

/// The next heap in the place of the first one: an owned one, in which there are no turns, or another part.
fn while_it_becomes(kind: u8) {
    assert!(thread::start());
    let shared = closed::create(SHARED, None);
    let part = part_of(shared);
    // SAFETY: this thread's part; its size is a class's.
    let blocks = [(); 2].map(|()| unsafe { closed::allocate(part, BYTES, 16) });
    let index = slice_of(blocks[0]);
    // SAFETY: a committed slice. Here loom gets to know the word.
    unsafe { address_map::remote_word(index) }.generation();
    keep_ready(part);
    // SAFETY: freed by its thread, before there is another one: what frees share they know by then.
    unsafe { api::deallocate(blocks[1]) };
    // The next heap has another handle, and no memory of its own yet.
    let name = Sent(closed::create(kind, None).cast::<()>());
    let (part, shared) = (Sent(part.cast::<()>()), Sent(shared.cast::<()>()));
    let theirs = Sent(pool::take().cast::<()>());
    let other = spawn(move || {
        os::set_own_heap(theirs.get().cast());
        let part: *mut Heap = part.get().cast();
        // SAFETY: nobody allocates from the heap any more. The next one is this thread's.
        unsafe {
            closed::end(shared.get().cast(), Blocks::LiveOn);
            let name: *mut Handle = name.get().cast();
            let heap = if kind == SHARED {
                part_of(name)
            } else {
                closed::attach(name);
                closed::own_heap(name)
            };
            assert_eq!(heap, part, "it is made of the same memory");
            let block = closed::allocate(heap, BYTES, 16);
            has_its_own(heap);
            keep_ready(heap);
            let owner = Heap::tag(heap) | OWNER_CLOSED;
            let owned_by = &address_map::descriptor(block).owner;
            assert_eq!(owned_by.load(Ordering::Relaxed), owner, "its block is another heap's");
            Sent(heap.cast::<()>())
        }
    });
    // SAFETY: the block is in use, and lives on when the heap is deleted.
    unsafe { api::deallocate(blocks[0]) };
    let heap = finish([other])[0].get();
    has_its_own(heap.cast());
    let mine = os::own_heap();
    os::set_own_heap(theirs.get().cast());
    // SAFETY: its thread has ended, and this one speaks for it. Nobody uses a block of it.
    unsafe { closed::end(name.get().cast(), Blocks::End) };
    os::set_own_heap(mine);
    thread::trim(crate::os::notify_all);
    assert_released(index);
}

/// The next heap is an owned one: its thread takes no turns.
#[test]
fn a_free_while_its_part_becomes_an_owned_heap() {
    check(TWO, |_| while_it_becomes(OWNED));
}

/// The next heap is a part of another thread, which is open.
#[test]
fn a_free_while_its_part_becomes_anothers() {
    check(TWO, |_| while_it_becomes(SHARED));
}
