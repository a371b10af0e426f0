//! Owns: the link that a free block carries in its first word, chains of such blocks, and caches: the
//!   lists from which a thread allocates.
//! Idea: a free block needs no memory of its own: its list lives inside it.
//! Never: decides who may touch a block; that is the caller's word.
//! Threads: whoever owns the blocks; holds nothing.
//! Checked: the models follow every chain; `Span::check` walks the lists.
//! Story: docs/design/remote-frees.md

use crate::policy::veiled;
use crate::size_class::{
    CACHE_UNITS, CLASS_COUNT, MASKS, MIN_ALIGN, SMALL_CLASS, SMALL_MAX, SizeClass,
};
use crate::sync::{Ordering, Plain};
use core::ptr::null_mut;
use core::sync::atomic::compiler_fence;

/// A free block, seen as a list node. Every block is at least this large and aligned so.
#[repr(C, align(16))]
pub(crate) struct Block {
    next: Plain<*mut Block>,
}

impl Block {
    /// The block after this one.
    ///
    /// # Safety
    /// `this` is a free block that the caller owns and whose link has been set.
    #[inline(always)]
    pub(crate) unsafe fn next(this: *mut Block) -> *mut Block {
        // SAFETY: a live address, and nobody else touches a free block of the caller's.
        let link = unsafe { (*this).next.get() };
        veiled(link, this.addr())
    }

    /// The same of a block that somebody may be writing to: any value at all may come out.
    ///
    /// # Safety
    /// `this` is the address of a block, free or not.
    pub(crate) unsafe fn peek_next(this: *mut Block) -> *mut Block {
        // SAFETY: blocks are never unmapped while their span exists, and slices stay readable after.
        veiled(unsafe { this.cast::<*mut Block>().read_volatile() }, this.addr())
    }

    /// Links `this` before `next`.
    ///
    /// # Safety
    /// `this` is a free block that the caller owns.
    #[inline(always)]
    pub(crate) unsafe fn set_next(this: *mut Block, next: *mut Block) {
        // SAFETY: a live address, and nobody else touches a free block of the caller's.
        unsafe { (*this).next.set(veiled(next, this.addr())) }
    }
}

/// A null-terminated list of free blocks of one span, with both ends and the length known.
#[derive(Clone, Copy)]
pub(crate) struct Chain {
    /// First block, or null.
    pub(crate) head: *mut Block,
    /// Last block; its link is the caller's to set. Meaningless if `head` is null.
    pub(crate) tail: *mut Block,
    /// Number of blocks.
    pub(crate) count: u32,
}

impl Chain {
    /// No blocks.
    pub(crate) const EMPTY: Chain = Chain { head: null_mut(), tail: null_mut(), count: 0 };

    /// A chain of one.
    pub(crate) fn one(block: *mut Block) -> Chain {
        Chain { head: block, tail: block, count: 1 }
    }

    /// Puts `block` in front.
    ///
    /// # Safety
    /// The caller owns `block` and the chain.
    #[inline(always)]
    pub(crate) unsafe fn push(&mut self, block: *mut Block) {
        // SAFETY: the caller owns `block`.
        unsafe { Block::set_next(block, self.head) };
        if self.head.is_null() {
            self.tail = block;
        }
        self.head = block;
        self.count += 1;
    }
}

/// A list of free blocks for each class, and what the fast paths need to find theirs.
#[repr(C)]
pub(crate) struct Caches {
    first: [*mut Block; CLASS_COUNT],
    small_class: [u8; SMALL_MAX / MIN_ALIGN + 1],
    left: [Limit; CLASS_COUNT],
    /// The classes' masks: a free finds its own by one instruction.
    masks: [u64; CLASS_COUNT],
}

/// How many more freed blocks a cache takes in, in units of which a block has `CACHE_UNITS`. A block that is
/// taken gives them back. A freed one costs one unit more: a loop in which one block comes and goes uses the
/// limit up as well, and comes to a refill. One value, and those just above it, say too that all blocks in the cache are zero but for their
/// links.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Limit(i32);

impl Limit {
    /// What is freed goes home at once.
    pub(crate) const NOTHING: Limit = Limit(0);
    /// The same, and the cache's blocks are zeroed.
    pub(crate) const ZEROED: Limit = Limit(i32::MIN / 2);

    /// Up to the class's limit, what the cache is filled with included.
    #[inline(always)]
    pub(crate) fn of(class: SizeClass) -> Limit {
        Limit(class.layout().cache_limit as i32)
    }
}

