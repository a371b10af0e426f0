//! A general-purpose memory allocator.
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: cairn::Cairn = cairn::Cairn;
//! # fn main() { drop(vec![1, 2, 3]); }
//! ```
//!
//! # Glossary
//!
//! | word | what it is |
//! | --- | --- |
//! | block | what a program gets |
//! | size class | one of 56 block sizes |
//! | slice | 16 KiB of address space, the unit in which memory is handed around |
//! | span | a run of 1, 4 or 32 slices, cut into blocks of one size class |
//! | large block | a block over 64 KiB: a run of slices of its own, or a mapping of the system's |
//! | reservation | the address space that all slices come from; a prefix of it is committed |
//! | arena | which slices are free, and which of those are dirty: perhaps resident |
//! | descriptor | what any thread may read about a slice: owner, class, the span's metadata |
//! | heap | what one thread allocates from |
//! | closed heap | one whose blocks are its own, for as long as it exists |
//! | owned, shared heap | the program's: one thread at a time uses it; each thread has a part of it |
//! | handle | what the program holds of a heap |
//! | nursery | a piece of a slice for the first blocks of an owned heap, of all sizes |
//! | region | memory that the program supplies for heaps of its own |
//! | readers, grace | threads that read blocks of a heap without a lock; how long a freed block waits for them |
//! | the shared heap | the allocator's own, for threads that need little, under a lock |
//! | store | how free blocks are kept: in lists; hardened, in rows with live bits, canaries, a quarantine |
//! | cache | the free blocks of one class that a thread has ready, up to the class's limit |
//! | mark | the upper bits of the link in a free block: the program has not been given it |
//! | live bit | hardened: in metadata, whether the program has a block |
//! | quarantine | hardened: blocks of a class that have just been freed; they wait |
//! | partition | hardened: one of 16 kinds of objects; its memory never becomes another's |
//! | refill | how an empty cache gets blocks |
//! | owner | the heap that a span belongs to; it alone touches the span's lists |
//! | active span | the span that refills of a class come from |
//! | partial, full | other spans of a heap: with blocks to give, without |
//! | park | to put an owned span into the list where it belongs |
//! | event | a count of frees after which a span changes lists |
//! | local free, remote free | a free by the span's owner, by any other thread |
//! | remote word | the atomic word of a span through which others free into it |
//! | generation | which of the spans that come and go in one place a free is meant for |
//! | destroy | to end a span or a heap, whatever of it is in use |
//! | batch | remote frees to one span that travel together |
//! | abandon | to let go of a span: it has no owner then; with free blocks it is listed |
//! | reclaim | to become the owner of an abandoned span |
//! | carve | to link blocks of a span that have never been used |
//! | reserve, commit, release | to take address space, to put memory behind it, to unmap it |
//! | purge | to give pages back to the system; they read as zeros then |
//! | hole | purged pages inside a span that is in use |
//! | slow tick | one visit of a slow path; each 64th does upkeep |
//! | inside, away | at work on its heap's spans, as a thread says in it; for so long not that others may have them |
//! | quiet | a heap with few slow ticks: each allocation is one, so that upkeep goes on |
//! | guard, bay | an inaccessible page; where a sampled block lies, between two of them |
//! | salvage | in a forked child: to take over the spans of threads that it does not have |
//! | statistics | where every byte is, counted when somebody asks |
//! | page | a page of the operating system's, and nothing else |
//!
//! # The two ladders
//!
//! ```text
//! api::allocate_or                      class by table, Caches::pop
//!   api::allocate_slow                  the cache is empty, or its first block is not marked
//!     api::refill_watched               the heap is sampled: a guarded block in the place of a sample
//!     thread::refill                    first call of a thread; in a crowd, the shared heap
//!       shared::refill                  the first few blocks of a class, if there are other threads
//!       Heap::refill                    own frees, others' frees, abandoned spans, untouched blocks
//!         arena::take_span              a new span
//!   api::allocate_medium                over 1 KiB: class by arithmetic, Caches::pop
//!     api::allocate_large               over 64 KiB: the cached run, a run of slices, or a mapping
//!
//! api::deallocate_named                 own span? a block's start? not marked? Caches::push
//!   Heap::free_home                     the cache is full: into the span
//!     Heap::span_event                  the count has run out
//!   api::deallocate_elsewhere           a closed heap's: home at once; another's span: into the cache, or
//!     Heap::batch_push, thread::send    into a batch, which leaves by one CAS
//!   api::deallocate_marked              in a list? freed twice, which ends the process
//!   api::deallocate_large               null; a run into the large cache, or back to the arena;
//!                                       a mapping; a guarded block; a bad pointer, which ends the process
//! ```
//!
//! ARCHITECTURE.md has the floors, their rooms, and the rules.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(feature = "nightly", feature(allocator_api))]

#[cfg(test)]
extern crate std;

