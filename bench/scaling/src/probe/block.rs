//! Blocks from malloc.

use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The least that a block has room for: its size.
const LEAST: usize = 8;

/// A block that carries its size in its first eight bytes.
///
/// Invariant 1: a live block from malloc that belongs to this value alone, of at least
/// 8 bytes, the first eight of which are its size.
pub(super) struct Block(NonNull<usize>);

impl Block {
    /// Allocates; writes the first word and the last byte.
    #[inline(always)]
    pub(super) fn new(size: usize) -> Block {
        let size = size.max(LEAST);
        // SAFETY: malloc takes any size.
        let raw = black_box(unsafe { libc::malloc(size) });
        let block = NonNull::new(raw.cast::<usize>()).expect("memory for a block");
        if size > LEAST {
            // SAFETY: the last byte of a fresh block.
            unsafe { block.cast::<u8>().add(size - 1).write_volatile(1) };
        }
        // SAFETY: a fresh block of at least 8 bytes; malloc aligns those to 8 or more.
        unsafe { block.write_volatile(size) };
        Block(block)
    }

    /// Frees.
    #[inline(always)]
    pub(super) fn free(self) {
        // SAFETY: invariant 1; `self` is consumed, so it is freed once.
        unsafe { libc::free(black_box(self.0.as_ptr()).cast()) };
    }

    /// Its size, which is read from the block.
    #[inline(always)]
    pub(super) fn size(&self) -> usize {
        // SAFETY: invariant 1.
        unsafe { self.0.read_volatile() }
    }

    /// Where it is.
    pub(super) fn address(&self) -> u64 {
        self.0.addr().get() as u64
    }
}

/// A place for one block that threads share.
///
/// Invariant 1: null, or a block that belongs to the slot.
#[derive(Default)]
pub(super) struct Slot(AtomicPtr<usize>);

impl Slot {
    /// Puts a block in, or nothing, and takes out what was there.
    #[inline(always)]
    pub(super) fn swap(&self, block: Option<Block>) -> Option<Block> {
        let block = block.map_or(std::ptr::null_mut(), |block| block.0.as_ptr());
        // What was there belonged to the slot and now to nobody else: Block's invariant.
        NonNull::new(self.0.swap(block, Ordering::AcqRel)).map(Block)
    }

    /// Takes the block out, if there is one. One thread at a time takes from a slot.
    #[inline(always)]
    pub(super) fn take(&self) -> Option<Block> {
        let block = NonNull::new(self.0.load(Ordering::Acquire))?;
        self.0.store(std::ptr::null_mut(), Ordering::Release);
        Some(Block(block))
    }

    /// Puts a block into an empty slot. One thread at a time puts into a slot.
    #[inline(always)]
    pub(super) fn put(&self, block: Block) {
        self.0.store(block.0.as_ptr(), Ordering::Release);
    }

    /// Whether there is nothing in it.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire).is_null()
    }
}
