//! Owns: heaps as values of Rust's: what may be done with which, and until when, is in their types.
//! Idea: an owned heap that a thread has attached stays on that thread; to move it is to detach it.
//! Never: allocates by another way than `HeapId`.
//! Threads: `Heap` one, `DetachedHeap` and `SharedHeap` any.
//! Checked: tests/closed.rs, tests/shared.rs; the examples below, those that must not compile too.
//! Story: docs/design/closed-heaps.md

use super::HeapId;
use crate::large::HeapStats;
use core::{marker::PhantomData, mem::forget};

/// A heap whose blocks are its own: they share no span and no cache with those of threads or other heaps.
///
/// The thread that has made or attached it allocates, without locks or atomic steps. Blocks are freed like all
/// others, by `deallocate`, on any thread. When the heap is dropped, the blocks in use live on; when it is destroyed, they
/// go with it. Its first 16 KiB of small blocks lie side by side; beyond that it takes a page, and a page at least for each
/// size class in use. In a forked child a heap that another thread had attached must not be used.
///
/// ```
/// let heap = cairn::Heap::new().expect("memory");
/// let block = heap.allocate(100, 16);
/// assert!(!block.is_null() && cairn::heap_of(block) == Some(heap.id()));
/// heap.destroy();
/// ```
///
/// It stays on its thread:
///
/// ```compile_fail
/// let heap = cairn::Heap::new().expect("memory");
/// std::thread::spawn(move || heap.allocate(100, 16).addr());
/// ```
#[derive(Debug)]
pub struct Heap<Kind = Owned> {
    id: HeapId,
    _kind: PhantomData<Kind>,
}

/// The kind of a heap that one thread uses.
///
/// ```
/// fn fill(heap: &cairn::Heap<cairn::Owned>) -> *mut u8 {
///     heap.allocate(100, 16)
/// }
/// assert!(!fill(&cairn::Heap::new().expect("memory")).is_null());
/// ```
#[derive(Debug)]
pub struct Owned(PhantomData<*mut ()>);

/// The kind of a heap that all threads use.
///
/// ```
/// fn is_sync(_: &impl Sync) {}
/// let heap: cairn::Heap<cairn::Shared> = cairn::Heap::shared().expect("memory");
/// is_sync(&heap);
/// ```
#[derive(Debug)]
pub struct Shared;

/// A heap from which any thread allocates. Each has a part of it, and uses it without locks or atomic steps; a thread
/// that ends leaves its part to one that comes later. All else is as in `Heap`. It takes a page, and one for each part.
///
/// ```
/// let heap = cairn::Heap::shared().expect("memory");
/// std::thread::scope(|scope| {
///     for _ in 0..2 {
///         scope.spawn(|| assert!(!heap.allocate(100, 16).is_null()));
///     }
/// });
/// heap.destroy();
/// ```
pub type SharedHeap = Heap<Shared>;

/// A heap that no thread has attached: it may go to another one.
///
/// ```
/// let heap = cairn::Heap::new().expect("memory").detach();
/// std::thread::spawn(move || heap.attach().allocate(100, 16).addr()).join().unwrap();
/// ```
#[derive(Debug)]
pub struct DetachedHeap {
    id: HeapId,
}

impl Heap {
    /// Makes a heap; None if there is no memory for it.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory");
    /// assert_eq!(heap.stats(), cairn::HeapStats::default());
    /// ```
    #[must_use]
    pub fn new() -> Option<Heap> {
        HeapId::new_owned().map(Heap::of)
    }

