//! Owns: heaps of the program's, by their names: every call on them.
//! Idea: a heap is named by its place. The cache there is the owned heap's own, and that of a shared heap is always
//!   empty, so that one way leads to both.
//! Never: knows C types or errno.
//! Threads: see each call.
//! Checked: tests/closed.rs, tests/shared.rs, tests/limits.rs, tests/visit.rs
//! Story: docs/design/closed-heaps.md

mod concurrent;
mod control;
mod regions;
mod types;
mod visit;

pub use concurrent::{HEAD_MAX, owner_thread, thread_number};
pub use regions::{RegionId, RegionStats};
pub use types::{DetachedHeap, Heap, Owned, Shared, SharedHeap};
pub use visit::{Area, visit};

use crate::api::{NoMemory, Null};
use crate::base::{MEDIUM_MAX, MIN_ALIGN, Ordering, SMALL_MAX, SizeClass, size_class};
use crate::closed::{self, of_thread};
use crate::heap::{Handle, Heap as Inner, OWNED, SHARED};
use crate::map::{Block, OWNER_CLOSED, address_map};
use crate::store::{Caches, Store};
use crate::{api, large, thread};
use core::ptr::{NonNull, null_mut};

/// Names a heap of the program's, of either kind: what C programs have, and what `heap_of` and visitors are given.
///
/// `Heap` and `SharedHeap` are the safe ways to use one. Each unsafe call here wants that the heap has not been deleted
/// or destroyed. What is so called ends the process with a message where that can be seen: a heap that is none, or that
/// another thread has attached.
///
/// ```
/// let heap = cairn::HeapId::new_owned().expect("memory");
/// // SAFETY: the heap is there until the end.
/// unsafe {
///     let block = heap.allocate(100, 16);
///     assert_eq!(cairn::heap_of(block), Some(heap));
///     heap.destroy();
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct HeapId(NonNull<Handle>);

// SAFETY: a name. Who may use what it names, each call says.
unsafe impl Send for HeapId {}
// SAFETY: as above.
unsafe impl Sync for HeapId {}

impl HeapId {
    /// Makes an owned heap, attached to the calling thread; None if there is no memory for it.
    ///
    /// ```
    /// let heap = cairn::HeapId::new_owned().expect("memory");
    /// // SAFETY: this thread's, and no longer used.
    /// unsafe { heap.delete() };
    /// ```
    #[must_use]
    pub fn new_owned() -> Option<HeapId> {
        let heap = NonNull::new(closed::create(OWNED, None))?;
        // SAFETY: made just now.
        unsafe { closed::attach(heap.as_ptr()) };
        Some(HeapId(heap))
    }

    /// Makes a shared heap; None if there is no memory for it.
    ///
    /// ```
    /// let heap = cairn::HeapId::new_shared().expect("memory");
    /// // SAFETY: the heap is there, for all threads.
    /// unsafe {
    ///     std::thread::spawn(move || heap.allocate(100, 16).addr()).join().unwrap();
    ///     heap.destroy();
    /// }
    /// ```
    #[must_use]
    pub fn new_shared() -> Option<HeapId> {
        NonNull::new(closed::create(SHARED, None)).map(HeapId)
    }

    /// The heap of that address.
    ///
    /// # Safety
    /// `into_raw` has answered it.
    ///
    /// ```
    /// let heap = cairn::HeapId::new_owned().expect("memory");
    /// let word = heap.into_raw();
    /// // SAFETY: it came from there.
    /// assert_eq!(unsafe { cairn::HeapId::from_raw(word) }, heap);
    /// # unsafe { heap.delete() };
    /// ```
    #[must_use]
    #[inline(always)]
    pub unsafe fn from_raw(heap: NonNull<u8>) -> HeapId {
        HeapId(heap.cast())
    }

    /// An address that no other heap has while this one is there. Nothing is to be read from it.
    ///
    /// ```
    /// let (one, other) = (cairn::Heap::new().expect("memory"), cairn::Heap::new().expect("memory"));
    /// assert_ne!(one.id().into_raw(), other.id().into_raw());
    /// ```
    #[must_use]
    pub fn into_raw(self) -> NonNull<u8> {
        self.0.cast()
    }

    /// Whether it is a shared heap. Ends the process if it is no heap any more, as far as that can be seen.
    ///
    /// # Safety
    /// The heap is there.
    ///
    /// ```
    /// let heap = cairn::Heap::shared().expect("memory");
    /// // SAFETY: the heap is there.
    /// assert!(unsafe { heap.id().is_shared() });
    /// ```
    #[must_use]
    pub unsafe fn is_shared(self) -> bool {
        closed::is_shared(self.0.as_ptr())
    }