mod api;
mod base;
mod closed;
#[cfg(any(feature = "allocator-api2", feature = "allocator-api2-04"))]
mod containers;
#[cfg(feature = "allocator-api2")]
#[path = "containers"]
mod containers_2 {
    mod allocator;
    use allocator_api2 as version;
}
#[cfg(feature = "allocator-api2-04")]
#[allow(clippy::duplicate_mod, reason = "two versions of a crate have the same trait")]
#[path = "containers"]
mod containers_4 {
    mod allocator;
    use allocator_api2_04 as version;
}
mod heap;
mod large;
mod map;
mod os;
mod program;
mod report;
mod samples;
mod slices;
mod spans;
mod stacks;
mod store;
#[cfg(test)]
mod tests;
mod thread;

/// How values of settings are written: for the C layer.
#[doc(hidden)]
pub use base::values;

/// The examples of the README.
#[cfg(all(doctest, feature = "allocator-api2", feature = "allocator-api2-04"))]
#[doc = include_str!("../README.md")]
struct Pages;

pub use api::{
    PARTITIONS, allocate, allocate_aligned, allocate_aligned_at, allocate_at_least, allocate_batch,
    allocate_in, allocate_zeroed, allocate_zeroed_aligned, allocate_zeroed_in, base, class_sizes,
    deallocate, deallocate_batch, good_size, reallocate, reallocate_aligned, reallocate_in,
    try_expand, usable_size,
};
pub use large::HeapStats;
pub use map::{RegionCalls, RegionError};
pub use program::defragment::should_move;
pub use program::heaps::{
    Area, DetachedHeap, HEAD_MAX, Heap, HeapId, Owned, RegionId, RegionStats, Shared, SharedHeap,
    heap_of, owner_thread, purge, thread_number, visit,
};
pub use program::settings::{BadSetting, Settings};
pub use report::figures::{figure, write_prometheus};
pub use report::json::write_json;
pub use report::memory::{GroupMemory, MemoryUse};
pub use report::profile::write_profile;
pub use report::stats::{Amount, ClassRow, Stats};
pub use samples::DeferredFree;
pub use samples::{ThreadCounts, Told};
pub use slices::arena::{keep_memory, map_nothing_apart, purge_delay_ms, set_purge_delay_ms};
pub use thread::pool::tick;
pub use thread::{
    LowMemory, count, guard_every, on_deferred_free, on_low_memory, profile_every, sample_every,
    set_memory_limits, start_purge_thread, thread_counts, thread_idle,
};

/// For the C layer and for tests: no part of what programs may rely on.
#[doc(hidden)]
pub use {
    api::{
        NoMemory, Null, Resized, allocate_aligned_or, allocate_or, allocate_zeroed_array_or,
        allocate_zeroed_or, bad_size, deallocate_named, has_class_of, keep, may_have_size,
        may_stay, room,
    },
    os::{HUGE_PAGES, first_defined, start_small_thread, system_call, write_all},
    report::outside::{HEADER, Header},
    slices::reservation::set_address_space,
    thread::pool::check,
    thread::{has_purge_thread, see_forks, thread_counts_place},
};

use core::alloc::{GlobalAlloc, Layout};

/// Frees a block; in the hardened build the process ends if that cannot be its layout.
///
/// # Safety
/// As for `deallocate`.
#[inline]
unsafe fn deallocate_as(p: *mut u8, layout: Layout) {
    if base::HARDENED && !may_have_size(p, layout.size(), layout.align(), Resized::Perhaps) {
        bad_size("dealloc", p);
    }
    // SAFETY: as above.
    unsafe { deallocate(p) }
}

/// The allocator as a Rust global allocator.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: cairn::Cairn = cairn::Cairn;
///
/// fn main() {
///     let text = String::from("a block of cairn's");
///     assert_eq!(cairn::base(text.as_ptr()), Some(text.as_ptr().cast_mut()));
/// }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Cairn;

// SAFETY: blocks are disjoint, live until freed, and at least as large and aligned as asked.
unsafe impl GlobalAlloc for Cairn {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocate_aligned(layout.size(), layout.align())
    }

    #[inline]
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: `p` is a live block of this allocator that nobody uses any more.
        unsafe { deallocate_as(p, layout) }
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

/// A partition as an allocator of Rust's.
///
/// ```
/// use std::alloc::{GlobalAlloc, Layout};
///
/// let (keys, layout) = (cairn::Partition::<3>, Layout::array::<u8>(100).unwrap());
/// // SAFETY: the block is freed once, with the layout that it has by then.
/// unsafe {
///     let key = keys.alloc_zeroed(layout);
///     let key = keys.realloc(key, layout, 1000);
///     assert_eq!(*key.add(99), 0);
///     keys.dealloc(key, Layout::array::<u8>(1000).unwrap());
/// }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Partition<const N: usize>;

// SAFETY: as for `Cairn`.
unsafe impl<const N: usize> GlobalAlloc for Partition<N> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        const { assert!(N < PARTITIONS) };
        allocate_in(N, layout.size(), layout.align())
    }

    #[inline]
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: `p` is a live block of this allocator that nobody uses any more.
        unsafe { deallocate_as(p, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        allocate_zeroed_in(N, layout.size(), layout.align())
    }

    #[inline]
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: `p` is a live block of this allocator, and aligned as the layout says.
        unsafe { reallocate_in(N, p, size, layout.align()) }
    }
}
