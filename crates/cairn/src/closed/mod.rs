//! Owns: closed heaps: their blocks never enter another heap's cache, are never left to strangers, and
//!   never come from the shared heap.
//! Idea: a heap like any other, and a value: whoever has it allocates, anybody frees, and with it goes what
//!   it holds. The owner in its descriptors has a bit more than a thread's tag, so that each free comes here.
//! Never: holds back a free: when it returns, the block has reached its span, and destroying the heap
//!   leaves nothing under way.
//! Threads: see each call.
//! Checked: tests/closed.rs; the models destroy a heap while others free.
//! Story: docs/design/closed-heaps.md

mod parts;

pub(crate) use parts::of_thread;

use crate::address_map;
use crate::block::Block;
use crate::caches::Caches;
use crate::crowd::NOBODY;
use crate::heap::Heap;
use crate::policy::HARDENED;
use crate::pool::{self, salvage};
use crate::remote::Generation;
use crate::size_class::{self, SizeClass};
use crate::span::Span;
use crate::span_list::SpanList;
use crate::sync::{AtomicUsize, Ordering};
use crate::{arena, large, live, os, quarantine, thread};
use core::ptr::null_mut;

// A heap of the program's is owned: one thread at a time has it, its `user`; or shared: each thread that uses it
// has a part of it, which is a closed heap as well.
//
// allocate             the cache of the heap, or of the thread's part
//   refill             is the heap the thread's? then as for any heap
//     give_back        no memory, or the limit: what is free goes, and once more
//     tell             over the soft limit: what is free goes, then the program is told

/// What a heap is called in messages.
const HEAP: &str = "cairn_heap";

/// The number of the last shared heap. Relaxed: a number is all it is.
static SERIALS: AtomicUsize = AtomicUsize::new(0);

/// Who is told that a heap holds more than its soft limit, and two words of the program's.
pub(crate) type Told = fn(*mut Heap, [usize; 2]);

/// Makes a heap, which no thread has attached; null if there is no memory for it.
pub(crate) fn create(is_shared: bool) -> *mut Heap {
    os::notice_fork();
    let heap = if thread::start() { pool::take_any(1) } else { null_mut() };
    if !heap.is_null() {
        // SAFETY: this heap's alone.
        unsafe {
            heap.write(Heap::closed());
            (*heap).group.of = heap;
            (*heap).group.budget = &raw const (*heap).owned.budget;
            if is_shared {
                (*heap).group.serial = SERIALS.fetch_add(1, Ordering::Relaxed) + 1;
            }
        }
    }
    heap
}

/// Whether it is a heap of the program's, as far as can be told, and which kind; ends the process if it is none.
///
/// # Safety
/// `heap` is readable, or no heap's place at all.
pub(crate) unsafe fn is_shared(heap: *mut Heap) -> bool {
    let is_place = pool::is_made(heap);
    // SAFETY: heaps are never unmapped.
    unsafe {
        if !is_place || !(*heap).is_closed() || (*heap).group.of != heap {
            os::fatal(HEAP, heap.cast(), "no heap is here: destroyed already, or never made");
        }
        (*heap).group.serial != 0
    }
}

/// Gives an owned heap to the calling thread.
///
/// # Safety
/// No thread uses it.
pub(crate) unsafe fn attach(heap: *mut Heap) {
    let thread = thread::number().unwrap_or(NOBODY);
    // SAFETY: heaps are never unmapped.
    unsafe {
        let user = (*heap).group.user.load(Ordering::Relaxed);
        if user != thread && pool::is_at_work((*heap).group.user_heap, user) {
            os::fatal(HEAP, heap.cast(), "the heap is attached to another thread");
        }
        (*heap).group.user_heap = thread::heap();
        // Relaxed: who finds its own number has written it.
        (*heap).group.user.store(thread, Ordering::Relaxed);
    }
}

/// Takes it from its thread: it may be attached by any.
///
/// # Safety
/// The calling thread has attached it.
pub(crate) unsafe fn detach(heap: *mut Heap) {
    // SAFETY: the calling thread's.
    unsafe { (*heap).group.user.store(NOBODY, Ordering::Relaxed) };
}

