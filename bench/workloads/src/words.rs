//! Blocks from C's allocation functions that know their length, for the workloads that look
//! at more than the first word: zeroed, aligned, large and growing blocks.

use crate::malloc::{out_of_memory, wrong_contents};
use std::hint::black_box;
use std::ptr::NonNull;

/// Bytes of a page, as the workloads touch them.
pub(crate) const PAGE: usize = 4096;

/// A block seen as 64-bit words. The bytes after the last whole word are not looked at.
///
/// Invariant 1: `start` is a live block of at least `8 * words` bytes, aligned to 8.
pub(crate) struct Words {
    start: NonNull<u64>,
    words: usize,
}

impl Words {
    /// By `malloc`; the contents are whatever was there.
    pub(crate) fn malloc(size: usize) -> Words {
        // SAFETY: malloc takes any size.
        Words::at(unsafe { libc::malloc(size.max(8)) }, size)
    }

    /// By `calloc`.
    pub(crate) fn zeroed(size: usize) -> Words {
        // SAFETY: calloc takes any sizes.
        Words::at(unsafe { libc::calloc(1, size.max(8)) }, size)
    }

    /// By `posix_memalign`, to a power of two of at least 8.
    pub(crate) fn aligned(align: usize, size: usize) -> Words {
        let mut raw = std::ptr::null_mut();
        // SAFETY: posix_memalign writes the one pointer it is given; `align` is checked by it.
        let error = unsafe { libc::posix_memalign(&mut raw, align, size.max(8)) };
        assert_eq!(error, 0, "posix_memalign({align}, {size})");
        Words::at(raw, size).at_multiple(align)
    }

    /// By C11's `aligned_alloc`, with the size rounded up to the alignment as that wants.
    pub(crate) fn aligned_c11(align: usize, size: usize) -> Words {
        let size = size.max(8).next_multiple_of(align);
        // SAFETY: aligned_alloc takes any multiple of a power of two.
        Words::at(unsafe { libc::aligned_alloc(align, size) }, size).at_multiple(align)
    }

    /// Grows by `realloc`; the new part is not touched.
    pub(crate) fn grow(&mut self, size: usize) {
        assert!(size / 8 >= self.words);
        // SAFETY: invariant 1; the old pointer is not looked at any more.
        let raw = unsafe { libc::realloc(black_box(self.start.as_ptr()).cast(), size) };
        std::mem::forget(std::mem::replace(self, Words::at(raw, size)));
    }

    /// What an allocation function returned, for at least 8 bytes.
    #[inline]
    fn at(raw: *mut libc::c_void, size: usize) -> Words {
        let Some(start) = NonNull::new(black_box(raw).cast::<u64>()) else { out_of_memory(size) };
        assert!(start.is_aligned(), "{start:p} is not aligned to 8");
        Words { start, words: size.max(8) / 8 }
    }

    fn at_multiple(self, align: usize) -> Words {
        let address = self.start.addr().get();
        assert!(address.is_multiple_of(align), "{address:#x} is not aligned to {align}");
        self
    }

    /// The place of the last whole word.
    pub(crate) fn last(&self) -> usize {
        self.words - 1
    }

    /// Writes the word at `at`.
    #[inline]
    pub(crate) fn set(&mut self, at: usize, value: u64) {
        assert!(at < self.words);
        // SAFETY: invariant 1 and the bounds check.
        unsafe { self.start.add(at).write_volatile(value) };
    }

    /// Ends the run unless the word at `at` is `value`.
    #[inline]
    pub(crate) fn expect(&self, at: usize, value: u64) {
        assert!(at < self.words);
        // SAFETY: invariant 1 and the bounds check; callers read what calloc zeroed or they wrote.
        let found = unsafe { self.start.add(at).read_volatile() };
        if found != value {
            wrong_contents(value, found);
        }
    }

    /// Writes every byte, as one `memset`.
    #[inline]
    pub(crate) fn fill(&mut self, byte: u8) {
        // SAFETY: invariant 1.
        unsafe { self.start.write_bytes(byte, self.words) };
        black_box(&mut *self);
    }

    /// Writes one word of every page that begins at or after byte `from`, different in each.
    pub(crate) fn mark_pages(&mut self, tag: usize, from: usize) {
        for at in (from.next_multiple_of(PAGE) / 8..self.words).step_by(PAGE / 8) {
            self.set(at, (tag + at) as u64);
        }
    }

    /// Ends the run unless every page has its mark.
    pub(crate) fn check_pages(&self, tag: usize) {
        for at in (0..self.words).step_by(PAGE / 8) {
            self.expect(at, (tag + at) as u64);
        }
    }
}

impl Drop for Words {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: invariant 1; this is the end of the block's one owner.
        unsafe { libc::free(black_box(self.start.as_ptr()).cast()) };
    }
}