    /// Makes a heap for all threads; None if there is no memory for it.
    ///
    /// ```
    /// let heap = cairn::Heap::shared().expect("memory");
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| assert!(!heap.allocate(100, 16).is_null()));
    /// });
    /// ```
    #[must_use]
    pub fn shared() -> Option<SharedHeap> {
        HeapId::new_shared().map(SharedHeap::of)
    }

    /// Makes a heap for all threads whose blocks may be read while others free them; None as `HeapId::new_concurrent`, which
    /// tells the story.
    ///
    /// ```
    /// # if cfg!(any(feature = "hardened", feature = "secure")) { return }
    /// let heap = cairn::Heap::concurrent(16).expect("memory");
    /// assert!(!heap.allocate(100, 16).is_null());
    /// // SAFETY: nobody reads what has been freed.
    /// unsafe { heap.id().set_epoch(2, 1) };
    /// ```
    #[must_use]
    pub fn concurrent(head: usize) -> Option<SharedHeap> {
        HeapId::new_concurrent(head).map(SharedHeap::of)
    }

    /// Takes the heap from its thread.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory").detach();
    /// std::thread::spawn(move || drop(heap)).join().unwrap();
    /// ```
    #[must_use]
    pub fn detach(self) -> DetachedHeap {
        let id = self.id;
        forget(self);
        // SAFETY: the calling thread's.
        unsafe { id.detach() };
        DetachedHeap { id }
    }
}

impl DetachedHeap {
    /// Gives the heap to the calling thread.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory");
    /// let heap = heap.detach().attach();
    /// assert!(!heap.allocate(100, 16).is_null());
    /// ```
    #[must_use]
    pub fn attach(self) -> Heap {
        let id = self.id;
        forget(self);
        // SAFETY: nobody uses it.
        unsafe { id.attach() };
        Heap::of(id)
    }
}

impl Drop for DetachedHeap {
    /// Blocks in use live on.
    fn drop(&mut self) {
        // SAFETY: this heap's, which is gone after this.
        unsafe { self.id.delete() };
    }
}

impl<Kind> Heap<Kind> {
    /// The heap of that name, which is of this kind, and nobody else's.
    pub(super) fn of(id: HeapId) -> Heap<Kind> {
        Heap { id, _kind: PhantomData }
    }

    /// Allocates `size` bytes at a multiple of `align`, a power of two; null if there is no memory, or if the
    /// heap must not have more. The block is freed by `deallocate`, or goes with the heap.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory");
    /// let block = heap.allocate(100, 64);
    /// assert!(!block.is_null() && block.addr().is_multiple_of(64));
    /// ```
    #[inline]
    #[must_use]
    pub fn allocate(&self, size: usize, align: usize) -> *mut u8 {
        // SAFETY: the heap is there; an owned one is the calling thread's.
        unsafe { self.id.allocate(size, align) }
    }

    /// As `allocate`, with zeroed bytes.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory");
    /// let block = heap.allocate_zeroed(100, 16);
    /// // SAFETY: a live block.
    /// assert_eq!(unsafe { *block.add(99) }, 0);
    /// ```
    #[must_use]
    pub fn allocate_zeroed(&self, size: usize, align: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { self.id.allocate_zeroed(size, align) }
    }

    /// Allocates a block of `size` bytes into each place of `blocks`; how many it has filled, the first ones: fewer than
    /// there are only without memory, or if the heap must not have them.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory");
    /// let mut blocks = [std::ptr::null_mut(); 100];
    /// assert_eq!(heap.allocate_batch(48, 16, &mut blocks), 100);
    /// heap.destroy();
    /// ```
    #[must_use]
    pub fn allocate_batch(&self, size: usize, align: usize, blocks: &mut [*mut u8]) -> usize {
        // SAFETY: the heap is there; an owned one is the calling thread's; there is room for so many.
        unsafe { self.id.allocate_batch(size, align, blocks.len(), blocks.as_mut_ptr()) }
    }

    /// Resizes a block; if it must move, to this heap. Null if there is no memory, or if the heap must not
    /// have more: the old block stays as it is. A null `p` allocates.
    ///
    /// # Safety
    /// `p` is null or the start of a live block, of any heap, and aligned to `align`; if the result is not
    /// null, the old pointer is dead.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory");
    /// let block = heap.allocate(100, 16);
    /// // SAFETY: a live block, which is dead after the call.
    /// let block = unsafe { heap.reallocate(block, 5000, 16) };
    /// assert_eq!(cairn::heap_of(block), Some(heap.id()));
    /// ```
    pub unsafe fn reallocate(&self, p: *mut u8, size: usize, align: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { self.id.reallocate(p, size, align) }
    }

