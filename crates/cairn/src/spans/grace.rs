//! Owns: what a heap for lock-free readers keeps for them: freed memory until a grace period is over, and the first bytes
//!   of each free block.
//! Idea: the program counts epochs. An empty span, and a freed large block, wait until the epoch in which they became so is
//!   a safe one. Links of free blocks stand behind the bytes that are kept.
//! Never: decides what a reader may see; calls the program.
//! Threads: any; holds nothing.
//! Checked: tests/grace.rs; the models `graces`.
//! Story: docs/design/closed-heaps.md

use crate::base::{AtomicPtr, AtomicUsize, MIN_ALIGN, Ordering, SizeClass, in_hardened};
use crate::map::Block;
use crate::map::address_map::{self, slice_address, span_index};
use crate::slices::{Leave, Partitions};
use crate::spans::span::Span;
use core::ptr::null_mut;

// Invariants
//  1. What waits since epoch e has become free when the program's epoch was e or earlier, and goes only when `safe` > e.
//  2. A block in `waiting` is in use to everybody else; that it waits its metadata says, not its bytes. Its node stands
//     behind the bytes that are kept.

/// Bytes at the head of a free block that a heap keeps at most, `HeapId::new_concurrent`.
///
/// ```
/// assert!(cairn::HeapId::new_concurrent(cairn::HEAD_MAX + 1).is_none());
/// ```
pub const HEAD_MAX: usize = 256;

/// Bytes that a block has behind its head at least: a link or a node, and what programs have been told.
const NODE_BYTES: usize = 32;

const _: () = assert!(size_of::<Waiting>() <= NODE_BYTES && NODE_BYTES.is_multiple_of(MIN_ALIGN));

/// What waits, as far as a heap has such. All zeros: nothing does, and nothing is kept.
pub(crate) struct Grace {
    /// The program counts epochs. Set before there is a block, cleared when the heap ends.
    is_on: AtomicUsize,
    head: usize,
    now: AtomicUsize,
    safe: AtomicUsize,
    /// Large blocks that have been freed. Relaxed: under the lock of `large::waiting`, as are their nodes.
    waiting: AtomicPtr<Waiting>,
    /// Those of them that have waited long enough. As above.
    due: AtomicPtr<Waiting>,
}

/// Written into a freed large block.
struct Waiting {
    next: *mut Waiting,
    since: usize,
}

impl Grace {
    /// Whether any heap may have readers: the hardened build has none.
    const IS_THERE: bool = in_hardened(1, 0) > 0;

    /// From now on memory waits, and `head` bytes of free blocks are kept.
    pub(crate) fn begin(&mut self, head: usize) {
        debug_assert!(Self::IS_THERE && head <= HEAD_MAX && head.is_multiple_of(MIN_ALIGN));
        self.head = head;
        self.is_on.store(1, Ordering::Relaxed);
    }

    /// Nobody reads any more what is free.
    pub(crate) fn end(&self) {
        // Release: who finds it finds which blocks wait.
        self.is_on.store(0, Ordering::Release);
    }

    /// Whether what becomes free waits.
    pub(crate) fn is_on(&self) -> bool {
        // Acquire: pairs with `end`.
        Self::IS_THERE && self.is_on.load(Ordering::Acquire) != 0
    }

    /// Bytes at the head of a free block that are kept, a multiple of 16.
    pub(crate) fn head(&self) -> usize {
        self.head
    }

    /// The least that a block may have: what is kept, and a link or a node.
    pub(crate) fn least(&self, size: usize) -> usize {
        if self.is_on() { size.max(self.head + NODE_BYTES) } else { size }
    }

    /// Says which epoch it is, and that nobody reads what became free before epoch `safe`, at most the one that it was.
    pub(crate) fn set(&self, now: usize, safe: usize) {
        // SeqCst: whoever frees after this finds it, or has unlinked the block before a reader of that epoch looked.
        let before = self.now.swap(now, Ordering::SeqCst);
        // A reader that has begun since the program looked is of the epoch before, or of a later one.
        // Release: what the readers did came before.
        self.safe.store(safe.min(before), Ordering::Release);
    }

    /// The epoch of what has become free just now.
    fn epoch(&self) -> usize {
        // A step that writes finds the latest value.
        self.now.fetch_add(0, Ordering::SeqCst)
    }

    fn is_over(&self, since: usize) -> bool {
        !self.is_on() || since < self.safe.load(Ordering::Acquire)
    }

    /// Whether a span with no block in use has to wait. Its owner only.
    pub(crate) fn holds(&self, span: &mut Span) -> bool {
        if self.is_on() && span.empty_since == 0 {
            span.empty_since = self.epoch() + 1;
        }
        span.empty_since != 0 && !self.is_over(span.empty_since - 1)
    }

