//! Owns: the link that a free block carries in its first word, and chains of such blocks.
//! Idea: a free block needs no memory of its own: its list lives inside it.
//! Never: decides who may touch a block; that is the caller's word.
//! Threads: whoever owns the blocks; holds nothing.
//! Checked: the models follow every chain; `Span::check` walks the lists.
//! Story: docs/design/remote-frees.md

use crate::sync::Plain;
use core::ptr::null_mut;

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
        unsafe { (*this).next.get() }
    }

    /// Links `this` before `next`.
    ///
    /// # Safety
    /// `this` is a free block that the caller owns.
    #[inline(always)]
    pub(crate) unsafe fn set_next(this: *mut Block, next: *mut Block) {
        // SAFETY: a live address, and nobody else touches a free block of the caller's.
        unsafe { (*this).next.set(next) }
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
