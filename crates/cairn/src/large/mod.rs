//! Owns: blocks too large for spans: a run of slices each, and how they grow and shrink.
//! Idea: grow into free neighbours if they are there, else move pages; bytes are copied only
//!   where that is cheaper than moving pages.
//! Never: knows heaps or size classes' tables.
//! Threads: any; takes the arena's lock or the mappings', one at a time.
//! Checked: oracle tests with contents; fault injection.
//! Story: docs/design/large-blocks.md

mod awaiting_readers;
pub(crate) mod budget;
mod cached;
mod colours;
mod fill_guess;
mod free_runs;
mod mapping;
mod nursery;
mod owned;
mod requested;
mod sampled;
mod tuning;
mod zeroing;

pub(crate) use awaiting_readers::{Kept, end_readers, free_due, is_read_by_others, keep, waits};
pub(crate) use budget::Budget;
pub use budget::HeapStats;
pub(crate) use cached::{cache, cached_run, drop_cached, take_cached};
pub(crate) use mapping::{
    Mapping, Mappings, PLACE as MAPPINGS_PLACE, base_of as mapping_base, behind as mapping_behind,
    free as free_mapping, reallocate as reallocate_mapping, usable_size as mapping_usable_size,
};
pub(crate) use owned::{
    OWNER_OFFSETS, Owned, allocate_owned, destroy, owner_of, set_free,
    settle_in_child as settle_owned_in_child,
};
pub(crate) use requested::{Size, Sizes, grant};
pub(crate) use sampled::{mark_sample, unmark_sample};
pub(crate) use zeroing::zero;

pub(crate) use nursery::{
    Care, NURSERY_BYTES, Nurse, Nursery, account as nursery_account, all as nurseries,
    around as nursery_around, block_around as nursery_block, free as free_in_nursery,
    put as put_nursery, salvage as salvage_nurseries, take as take_nursery,
    usable_size as nursery_usable,
};

#[cfg(test)]
pub(crate) use {
    mapping::MAPPINGS, nursery::fork::hold as hold_nurseries,
    nursery::hardened::rows as rows_of_nurseries, owned::OWNED,
};

pub(crate) use colours::COLOUR_STEP;
use colours::{COLOURS, colour_room, next_colour};
use fill_guess::{forget, grown, has_credit, remember, use_credit, will_be_filled};
use free_runs::{Look, allocate_free_run, before_aligned, take_free};

use crate::base::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, CANARY_BYTES, MEDIUM_MAX, Ordering, SLICE_SIZE,
    SizeClass,
};
use crate::large::tuning::{AS_USED_MIN, EXTEND_MAX, MAPPING_MIN, MOVE_MIN, RUN_ALIGN_MAX};
use crate::map::{Bit, OWNER_LARGE, OWNER_NONE, Slot, address_map, region};
use crate::os;
use crate::slices::{Memory, Use, arena, limit};
use core::ptr::null_mut;

// Invariants
//  1. The run's first slice has descriptor owner LARGE, and its `heads` bit set in the arena;
//     the others' owner is NONE: no address inside a large block but its start can be freed.
//     The same with owner NONE if a heap keeps the run for its next block.
//  2. start - first slice < an OS page of colour, or 0, or what the program has asked for, less than a slice; start +
//     usable + CANARY_BYTES = the run's end.

/// Metadata of a block that is a run of slices. Relaxed throughout: it is used by whoever may use
/// the block; an account reads it meanwhile, and takes any value (`run_of`).
#[repr(C, align(64))]
pub(crate) struct Large {
    start: AtomicPtr<u8>,
    slices: AtomicUsize,
    /// It has grown in place: the next time it gets room to spare.
    has_grown: AtomicBool,
    /// The kernel may back it by huge pages.
    huge: AtomicBool,
    /// It has been freed, and waits for its heap's readers.
    waits: AtomicBool,
    /// It is a sample of the heap profile.
    sampled: AtomicBool,
    /// Of a slice of nurseries: those that no heap has, a bit each.
    free: AtomicU8,
    /// The closed heap that it belongs to, if any; or the next slice of nurseries.
    link: owned::Link,
    /// Of a slice of nurseries: what is known of each.
    nurseries: AtomicPtr<Nursery>,
    /// Hardened: bytes that the program has of it.
    asked: AtomicUsize,
}

