//! A general-purpose memory allocator.
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: cairn::Cairn = cairn::Cairn;
//! # fn main() { drop(vec![1, 2, 3]); }
//! ```
//!
//! # The words
//!
//! A **block** is what a program gets. A **span** is a run of **slices** (16 KiB each) cut into
//! blocks of one **size class**; a large block owns a run of its own. Slices come from the
//! **reservation**, one reservation of address space, by way of the **arena**. Each thread has a
//! **heap**; a span has at most one **owner**, usually a heap that **owns** it. A **local free**
//! is one by the owner, a **remote free** any other. A full span is let go as an **orphan**;
//! whoever frees into it next takes it over; an abandoned span with free blocks is listed and
//! **reclaimed**. Free memory is **purged** (given back to the system) by time. A **page** is the
//! operating system's.
//!
//! # The two ladders
//!
//! ```text
//! api::allocate                         class by table, pop
//!   thread::refill                      nothing in the list; first call of a thread
//!     Heap::refill                      own frees, others' frees, own spans, abandoned, untouched
//!       arena::take_span                a new span
//!   api::allocate_medium                over 1 KiB: class by arithmetic, pop
//!     large::allocate                   over 64 KiB: a run of slices, or a mapping
//!
//! api::deallocate                       descriptor, own span?, a block's start?, push
//!   Heap::span_event                    the span's last block
//!   api::deallocate_elsewhere           null; verify the pointer
//!     Heap::batch_push; thread::send        another's span: batch, then one CAS
//!     large::free, large::free_mapping
//!     api::bad_pointer                  say so and abort
//! ```
//!
//! ARCHITECTURE.md has the rooms and their rules.
#![cfg_attr(not(test), no_std)]

#[cfg(test)]
extern crate std;

mod block;
mod remote;
mod sync;

mod abandoned;
mod address_map;
mod api;
mod arena;
mod heap;
mod large;
mod os;
mod outside;
mod reservation;
mod size_class;
mod span;
mod stats;
#[cfg(test)]
mod tests;
mod thread;

pub use api::{
    NoMemory, Null, allocate, allocate_aligned, allocate_aligned_or, allocate_or, allocate_zeroed,
    allocate_zeroed_aligned, allocate_zeroed_or, base, check, deallocate, deallocate_named, purge,
    reallocate, reallocate_aligned, usable_size,
};

pub use arena::{purge_delay_ms, set_purge_delay_ms};
pub use heap::tick;
pub use os::{HUGE_PAGES, start_small_thread};
pub use outside::{HEADER, Header};
pub use stats::{Amount, ClassRow, Stats};
pub use thread::{see_forks, start_purge_thread};

use core::alloc::{GlobalAlloc, Layout};

/// The allocator as a Rust global allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cairn;

// SAFETY: blocks are disjoint, live until freed, and at least as large and aligned as asked.
unsafe impl GlobalAlloc for Cairn {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocate_aligned(layout.size(), layout.align())
    }

    #[inline]
    unsafe fn dealloc(&self, p: *mut u8, _layout: Layout) {
        // SAFETY: `p` is a live block of this allocator that nobody uses any more.
        unsafe { deallocate(p) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        allocate_zeroed_aligned(layout.size(), layout.align())
    }

    #[inline]
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: `p` is a live block of this allocator, and aligned as the layout says.
        unsafe { reallocate_aligned(p, size, layout.align()) }
    }
}
