//! Owns: what a thread's caches do, and those of the default build: a list of free blocks for each class.
//! Idea: the last block that was freed is the next to be allocated: it is warm, and found by one load.
//! Never: decides where blocks come from, or whether a list is a heap's.
//! Threads: the one whose caches they are; `peek` any.
//! Checked: `Heap::check`; oracle tests; the hardened build's in tests/quarantine.rs.
//! Story: docs/design/heap.md, docs/design/fast-paths.md

use crate::base::{CACHE_UNITS, CLASS_COUNT, MASKS, Ordering, SizeClass};
use crate::map::{Block, END, FreeList, combined};
use crate::store::filling::Filling;
use core::{ptr::null_mut, sync::atomic::compiler_fence};

/// How many more freed blocks a cache takes in, in units of which a block has `CACHE_UNITS`. A block that is
/// taken gives them back. A freed one costs one unit more: a loop in which one block comes and goes uses the
/// limit up as well, and comes to a refill. One value, and those just above it, say too that all blocks in the cache are zero but for their
/// links.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct Limit(pub(crate) i32);

impl Limit {
    /// What is freed goes home at once.
    pub(crate) const NOTHING: Limit = Limit(0);
    /// The same, until a refill of a heap whose samples are drawn by chance.
    pub(crate) const NOTHING_MORE: Limit = Limit(-1);
    /// The same, and the cache's blocks are zeroed.
    pub(crate) const ZEROED: Limit = Limit(i32::MIN / 2);

    /// Up to the class's limit, what the cache is filled with included.
    #[inline(always)]
    pub(crate) fn of(class: SizeClass) -> Limit {
        Limit(class.layout().cache_limit as i32)
    }

    /// Whether it says that the cache's blocks are zeroed.
    #[inline(always)]
    pub(crate) fn is_zeroed(self) -> bool {
        self.0 < Limit::ZEROED.0 / 2
    }
}

/// What the caches of both builds have.
#[repr(C)]
pub(crate) struct Limits {
    pub(crate) left: [Limit; CLASS_COUNT],
    /// The classes' masks: a free finds its own by one instruction.
    masks: [u64; CLASS_COUNT],
}

impl Limits {
    /// They take in nothing.
    pub(crate) const NOTHING: Limits = Limits { left: [Limit::NOTHING; CLASS_COUNT], masks: MASKS };
}

/// The caches: free blocks of each class, and what the fast paths need to find theirs.
pub(crate) trait Store: Sized {
    /// Nothing in any of them.
    const EMPTY: Self;
    /// Bytes that they have behind the heap.
    const BEHIND_BYTES: usize;
    /// Whether one has blocks of several of the heap's spans: each keeps its span, and none may be looked for there.
    const IS_MIXED: bool;

    /// How much they take in.
    fn limits(&self) -> &Limits;

    /// How many more freed blocks the cache of `class` takes in, in units as a layout's limit.
    #[inline(always)]
    fn left(&self, class: SizeClass) -> i32 {
        self.limits().left[class.index()].0
    }

    /// Whether a number of `address_map::OwnedBlock` says that a block of `class` starts there.
    #[inline(always)]
    fn is_start(&self, class: SizeClass, number: u64) -> bool {
        number & self.limits().masks[class.index()] == 0
    }

    /// As many of so many blocks as one may be filled with.
    fn most(wanted: u32) -> u32;

    /// Pops a block; null if a refill is due, or if the program has overwritten the block's link.
    ///
    /// # Safety
    /// The caches are the calling thread's, or a stand-in's: those are empty, and only read.
    unsafe fn pop(this: *mut Self, class: SizeClass) -> *mut Block;

    /// Keeps a freed block for a later allocation. Answers the block that has to go home instead, if the cache is full, or
    /// has been in use for long without a refill; else null.
    ///
    /// # Safety
    /// `block` is a block of `class`, the caller's to free, and not the program's any more; the caches are the calling
    /// thread's, and no stand-in's.
    #[must_use]
    unsafe fn push(this: *mut Self, class: SizeClass, block: *mut Block) -> *mut Block;

    /// Makes a freed block, which goes to another's span, as it would be in a cache.
    ///
    /// # Safety
    /// It is a block of `class`, the caller's to free.
    unsafe fn prepare(_block: *mut Block, _class: SizeClass) {}

    /// Makes `list` the cache of `class`, which is empty, and pops its first block. Where no links lead to the blocks of the
    /// list, `find` finds so many.
    ///
    /// # Safety
    /// The list is not empty, and the caller's; the caches are the calling thread's.
    unsafe fn fill(
        this: *mut Self,
        class: SizeClass,
        list: FreeList,
        limit: Limit,
        find: impl FnOnce(u32, &mut Filling),
    ) -> *mut Block;

    /// Whether the block just popped is zero; false is always safe.
    fn is_zeroed(&self, class: SizeClass) -> bool;

    /// Whether there is no block of a class.
    fn is_empty(&self, class: SizeClass) -> bool;

    /// The first block of a class, or `END`, and always that where there are no lists.
    fn first(&self, class: SizeClass) -> *mut Block;

    /// Takes all blocks of a class out, as a list, but for those that `take_one` takes. It takes in none until it is filled.
    fn take_all(&mut self, class: SizeClass) -> *mut Block;