const _: () = assert!(size_of::<Large>() <= size_of::<Slot>());

/// A block, and whether its bytes are known to be zero.
pub(crate) struct Allocated {
    /// The block, or null.
    pub(crate) block: *mut u8,
    /// Its bytes are zero.
    pub(crate) zero: bool,
    /// None of its pages is resident.
    untouched: bool,
}

impl Allocated {
    pub(crate) const NONE: Allocated =
        Allocated { block: null_mut(), zero: false, untouched: false };
}

/// Allocates a block of `size` bytes, `at` bytes behind a multiple of `align`, less than that.
#[cold]
pub(crate) fn allocate_at(size: usize, align: usize, at: usize) -> Allocated {
    // What else comes here, samples and what a region or a limit has no span for, says nothing of large blocks.
    let is_large = size > MEDIUM_MAX;
    let filled = is_large && will_be_filled(size);
    let as_used = filled && size >= AS_USED_MIN;
    let mut got = Allocated::NONE;
    let is_run = size < MAPPING_MIN || !arena::maps_apart();
    if is_run && align <= RUN_ALIGN_MAX {
        let used = match filled {
            false => Use::Sparse,
            true if as_used || !has_credit() => Use::Filled,
            true => Use::Backed,
        };
        got = allocate_run(size.max(1), [align, at], used, as_used);
    }
    if got.block.is_null() {
        let used = if filled { Use::Filled } else { Use::Sparse };
        got = mapping::allocate(size, [align, at], used);
        // The system has no more: what is free has been mapped, and stays, wherever it is.
        if got.block.is_null() && align <= RUN_ALIGN_MAX {
            got = allocate_free_run(size, [align, at]);
        }
    }
    if got.untouched && is_large {
        remember(got.block, size);
    }
    got
}

/// Slices of a run of `size` bytes, and so many for colour.
fn run_slices(size: usize, colour: usize) -> usize {
    (size + colour + CANARY_BYTES).div_ceil(SLICE_SIZE)
}

/// `as_used`: with huge pages as the program comes to them, where nothing is resident yet.
fn allocate_run(size: usize, [align, at]: [usize; 2], used: Use, as_used: bool) -> Allocated {
    let colourable = align <= COLOUR_STEP && at == 0;
    let in_slice = at % SLICE_SIZE;
    let colour = if colourable { colour_room(in_slice + size) } else { 0 };
    let slices = run_slices(in_slice + size, colour);
    let (lead, place) = ((align / SLICE_SIZE).saturating_sub(1), [align, at - in_slice]);
    let exact = if lead > 0 { take_free(slices, place, used, Look::Few) } else { None };
    let is_exact = exact.is_some();
    let Some(run) = exact.or_else(|| arena::take_run(slices + lead, used)) else {
        return Allocated::NONE;
    };
    let mut index = run.index;
    if lead > 0 && !is_exact {
        // What stands before and behind the aligned part goes back.
        let before = before_aligned(index, place);
        for (at, count) in [(index, before), (index + before + slices, lead - before)] {
            if count > 0 {
                let memory = if run.dirty > 0 { Memory::Written } else { Memory::Clean };
                arena::release(at, count, memory);
            }
        }
        index += before;
    }
    if run.backed {
        use_credit();
    }
    let huge = as_used && run.dirty < slices && {
        let (at, bytes) = huge_rooms(index, slices);
        os::allow_huge_pages(at, bytes)
    };
    let room = slices * SLICE_SIZE - CANARY_BYTES - size;
    let colour = if colourable { next_colour(room) } else { in_slice };
    let start = address_map::slice_address(index).wrapping_add(colour);
    begin(index, slices, start, size, if huge { Pages::Huge } else { Pages::Small });
    Allocated { block: start, zero: run.zero, untouched: run.dirty == 0 }
}

/// Allocates a block in a region of the program's, at a multiple of `align`.
fn allocate_in_region(region: usize, size: usize, align: usize) -> Allocated {
    let (slices, align) = (run_slices(size.max(1), 0), align.div_ceil(SLICE_SIZE).max(1));
    let Some(start) = region::take(region, slices, align) else { return Allocated::NONE };
    begin(address_map::slice_of(start), slices, start, size, Pages::Small);
    Allocated { block: start, ..Allocated::NONE }
}