/// Allocates `size` bytes at a multiple of `align`, a power of two, from an owned heap or a part; null if there is no
/// memory, or if the heap must not have more.
///
/// # Safety
/// The heap is one that the calling thread has attached, or its part.
#[inline]
pub(crate) unsafe fn allocate(heap: *mut Heap, size: usize, align: usize) -> *mut u8 {
    debug_assert!(align.is_power_of_two());
    match size_class::class_of_aligned(size, align) {
        // SAFETY: as above.
        Some(class) => unsafe { allocate_class(heap, class).cast() },
        // SAFETY: as above.
        None => unsafe { allocate_large(heap, size, align).block },
    }
}

/// Allocates a block of a class.
///
/// # Safety
/// As for `allocate`.
#[inline(always)]
pub(crate) unsafe fn allocate_class(heap: *mut Heap, class: SizeClass) -> *mut Block {
    // SAFETY: the heap is the calling thread's.
    unsafe {
        let block = Caches::pop(&raw mut (*heap).caches, class);
        if block.is_null() { refill(heap, class) } else { block }
    }
}

/// # Safety
/// As for `allocate`.
#[cold]
#[inline(never)]
pub(crate) unsafe fn refill(heap: *mut Heap, class: SizeClass) -> *mut Block {
    // SAFETY: the heap is the calling thread's, as is seen here.
    unsafe {
        if !(*heap).is_closed() {
            is_shared(heap);
        }
        let user = (*heap).group.user.load(Ordering::Relaxed);
        if user != NOBODY && Some(user) != thread::number() {
            os::fatal(HEAP, heap.cast(), "the heap is not attached to the thread that uses it");
        }
        let mut block = (*heap).refill(class);
        if block.is_null() {
            give_back(heap);
            block = (*heap).refill(class);
        }
        tell(heap);
        block
    }
}

/// Allocates a block that no span serves.
///
/// # Safety
/// As for `allocate`.
#[cold]
#[inline(never)]
pub(crate) unsafe fn allocate_large(
    heap: *mut Heap,
    size: usize,
    align: usize,
) -> large::Allocated {
    os::notice_fork();
    if size > isize::MAX as usize || align > isize::MAX as usize {
        return large::Allocated::NONE;
    }
    // SAFETY: the heap is the calling thread's; its group is there as long as it is. A partition has none.
    unsafe {
        let first = if (*heap).group.of.is_null() { heap } else { (*heap).group.of };
        let mut got = large::allocate_owned(&(*first).owned, size, align);
        if got.block.is_null() {
            give_back(heap);
            got = large::allocate_owned(&(*first).owned, size, align);
        }
        tell(heap);
        got
    }
}

/// Gives the slices of all spans back that have no block in use, and what the cache keeps.
///
/// # Safety
/// As for `allocate`, or nobody uses the heap.
pub(crate) unsafe fn give_back(heap: *mut Heap) {
    // SAFETY: the calling thread's.
    unsafe {
        SizeClass::all().for_each(|class| (*heap).empty_cache(class));
        SizeClass::all().for_each(|class| (*heap).deactivate(class));
        (*heap).collect_full(usize::MAX);
        SizeClass::all().for_each(|class| (*heap).settle(class, usize::MAX, false));
    }
}

/// Tells the program that the heap holds more than its soft limit, if it does after all that is free has gone.
///
/// # Safety
/// As for `allocate`.
unsafe fn tell(heap: *mut Heap) {
    // SAFETY: the calling thread's.
    let Some(budget) = (unsafe { (*heap).group.budget() }).filter(|budget| budget.is_due()) else {
        return;
    };
    // SAFETY: as above.
    unsafe { give_back(heap) };
    arena::purge_all();
    if let Some((told, words)) = budget.told().filter(|_| budget.is_over()) {
        // SAFETY: stored by `set_limits` out of such a function.
        let told = unsafe { core::mem::transmute::<*mut (), Told>(told) };
        // SAFETY: as above. Nothing of the heap is under way: it may be used.
        told(unsafe { (*heap).group.of }, words);
    }
}

/// Ends a heap. If it is destroyed, with all its blocks; else those live on.
///
/// # Safety
/// Nobody uses the heap any more. If it is destroyed: nobody uses a block of it any more, and no thread is about to
/// free one.
pub(crate) unsafe fn end(heap: *mut Heap, with_blocks: bool) {
    os::notice_fork();
    // SAFETY: this heap's, which is gone after this.
    unsafe {
        if is_shared(heap) {
            // A part of a thread that a fork has left behind is none that can be ended, until it is salvaged.
            salvage::all();
            parts::for_each(heap, |part| end_one(part, with_blocks));
        }
        end_one(heap, with_blocks);
    }
}

