//! Owns: closed heaps: their blocks never enter another heap's cache, are never left to strangers, and
//!   never come from the shared heap.
//! Idea: a heap like any other, and a value: whoever has it allocates, anybody frees, and with it goes what
//!   it holds. The owner in its descriptors has a bit more than a thread's tag, so that each free comes here.
//! Never: holds back a free: when it returns, the block has reached its span, and destroying the heap
//!   leaves nothing under way.
//! Threads: see each call.
//! Checked: tests/closed.rs; the models destroy a heap while others free.
//! Story: docs/design/closed-heaps.md

use crate::address_map;
use crate::block::Block;
use crate::caches::Caches;
use crate::heap::Heap;
use crate::policy::HARDENED;
use crate::pool::{self, partitions::NOBODY};
use crate::remote::Generation;
use crate::size_class::{self, SizeClass};
use crate::span::Span;
use crate::span_list::SpanList;
use crate::sync::Ordering;
use crate::{large, live, os, quarantine, thread};
use core::marker::PhantomData;
use core::ptr::null_mut;

/// A heap whose blocks are its own: they share no span and no cache with those of threads.
///
/// Blocks are freed like all others, by any thread. What is in use when the heap is dropped lives on; what
/// is in use when it is destroyed goes with it. It takes a page, and a span for each size class in use. In a
/// forked child a heap that another thread had attached must not be used.
///
/// ```
/// let mut heap = cairn::ClosedHeap::new().expect("memory");
/// let block = heap.attach().allocate(100, 16);
/// assert!(!block.is_null());
/// // SAFETY: nobody uses the block.
/// unsafe { heap.destroy() };
/// ```
#[derive(Debug)]
pub struct ClosedHeap {
    heap: *mut Heap,
}

// SAFETY: one thread at a time uses it, by `attach`; any may.
unsafe impl Send for ClosedHeap {}

/// A closed heap in the hands of a thread. Frees of its blocks by this thread take no atomic step.
#[derive(Debug)]
pub struct Attached<'a> {
    heap: *mut Heap,
    _one: PhantomData<&'a mut ClosedHeap>,
}

impl ClosedHeap {
    /// Makes a heap; None if there is no memory for it.
    #[must_use]
    pub fn new() -> Option<ClosedHeap> {
        os::notice_fork();
        let heap = if thread::start() { pool::take_any(1) } else { null_mut() };
        if heap.is_null() {
            return None;
        }
        // SAFETY: this heap's alone.
        unsafe {
            heap.write(Heap::closed());
            (*heap).user.store(NOBODY, Ordering::Relaxed);
        }
        Some(ClosedHeap { heap })
    }

    /// Gives the heap to the calling thread until the result is dropped.
    pub fn attach(&mut self) -> Attached<'_> {
        let thread = thread::number().unwrap_or(NOBODY);
        // SAFETY: this heap's. Relaxed: who finds its own number has written it.
        unsafe { (*self.heap).user.store(thread, Ordering::Relaxed) };
        Attached { heap: self.heap, _one: PhantomData }
    }

    /// Frees all blocks of the heap at once, and the heap. It takes a step for each span and each large
    /// block.
    ///
    /// # Safety
    /// Nobody uses a block of it any more, and no thread is about to free one.
    pub unsafe fn destroy(self) {
        os::notice_fork();
        // SAFETY: this heap's, which is gone after this; nobody uses its blocks.
        unsafe {
            (*self.heap).user.store(NOBODY, Ordering::Relaxed);
            destroy_spans(self.heap);
            large::destroy(&(*self.heap).owned);
            pool::put_closed(self.heap);
        }
        core::mem::forget(self);
    }
}

impl Drop for ClosedHeap {
    fn drop(&mut self) {
        os::notice_fork();
        // SAFETY: this heap's, which is gone after this.
        unsafe {
            (*self.heap).user.store(NOBODY, Ordering::Relaxed);
            (*self.heap).abandon_all();
            large::set_free(&(*self.heap).owned);
            pool::put_closed(self.heap);
        }
    }
}

impl Attached<'_> {
    /// A closed heap in the hands of the calling thread.
    ///
    /// # Safety
    /// Nobody else uses the heap meanwhile, and its user is the calling thread, or nobody.
    pub(crate) unsafe fn to(heap: *mut Heap) -> Attached<'static> {
        Attached { heap, _one: PhantomData }
    }

    /// Allocates `size` bytes at a multiple of `align`, a power of two; null if there is no memory.
    #[inline]
    pub fn allocate(&mut self, size: usize, align: usize) -> *mut u8 {
        debug_assert!(align.is_power_of_two());
        match size_class::class_of_aligned(size, align) {
            Some(class) => self.allocate_class(class),
            None => self.allocate_large(size, align),
        }
    }

    #[inline]
    fn allocate_class(&mut self, class: SizeClass) -> *mut u8 {
        // SAFETY: the heap is the calling thread's while this is borrowed.
        unsafe {
            let mut block = Caches::pop(&raw mut (*self.heap).caches, class);
            if block.is_null() {
                block = (*self.heap).refill(class);
            }
            block.cast()
        }
    }

    #[cold]
    fn allocate_large(&mut self, size: usize, align: usize) -> *mut u8 {
        os::notice_fork();
        if size > isize::MAX as usize || align > isize::MAX as usize {
            return null_mut();
        }
        // SAFETY: the heap is the calling thread's while this is borrowed.
        large::allocate_owned(unsafe { &(*self.heap).owned }, size, align).block
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        // SAFETY: the heap is the calling thread's.
        unsafe { (*self.heap).user.store(NOBODY, Ordering::Relaxed) };
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
        if (*heap).user.load(Ordering::Relaxed) != (*mine).thread {
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
