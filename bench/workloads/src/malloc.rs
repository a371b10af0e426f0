//! Blocks from the C functions under test, so that LD_PRELOAD decides whose they are.
//!
//! The compiler knows `malloc` and may delete a pair whose block it can see to the end.
//! Every pointer therefore passes through `black_box`, and every touch is volatile.

use std::ffi::CStr;
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::NonNull;

/// The smallest and largest request of the many workloads with "small" blocks.
pub(crate) const SMALL: std::ops::RangeInclusive<usize> = 16..=1024;

/// A block from `malloc` whose first eight bytes are a tag, made of its address.
///
/// The tag is checked, then wiped, when the block is freed. So these end the run: two blocks
/// that overlap, a block that loses its contents, a block that was given to two owners.
///
/// Invariant 1: the pointer is a live block of at least 8 bytes, aligned to 8.
pub(crate) struct Block(NonNull<u64>);

// SAFETY: a block belongs to whoever holds it; malloc and free work from any thread.
unsafe impl Send for Block {}

impl Block {
    /// Allocates and touches the first word only.
    #[inline(always)]
    pub(crate) fn new(size: usize) -> Block {
        let size = size.max(8);
        // SAFETY: malloc takes any size.
        let raw = black_box(unsafe { libc::malloc(size) });
        let Some(start) = NonNull::new(raw.cast::<u64>()) else { out_of_memory(size) };
        let block = Block(start);
        // SAFETY: a fresh block of at least 8 bytes; malloc aligns those to 8 or more.
        unsafe { block.0.write_volatile(block.tag()) };
        block
    }

    /// Allocates and touches the first word and the last byte.
    #[inline(always)]
    pub(crate) fn with_ends(size: usize) -> Block {
        let block = Block::new(size);
        if size > 8 {
            // SAFETY: `size - 1` is inside the block, which is ours alone.
            unsafe { block.0.cast::<u8>().add(size - 1).write_volatile(0xa5) };
        }
        block
    }

    /// Allocates and writes every byte, as one `memset`; then the tag.
    #[inline(always)]
    pub(crate) fn written(size: usize) -> Block {
        let block = Block::new(size);
        // SAFETY: invariant 1; the block has at least `size` bytes and is ours alone.
        unsafe {
            block.0.cast::<u8>().write_bytes(0xa5, size);
            block.0.write_volatile(block.tag());
        }
        block
    }

    /// Allocates and touches the first word, every page and the last byte.
    #[inline]
    pub(crate) fn paged(size: usize) -> Block {
        let mut block = Block::with_ends(size);
        // SAFETY: it was allocated with this size.
        unsafe { block.touch_pages(size) };
        block
    }

    /// Touches every page but the first.
    ///
    /// # Safety
    ///
    /// The block was allocated with at least this size.
    #[inline]
    pub(crate) unsafe fn touch_pages(&mut self, size: usize) {
        for at in (4096..size).step_by(4096) {
            // SAFETY: `at` is inside the block, which is ours alone.
            unsafe { self.0.cast::<u8>().add(at).write_volatile(0xa5) };
        }
    }

    pub(crate) fn address(&self) -> usize {
        self.0.addr().get()
    }

    /// Ends the run unless the tag is there; brings the first word into the cache.
    #[inline(always)]
    pub(crate) fn check(&self) {
        // SAFETY: invariant 1.
        let found = unsafe { self.0.read_volatile() };
        if found != self.tag() {
            wrong_contents(self.tag(), found);
        }
    }

    /// Adds to the tag, in memory. Whoever does has to take it off again.
    #[inline(always)]
    pub(crate) fn add(&mut self, delta: u64) {
        // SAFETY: invariant 1.
        unsafe { self.0.write_volatile(self.0.read_volatile().wrapping_add(delta)) };
    }

    /// Not a link that an allocator would leave in a free block.
    #[inline(always)]
    fn tag(&self) -> u64 {
        !(self.address() as u64)
    }
}

impl Drop for Block {
    #[inline(always)]
    fn drop(&mut self) {
        self.check();
        // SAFETY: invariant 1; this is the end of the block's one owner.
        unsafe {
            self.0.write_volatile(0);
            libc::free(black_box(self.0.as_ptr()).cast());
        }
    }
}

/// The object file that provides `malloc` in this process.
pub(crate) fn provider() -> PathBuf {
    // SAFETY: the name is a C string; `info` is only read when dladdr says it filled it, and
    // its file name then belongs to the loader for as long as the object stays loaded.
    let name = unsafe {
        let malloc = libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr());
        let mut info = std::mem::zeroed::<libc::Dl_info>();
        if malloc.is_null() || libc::dladdr(malloc, &mut info) == 0 || info.dli_fname.is_null() {
            return PathBuf::new();
        }
        CStr::from_ptr(info.dli_fname)
    };
    PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes()))
}

#[cold]
#[inline(never)]
pub(crate) fn wrong_contents(expected: u64, found: u64) -> ! {
    panic!("wrong contents: expected {expected:#x}, found {found:#x}");
}

#[cold]
#[inline(never)]
pub(crate) fn out_of_memory(size: usize) -> ! {
    panic!("no memory for {size} bytes");
}

#[cfg(test)]
mod tests {
    use super::Block;

    #[test]
    fn a_changed_word_is_found() {
        let mut block = Block::new(16);
        block.add(1);
        assert!(std::panic::catch_unwind(|| block.check()).is_err());
        block.add(1u64.wrapping_neg());
    }
}
