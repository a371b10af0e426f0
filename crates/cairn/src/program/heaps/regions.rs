//! Owns: regions by their names: memory of the program's in which heaps can be made.
//! Idea: a region is asked for whole slices, as the arena is; all else is the heaps'.
//! Never: knows C types or errno.
//! Threads: any, at any time.
//! Checked: tests/region.rs
//! Story: docs/design/regions.md

use super::{Heap, HeapId, SharedHeap};
use crate::base::SLICE_SIZE;
use crate::closed::{self, regions};
use crate::heap::{OWNED, SHARED};
use crate::map::{RegionCalls, RegionError, region};
use crate::os;
use core::{num::NonZeroUsize, ptr::NonNull};

/// What a region is called in messages.
const REGION: &str = "cairn_region";

/// Names a region: memory that the program supplies, in which it can make heaps. What these allocate lies in the region, from the
/// smallest block to the largest, and nothing else does: what the allocator notes down is elsewhere. When a region is
/// full, its heaps answer null, unless it grows by `RegionCalls::reserve`.
///
/// Memory of any kind will do that can be read and written: a mapped file, shared memory, huge pages, memory that a
/// device sees, a static array. It is used in slices of 16 KiB; what is in front of the first whole one, and behind the last, stays
/// unused. It is never unmapped or given back to the system, but by the program's own functions.
///
/// ```
/// use cairn::{Heap, RegionCalls, RegionId};
///
/// let memory: &'static mut [u8] = vec![0; 1 << 20].leak();
/// # if cfg!(any(feature = "hardened", feature = "secure")) { return }
/// // SAFETY: the memory is there for good, and nobody else uses it.
/// let region = unsafe { RegionId::new(memory.as_mut_ptr(), memory.len(), RegionCalls::default()) };
/// let region = region.expect("memory that is not the allocator's, or a large block of it");
/// let heap = Heap::in_region(region).expect("memory");
/// let block = heap.allocate(100, 16);
/// assert!(memory.as_ptr_range().contains(&block.cast_const()));
/// assert!(heap.allocate(2 << 20, 16).is_null(), "the region has less");
/// heap.destroy();
/// assert!(region.end());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct RegionId(NonZeroUsize);

/// What a region has, in bytes.
///
/// ```
/// let memory: &'static mut [u8] = vec![0; 1 << 20].leak();
/// # if cfg!(any(feature = "hardened", feature = "secure")) { return }
/// // SAFETY: the memory is there for good, and nobody else uses it.
/// let region = unsafe {
///     cairn::RegionId::new(memory.as_mut_ptr(), memory.len(), cairn::RegionCalls::default())
/// };
/// let region = region.expect("a place of its own");
/// let cairn::RegionStats { bytes, used } = region.stats();
/// assert!(bytes > 1 << 19 && used == 0);
/// # assert!(region.end());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionStats {
    /// Of all whole slices.
    pub bytes: usize,
    /// Of those that spans and large blocks have, whatever of them is in use.
    pub used: usize,
}

impl RegionId {
    /// Makes a region of `bytes` bytes at `start`. With 0 bytes, and `reserve` among the calls, it begins with no memory.
    ///
    /// # Safety
    /// The memory can be read and written, or `commit` makes it so, and nobody else uses it until the region ends. It and
    /// the calls' argument stay until then. The calls do what `RegionCalls` says.
    ///
    /// ```
    /// // SAFETY: no memory is given.
    /// let none = unsafe { cairn::RegionId::new(std::ptr::null_mut(), 100, Default::default()) };
    /// assert!(none.is_err());
    /// ```
    pub unsafe fn new(
        start: *mut u8,
        bytes: usize,
        calls: RegionCalls,
    ) -> Result<RegionId, RegionError> {
        let name = regions::make(start, bytes, calls)?;
        NonZeroUsize::new(name).map(RegionId).ok_or(RegionError::NoMemory)
    }

    /// The region of that name, or of none: then each call ends the process.
    ///
    /// ```
    /// # let memory: &'static mut [u8] = vec![0; 1 << 20].leak();
    /// # if cfg!(any(feature = "hardened", feature = "secure")) { return }
    /// # // SAFETY: the memory is there for good, and nobody else uses it.
    /// # let region = unsafe {
    /// #     cairn::RegionId::new(memory.as_mut_ptr(), memory.len(), cairn::RegionCalls::default())
    /// # };
    /// # let region = region.expect("a place of its own");
    /// assert_eq!(cairn::RegionId::from_raw(region.into_raw()), region);
    /// # assert!(region.end());
    /// ```
    #[must_use]
    pub fn from_raw(name: NonZeroUsize) -> RegionId {
        RegionId(name)
    }

