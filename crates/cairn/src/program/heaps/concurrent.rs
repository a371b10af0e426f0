//! Owns: heaps for programs whose threads read objects without a lock that others may be freeing: calls on them.
//! Idea: what is free keeps its first bytes, and its memory stays the heap's, until the program says that nobody reads it.
//! Never: knows how the program finds out.
//! Threads: see each call.
//! Checked: tests/grace.rs
//! Story: docs/design/closed-heaps.md

use super::HeapId;
use crate::base::{HARDENED, MIN_ALIGN, Ordering};
use crate::heap::{Handle, Heap, SHARED};
pub use crate::spans::HEAD_MAX;
use crate::{api, closed, large, map::address_map, thread, thread::pool};
use core::ptr::NonNull;

impl HeapId {
    /// Makes a shared heap whose blocks may be read while another thread frees them, as free-threaded runtimes do that look
    /// at an object's type and reference count before they know that it is still there. None if there is no memory for it,
    /// if `head` is more than 256, or in the hardened build, which leaves nothing of a free block.
    ///
    /// - The first `head` bytes of a block, rounded up to a multiple of 16, stay as the program has left them when it is
    ///   freed, until it is handed out again. Each block has room for them and for 32 bytes more.
    /// - A free block is handed out again at once, but only as a block of the same size class of this heap, and at the same
    ///   place: what is read there is the head of a block, an old one or a new one.
    /// - Memory in which nothing is in use, large blocks too, waits for the epoch in which it became so (`set_epoch`), and
    ///   can be read until then. Then it may become anybody's, or none at all. Blocks are not resized by moving pages.
    ///
    /// Who deletes or destroys the heap says that nobody reads what is free in it any more.
    ///
    /// ```
    /// # if cfg!(any(feature = "hardened", feature = "secure")) { return }
    /// use cairn::HeapId;
    /// let heap = HeapId::new_concurrent(16).unwrap();
    /// // SAFETY: the heap is there; the block is read after it has been freed, as the heap allows.
    /// unsafe {
    ///     let object = heap.allocate(48, 16).cast::<usize>();
    ///     object.write(7);
    ///     cairn::deallocate(object.cast());
    ///     assert_eq!(object.read(), 7);
    ///     heap.set_epoch(2, 1);
    ///     heap.destroy();
    /// }
    /// ```
    #[must_use]
    pub fn new_concurrent(head: usize) -> Option<HeapId> {
        if HARDENED || head > HEAD_MAX {
            return None;
        }
        let heap = NonNull::new(closed::create(SHARED, None))?;
        // SAFETY: made just now.
        unsafe { (*heap.as_ptr()).owned.grace.begin(head.next_multiple_of(MIN_ALIGN)) };
        Some(HeapId(heap))
    }

    /// Says which epoch it is, a number that the program counts up, and that what became free in an epoch before `safe` is
    /// read by nobody any more. `safe` counts as at most the epoch that it was before the call: readers may have begun in
    /// it. Large blocks of safe epochs go at once, spans with the heap's next upkeep, or with `purge`. Until then such
    /// large blocks count as in use. Before the first call it is epoch 0, and nothing is safe. Nothing is done to another
    /// heap.
    ///
    /// Any thread may call it, one at a time. No reader enters epoch `now` before the call has returned, and it announces
    /// that it reads by a sequentially consistent step, as it would for any scheme of epochs.
    ///
    /// # Safety
    /// The heap is there, and nobody reads such memory.
    ///
    /// ```
    /// # if cfg!(any(feature = "hardened", feature = "secure")) { return }
    /// let heap = cairn::HeapId::new_concurrent(16).expect("memory");
    /// // SAFETY: the heap is there, and nobody reads what has been freed.
    /// unsafe {
    ///     let large = heap.allocate(1 << 20, 16);
    ///     cairn::deallocate(large);
    ///     assert_eq!(heap.stats().large_blocks, 1);
    ///     heap.set_epoch(1, 0);
    ///     heap.set_epoch(2, 1);
    ///     assert_eq!(heap.stats().large_blocks, 0);
    ///     heap.destroy();
    /// }
    /// ```
    pub unsafe fn set_epoch(self, now: usize, safe: usize) {
        // SAFETY: as above.
        unsafe {
            let grace = &self.0.as_ref().owned.grace;
            if grace.is_on() {
                grace.set(now, safe);
                large::free_due(&self.0.as_ref().owned);
            }
        }
    }

    /// The size that is asked of classes and slices for a block of `size` bytes.
    pub(super) fn with_head(self, size: usize) -> usize {
        // SAFETY: the heap is there.
        unsafe { self.0.as_ref() }.owned.grace.least(size)
    }
}

/// The number of the thread that owns the span of the block at `p`: it alone frees there without an atomic step. 0 if
/// no thread does, or if there is no such block. Any thread, at any time; the answer may be old when it comes.
///
/// ```
/// let heap = cairn::Heap::new().expect("memory");
/// assert_eq!(cairn::owner_thread(heap.allocate(100, 16)), cairn::thread_number());
/// assert_eq!(cairn::owner_thread(&0), 0);
/// # heap.destroy();
/// ```
#[must_use]
pub fn owner_thread(p: *const u8) -> usize {
    // Of a thread that has ended it is nobody's.
    let user = |heap: *const Heap, user: usize| if pool::is_at_work(heap, user) { user } else { 0 };
    if let Some(nursery) = large::nursery_around(p) {
        // SAFETY: null, or a handle: those are never unmapped.
        let name = unsafe { nursery.of().cast::<Handle>().as_ref() };
        // SAFETY: as above. Volatile: it changes when a thread attaches it.
        let user_heap = |name: &Handle| unsafe { (&raw const name.user_heap).read_volatile() };
        return name.map_or(0, |name| user(user_heap(name), name.user.load(Ordering::Relaxed)));
    }
    let owner =
        api::base(p).and_then(|start| address_map::span_block(start)).map(|(_, owner)| owner);
    let Some(heap) = owner.and_then(Heap::of_owner) else { return 0 };
    // SAFETY: a heap that has been made. Volatile: it changes when a thread takes it.
    unsafe {
        match (*heap).is_closed() {
            true => {
                let member = &raw const (*heap).member;
                user(
                    (&raw const (*member).user_heap).read_volatile(),
                    (*member).user.load(Ordering::Relaxed),
                )
            }
            false => user(heap, (&raw const (*heap).thread).read_volatile()),
        }
    }
}

/// The calling thread's number, which no other thread of the process has had or will have; 0 if it can have none.
///
/// ```
/// let mine = cairn::thread_number();
/// let other = std::thread::spawn(cairn::thread_number).join().unwrap();
/// assert!(mine > 0 && other != mine);
/// ```
#[must_use]
pub fn thread_number() -> usize {
    thread::number_of_user().unwrap_or(0)
}
