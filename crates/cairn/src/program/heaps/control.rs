//! Owns: what is asked and said of a heap by its name: its end, its tag, what it holds and may hold.
//! Idea: a handle says all of it, so that nothing is walked.
//! Never: allocates.
//! Threads: see each call.
//! Checked: tests/closed.rs, tests/limits.rs
//! Story: docs/design/closed-heaps.md

use super::{HeapId, heap_of};
use crate::base::Ordering;
use crate::closed::Blocks;
use crate::large::HeapStats;
use crate::spans::waiting;
use crate::{closed, map::region, slices::arena, thread};
use core::ptr::null_mut;

impl HeapId {
    /// Ends the heap. Its blocks live on, as if other threads had allocated them.
    ///
    /// # Safety
    /// The heap is there, and nobody uses it any more: an owned one is attached to the calling thread or to none, or its
    /// thread has ended. Its blocks may be used, and freed meanwhile.
    ///
    /// ```
    /// let heap = cairn::HeapId::new_owned().expect("memory");
    /// // SAFETY: the heap is there, and this thread's; the block outlives it.
    /// unsafe {
    ///     let block = heap.allocate(100, 16);
    ///     heap.delete();
    ///     assert_eq!(cairn::heap_of(block), None);
    ///     cairn::deallocate(block);
    /// }
    /// ```
    pub unsafe fn delete(self) {
        // SAFETY: as above.
        unsafe { closed::end(self.0.as_ptr(), Blocks::LiveOn) };
    }

    /// Ends the heap and frees all its blocks at once, with a step for each span and each large block.
    ///
    /// # Safety
    /// As for `delete`, and nobody uses a block of it any more, or is about to free one.
    ///
    /// ```
    /// let heap = cairn::HeapId::new_owned().expect("memory");
    /// // SAFETY: the heap is there, and this thread's; its blocks are of no more use.
    /// unsafe {
    ///     (0..100).for_each(|size| assert!(!heap.allocate(size, 16).is_null()));
    ///     heap.destroy();
    /// }
    /// ```
    pub unsafe fn destroy(self) {
        // SAFETY: as above.
        unsafe { closed::end(self.0.as_ptr(), Blocks::End) };
    }

    /// What the program has said that the heap is; 0 before.
    ///
    /// # Safety
    /// The heap is there.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory");
    /// // SAFETY: the heap is there.
    /// assert_eq!(unsafe { heap.id().tag() }, 0);
    /// ```
    #[must_use]
    pub unsafe fn tag(self) -> usize {
        // SAFETY: as above.
        unsafe { self.0.as_ref() }.tag.load(Ordering::Relaxed)
    }

    /// Says what the heap is, in a number of the program's choice.
    ///
    /// # Safety
    /// The heap is there.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory");
    /// // SAFETY: the heap is there.
    /// unsafe {
    ///     heap.id().set_tag(7);
    ///     assert_eq!(heap.id().tag(), 7);
    /// }
    /// ```
    pub unsafe fn set_tag(self, tag: usize) {
        // SAFETY: as above.
        unsafe { self.0.as_ref() }.tag.store(tag, Ordering::Relaxed);
    }

    /// What the heap holds: no walk, a few loads. Other threads' part of a shared heap is in it.
    ///
    /// # Safety
    /// The heap is there.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory");
    /// // SAFETY: the heap is there.
    /// assert_eq!(unsafe { heap.id().stats() }, cairn::HeapStats::default());
    /// ```
    #[must_use]
    pub unsafe fn stats(self) -> HeapStats {
        // SAFETY: as above.
        unsafe { self.0.as_ref() }.owned.budget.stats()
    }

    /// Limits what the heap may hold in spans and large blocks, in bytes; 0 is no limit. False, and nothing is done, if
    /// it holds more than `hard`, or if `soft` is more than `hard`.
    ///
    /// An allocation for which the heap would need more than `hard` gives back what is free in the heap, but for the parts of
    /// a shared one that other threads use, and fails if that does not help. One that takes it beyond `soft` gives back
    /// what is free, in the process too, and then, if the heap still holds more, calls `told` with the heap and `words`,
    /// once until it has been below. `told` runs on the thread that allocates, inside the allocation; it may allocate and
    /// free, also in this heap, but must not end it or panic. It runs wherever the thread allocates, with the locks and borrows
    /// that the interrupted code holds: it must not wait for one of those (try a lock instead), nor print through what locks
    /// or allocates.
    ///
    /// # Safety
    /// The heap is there. Nobody else sets its limits, or allocates from it, meanwhile.
    ///
    /// ```
    /// let heap = cairn::HeapId::new_owned().expect("memory");
    /// // SAFETY: the heap is there, and this thread's.
    /// unsafe {
    ///     assert!(heap.set_limits(0, 1 << 20, None, [0; 2]));
    ///     assert!(heap.allocate(2 << 20, 16).is_null());
    ///     heap.destroy();
    /// }
    /// ```
    pub unsafe fn set_limits(
        self,
        soft: usize,
        hard: usize,
        told: Option<fn(HeapId, [usize; 2])>,
        words: [usize; 2],
    ) -> bool {
        // SAFETY: as above.
        let budget = &unsafe { self.0.as_ref() }.owned.budget;
        let told = told.map_or(null_mut(), |told| told as *mut ());
        let done = (hard == 0 || soft <= hard) && budget.limit(soft, hard);
        if done {
            budget.set_told(told, words);
        }
        done
    }

    /// Gives what is free in the heap back to the system. Parts of a shared heap that other threads use follow when
    /// these threads next need memory of it. The bytes that went at once.
    ///
    /// # Safety
    /// As for `allocate`.
    ///
    /// ```
    /// let heap = cairn::HeapId::new_owned().expect("memory");
    /// // SAFETY: the heap is there, and this thread's; nobody uses the block.
    /// unsafe {
    ///     cairn::deallocate(heap.allocate(5000, 16));
    ///     heap.purge();
    ///     assert_eq!(heap.stats().spans, 0);
    ///     heap.destroy();
    /// }
    /// ```
    pub unsafe fn purge(self) -> usize {
        crate::os::notice_fork();
        let (name, before) = (self.0.as_ptr(), waiting::given_back());
        thread::defer_in_need();
        // SAFETY: as above.
        unsafe {
            closed::trim_mine(name);
            if closed::is_shared(name) {
                crate::os::notify_all();
            }
        }
        // SAFETY: as above.
        let supplied = unsafe { (*name).owned.region.checked_sub(1) };
        let gone = arena::purge_all().max((waiting::given_back() - before) as usize);
        gone + supplied.map_or(0, region::purge)
    }

    /// From now on classes serve all.
    #[cfg(test)]
    pub(crate) fn use_no_nursery(self) {
        // SAFETY: the test's.
        unsafe { (*self.0.as_ptr()).use_no_nursery() };
    }

    /// Whether the heap is the one that the block at `p` belongs to, or points into.
    ///
    /// ```
    /// let heap = cairn::Heap::new().expect("memory");
    /// let block = heap.allocate(100, 16);
    /// assert!(heap.id().contains(block.wrapping_add(50)) && !heap.id().contains(&0));
    /// # heap.destroy();
    /// ```
    #[must_use]
    pub fn contains(self, p: *const u8) -> bool {
        heap_of(p) == Some(self)
    }
}
