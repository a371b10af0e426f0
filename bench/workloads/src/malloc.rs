//! The C functions under test, so that LD_PRELOAD decides whose they are.
//!
//! The compiler knows `malloc` and may delete a pair whose block it can see to the end.
//! Every pointer therefore passes through `black_box`, and every touch is volatile.

use std::ffi::CStr;
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::NonNull;

/// A block from `malloc` that carries a tag in its first eight bytes.
///
/// Two blocks that overlap, or a block that loses its contents, end the run when the
/// tag is checked.
///
/// Invariant 1: the pointer is a live block of at least 8 bytes, aligned to 8.
pub struct Block(NonNull<u64>);

// SAFETY: a block belongs to whoever holds it; malloc and free work from any thread.
unsafe impl Send for Block {}

impl Block {
    /// Allocates and touches the first word only.
    #[inline(always)]
    pub fn new(size: usize, tag: u64) -> Block {
        let size = size.max(8);
        // SAFETY: malloc takes any size.
        let raw = black_box(unsafe { libc::malloc(size) });
        let Some(block) = NonNull::new(raw.cast::<u64>()) else { out_of_memory(size) };
        // SAFETY: a fresh block of at least 8 bytes; malloc aligns those to 8 or more.
        unsafe { block.write_volatile(tag) };
        Block(block)
    }

    /// Allocates and touches the first word and the last byte.
    #[inline(always)]
    pub fn with_ends(size: usize, tag: u64) -> Block {
        let block = Block::new(size, tag);
        if size > 8 {
            // SAFETY: `size - 1` is inside the block, which is ours alone.
            unsafe { block.0.cast::<u8>().add(size - 1).write_volatile(0xa5) };
        }
        block
    }

    /// Allocates and fills every byte after the tag.
    pub fn filled(size: usize, tag: u64) -> Block {
        let block = Block::new(size, tag);
        for at in 8..size {
            // SAFETY: `at` is inside the block, which is ours alone.
            unsafe { block.0.cast::<u8>().add(at).write_volatile(0xa5) };
        }
        block
    }

    /// Allocates and writes every byte, as one `memset`; then the tag.
    #[inline(always)]
    pub fn written(size: usize, tag: u64) -> Block {
        let block = Block::new(size, tag);
        // SAFETY: the block has at least `size` bytes and is ours alone.
        unsafe { block.0.cast::<u8>().write_bytes(0xa5, size) };
        // SAFETY: invariant 1.
        unsafe { block.0.write_volatile(tag) };
        block
    }

    /// Allocates and touches the first word, every page and the last byte.
    #[inline]
    pub fn paged(size: usize, tag: u64) -> Block {
        let block = Block::with_ends(size, tag);
        for at in (4096..size).step_by(4096) {
            // SAFETY: `at` is inside the block, which is ours alone.
            unsafe { block.0.cast::<u8>().add(at).write_volatile(0xa5) };
        }
        block
    }

    /// The address of its first byte.
    pub fn address(&self) -> usize {
        self.0.addr().get()
    }

    /// Ends the run unless the tag is this one; brings the first word into the cache.
    #[inline(always)]
    pub fn check(&self, tag: u64) {
        // SAFETY: invariant 1.
        let found = unsafe { self.0.read_volatile() };
        if found != tag {
            wrong_contents(tag, found);
        }
    }

    /// Touches every page and the last byte of a block that was allocated with `size`.
    ///
    /// # Safety
    ///
    /// It was allocated with at least this size.
    #[inline]
    pub unsafe fn touch_pages(&mut self, size: usize) {
        for at in (4096..size).step_by(4096).chain((size > 8).then(|| size - 1)) {
            // SAFETY: `at` is inside the block, which is ours alone.
            unsafe { self.0.cast::<u8>().add(at).write_volatile(0xa5) };
        }
    }

    /// Adds 1 to the tag, in memory.
    #[inline(always)]
    pub fn bump(&mut self) {
        // SAFETY: invariant 1.
        unsafe { self.0.write_volatile(self.0.read_volatile().wrapping_add(1)) };
    }

    /// The bare pointer; the block lives on.
    #[inline(always)]
    pub fn into_raw(self) -> NonNull<u64> {
        self.0
    }

    /// The block again.
    ///
    /// # Safety
    ///
    /// `raw` came from [`Block::into_raw`] and was not made a block since.
    #[inline(always)]
    pub unsafe fn from_raw(raw: NonNull<u64>) -> Block {
        Block(raw)
    }

    /// Checks the tag and frees.
    #[inline(always)]
    pub fn free(self, tag: u64) {
        // SAFETY: invariant 1.
        let found = unsafe { self.0.read_volatile() };
        if found != tag {
            wrong_contents(tag, found);
        }
        // SAFETY: invariant 1; `self` is consumed, so it is freed once.
        unsafe { libc::free(black_box(self.0.as_ptr()).cast()) };
    }
}

/// A block that only grows, by `realloc`.
///
/// Invariant 1: `start` is null or a live block of `size` bytes.
pub struct Growing {
    start: *mut u8,
    size: usize,
}

impl Growing {
    /// No block yet.
    pub fn new() -> Growing {
        Growing { start: std::ptr::null_mut(), size: 0 }
    }

    /// Grows to `size`; the new part is not touched.
    #[inline]
    pub fn grow(&mut self, size: usize) {
        assert!(size >= self.size);
        // SAFETY: invariant 1, and realloc of null allocates.
        let start = black_box(unsafe { libc::realloc(self.start.cast(), size) });
        if start.is_null() {
            out_of_memory(size);
        }
        (self.start, self.size) = (start.cast(), size);
    }

    /// Writes the byte at `at`.
    #[inline]
    pub fn set(&mut self, at: usize, value: u8) {
        assert!(at < self.size);
        // SAFETY: invariant 1 and the bounds check.
        unsafe { self.start.add(at).write_volatile(value) };
    }

    /// Ends the run unless the byte at `at` is `value`.
    pub fn check(&self, at: usize, value: u8) {
        assert!(at < self.size);
        // SAFETY: invariant 1, the bounds check, and the caller wrote there before.
        let found = unsafe { self.start.add(at).read_volatile() };
        if found != value {
            wrong_contents(value.into(), found.into());
        }
    }
}

impl Default for Growing {
    fn default() -> Self {
        Growing::new()
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        // SAFETY: invariant 1; free takes null.
        unsafe { libc::free(black_box(self.start).cast()) };
    }
}

/// The object file that provides `malloc` in this process.
pub fn provider() -> PathBuf {
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
fn wrong_contents(expected: u64, found: u64) -> ! {
    panic!("wrong contents: expected {expected:#x}, found {found:#x}");
}

#[cold]
#[inline(never)]
fn out_of_memory(size: usize) -> ! {
    panic!("no memory for {size} bytes");
}