impl Caches {
    /// Nothing in any of them.
    pub(crate) const EMPTY: Caches = Caches {
        first: [null_mut(); CLASS_COUNT],
        small_class: SMALL_CLASS,
        left: [Limit::NOTHING; CLASS_COUNT],
        masks: MASKS,
    };

    /// The class for a size up to `SMALL_MAX`.
    ///
    /// # Safety
    /// `size` is no larger.
    #[inline(always)]
    pub(crate) unsafe fn small_class(&self, size: usize) -> SizeClass {
        let step = (size + MIN_ALIGN - 1) >> MIN_ALIGN.trailing_zeros();
        // SAFETY: (SMALL_MAX + 15) / 16 is the last index, and the table has classes in it.
        unsafe { SizeClass::from_number(u32::from(*self.small_class.get_unchecked(step))) }
    }

    /// Pops a block; null if a refill is due.
    ///
    /// # Safety
    /// The caches are the calling thread's, or a stand-in's: those are empty, and only read.
    #[inline(always)]
    pub(crate) unsafe fn pop(this: *mut Caches, class: SizeClass) -> *mut Block {
        // SAFETY: the thread's own, or only read.
        unsafe {
            let first = &raw mut (*this).first[class.index()];
            let block = *first;
            if !block.is_null() {
                *first = Block::next(block);
                (*this).left[class.index()].0 += CACHE_UNITS;
            }
            block
        }
    }

    /// Keeps a freed block for the next allocation: it is warm, and the next refill far. False if
    /// the cache is full, or has been in use for long without a refill.
    ///
    /// # Safety
    /// `block` is a block of `class`, in use, and the caller's to free; the caches are the calling
    /// thread's, and no stand-in's.
    #[must_use]
    #[inline(always)]
    pub(crate) unsafe fn push(this: *mut Caches, class: SizeClass, block: *mut Block) -> bool {
        // SAFETY: the thread's own, and a block that is the caller's to free.
        unsafe {
            let left = &raw mut (*this).left[class.index()].0;
            let now = *left - (CACHE_UNITS + 1);
            *left = now;
            if now < 0 {
                // Without this the compiler takes three instructions more where it is not full.
                compiler_fence(Ordering::SeqCst);
                *left += CACHE_UNITS + 1;
                return false;
            }
            let first = &raw mut (*this).first[class.index()];
            Block::set_next(block, *first);
            *first = block;
        }
        true
    }

    /// Whether a number of `address_map::OwnedBlock` says that a block of `class` starts there.
    #[inline(always)]
    pub(crate) fn is_start(&self, class: SizeClass, number: u64) -> bool {
        number & self.masks[class.index()] == 0
    }

    /// How many more freed blocks the cache of `class` takes in, in units as a layout's limit.
    #[inline(always)]
    pub(crate) fn left(&self, class: SizeClass) -> i32 {
        self.left[class.index()].0
    }

    /// Whether the block just popped is zero but for its link; false is always safe.
    #[inline(always)]
    pub(crate) fn is_zeroed(&self, class: SizeClass) -> bool {
        self.left[class.index()].0 < Limit::ZEROED.0 / 2
    }

    /// The first block of a class, or null.
    pub(crate) fn first(&self, class: SizeClass) -> *mut Block {
        self.first[class.index()]
    }

    /// Makes `list` the cache of `class` and pops its first block.
    ///
    /// # Safety
    /// The list is not empty, and the caller's.
    #[inline(always)]
    pub(crate) unsafe fn fill(
        &mut self,
        class: SizeClass,
        list: Chain,
        limit: Limit,
    ) -> *mut Block {
        // SAFETY: the list is the caller's, and not empty.
        self.first[class.index()] = unsafe { Block::next(list.head) };
        self.left[class.index()].0 = limit.0 - (list.count as i32 - 1) * CACHE_UNITS;
        list.head
    }

    /// Takes all blocks of a class out, a null-terminated list. It takes in none until it is filled.
    pub(crate) fn take_all(&mut self, class: SizeClass) -> *mut Block {
        self.left[class.index()] = Limit::NOTHING;
        core::mem::replace(&mut self.first[class.index()], null_mut())
    }

    /// The first block of a class, read while the caches' thread may be at work.
    ///
    /// # Safety
    /// The caches have been made. What is read may not be so any more.
    pub(crate) unsafe fn peek(this: *const Caches, class: SizeClass) -> *mut Block {
        // SAFETY: never unmapped. Volatile, and plain for the thread.
        unsafe { (&raw const (*this).first[class.index()]).read_volatile() }
    }
}