/// # Safety
/// As for `end`.
unsafe fn end_one(heap: *mut Heap, with_blocks: bool) {
    // SAFETY: the caller's; nobody uses its blocks, if they go.
    unsafe {
        detach(heap);
        match with_blocks {
            true => {
                destroy_spans(heap);
                large::destroy(&(*heap).owned);
            }
            false => {
                (*heap).abandon_all();
                large::set_free(&(*heap).owned);
            }
        }
        pool::put_closed(heap);
    }
}

/// Frees a block of a closed heap. None of them waits in a batch, and so none is under way when the heap is
/// destroyed: it is home before this returns. False, and nothing is done, if the span is not that heap's any more.
///
/// # Safety
/// `p` starts a block of a span of `class` with that owner, in use as far as the caller can tell, and the
/// caller's to free.
#[cold]
#[inline(never)]
pub(crate) unsafe fn deallocate(p: *mut u8, class: SizeClass, owner: u32) -> bool {
    // SAFETY: the block is the caller's to free, and of that heap, or of that span.
    unsafe {
        if free_attached(thread::heap(), owner, class, p.cast()) {
            return true;
        }
        let meant = generation_of(p, class, owner);
        if let Some(meant) = meant {
            if HARDENED {
                quarantine::zero(p.cast(), class);
            }
            thread::send_closed(address_map::span_index(p, class), p.cast(), meant);
        }
        meant.is_some()
    }
}

/// Frees a block of a closed heap that the thread with the heap `mine` has attached; false, and
/// nothing is done, if it has not.
///
/// # Safety
/// `block` is a block of a span of `class` with that owner, in use, and the caller's to free.
unsafe fn free_attached(
    mine: *const Heap,
    owner: u32,
    class: SizeClass,
    block: *mut Block,
) -> bool {
    let Some(at) = address_map::heap_of_owner(owner).and_then(address_map::heap_address) else {
        return false;
    };
    let heap: *mut Heap = at.cast();
    // SAFETY: a heap that has been made. A stand-in is the heap of thread 0, which uses none. What
    // names the calling thread was written by it: it alone is inside the heap.
    unsafe {
        if (*heap).group.user.load(Ordering::Relaxed) != (*mine).thread {
            return false;
        }
        if HARDENED && !live::take_back(block.cast()) {
            os::fatal("free", block.cast(), live::FREED_TWICE);
        }
        let home = Caches::push(&raw mut (*heap).caches, class, block);
        if !home.is_null() {
            (*heap).take_home(class, home);
        }
    }
    true
}

/// Which span the block of `class` at `p` is in, if it still has that owner, a closed heap.
pub(crate) fn generation_of(p: *const u8, class: SizeClass, owner: u32) -> Option<Generation> {
    // SAFETY: a span's slices are committed.
    let word = unsafe { address_map::remote_word(address_map::span_index(p, class)) };
    let generation = word.generation();
    // Only now, for a span that is destroyed loses its owner before its generation.
    (address_map::descriptor(p).owner.load(Ordering::Relaxed) == owner).then_some(generation)
}

/// Destroys all spans of a closed heap. Nothing of it can be used after that.
///
/// # Safety
/// Nobody uses a block of it any more, or the heap.
unsafe fn destroy_spans(heap: *mut Heap) {
    // SAFETY: the heap's invariant 2 says where its spans are.
    unsafe {
        for class in SizeClass::all() {
            destroy_from((*heap).active[class.index()]);
            destroy_from((*heap).partial[class.index()].first());
        }
        destroy_from((*heap).full.first());
        quarantine::forget(&raw mut (*heap).caches.quarantine, heap.cast());
    }
}

/// Destroys a span and those after it in its list, if it is in one; null is fine.
///
/// # Safety
/// They are the caller's; nobody uses a block of them.
unsafe fn destroy_from(mut span: *mut Span) {
    while !span.is_null() {
        // SAFETY: the caller's; an active span has no next one.
        unsafe {
            let next = SpanList::after(span);
            (*span).destroy();
            span = next;
        }
    }
}