    /// Gives an owned heap to the calling thread, which alone may allocate from it then. Nothing is done to a shared
    /// one. A thread that ends need not have detached its heaps.
    ///
    /// # Safety
    /// The heap is there. No other thread uses it.
    ///
    /// ```
    /// let heap = cairn::HeapId::new_owned().expect("memory");
    /// // SAFETY: the heap is there; one thread after the other has it.
    /// unsafe {
    ///     heap.detach();
    ///     std::thread::spawn(move || {
    ///         heap.attach();
    ///         heap.allocate(100, 16).addr()
    ///     });
    /// }
    /// ```
    pub unsafe fn attach(self) {
        // SAFETY: as above.
        unsafe {
            if !self.is_shared() {
                closed::attach(self.0.as_ptr());
            }
        }
    }

    /// Takes an owned heap from the calling thread: any thread may attach it. Nothing is done to a shared one.
    ///
    /// # Safety
    /// The heap is there, and attached to the calling thread.
    ///
    /// ```
    /// let heap = cairn::HeapId::new_owned().expect("memory");
    /// // SAFETY: the heap is there, and this thread's.
    /// unsafe {
    ///     heap.detach();
    ///     heap.delete();
    /// }
    /// ```
    pub unsafe fn detach(self) {
        // SAFETY: as above.
        unsafe {
            if !self.is_shared() {
                closed::detach(self.0.as_ptr());
            }
        }
    }

    /// Allocates `size` bytes at a multiple of `align`, a power of two; null if there is no memory, or if the heap must
    /// not have more.
    ///
    /// # Safety
    /// The heap is there; an owned one is attached to the calling thread.
    ///
    /// ```
    /// let heap = cairn::HeapId::new_owned().expect("memory");
    /// // SAFETY: the heap is there, and this thread's.
    /// unsafe {
    ///     assert!(heap.allocate(100, 4096).addr().is_multiple_of(4096));
    ///     heap.destroy();
    /// }
    /// ```
    #[inline]
    pub unsafe fn allocate(self, size: usize, align: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { self.allocate_or::<Null>(size, align) }
    }