/// Which pages a run may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pages {
    Small,
    Huge,
}

/// Makes a run that the caller has taken a block of `size` bytes, which begins at `start` in its first slice.
fn begin(index: usize, slices: usize, start: *mut u8, size: usize, pages: Pages) {
    let slot = address_map::slot(index);
    // SAFETY: a slot is never unmapped; it is ours with the run.
    let large = unsafe { &*slot.cast::<Large>() };
    large.start.store(start, Ordering::Relaxed);
    large.slices.store(slices, Ordering::Relaxed);
    large.has_grown.store(false, Ordering::Relaxed);
    large.huge.store(pages == Pages::Huge, Ordering::Relaxed);
    large.waits.store(false, Ordering::Relaxed);
    large.sampled.store(false, Ordering::Relaxed);
    large.link.clear();
    // SAFETY: the run is the caller's, and has room for so many.
    unsafe { Size::set(large, size) };
    // Only now: who looks for the block around an address finds it whole.
    arena::mark_head(index, Bit::One);
    // SAFETY: the run is the caller's, taken just now: no block is in it yet.
    unsafe { address_map::describe(index, 1, slot, OWNER_LARGE, SizeClass::FIRST) };
}

/// The rooms of huge pages that a run lies in, at both ends with what stands beside it: (address, bytes).
fn huge_rooms(index: usize, slices: usize) -> (*mut u8, usize) {
    const ROOM: usize = os::HUGE_PAGE / SLICE_SIZE;
    let from = index - index % ROOM;
    let end = (index + slices).next_multiple_of(ROOM).min(address_map::committed());
    (address_map::slice_address(from), (end - from) * SLICE_SIZE)
}

/// Whether `p` points into a region of the program's, if into any memory of the allocator's.
fn is_supplied(p: *const u8) -> bool {
    address_map::is_supplied(address_map::slice_of(p))
}

/// The block that starts at `p`, if its descriptor says that one does: what has been a span's may look like one.
fn at(p: *mut u8) -> Option<&'static Large> {
    let d = address_map::descriptor(p);
    if d.owner.load(Ordering::Relaxed) != OWNER_LARGE {
        return None;
    }
    let large: *const Large = d.slot.load(Ordering::Relaxed).cast();
    // SAFETY: null, or a slot: those are never unmapped. Any value of its fields, all atomics, will do.
    unsafe { large.as_ref() }.filter(|large| large.run().0 == p)
}

/// Who may free a block at the same time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freers {
    /// No other thread has a heap: it is hardly somebody else.
    One,
    /// Others may.
    Many,
}

/// Frees the large block at `p`; false if none starts there. Ends the process if somebody has written beyond its end: a message
/// names `call`.
#[cold]
pub(crate) fn free(p: *mut u8, call: &str) -> bool {
    let freed = end(p, usize::MAX, Freers::Many);
    // SAFETY: its life ends here.
    freed.inspect(|large| unsafe { large.expect_whole(call) }).map(Large::give_back).is_some()
}

/// Ends the life of the block at `p`, if it has at most `most` slices: what it was made of. None if
/// none starts there.
fn end(p: *mut u8, most: usize, freers: Freers) -> Option<&'static Large> {
    let large = at(p).filter(|large| large.run().1 <= most)?;
    let owner = &address_map::descriptor(p).owner;
    if freers == Freers::One {
        // The step below takes 4 ns, as much as half of the rest.
        owner.store(OWNER_NONE, Ordering::Relaxed);
        return Some(large);
    }
    // Relaxed: of two threads that free the same block, one is told so.
    let ended =
        owner.compare_exchange(OWNER_LARGE, OWNER_NONE, Ordering::Relaxed, Ordering::Relaxed);
    ended.is_ok().then_some(large)
}

/// Bytes usable from `p`, the start of a large block; None if none starts there.
pub(crate) fn usable_size(p: *mut u8) -> Option<usize> {
    at(p).map(Large::usable)
}

