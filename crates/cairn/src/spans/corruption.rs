//! Owns: what a program's mistakes leave where free blocks are: in those that have not been handed out yet, and in links.
//! Idea: where the system's zeros are, nothing but zeros may be when blocks are carved: whoever frees one before, or writes
//!   there, leaves a trace. A free does not see it: it would have to read how far the span is carved.
//! Never: believes memory that has been used before: it may hold anything.
//! Threads: the owner of the span, or of the list.
//! Checked: tests/twice.rs
//! Story: docs/why-not.md, docs/guide/misuse.md

use crate::base::SizeClass;
use crate::map::{Block, END, overwritten};
use crate::os;
use crate::spans::grace::is_block_of;
use crate::spans::span::Span;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Ends the process if a cache of a class from which nothing could be popped has a first block: its link is overwritten,
/// or one in front of it has led here, which the program has by now.
#[inline(always)]
pub(crate) fn expect_end(class: SizeClass, first: *mut Block) {
    if first != END {
        end_at(class, first);
    }
}

#[cold]
#[inline(never)]
fn end_at(class: SizeClass, first: *mut Block) -> ! {
    if is_block_of(class, first) {
        overwritten(first);
    }
    os::fatal("malloc", first.cast(), LED_ASTRAY)
}

/// No block is there.
const LED_ASTRAY: &str = "a free block's link leads here: the program has written to that block";

/// Has the system give the pages of blocks of `size` for writing, from `at` on, as far as the last block, `bytes` behind it.
/// Where they are read first, it gives its page of zeros, and the first write takes a second fault.
///
/// # Safety
/// The memory is the caller's.
unsafe fn make_writable(at: *mut u8, bytes: usize, size: usize) {
    let (mut at, last) = (at, at.wrapping_add(bytes));
    loop {
        // SAFETY: blocks of the caller's, aligned to more than a word.
        let word = unsafe { AtomicUsize::from_ptr(at.cast()) };
        // To the processor it writes, whatever is there; no value changes. Relaxed: the caller's own memory.
        let _ = word.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
        if at == last {
            return;
        }
        at = last.min(at.wrapping_add(size.max(LEAST_PAGE)));
    }
}

/// The least page that any system has.
const LEAST_PAGE: usize = 4096;

impl Span {
    /// Ends the process if one of `count` blocks from number `first` on, which are zero, has something where its link will
    /// stand: the program has freed it, or has written to it, and may have it already.
    #[inline(always)]
    pub(crate) fn expect_untouched(&self, first: usize, count: usize) {
        let size = self.layout().size as usize;
        let mut at = self.start.wrapping_add(first * size);
        // SAFETY: untouched blocks are the owner's.
        unsafe { make_writable(at, (count - 1) * size, size) };
        for _ in 0..count {
            // SAFETY: untouched blocks are the owner's.
            if !unsafe { Block::raw_link(at.cast()) }.is_null() {
                overwritten(at.cast());
            }
            at = at.wrapping_add(size);
        }
    }
}