    /// The first block of a class as `first` says it, read while the caches' thread may be at work.
    ///
    /// # Safety
    /// The caches have been made. What is read may not be so any more.
    unsafe fn peek(this: *const Self, class: SizeClass) -> *mut Block;

    /// What tells how many blocks are allocated until the next refill.
    fn tells(&self, class: SizeClass) -> i32;

    /// How many a refill has told of, by what was told before it and is told after it: the blocks of the cache, and those
    /// that have come back to it and been allocated again.
    fn told(class: SizeClass, before: i32, after: i32) -> i32;

    /// Whether a cache in a loop, refilled by what has been freed or not, uses up what it takes in.
    fn comes_to_refills(freed: bool) -> bool;

    /// Whether it is time for a slow tick, where freed blocks are made ready.
    fn is_tick(&self) -> bool {
        false
    }

    /// Where none is ready, makes those that wait ready, and pops one; null if a refill finds more.
    ///
    /// # Safety
    /// The caches are the calling thread's.
    unsafe fn turn(_this: *mut Self, _class: SizeClass) -> *mut Block {
        null_mut()
    }

    /// Takes a block of a class out that is meant, and is in no list; null if there is none.
    ///
    /// # Safety
    /// The caches are the calling thread's.
    unsafe fn take_one(
        _this: *mut Self,
        _class: SizeClass,
        _is_meant: impl Fn(*mut Block) -> bool,
    ) -> *mut Block {
        null_mut()
    }

    /// How many blocks of a class are in no list, while the caches' thread may be at work.
    ///
    /// # Safety
    /// The caches have been made.
    unsafe fn peek_len(_this: *const Self, _class: SizeClass) -> usize {
        0
    }

    /// Forgets all blocks that are in no list: their spans are gone.
    ///
    /// # Safety
    /// The caches are the caller's.
    unsafe fn forget(_this: *mut Self) {}
}

/// The default build's.
#[repr(C)]
pub(crate) struct Lists {
    first: [*mut Block; CLASS_COUNT],
    pub(crate) limits: Limits,
}

impl Store for Lists {
    const EMPTY: Lists = Lists { first: [END; CLASS_COUNT], limits: Limits::NOTHING };
    const BEHIND_BYTES: usize = 0;
    const IS_MIXED: bool = false;

    #[inline(always)]
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn most(wanted: u32) -> u32 {
        wanted
    }

    #[inline(always)]
    unsafe fn pop(this: *mut Lists, class: SizeClass) -> *mut Block {
        // SAFETY: the thread's own, or only read.
        unsafe {
            let first = &raw mut (*this).first[class.index()];
            let block = *first;
            if !Block::is_marked(block) {
                return null_mut();
            }
            let link = Block::raw_link(block);
            Block::unmark(block);
            *first = combined(link, block);
            (*this).limits.left[class.index()].0 += CACHE_UNITS;
            block
        }
    }

    /// It is warm, and the next refill far.
    #[inline(always)]
    unsafe fn push(this: *mut Lists, class: SizeClass, block: *mut Block) -> *mut Block {
        // SAFETY: the thread's own, and a block that is the caller's to free.
        unsafe {
            let left = &raw mut (*this).limits.left[class.index()].0;
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

    #[inline(always)]
    unsafe fn fill(
        this: *mut Lists,
        class: SizeClass,
        list: FreeList,
        limit: Limit,
        _find: impl FnOnce(u32, &mut Filling),
    ) -> *mut Block {
        // SAFETY: the list is the caller's, and not empty; the thread's own.
        unsafe {
            (*this).first[class.index()] = Block::next(list.head);
            Block::unmark(list.head);
            (*this).limits.left[class.index()].0 = limit.0 - (list.count as i32 - 1) * CACHE_UNITS;
        }
        list.head
    }

    #[inline(always)]
    fn is_zeroed(&self, class: SizeClass) -> bool {
        self.limits().left[class.index()].is_zeroed()
    }

    fn is_empty(&self, class: SizeClass) -> bool {
        self.first(class) == END
    }

    fn first(&self, class: SizeClass) -> *mut Block {
        self.first[class.index()]
    }

    fn take_all(&mut self, class: SizeClass) -> *mut Block {
        self.limits.left[class.index()] = Limit::NOTHING;
        core::mem::replace(&mut self.first[class.index()], END)
    }

    unsafe fn peek(this: *const Lists, class: SizeClass) -> *mut Block {
        // SAFETY: never unmapped. Volatile, and plain for the thread.
        unsafe { (&raw const (*this).first[class.index()]).read_volatile() }
    }

    fn tells(&self, class: SizeClass) -> i32 {
        self.left(class)
    }

    fn told(class: SizeClass, before: i32, after: i32) -> i32 {
        // Each free into the cache has cost a unit for good (see `Limit`).
        let limit = class.layout().cache_limit as i32;
        let again = if before > 0 { limit.saturating_sub(before) } else { 0 };
        // Two of the three limits that a cache starts with are multiples of this, and so of what a block counts for.
        const MULTIPLE: i32 = 1 << 30;
        let is_limit = after.rem_euclid(CACHE_UNITS) != 0;
        let taken = if is_limit { limit - after } else { after.wrapping_neg() % MULTIPLE };
        again + taken / CACHE_UNITS
    }

    fn comes_to_refills(freed: bool) -> bool {
        freed
    }
}