/// The large block around `p`, which points into the reservation: (start, usable bytes).
pub(crate) fn block_around(p: *const u8) -> Option<(*mut u8, usize)> {
    let head = arena::head_below(address_map::slice_of(p))?;
    // SAFETY: `heads` marks slots of large blocks.
    let large = unsafe { &*address_map::slot(head).cast::<Large>() };
    let ((start, _), usable) = (large.run(), large.usable());
    let end = start.addr() + usable + CANARY_BYTES;
    let inside = p.addr() >= start.addr() && p.addr() < end;
    inside.then_some((start, usable))
}

/// The run of the large block whose first slice is `index`, as its descriptor says: (address, bytes).
pub(crate) fn run_at(index: usize) -> Option<(*mut u8, usize)> {
    // SAFETY: slots are never unmapped; what is not a block's any more is still numbers.
    run_of(unsafe { &*address_map::slot(index).cast() })
        .filter(|&(at, _)| core::ptr::eq(at, address_map::slice_address(index)))
}

/// The large block whose first slice is `index`, as its descriptor says: (start, usable bytes).
pub(crate) fn block_in(index: usize) -> Option<(*mut u8, usize)> {
    run_at(index)?;
    // SAFETY: a slot.
    let large = unsafe { &*address_map::slot(index).cast::<Large>() };
    Some((large.run().0, large.usable()))
}

/// The slices of the large block whose first one is `index`.
pub(crate) fn slices_at(index: usize) -> usize {
    run_at(index).map_or(1, |(_, bytes)| bytes / SLICE_SIZE)
}

/// The run of a large block, read while others may be at work: (address, bytes).
fn run_of(large: &Large) -> Option<(*mut u8, usize)> {
    let (start, slices) = large.run();
    let index = address_map::contains(start).then(|| address_map::slice_of(start))?;
    let slices = match is_supplied(start) {
        true => slices,
        false => slices.min(address_map::committed().checked_sub(index)?),
    };
    Some((address_map::slice_address(index), slices * SLICE_SIZE))
}

/// Resizes the large block at `p` to `size` > MEDIUM_MAX bytes, in place or moved; None if copying
/// is due. Who calls says how many bytes the program has from then on (`ask`).
///
/// # Safety
/// A live large block starts at `p`, the caller's to resize.
#[cold]
pub(crate) unsafe fn reallocate(p: *mut u8, size: usize) -> Option<*mut u8> {
    let large = at(p)?;
    // In its place it needs less than beside it.
    let most = if arena::maps_apart() && fits(size) { EXTEND_MAX } else { usize::MAX };
    if large.resize(size, most) {
        return Some(p);
    }
    let usable = large.usable();
    if size >= MOVE_MIN && !is_supplied(p) && arena::maps_apart() {
        // Without colour: powers of two shall fill huge pages.
        let new = mapping::allocate(size, [os::HUGE_PAGE, 0], Use::Filled).block;
        if !new.is_null() && !owned::inherit(large, new) {
            // Its heap must not have it: it is copied to somebody else's, if anywhere.
            mapping::free(new, "realloc");
        } else if !new.is_null() {
            // SAFETY: both blocks are the caller's, and as long.
            unsafe { new.copy_from_nonoverlapping(p, Size::of(large)) };
            free(p, "realloc");
            grown(usable);
            return Some(new);
        } else if large.resize(size, usize::MAX) {
            // The system has no more.
            return Some(p);
        }
    }
    grown(usable);
    None
}

/// Whether so much may come beside all that counts.
fn fits(bytes: usize) -> bool {
    limit::hard() == 0 || arena::counted().saturating_add(bytes) <= limit::hard()
}

/// Bytes to allocate for a block that had `has`, is to have `size`, and is copied: who grows by small steps, beside others that do,
/// has room for the next ones.
pub(crate) fn with_room(size: usize, has: usize) -> usize {
    let is_step = has > MEDIUM_MAX && has < size && size - has <= has / 8 && size < MOVE_MIN;
    let room = size + size / 8;
    // Nothing goes for it, and nobody is told.
    if is_step && fits(room) { room } else { size }
}

/// Resizes the run at `p` to `size` bytes where it stands, as far as it is a run's: smaller, it keeps more than a span
/// serves; false if it cannot grow. Who calls says how many bytes the program has from then on (`ask`).
///
/// # Safety
/// As for `reallocate`.
#[cold]
pub(crate) unsafe fn expand(p: *mut u8, size: usize) -> bool {
    let resize = |large: &Large| {
        let least = large.usable().min(MEDIUM_MAX + 1);
        large.resize(size.max(least), MAPPING_MIN)
    };
    at(p).is_some_and(resize)
}

