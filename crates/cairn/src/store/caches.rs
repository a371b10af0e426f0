//! Owns: the caches: what a thread allocates from, a list of free blocks for each class.
//! Idea: the last block that was freed is the next to be allocated: it is warm, and found by one load.
//! Never: decides where blocks come from, or whether a list is a heap's.
//! Threads: the one whose caches they are; `peek` any.
//! Checked: `Heap::check`; oracle tests; the hardened build's in tests/quarantine.rs.
//! Story: docs/design/heap.md, docs/design/fast-paths.md

use crate::base::policy::{HARDENED, in_hardened};
use crate::base::size_class::{CLASS_COUNT, MASKS, SizeClass};
use crate::base::sync::Ordering;
use crate::base::tuning::CACHE_UNITS;
use crate::map::block::{Block, Chain, END, combined};
use crate::store::quarantine::{self, Quarantine};
use core::ptr::null_mut;
use core::sync::atomic::compiler_fence;

/// Lists of blocks that caches have; the hardened build's have none.
const LISTS: usize = in_hardened(CLASS_COUNT, 0);

/// A list of free blocks for each class, and what the fast paths need to find theirs.
#[repr(C)]
pub(crate) struct Caches {
    first: [*mut Block; LISTS],
    pub(crate) left: [Limit; CLASS_COUNT],
    /// The classes' masks: a free finds its own by one instruction.
    masks: [u64; CLASS_COUNT],
    /// Nothing in the default build; in the hardened one it takes the place of the lists.
    pub(crate) quarantine: Quarantine,
}

/// How many more freed blocks a cache takes in, in units of which a block has `CACHE_UNITS`. A block that is
/// taken gives them back. A freed one costs one unit more: a loop in which one block comes and goes uses the
/// limit up as well, and comes to a refill. One value, and those just above it, say too that all blocks in the cache are zero but for their
/// links.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Limit(pub(crate) i32);

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
        first: [END; LISTS],
        left: [Limit::NOTHING; CLASS_COUNT],
        masks: MASKS,
        quarantine: Quarantine::EMPTY,
    };

    /// Pops a block; null if a refill is due, or if the program has overwritten the block's link.
    ///
    /// # Safety
    /// The caches are the calling thread's, or a stand-in's: those are empty, and only read.
    #[inline(always)]
    pub(crate) unsafe fn pop(this: *mut Caches, class: SizeClass) -> *mut Block {
        // SAFETY: the thread's own, or only read.
        unsafe {
            if HARDENED {
                return quarantine::pop(&raw mut (*this).quarantine, this.cast(), class);
            }
            let first = &raw mut (*this).first[class.index()];
            let block = *first;
            if !Block::is_marked(block) {
                return null_mut();
            }
            let link = Block::raw_link(block);
            Block::unmark(block);
            *first = combined(link, block);
            (*this).left[class.index()].0 += CACHE_UNITS;
            block
        }
    }

    /// Keeps a freed block for a later allocation: it is warm, and the next refill far. Answers the block that
    /// has to go home instead, if the cache is full, or has been in use for long without a refill; else null.
    ///
    /// # Safety
    /// `block` is a block of `class`, in use, and the caller's to free; the caches are the calling
    /// thread's, and no stand-in's.
    #[must_use]
    #[inline(always)]
    pub(crate) unsafe fn push(
        this: *mut Caches,
        class: SizeClass,
        block: *mut Block,
    ) -> *mut Block {
        // SAFETY: the thread's own, and a block that is the caller's to free.
        unsafe {
            if HARDENED {
                let quarantine = &raw mut (*this).quarantine;
                return quarantine::push(quarantine, this.cast(), class, block);
            }
            let left = &raw mut (*this).left[class.index()].0;
            let now = *left - (CACHE_UNITS + 1);
            *left = now;
            if now < 0 {
                // Without this the compiler takes three instructions more where it is not full.
                compiler_fence(Ordering::SeqCst);
                *left += CACHE_UNITS + 1;
                return block;
            }
            let first = &raw mut (*this).first[class.index()];
            Block::set_next(block, *first);
            *first = block;
        }
        null_mut()
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

    /// Whether the block just popped is zero; false is always safe.
    #[inline(always)]
    pub(crate) fn is_zeroed(&self, class: SizeClass) -> bool {
        match HARDENED {
            true => self.left[class.index()].0 < 0 || quarantine::zeroes_all_of(class),
            false => self.left[class.index()].0 < Limit::ZEROED.0 / 2,
        }
    }

    /// Whether there is no block of a class.
    pub(crate) fn is_empty(&self, class: SizeClass) -> bool {
        if HARDENED { self.quarantine.is_empty(class) } else { self.first(class) == END }
    }

    /// The first block of a class, or `END`.
    pub(crate) fn first(&self, class: SizeClass) -> *mut Block {
        if HARDENED { END } else { self.first[class.index()] }
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
        unsafe {
            self.first[class.index()] = Block::next(list.head);
            Block::unmark(list.head);
        }
        self.left[class.index()].0 = limit.0 - (list.count as i32 - 1) * CACHE_UNITS;
        list.head
    }

    /// Takes all blocks of a class out, as a list; hardened, `quarantine::take_one` does. It takes in none until it is
    /// filled.
    pub(crate) fn take_all(&mut self, class: SizeClass) -> *mut Block {
        self.left[class.index()] = Limit::NOTHING;
        if HARDENED {
            self.quarantine.close(class);
            return END;
        }
        core::mem::replace(&mut self.first[class.index()], END)
    }

    /// The first block of a class, read while the caches' thread may be at work.
    ///
    /// # Safety
    /// The caches have been made. What is read may not be so any more.
    pub(crate) unsafe fn peek(this: *const Caches, class: SizeClass) -> *mut Block {
        if HARDENED {
            return END;
        }
        // SAFETY: never unmapped. Volatile, and plain for the thread.
        unsafe { (&raw const (*this).first[class.index()]).read_volatile() }
    }
}
