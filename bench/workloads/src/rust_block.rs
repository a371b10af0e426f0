//! Blocks from Rust's global allocator, by layout: what a collection asks for, without the
//! collection.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::hint::black_box;
use std::ptr::NonNull;

/// A block that carries a tag in its first and last byte and checks it when it goes.
///
/// Invariant 1: `start` is a live block of `size` bytes, at least one, of alignment 1, from
/// the global allocator.
pub struct RustBlock {
    start: NonNull<u8>,
    size: u32,
    tag: u8,
}

// SAFETY: a block belongs to whoever holds it; the global allocator works from any thread.
unsafe impl Send for RustBlock {}

impl RustBlock {
    /// Allocates at least one byte; touches the first and the last.
    #[inline]
    pub fn new(size: usize, tag: u8) -> RustBlock {
        let layout = layout(size);
        // SAFETY: the layout is not empty.
        let start = black_box(unsafe { alloc(layout) });
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        let mut block = RustBlock { start, size: layout.size() as u32, tag };
        block.tag_ends();
        block
    }

    /// Changes the size to at least one byte by `realloc`; what is kept is checked at both
    /// ends.
    #[inline]
    pub fn resize(&mut self, size: usize) {
        let (old, new) = (layout(self.size()), layout(size));
        // SAFETY: invariant 1; the new size is not zero.
        let start = black_box(unsafe { realloc(self.start.as_ptr(), old, new.size()) });
        let Some(start) = NonNull::new(start) else { handle_alloc_error(new) };
        (self.start, self.size) = (start, new.size() as u32);
        self.check(0);
        if new.size() >= old.size() {
            self.check(old.size() - 1);
        }
        self.tag_ends();
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// The tag.
    pub fn tag(&self) -> u8 {
        self.tag
    }

    /// Gives the block up, to come back by [`RustBlock::from_raw`].
    pub fn into_raw(self) -> *mut u8 {
        std::mem::ManuallyDrop::new(self).start.as_ptr()
    }

    /// Takes a block back.
    ///
    /// # Safety
    ///
    /// `start` is from [`RustBlock::into_raw`] of a block of this size and tag, and comes
    /// back once.
    pub unsafe fn from_raw(start: *mut u8, size: usize, tag: u8) -> RustBlock {
        let start = NonNull::new(start).expect("a block");
        RustBlock { start, size: size as u32, tag }
    }

    #[inline]
    fn tag_ends(&mut self) {
        let last = self.size() - 1;
        // SAFETY: invariant 1.
        unsafe {
            self.start.write_volatile(self.tag);
            self.start.add(last).write_volatile(self.tag);
        }
    }

    #[inline]
    fn check(&self, at: usize) {
        // SAFETY: invariant 1; callers look where the tag was written, inside the block.
        let found = unsafe { self.start.add(at).read_volatile() };
        if found != self.tag {
            wrong(at, self.tag, found);
        }
    }
}

impl Drop for RustBlock {
    #[inline]
    fn drop(&mut self) {
        self.check(0);
        self.check(self.size() - 1);
        // SAFETY: invariant 1; this is the end of the block's one owner.
        unsafe { dealloc(black_box(self.start.as_ptr()), layout(self.size())) };
    }
}

#[inline]
fn layout(size: usize) -> Layout {
    let Ok(layout) = Layout::from_size_align(size.max(1), 1) else {
        panic!("no layout of {size} bytes")
    };
    layout
}

#[cold]
#[inline(never)]
fn wrong(at: usize, expected: u8, found: u8) -> ! {
    panic!("wrong byte {at}: expected {expected:#x}, found {found:#x}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_survive_growing_and_shrinking() {
        let mut block = RustBlock::new(0, 7);
        assert_eq!(block.size(), 1);
        for size in [3, 100, 100_000, 10, 1, 5000] {
            block.resize(size);
            assert_eq!((block.size(), block.tag()), (size, 7));
        }
        let raw = block.into_raw();
        // SAFETY: given up one line above, with this size and tag.
        drop(unsafe { RustBlock::from_raw(raw, 5000, 7) });
    }
}