    /// As `allocate`, with another answer than null.
    ///
    /// # Safety
    /// As for `allocate`.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn allocate_or<F: NoMemory>(self, size: usize, align: usize) -> *mut u8 {
        // SAFETY: as above; the size is small. The nursery and the cache are the calling thread's, or empty.
        unsafe {
            if align <= MIN_ALIGN
                && let Some(block) = Handle::allocate(self.0.as_ptr(), size)
            {
                return block;
            }
            if align > MIN_ALIGN || size > SMALL_MAX {
                return self.allocate_elsewhere::<F>(size, align);
            }
            let class = size_class::small_class(size);
            let block = Caches::pop(&raw mut (*(*self.0.as_ptr()).heap).caches, class);
            match block.is_null() {
                true => self.renew_or::<F>(size, class),
                false => api::handed_out(block, class, size),
            }
        }
    }

    #[inline(never)]
    unsafe fn renew_or<F: NoMemory>(self, size: usize, class: SizeClass) -> *mut u8 {
        // SAFETY: as for `allocate_or`.
        unsafe {
            let renewed = closed::make_room_at_once(self.0.as_ptr());
            match renewed.then(|| Handle::allocate(self.0.as_ptr(), size)).flatten() {
                Some(block) => block,
                None => self.refill_or::<F>(size, class),
            }
        }
    }

    #[inline(never)]
    unsafe fn allocate_elsewhere<F: NoMemory>(self, size: usize, align: usize) -> *mut u8 {
        let (size, align) = (self.with_head(size), align.max(MIN_ALIGN));
        let block = match size_class::class_of_aligned(size, align) {
            // SAFETY: as for `allocate_or`.
            Some(class) => unsafe {
                let block = self.allocate_class(class, size).0.cast();
                self.or_elsewhere(block, size, align)
            },
            // SAFETY: as above.
            None => unsafe { self.allocate_large(size, align).block },
        };
        if block.is_null() { F::answer(size, align) } else { block }
    }

    #[cold]
    #[inline(never)]
    unsafe fn refill_or<F: NoMemory>(self, size: usize, class: SizeClass) -> *mut u8 {
        // SAFETY: as for `allocate_or`.
        let block = unsafe {
            let mut block = self.allocate_in_nursery(size);
            if block.is_null() && self.with_head(size) > size {
                return self.allocate_elsewhere::<F>(size, MIN_ALIGN);
            }
            if block.is_null() {
                block =
                    self.or_elsewhere(self.allocate_class(class, size).0.cast(), size, MIN_ALIGN);
            }
            // Those with nothing in use have been given back by now.
            if block.is_null() { self.allocate_in_nursery(size) } else { block }
        };
        if block.is_null() { F::answer(size, MIN_ALIGN) } else { block }
    }

    /// A block in a new nursery; null if a class is to serve it.
    unsafe fn allocate_in_nursery(self, size: usize) -> *mut u8 {
        let name = self.0.as_ptr();
        // SAFETY: as for `allocate_or`.
        unsafe {
            let has_room =
                (*name).kind.load(Ordering::Relaxed) != SHARED && closed::make_room(name, size);
            if has_room { Handle::allocate(name, size).unwrap_or(null_mut()) } else { null_mut() }
        }
    }

    /// The block, unless it is null: then one from a heap that no thread has attached, or in slices of its own, where a
    /// region or a limit has no room for a span.
    #[inline]
    unsafe fn or_elsewhere(self, mut block: *mut u8, size: usize, align: usize) -> *mut u8 {
        let name = self.0.as_ptr();
        // SAFETY: as for `allocate_or`.
        unsafe {
            if block.is_null() {
                block = closed::allocate_on_loan(name, size, align);
            }
            let owned = &(*name).owned;
            match block.is_null() && (owned.region > 0 || owned.budget.has_limit()) {
                true => self.allocate_large(size, align).block,
                false => block,
            }
        }
    }

    /// A block of a class, of which the program gets `size` bytes, and whether these are zero.
    unsafe fn allocate_class(self, class: SizeClass, size: usize) -> (*mut Block, bool) {
        let name = self.0.as_ptr();
        let allocate = |heap: *mut Inner| match heap.is_null() {
            true => (null_mut(), false),
            // SAFETY: as for `allocate`.
            false => unsafe { closed::allocate_class(heap, class, size) },
        };
        // SAFETY: as above.
        unsafe {
            match (*name).kind.load(Ordering::Relaxed) {
                SHARED => of_thread(name, allocate),
                _ => allocate(closed::own_heap(name)),
            }
        }
    }

    #[inline(never)]
    unsafe fn allocate_large(self, size: usize, align: usize) -> large::Allocated {
        let name = self.0.as_ptr();
        // SAFETY: as for `allocate`.
        unsafe {
            match closed::is_shared(name) {
                true => of_thread(name, |part| closed::allocate_large(name, part, size, align)),
                false => closed::allocate_large(name, (*name).heap, size, align),
            }
        }
    }

    /// As `allocate`, with zeroed bytes.
    ///
    /// # Safety
    /// As for `allocate`.
    ///
    /// ```
    /// let heap = cairn::HeapId::new_owned().expect("memory");
    /// // SAFETY: the heap is there, and this thread's; a live block.
    /// unsafe {
    ///     assert_eq!(*heap.allocate_zeroed(100, 16).add(99), 0);
    ///     heap.destroy();
    /// }
    /// ```
    pub unsafe fn allocate_zeroed(self, size: usize, align: usize) -> *mut u8 {
        let (size, align) = (self.with_head(size), align.max(MIN_ALIGN));
        // SAFETY: as above; what is zeroed is a new block of at least so many bytes.
        unsafe {
            let (block, is_zero) = match size_class::class_of_aligned(size, align) {
                Some(_) if align <= MIN_ALIGN && size <= SMALL_MAX => {
                    (self.allocate(size, align), false)
                }
                Some(class) => {
                    let (block, is_zero) = self.allocate_class(class, size);
                    (self.or_elsewhere(block.cast(), size, align), is_zero && !block.is_null())
                }
                None => {
                    let got = self.allocate_large(size, align);
                    if !got.zero && !got.block.is_null() {
                        large::zero(got.block, size);
                    }
                    return got.block;
                }
            };
            if !is_zero && !block.is_null() {
                block.write_bytes(0, size);
            }
            block
        }
    }

    /// Allocates up to `count` blocks of `size` bytes at multiples of `align` and writes them to `blocks`: how many. Fewer
    /// only if there is no memory for more, or the heap must not have them.
    ///
    /// # Safety
    /// As for `allocate`; `blocks` has room for `count`.
    ///
    /// ```
    /// let heap = cairn::HeapId::new_owned().expect("memory");
    /// let mut blocks = [std::ptr::null_mut(); 100];
    /// // SAFETY: the heap is there, and this thread's; there is room for so many.
    /// unsafe {
    ///     assert_eq!(heap.allocate_batch(48, 16, blocks.len(), blocks.as_mut_ptr()), 100);
    ///     heap.destroy();
    /// }
    /// ```
    pub unsafe fn allocate_batch(
        self,
        size: usize,
        align: usize,
        count: usize,
        blocks: *mut *mut u8,
    ) -> usize {
        for nth in 0..count {
            // SAFETY: as above.
            unsafe {
                let block = self.allocate(size, align);
                if block.is_null() {
                    return nth;
                }
                blocks.add(nth).write(block);
            }
        }
        count
    }

    /// Resizes a block, in place if that is sensible; if it must move, to this heap. The contents are kept up to the
    /// smaller size. Null if there is no memory, or if the heap must not have more: the old block stays as it is. A
    /// null `p` allocates.
    ///
    /// # Safety
    /// As for `allocate`; `p` is null or the start of a live block, of any heap; if the result is not null, the old
    /// pointer is dead.
    ///
    /// ```
    /// let heap = cairn::HeapId::new_owned().expect("memory");
    /// // SAFETY: the heap is there, and this thread's; a live block.
    /// unsafe {
    ///     let block = heap.reallocate(cairn::allocate(100), 5000, 16);
    ///     assert!(heap.contains(block), "it has moved into the heap");
    ///     heap.destroy();
    /// }
    /// ```
    pub unsafe fn reallocate(self, p: *mut u8, size: usize, align: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            if p.is_null() || size > isize::MAX as usize {
                return if p.is_null() { self.allocate(size, align) } else { null_mut() };
            }
            let usable = api::usable_size(p);
            // Large blocks grow where they are, or move their pages, and keep their heap; another one's does not grow.
            let is_large = usable > MEDIUM_MAX && p.addr().is_multiple_of(align);
            if is_large {
                let resize = || api::resize_or_give_back(p, size, align);
                let more = size.saturating_sub(usable);
                let resized = match heap_of(p) == Some(self) {
                    true => closed::resize(self.0.as_ptr(), more, resize),
                    false if more == 0 => resize(),
                    false => None,
                };
                if let Some(resized) = resized {
                    return resized;
                }
            } else if api::may_stay(p, size, align) {
                api::expect_in_use(p, "realloc");
                api::keep(p, size);
                return p;
            }
            let new = self.allocate(size, align);
            if new.is_null() {
                return api::keep_or_null(p, usable, size, align);
            }
            new.copy_from_nonoverlapping(p, usable.min(size));
            api::deallocate_named(p, "realloc");
            new
        }
    }
}

