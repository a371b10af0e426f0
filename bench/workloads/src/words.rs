//! Blocks from C's allocation functions that know their length, for the workloads that look
//! at more than the first word: zeroed, aligned and large blocks.

use std::hint::black_box;
use std::ptr::NonNull;

/// Bytes of a page, as the workloads touch them.
pub const PAGE: usize = 4096;

/// A block seen as 64-bit words. The bytes after the last whole word are not looked at.
///
/// Invariant 1: `start` is a live block of at least `8 * words` bytes, aligned to 8.
pub struct Words {
    start: NonNull<u64>,
    words: usize,
}

// SAFETY: a block belongs to whoever holds it; the C functions work from any thread.
unsafe impl Send for Words {}

impl Words {
    /// By `malloc`; the contents are whatever was there.
    #[inline]
    pub fn malloc(size: usize) -> Words {
        let size = size.max(8);
        // SAFETY: malloc takes any size.
        Words::checked(unsafe { libc::malloc(size) }, size)
    }

    /// By `calloc`.
    #[inline]
    pub fn zeroed(size: usize) -> Words {
        let size = size.max(8);
        // SAFETY: calloc takes any sizes.
        Words::checked(unsafe { libc::calloc(1, size) }, size)
    }

    /// By `posix_memalign`, a power of two of at least 8.
    #[inline]
    pub fn aligned(align: usize, size: usize) -> Words {
        let size = size.max(8);
        let mut raw = std::ptr::null_mut();
        // SAFETY: posix_memalign writes the one pointer it is given; `align` is checked by it.
        let error = unsafe { libc::posix_memalign(&mut raw, align, size) };
        assert_eq!(error, 0, "posix_memalign({align}, {size})");
        Words::at_multiple(raw, align, size)
    }

    /// By C11's `aligned_alloc`, with the size rounded up to the alignment as that wants.
    #[inline]
    pub fn aligned_c11(align: usize, size: usize) -> Words {
        let size = size.max(8).next_multiple_of(align);
        // SAFETY: aligned_alloc takes any multiple of a power of two.
        let raw = unsafe { libc::aligned_alloc(align, size) };
        Words::at_multiple(raw, align, size)
    }

    fn at_multiple(raw: *mut libc::c_void, align: usize, size: usize) -> Words {
        let block = Words::checked(raw, size);
        let address = block.start.addr().get();
        assert!(address.is_multiple_of(align), "{address:#x} is not aligned to {align}");
        block
    }

    fn checked(raw: *mut libc::c_void, size: usize) -> Words {
        let Some(start) = NonNull::new(black_box(raw).cast::<u64>()) else {
            panic!("no memory for {size} bytes");
        };
        assert!(start.is_aligned(), "{start:p} is not aligned to 8");
        Words { start, words: size / 8 }
    }

    /// Whole words; at least one.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.words
    }

    /// The word at `at`.
    #[inline]
    pub fn get(&self, at: usize) -> u64 {
        assert!(at < self.words);
        // SAFETY: invariant 1 and the bounds check; callers read what calloc zeroed or they
        // wrote.
        unsafe { self.start.add(at).read_volatile() }
    }

    /// Writes the word at `at`.
    #[inline]
    pub fn set(&mut self, at: usize, value: u64) {
        assert!(at < self.words);
        // SAFETY: invariant 1 and the bounds check.
        unsafe { self.start.add(at).write_volatile(value) };
    }

    /// Writes every byte, as one `memset`.
    #[inline]
    pub fn fill(&mut self, byte: u8) {
        // SAFETY: invariant 1.
        unsafe { self.start.write_bytes(byte, self.words) };
        black_box(&mut *self);
    }

    /// Writes one word of every page, different in each.
    pub fn mark_pages(&mut self, tag: u64) {
        for at in (0..self.words).step_by(PAGE / 8) {
            self.set(at, mark(tag, at));
        }
    }

    /// Ends the run unless every page has its mark.
    pub fn check_pages(&self, tag: u64) {
        for at in (0..self.words).step_by(PAGE / 8) {
            self.expect(at, mark(tag, at));
        }
    }

    /// Ends the run unless the word at `at` is `value`.
    #[inline]
    pub fn expect(&self, at: usize, value: u64) {
        let found = self.get(at);
        if found != value {
            wrong(at, value, found);
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

#[cold]
#[inline(never)]
fn wrong(at: usize, expected: u64, found: u64) -> ! {
    panic!("wrong word {at}: expected {expected:#x}, found {found:#x}");
}

fn mark(tag: u64, at: usize) -> u64 {
    tag << 32 | at as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_keeps_its_words() {
        let kinds = [
            Words::malloc(100_000),
            Words::zeroed(100_000),
            Words::aligned(4096, 100_000),
            Words::aligned_c11(64, 100_000),
        ];
        for (tag, mut block) in kinds.into_iter().enumerate() {
            block.fill(0x5a);
            block.mark_pages(tag as u64);
            block.check_pages(tag as u64);
            block.expect(1, 0x5a5a_5a5a_5a5a_5a5a);
        }
        assert!((0..1000).all(|at| Words::zeroed(8000).get(at) == 0));
    }
}