    /// A number that no other region has had or will have.
    ///
    /// ```
    /// # let memory: &'static mut [u8] = vec![0; 1 << 20].leak();
    /// # if cfg!(any(feature = "hardened", feature = "secure")) { return }
    /// # // SAFETY: the memory is there for good, and nobody else uses it.
    /// # let region = unsafe {
    /// #     cairn::RegionId::new(memory.as_mut_ptr(), memory.len(), cairn::RegionCalls::default())
    /// # };
    /// # let region = region.expect("a place of its own");
    /// let number = region.into_raw();
    /// assert_eq!(cairn::RegionId::from_raw(number), region);
    /// # assert!(region.end());
    /// ```
    #[must_use]
    pub fn into_raw(self) -> NonZeroUsize {
        self.0
    }

    /// Its number among those there are; ends the process if there is no such region.
    fn number(self) -> usize {
        self.number_for(0)
    }

    /// The same for so many heaps that begin to allocate from it.
    #[inline(never)]
    fn number_for(self, heaps: usize) -> usize {
        os::notice_fork();
        region::number(self.0.get(), heaps).unwrap_or_else(|| {
            let name = core::ptr::without_provenance_mut(self.0.get());
            os::fatal(REGION, name, "no region is here: ended already, or never made")
        })
    }

    /// Makes an owned heap in the region, attached to the calling thread; None if there is no memory for what is noted down
    /// of it. The process ends with a message if there is no such region.
    ///
    /// ```
    /// # let memory: &'static mut [u8] = vec![0; 1 << 20].leak();
    /// # if cfg!(any(feature = "hardened", feature = "secure")) { return }
    /// # // SAFETY: the memory is there for good, and nobody else uses it.
    /// # let region = unsafe {
    /// #     cairn::RegionId::new(memory.as_mut_ptr(), memory.len(), cairn::RegionCalls::default())
    /// # };
    /// # let region = region.expect("a place of its own");
    /// let heap = region.new_owned().expect("memory");
    /// // SAFETY: the heap is there, and this thread's.
    /// unsafe {
    ///     assert!(memory.as_ptr_range().contains(&heap.allocate(100, 16).cast_const()));
    ///     heap.destroy();
    /// }
    /// # assert!(region.end());
    /// ```
    #[must_use]
    pub fn new_owned(self) -> Option<HeapId> {
        let heap = NonNull::new(closed::create(OWNED, Some(self.number_for(1))))?;
        // SAFETY: made just now.
        unsafe { closed::attach(heap.as_ptr()) };
        Some(HeapId(heap))
    }

    /// Makes a shared heap in the region. As `new_owned`.
    ///
    /// ```
    /// # let memory: &'static mut [u8] = vec![0; 1 << 20].leak();
    /// # if cfg!(any(feature = "hardened", feature = "secure")) { return }
    /// # // SAFETY: the memory is there for good, and nobody else uses it.
    /// # let region = unsafe {
    /// #     cairn::RegionId::new(memory.as_mut_ptr(), memory.len(), cairn::RegionCalls::default())
    /// # };
    /// # let region = region.expect("a place of its own");
    /// let heap = region.new_shared().expect("memory");
    /// // SAFETY: the heap is there.
    /// unsafe {
    ///     assert!(heap.is_shared() && !heap.allocate(100, 16).is_null());
    ///     heap.destroy();
    /// }
    /// # assert!(region.end());
    /// ```
    #[must_use]
    pub fn new_shared(self) -> Option<HeapId> {
        NonNull::new(closed::create(SHARED, Some(self.number_for(1)))).map(HeapId)
    }

