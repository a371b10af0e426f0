//! Owns: the link that a free block carries in its second word, and lists of such blocks.
//! Idea: a free block needs no memory of its own: its list lives inside it.
//! Never: decides who may touch a block; that is the caller's word.
//! Threads: whoever owns the blocks; holds nothing.
//! Checked: the models follow every list; `Span::check` walks the lists.
//! Story: docs/design/remote-frees.md, docs/design/fast-paths.md

use crate::base::{Apart, HARDENED, Plain, salt, signature};
use crate::os;
use core::ptr::null_mut;

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
    /// What the program has left there; hardened, the link's signature.
    first: Plain<usize>,
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
    end: Block { first: Plain::new(0), link: Plain::new(null_mut()) },
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
pub(crate) fn combined(link: *mut Block, place: *mut Block) -> *mut Block {
    link.map_addr(|link| link ^ LISTS.0.key.get() ^ salt(place.addr()) << 16 >> 16)
}

/// The signature of a link at `place`.
#[inline(always)]
fn signed(link: *mut Block, place: *mut Block) -> usize {
    signature(link.addr(), place.addr(), LISTS.0.key.get())
}

#[inline(always)]
fn is_mark(link: *mut Block) -> bool {
    link.addr() >> MARK_SHIFT == usize::from(MARK)
}

/// A number without the bits that would make it a mark.
pub(crate) fn without_mark(number: usize) -> usize {
    number & ((1 << MARK_SHIFT) - 1)
}

#[cold]
pub(crate) fn overwritten(this: *mut Block) -> ! {
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
        // SAFETY: as above.
        let is_signed = || signed(link, this) == unsafe { (*this).first.get() };
        if !is_mark(link) || HARDENED && !is_signed() {
            overwritten(this);
        }
        combined(link, this)
    }

    /// The same of a block that somebody may be writing to; null if it carries no link now.
    ///
    /// # Safety
    /// `this` is the address of a block, free or not, or `END`. If it is in a region, that does not end meanwhile.
    pub(crate) unsafe fn peek_next(this: *mut Block) -> *mut Block {
        // SAFETY: slices of the reservation stay readable for good, those of a region until it ends.
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
        unsafe {
            let link = combined(next, this);
            (*this).link.set(link);
            if HARDENED {
                (*this).first.set(signed(link, this));
            }
        }
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
        unsafe {
            (*this).link.set(null_mut());
            if HARDENED {
                (*this).first.set(0);
            }
        }
    }

    /// The same by the mark's own bytes: what the program has not been given of that word stays as it is.
    ///
    /// # Safety
    /// As for `unmark`.
    #[inline]
    pub(crate) unsafe fn deface(this: *mut Block) {
        // SAFETY: a live address, and the caller's.
        unsafe { (*this).link.set((*this).link.get().map_addr(without_mark)) }
    }

    /// The link as it stands in memory, which carries the mark.
    ///
    /// # Safety
    /// The caller owns the block.
    #[inline(always)]
    pub(crate) unsafe fn raw_link(this: *mut Block) -> *mut Block {
        // SAFETY: a live address, and the caller's.
        unsafe { (*this).link.get() }
    }
}

/// A list of free blocks of one span, and their number. Two words, which functions pass in registers: through memory a refill
/// waits until all that has been written before has left the processor's store buffer.
#[derive(Clone, Copy)]
pub(crate) struct FreeList {
    /// First block; null or `END` if there is none.
    pub(crate) head: *mut Block,
    /// Number of blocks.
    pub(crate) count: u32,
}

impl FreeList {
    /// No blocks.
    pub(crate) const EMPTY: FreeList = FreeList { head: null_mut(), count: 0 };

    /// In the hardened build, blocks that are at home in a span; no links lead to them.
    pub(crate) const fn at_home(count: u32) -> FreeList {
        FreeList { count, ..FreeList::EMPTY }
    }

    /// Puts `block` in front.
    ///
    /// # Safety
    /// The caller owns `block` and the list.
    #[inline(always)]
    pub(crate) unsafe fn push(&mut self, block: *mut Block) {
        let next = if self.head.is_null() { END } else { self.head };
        // SAFETY: the caller owns `block`.
        unsafe { Block::set_next(block, next) };
        self.head = block;
        self.count += 1;
    }

    /// Ends it behind its first blocks; the rest, or `END`.
    ///
    /// # Safety
    /// The caller owns the list, which has as many and ends in `END`.
    pub(crate) unsafe fn split(&mut self, count: u32) -> *mut Block {
        let mut last = self.head;
        self.count = count;
        // SAFETY: the caller's blocks.
        unsafe {
            (1..count).for_each(|_| last = Block::next(last));
            let rest = Block::next(last);
            Block::set_next(last, END);
            rest
        }
    }
}

/// A list whose other end is known, too: it can go in front of another.
#[derive(Clone, Copy)]
pub(crate) struct Chain {
    pub(crate) list: FreeList,
    /// Last block; its link is the caller's to set. Meaningless if there is none.
    pub(crate) tail: *mut Block,
}

impl Chain {
    /// No blocks.
    pub(crate) const EMPTY: Chain = Chain { list: FreeList::EMPTY, tail: null_mut() };

    /// A chain of one.
    pub(crate) fn one(block: *mut Block) -> Chain {
        Chain { list: FreeList { head: block, count: 1 }, tail: block }
    }

    /// Puts `block` in front.
    ///
    /// # Safety
    /// The caller owns `block` and the chain.
    #[inline(always)]
    pub(crate) unsafe fn push(&mut self, block: *mut Block) {
        if self.list.head.is_null() {
            self.tail = block;
        }
        // SAFETY: the caller's.
        unsafe { self.list.push(block) };
    }
}