/// Gives back to the system all memory that is free, in every tier that this thread can reach
/// at once; other threads' follow at their next slow tick. The number of bytes given back
/// at once.
///
/// ```
/// let blocks: Vec<_> = (0..1000).map(|_| vec![1_u8; 1000]).collect();
/// drop(blocks);
/// println!("{} bytes went back", cairn::purge());
/// ```
pub fn purge() -> usize {
    thread::defer_in_need();
    thread::purge::purge(crate::os::notify_all)
}

/// The heap of the program's that the block at `p`, or around it, belongs to; None if it is none of the allocator's, or
/// if it belongs to threads, as what `allocate` gives does. Any value of `p` is answered; for a block that has been freed
/// the answer is None or some heap. Any thread, at any time.
///
/// ```
/// let heap = cairn::Heap::new().expect("memory");
/// assert_eq!(cairn::heap_of(heap.allocate(100, 16)), Some(heap.id()));
/// assert_eq!(cairn::heap_of(&0), None);
/// # heap.destroy();
/// ```
#[must_use]
pub fn heap_of(p: *const u8) -> Option<HeapId> {
    if let Some(nursery) = large::nursery_around(p) {
        return NonNull::new(nursery.of().cast()).map(HeapId);
    }
    let start = api::base(p)?;
    let of = match address_map::span_block(start) {
        // SAFETY: a heap that has been made.
        Some((_, owner)) if owner & OWNER_CLOSED != 0 => unsafe {
            (*Inner::of_owner(owner)?).member.of
        },
        Some(_) => null_mut(),
        None => match large::owner_of(start) {
            owned if owned.is_null() => null_mut(),
            owned => {
                owned.wrapping_byte_sub(core::mem::offset_of!(Handle, owned)).cast_mut().cast()
            }
        },
    };
    NonNull::new(of).map(HeapId)
}
