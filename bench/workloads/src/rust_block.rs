//! Blocks from Rust's global allocator, by layout: what a collection asks for, without the
//! collection.

use crate::malloc::wrong_contents;
use std::hint::black_box;
use std::mem::MaybeUninit;

/// A block of at least one byte that carries a tag, made of its address, in its first and
/// last byte and checks it when it goes.
///
/// Invariant 1: the first and the last byte are written.
pub(crate) struct RustBlock(Box<[MaybeUninit<u8>]>);

impl RustBlock {
    /// Allocates; touches the first byte and the last.
    #[inline]
    pub(crate) fn new(size: usize) -> RustBlock {
        let mut block = RustBlock(black_box(Box::new_uninit_slice(size.max(1))));
        block.tag_ends();
        block
    }

    /// Changes the size by `realloc`; what is kept is checked at both ends.
    #[inline]
    pub(crate) fn resize(&mut self, size: usize) {
        let (old, tag) = (self.size(), self.tag());
        let mut bytes = std::mem::take(&mut self.0).into_vec();
        bytes.reserve_exact(size.saturating_sub(old));
        bytes.resize(size.max(1), MaybeUninit::uninit());
        self.0 = black_box(bytes.into_boxed_slice());
        self.expect(0, tag);
        if size >= old {
            self.expect(old - 1, tag);
        }
        self.tag_ends();
    }

    /// Bytes.
    pub(crate) fn size(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn tag(&self) -> u8 {
        // Blocks of a byte may lie next to each other.
        self.0.as_ptr().addr() as u8
    }

    #[inline]
    fn tag_ends(&mut self) {
        let (tag, last) = (self.tag(), self.size() - 1);
        self.0[0].write(tag);
        self.0[last].write(tag);
        black_box(self.0.as_mut_ptr());
    }

    /// The byte at `at`, which is written, has to be `tag`.
    #[inline]
    fn expect(&self, at: usize, tag: u8) {
        // SAFETY: invariant 1; callers look where the tag was written.
        let found = unsafe { self.0[at].assume_init() };
        if found != tag {
            wrong_contents(tag.into(), found.into());
        }
    }
}

impl Drop for RustBlock {
    #[inline]
    fn drop(&mut self) {
        let tag = self.tag();
        self.expect(0, tag);
        self.expect(self.size() - 1, tag);
        // If the block has another owner, it finds this.
        self.0[0].write(!tag);
        black_box(self.0.as_mut_ptr());
    }
}
