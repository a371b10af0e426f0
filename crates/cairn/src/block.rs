//! Owns: the link that a free block carries in its second word, chains of such blocks, and caches: the
//!   lists from which a thread allocates.
//! Idea: a free block needs no memory of its own: its list lives inside it.
//! Never: decides who may touch a block; that is the caller's word.
//! Threads: whoever owns the blocks; holds nothing.
//! Checked: the models follow every chain; `Span::check` walks the lists.
//! Story: docs/design/remote-frees.md, docs/design/fast-paths.md

use crate::os;
use crate::policy::salt;
use crate::size_class::{CACHE_UNITS, CLASS_COUNT, MASKS, SizeClass};
use crate::sync::{Apart, Ordering, Plain};
use core::ptr::null_mut;
use core::sync::atomic::compiler_fence;

// Invariants
//  1. A block in a list carries its link, combined with a number of the process. Its upper bits are `MARK`, for
//     addresses have none there. A block that the program has been given does not carry it, unless the program
//     writes such a number there itself.
//  2. The last block of a list is followed by `END`, which is no block, and carries no mark: who takes
//     blocks from a list finds its end, and a link that is overwritten, by one comparison.
//  3. So a marked block that is freed has been freed before, or the program has made up the mark, or moved
//     an old one there: that is decided by a look into all lists (`search`).

/// A free block, seen as a list node. Every block is at least this large and aligned so.
#[repr(C, align(16))]
pub(crate) struct Block {
    /// What the program has left there.
    _first: usize,
    link: Plain<*mut Block>,
}

/// The upper bits of every link as it stands in memory. No text in UTF-8 has the byte 0xf6, and few numbers
/// begin so.
const MARK: u16 = 0xf6d5;
const MARK_SHIFT: u32 = 48;

/// What lists need; alone, for it is read by every call and never written. Tools read it: the fields stay in place.
#[repr(C)]
pub(crate) struct Lists {
    end: Block,
    key: Plain<usize>,
}

// SAFETY: the end is never written; the key once, by the thread that makes the reservation, before there is a block.
unsafe impl Sync for Lists {}

pub(crate) static LISTS: Apart<Lists> = Apart(Lists {
    end: Block { _first: 0, link: Plain::new(null_mut()) },
    key: Plain::new((MARK as usize) << MARK_SHIFT),
});

/// What follows the last block of a list.
pub(crate) const END: *mut Block = (&raw const LISTS.0.end).cast_mut();

/// Chooses the process's number, out of a random one; once, by the thread that makes the reservation.
pub(crate) fn set_key(random: usize) {
    LISTS.0.key.set((MARK as usize) << MARK_SHIFT | random >> (usize::BITS - MARK_SHIFT));
}

/// What stands in memory for a link at `place`, and the link for what stands there.
#[inline(always)]
fn combined(link: *mut Block, place: *mut Block) -> *mut Block {
    link.map_addr(|link| link ^ LISTS.0.key.get() ^ salt(place.addr()) << 16 >> 16)
}

#[inline(always)]
fn is_mark(link: *mut Block) -> bool {
    link.addr() >> MARK_SHIFT == usize::from(MARK)
}

#[cold]
fn overwritten(this: *mut Block) -> ! {
    os::fatal("malloc", this.cast(), "this block is free, and the program has written to it")
}

impl Block {
    /// The block after this one.
    ///
    /// # Safety
    /// `this` is a block of a list that the caller owns.
    #[inline]
    pub(crate) unsafe fn next(this: *mut Block) -> *mut Block {
        // SAFETY: a live address, and nobody else touches a free block of the caller's.
        let link = unsafe { (*this).link.get() };
        if !is_mark(link) {
            overwritten(this);
        }
        combined(link, this)
    }

    /// The same of a block that somebody may be writing to; null if it carries no link now.
    ///
    /// # Safety
    /// `this` is the address of a block, free or not, or `END`.
    pub(crate) unsafe fn peek_next(this: *mut Block) -> *mut Block {
        // SAFETY: blocks are never unmapped while their span exists, and slices stay readable after.
        let link = unsafe { (&raw const (*this).link).cast::<*mut Block>().read_volatile() };
        if is_mark(link) { combined(link, this) } else { null_mut() }
    }

    /// Links `this` before `next`.
    ///
    /// # Safety
    /// `this` is a free block that the caller owns.
    #[inline(always)]
    pub(crate) unsafe fn set_next(this: *mut Block, next: *mut Block) {
        // SAFETY: a live address, and nobody else touches a free block of the caller's.
        unsafe { (*this).link.set(combined(next, this)) }
    }

    /// Whether a block that is being freed carries a link, as if it were in a list.
    ///
    /// # Safety
    /// `this` is a block that the caller owns as far as it knows.
    #[inline(always)]
    pub(crate) unsafe fn is_marked(this: *mut Block) -> bool {
        // SAFETY: a live address.
        unsafe { (*this).link.upper_bits() == MARK }
    }

    /// Takes the mark off a block that the program has been given.
    ///
    /// # Safety
    /// The caller owns it.
    #[inline(always)]
    pub(crate) unsafe fn unmark(this: *mut Block) {
        // SAFETY: a live address, and the caller's.
        unsafe { (*this).link.set(null_mut()) };
    }
}

/// A list of free blocks of one span, with both ends and the length known.
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
        let next = if self.head.is_null() { END } else { self.head };
        // SAFETY: the caller owns `block`.
        unsafe { Block::set_next(block, next) };
        if next == END {
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
    pub(crate) const EMPTY: Caches =
        Caches { first: [END; CLASS_COUNT], left: [Limit::NOTHING; CLASS_COUNT], masks: MASKS };

    /// Pops a block; null if a refill is due, or if the program has overwritten the block's link.
    ///
    /// # Safety
    /// The caches are the calling thread's, or a stand-in's: those are empty, and only read.
    #[inline(always)]
    pub(crate) unsafe fn pop(this: *mut Caches, class: SizeClass) -> *mut Block {
        // SAFETY: the thread's own, or only read.
        unsafe {
            let first = &raw mut (*this).first[class.index()];
            let block = *first;
            if !Block::is_marked(block) {
                return null_mut();
            }
            let link = (*block).link.get();
            Block::unmark(block);
            *first = combined(link, block);
            (*this).left[class.index()].0 += CACHE_UNITS;
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

    /// Whether the block just popped is zero; false is always safe.
    #[inline(always)]
    pub(crate) fn is_zeroed(&self, class: SizeClass) -> bool {
        self.left[class.index()].0 < Limit::ZEROED.0 / 2
    }

    /// The first block of a class, or `END`.
    pub(crate) fn first(&self, class: SizeClass) -> *mut Block {
        self.first[class.index()]
    }

    /// Ends the process if the cache of `class`, from which nothing could be popped, is not empty.
    #[inline(always)]
    pub(crate) fn check_end(&self, class: SizeClass) {
        if self.first(class) != END {
            overwritten(self.first(class));
        }
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

    /// Takes all blocks of a class out, as a list. It takes in none until it is filled.
    pub(crate) fn take_all(&mut self, class: SizeClass) -> *mut Block {
        self.left[class.index()] = Limit::NOTHING;
        core::mem::replace(&mut self.first[class.index()], END)
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