    /// Frees all blocks of the heap at once, and the heap: a step for each span and each large block.
    ///
    /// What borrows the heap is gone by now. A block that was allocated by `allocate` is a dead pointer after
    /// this, and no thread may be about to free one.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory");
    /// (0..1000).for_each(|size| assert!(!heap.allocate(size, 16).is_null()));
    /// heap.destroy();
    /// ```
    pub fn destroy(self) {
        let id = self.id;
        forget(self);
        // SAFETY: nobody else has the heap. Who uses a pointer to a block answers for it.
        unsafe { id.destroy() };
    }

    /// The heap's name, for what is asked by it.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory");
    /// assert!(heap.id().contains(heap.allocate(100, 16)));
    /// ```
    #[must_use]
    pub fn id(&self) -> HeapId {
        self.id
    }

    /// Whether the block at `p`, or around it, is one of the heap's. Any value of `p` is answered.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory");
    /// assert!(heap.contains(heap.allocate(100, 16)) && !heap.contains(&0));
    /// ```
    #[must_use]
    pub fn contains(&self, p: *const u8) -> bool {
        self.id.contains(p)
    }

    /// What the program has said that the heap is; 0 before.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory");
    /// assert_eq!(heap.tag(), 0);
    /// ```
    #[must_use]
    pub fn tag(&self) -> usize {
        // SAFETY: the heap is there.
        unsafe { self.id.tag() }
    }

    /// Says what the heap is, in a number of the program's choice.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory");
    /// heap.set_tag(7);
    /// let block = heap.allocate(100, 16);
    /// // SAFETY: the heap of the block is there.
    /// assert_eq!(unsafe { cairn::heap_of(block).expect("a heap's").tag() }, 7);
    /// ```
    pub fn set_tag(&self, tag: usize) {
        // SAFETY: the heap is there.
        unsafe { self.id.set_tag(tag) };
    }

    /// What the heap holds: a few loads.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory");
    /// let block = heap.allocate(100, 16);
    /// assert!(!block.is_null() && heap.stats().spans >= 100);
    /// ```
    #[must_use]
    pub fn stats(&self) -> HeapStats {
        // SAFETY: the heap is there.
        unsafe { self.id.stats() }
    }

    /// Limits what the heap may hold in spans and large blocks, in bytes; 0 is no limit. See
    /// `HeapId::set_limits`.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    ///
    /// static TOLD: AtomicUsize = AtomicUsize::new(0);
    /// let mut heap = cairn::Heap::new().expect("memory");
    /// let told = |_, [number, _]: [usize; 2]| TOLD.store(number, Ordering::Relaxed);
    /// assert!(heap.set_limits(1 << 20, 8 << 20, Some(told), [7, 0]));
    /// assert!(!heap.allocate(2 << 20, 16).is_null(), "over the soft one");
    /// assert_eq!(TOLD.load(Ordering::Relaxed), 7);
    /// assert!(heap.allocate(9 << 20, 16).is_null(), "over the hard one");
    /// heap.destroy();
    /// ```
    pub fn set_limits(
        &mut self,
        soft: usize,
        hard: usize,
        told: Option<fn(HeapId, [usize; 2])>,
        words: [usize; 2],
    ) -> bool {
        // SAFETY: the heap is there, and nobody else's meanwhile.
        unsafe { self.id.set_limits(soft, hard, told, words) }
    }

    /// Gives what is free in the heap back to the system: the bytes that went at once.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory");
    /// let block = heap.allocate(5000, 16);
    /// // SAFETY: nobody uses the block.
    /// unsafe { cairn::deallocate(block) };
    /// heap.purge();
    /// assert_eq!(heap.stats().spans, 0);
    /// ```
    pub fn purge(&self) -> usize {
        // SAFETY: the heap is there; an owned one is the calling thread's.
        unsafe { self.id.purge() }
    }
}

impl<Kind> Drop for Heap<Kind> {
    /// Blocks in use live on.
    fn drop(&mut self) {
        // SAFETY: this heap's, which is gone after this.
        unsafe { self.id.delete() };
    }
}