/// The most bytes that take no more memory than `size`, more than a span serves, whatever the colour.
pub(crate) fn good_size(size: usize) -> usize {
    if size >= MAPPING_MIN {
        return os::round_up(size + CANARY_BYTES, COLOUR_STEP) - CANARY_BYTES;
    }
    let bytes = run_slices(size, colour_room(size)) * SLICE_SIZE - CANARY_BYTES;
    let good = size.max(bytes - colour_room(size).max(COLOURS * COLOUR_STEP));
    if good < MAPPING_MIN { good } else { size }
}

/// In a forked child, before it has a second thread. Then `settle_owned_in_child`.
pub(crate) fn settle_in_child() {
    mapping::settle_in_child();
    nursery::settle_in_child();
}

impl Large {
    /// Where its block starts, in its first slice, and how many slices it has.
    fn run(&self) -> (*mut u8, usize) {
        (self.start.load(Ordering::Relaxed), self.slices.load(Ordering::Relaxed))
    }

    fn bytes(&self) -> usize {
        self.run().1 * SLICE_SIZE
    }

    fn usable(&self) -> usize {
        self.bytes() - self.colour() - CANARY_BYTES
    }

    /// Bytes of the run with `size` bytes for the program.
    fn with(&self, size: usize) -> usize {
        self.colour() + size + CANARY_BYTES
    }

    fn colour(&self) -> usize {
        self.run().0.addr() & (SLICE_SIZE - 1)
    }

    /// Gives what has been a block's to the arena.
    fn give_back(&self) {
        let (start, slices) = self.run();
        owned::remove(self);
        forget(start);
        let index = address_map::slice_of(start);
        self.no_huge_pages(index, slices);
        arena::mark_head(index, Bit::Zero);
        arena::release(index, slices, Memory::Written);
    }

    /// Gives whole slices behind `size` bytes back.
    fn shrink(&self, size: usize) {
        let (start, slices) = self.run();
        let keep = self.with(size).div_ceil(SLICE_SIZE);
        // An eighth may stay: a block that breathes does not pay each time.
        if slices - keep > slices / 8 {
            let tail = address_map::slice_of(start) + keep;
            self.no_huge_pages(tail, slices - keep);
            // First: a child that is forked in between loses slices, and has none twice.
            self.slices.store(keep, Ordering::Relaxed);
            owned::shrink(self, (slices - keep) * SLICE_SIZE);
            arena::release(tail, slices - keep, Memory::Written);
        }
    }

    /// These slices, its own, are about to be somebody else's, who may leave most of them empty.
    fn no_huge_pages(&self, index: usize, slices: usize) {
        if self.huge.load(Ordering::Relaxed) {
            let (at, bytes) = huge_rooms(index, slices);
            os::keep_small_pages(at, bytes);
        }
    }

    /// Resizes it in place to hold `size` bytes, if it would have less than `most` or has as much.
    fn resize(&self, size: usize, most: usize) -> bool {
        if size <= self.usable() {
            self.shrink(size);
            return true;
        }
        let spare = if self.has_grown.load(Ordering::Relaxed) { size / 8 } else { 0 };
        self.extend(size + spare, most) || spare > 0 && self.extend(size, most)
    }

    /// Grows in place to hold `size` bytes.
    fn extend(&self, size: usize, most: usize) -> bool {
        let (start, slices) = self.run();
        let (end, need) = (address_map::slice_of(start) + slices, self.with(size));
        let more = need.div_ceil(SLICE_SIZE) - slices;
        let most = if is_supplied(start) { usize::MAX } else { most };
        if need >= most || !owned::grow(self, more * SLICE_SIZE) {
            return false;
        }
        let fits = arena::take_exactly(end, more).is_some();
        if fits {
            self.slices.store(slices + more, Ordering::Relaxed);
            self.has_grown.store(true, Ordering::Relaxed);
        } else {
            owned::ungrow(self, more * SLICE_SIZE);
        }
        fits
    }
}