    /// What it has.
    ///
    /// ```
    /// # let memory: &'static mut [u8] = vec![0; 1 << 20].leak();
    /// # if cfg!(any(feature = "hardened", feature = "secure")) { return }
    /// # // SAFETY: the memory is there for good, and nobody else uses it.
    /// # let region = unsafe {
    /// #     cairn::RegionId::new(memory.as_mut_ptr(), memory.len(), cairn::RegionCalls::default())
    /// # };
    /// # let region = region.expect("a place of its own");
    /// let heap = cairn::Heap::in_region(region).expect("memory");
    /// let block = heap.allocate(100_000, 16);
    /// assert!(region.stats().used >= 100_000);
    /// heap.destroy();
    /// # assert!(region.end());
    /// ```
    #[must_use]
    pub fn stats(self) -> RegionStats {
        let (used, all) = region::counts(self.number());
        RegionStats { bytes: all * SLICE_SIZE, used: used * SLICE_SIZE }
    }

    /// Has the program's `decommit` take the memory that no span and no large block has: how many bytes it has taken.
    ///
    /// ```
    /// # let memory: &'static mut [u8] = vec![0; 1 << 20].leak();
    /// # if cfg!(any(feature = "hardened", feature = "secure")) { return }
    /// # // SAFETY: the memory is there for good, and nobody else uses it.
    /// # let region = unsafe {
    /// #     cairn::RegionId::new(memory.as_mut_ptr(), memory.len(), cairn::RegionCalls::default())
    /// # };
    /// # let region = region.expect("a place of its own");
    /// assert_eq!(region.purge(), 0, "no function takes memory");
    /// # assert!(region.end());
    /// ```
    pub fn purge(self) -> usize {
        // As a heap would, it keeps the region from ending meanwhile.
        let number = self.number_for(1);
        let bytes = region::purge(number);
        region::heap_ends(number);
        bytes
    }

    /// Ends the region: its memory is the program's again. False, and nothing is done, if a heap is in it still, or a block
    /// of a heap that was deleted. Nobody else uses the region meanwhile.
    ///
    /// ```
    /// # let memory: &'static mut [u8] = vec![0; 1 << 20].leak();
    /// # if cfg!(any(feature = "hardened", feature = "secure")) { return }
    /// # // SAFETY: the memory is there for good, and nobody else uses it.
    /// # let region = unsafe {
    /// #     cairn::RegionId::new(memory.as_mut_ptr(), memory.len(), cairn::RegionCalls::default())
    /// # };
    /// # let region = region.expect("a place of its own");
    /// let heap = cairn::Heap::in_region(region).expect("memory");
    /// assert!(!region.end(), "a heap is in it");
    /// heap.destroy();
    /// assert!(region.end());
    /// ```
    #[must_use]
    pub fn end(self) -> bool {
        self.number();
        regions::end(self.0.get())
    }
}

impl Heap {
    /// Makes a heap in a region; None if there is no memory for what is noted down of it.
    ///
    /// ```
    /// # let memory: &'static mut [u8] = vec![0; 1 << 20].leak();
    /// # if cfg!(any(feature = "hardened", feature = "secure")) { return }
    /// # // SAFETY: the memory is there for good, and nobody else uses it.
    /// # let region = unsafe {
    /// #     cairn::RegionId::new(memory.as_mut_ptr(), memory.len(), cairn::RegionCalls::default())
    /// # };
    /// # let region = region.expect("a place of its own");
    /// let heap = cairn::Heap::in_region(region).expect("memory");
    /// assert!(memory.as_ptr_range().contains(&heap.allocate(100, 16).cast_const()));
    /// heap.destroy();
    /// # assert!(region.end());
    /// ```
    #[must_use]
    pub fn in_region(region: RegionId) -> Option<Heap> {
        region.new_owned().map(Heap::of)
    }

    /// The same for all threads.
    ///
    /// ```
    /// # let memory: &'static mut [u8] = vec![0; 1 << 20].leak();
    /// # if cfg!(any(feature = "hardened", feature = "secure")) { return }
    /// # // SAFETY: the memory is there for good, and nobody else uses it.
    /// # let region = unsafe {
    /// #     cairn::RegionId::new(memory.as_mut_ptr(), memory.len(), cairn::RegionCalls::default())
    /// # };
    /// # let region = region.expect("a place of its own");
    /// let heap = cairn::Heap::shared_in_region(region).expect("memory");
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| assert!(memory.as_ptr_range().contains(&heap.allocate(100, 16).cast_const())));
    /// });
    /// heap.destroy();
    /// # assert!(region.end());
    /// ```
    #[must_use]
    pub fn shared_in_region(region: RegionId) -> Option<SharedHeap> {
        region.new_shared().map(SharedHeap::of)
    }
}