    /// Puts a large block that is being freed to those that wait. Under the caller's lock.
    ///
    /// # Safety
    /// The block is the caller's to free, of a heap whose blocks wait, and has at least `least` bytes.
    pub(crate) unsafe fn keep(&self, p: *mut u8) {
        let node: *mut Waiting = p.wrapping_add(self.head).cast();
        let next = self.waiting.load(Ordering::Relaxed);
        // SAFETY: inside of the block, and aligned.
        unsafe { node.write(Waiting { next, since: self.epoch() }) };
        self.waiting.store(node, Ordering::Relaxed);
    }

    /// Whether any block waits. Most heaps have none: a load tells.
    pub(crate) fn has_waiting(&self) -> bool {
        let has = |list: &AtomicPtr<Waiting>| !list.load(Ordering::Relaxed).is_null();
        Self::IS_THERE && (has(&self.waiting) || has(&self.due))
    }

    /// Takes out a large block whose time has come: the caller's to free. Under the caller's lock.
    pub(crate) fn take_due(&self) -> Option<*mut u8> {
        if self.due.load(Ordering::Relaxed).is_null() {
            self.find_due();
        }
        let at = self.due.load(Ordering::Relaxed);
        // SAFETY: null, or a block that waits.
        self.due.store(unsafe { at.as_ref() }?.next, Ordering::Relaxed);
        Some(at.cast::<u8>().wrapping_sub(self.head))
    }

    /// Sets those apart whose time has come.
    fn find_due(&self) {
        let (mut first, mut due) = (self.waiting.load(Ordering::Relaxed), null_mut());
        let mut place = &raw mut first;
        // SAFETY: null, or blocks that wait, under the lock.
        unsafe {
            while let Some(at) = (*place).as_mut() {
                if self.is_over(at.since) {
                    *place = core::mem::replace(&mut at.next, due);
                    due = at;
                } else {
                    place = &raw mut at.next;
                }
            }
        }
        self.waiting.store(first, Ordering::Relaxed);
        self.due.store(due, Ordering::Relaxed);
    }

    /// None waits. In a forked child: what waits is put there anew.
    pub(crate) fn forget_waiting(&self) {
        self.waiting.store(null_mut(), Ordering::Relaxed);
        self.due.store(null_mut(), Ordering::Relaxed);
    }
}

impl Span {
    /// Says which partition it is of, plus 1, and behind how many bytes of each block links stand. Before it is carved.
    pub(crate) fn begin(&mut self, partition: u8, head: u16) {
        debug_assert!(self.carved == 0);
        self.set_partition(partition);
        self.start = self.start.wrapping_add(usize::from(head));
    }

    /// Says the first of these.
    pub(crate) fn set_partition(&mut self, partition: u8) {
        self.partition = partition;
        Partitions::set_apart(partition, self.index());
    }

    /// The same, asked by any thread of a span of which it has a block.
    ///
    /// # Safety
    /// A slot, in which there is or has been a span: the answer is right only if there is.
    pub(crate) unsafe fn head_of(this: *const Span) -> usize {
        // SAFETY: as above. Volatile: who has no block of it may look while it changes.
        let start = unsafe { (&raw const (*this).start).read_volatile() };
        let class = address_map::descriptor(start).class();
        let base = slice_address(span_index(start, class));
        let head =
            start.addr().wrapping_sub(base.addr()).wrapping_sub(class.layout().slack as usize);
        if head <= HEAD_MAX { head } else { 0 }
    }

    /// Bytes of a free block in front of where its links stand.
    pub(crate) fn head(&self) -> usize {
        self.start.addr() - self.base().addr() - self.layout().slack as usize
    }
}

/// Whether `p`, any value at all, is where the links stand of a block in a span of `class`.
pub(crate) fn is_block_of(class: SizeClass, p: *mut Block) -> bool {
    let p: *mut u8 = p.cast();
    if !address_map::contains(p) {
        return false;
    }
    let d = address_map::descriptor(p);
    if d.class() != class {
        return false;
    }
    let index = span_index(p, class);
    let span: *const Span = d.slot.load(Ordering::Relaxed).cast();
    if span.is_null() {
        return false;
    }
    // SAFETY: a slot: those are never unmapped. Any value of the field will do.
    let start = unsafe { (&raw const (*span).start).read_volatile() };
    let before = start.addr().wrapping_sub(slice_address(index).addr());
    let head = before.wrapping_sub(class.layout().slack as usize);
    head <= HEAD_MAX
        && address_map::span_block(p.wrapping_sub(head)).is_some_and(|(of, _)| of == class)
}
