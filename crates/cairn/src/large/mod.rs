//! Owns: blocks too large for spans: a run of slices each, and how they grow and shrink.
//! Idea: grow into free neighbours if they are there, else move pages; bytes are copied only
//!   where that is cheaper than moving pages.
//! Never: knows heaps or size classes' tables.
//! Threads: any; takes the arena's lock or the mappings', one at a time.
//! Checked: oracle tests with contents; fault injection.
//! Story: docs/large-blocks.md

mod mapping;

pub(crate) use mapping::{
    at_fork, base_of as mapping_base, for_each as for_each_mapping, free as free_mapping,
    reallocate as reallocate_mapping, usable_size as mapping_usable_size,
};

use crate::address_map::{self, OWNER_LARGE, OWNER_NONE, Slot};
use crate::arena;
use crate::os;
use crate::size_class::{MEDIUM_MAX, SLICE_SIZE};
use crate::sync::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use core::ptr::null_mut;

/// From here on a block is a mapping of its own: slices of that size would leave holes in the
/// window that only as large a block fills.
const MAPPING_MIN: usize = 32 << 20;
/// A run grows in place up to here.
const EXTEND_MAX: usize = 16 << 20;
/// Runs are aligned to up to this; beyond, a mapping is cut to measure.
const RUN_ALIGN_MAX: usize = 1 << 20;
/// From here on a block that grows, and must be copied, is copied to a mapping, where it grows on
/// by moving pages, mostly huge ones. Below, that costs more than the next copy: a parser that
/// grows some buffers to 1 or 2 MiB for each document spends a fifth of its time in page faults then.
const MOVE_MIN: usize = os::HUGE_PAGE;
/// From here on a page more for colour is cheap.
const COLOUR_MIN: usize = 128 << 10;
/// Blocks start at different lines of their first page, so that equal parts of many blocks
/// do not compete for the same cache sets.
pub(crate) const COLOUR_STEP: usize = 64;
const COLOURS: usize = 64;

// Invariants
//  1. The run's first slice has descriptor owner LARGE, and its `heads` bit set in the arena;
//     the others' owner is NONE: no address inside a large block but its start can be freed.
//     The same with owner NONE if a heap keeps the run for its next block.
//  2. start - first slice < an OS page of colour, or 0; start + usable = the run's end.

/// Metadata of a block that is a run of slices. Relaxed throughout: it is used by whoever may use
/// the block; an account reads it meanwhile, and takes any value (`run_of`).
#[repr(C, align(64))]
pub(crate) struct Large {
    start: AtomicPtr<u8>,
    slices: AtomicUsize,
    /// It has grown in place: the next time it gets room to spare.
    has_grown: AtomicBool,
}

const _: () = assert!(size_of::<Large>() == size_of::<Slot>());

/// A block, and whether its bytes are known to be zero.
pub(crate) struct Allocated {
    /// The block, or null.
    pub(crate) block: *mut u8,
    /// Its bytes are zero.
    pub(crate) zero: bool,
}

impl Allocated {
    const NONE: Allocated = Allocated { block: null_mut(), zero: false };
}

/// How far into its first page the next block starts, at most `room`.
fn next_colour(room: usize) -> usize {
    static TURN: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: any spread will do. 25 is odd: all colours come up, neighbours lie far apart.
    let turn = TURN.fetch_add(25, Ordering::Relaxed) % COLOURS;
    (turn * COLOUR_STEP).min(room / COLOUR_STEP * COLOUR_STEP)
}

/// Where the block made last is, if it is there still, and its size.
static LAST: AtomicUsize = AtomicUsize::new(0);
static LAST_SIZE: AtomicUsize = AtomicUsize::new(0);
/// The size of the largest block seen filled since one was seen that was not.
static FILLED: AtomicUsize = AtomicUsize::new(0);
/// One block in so many is looked at, of those that are no mappings.
const LOOKED_AT: usize = 8;

/// Whether a block of `size` will be filled from end to end, as far as others tell: then it may
/// have huge pages. What is used here and there must not become resident as a whole.
fn will_be_filled(size: usize) -> bool {
    // Relaxed: a guess.
    let (last, len) = (LAST.load(Ordering::Relaxed), LAST_SIZE.load(Ordering::Relaxed));
    if last != 0 && (size >= MOVE_MIN || (last / SLICE_SIZE).is_multiple_of(LOOKED_AT)) {
        let filled = os::is_filled(core::ptr::without_provenance_mut(last), len);
        let most = if filled { len.max(FILLED.load(Ordering::Relaxed)) } else { 0 };
        FILLED.store(most, Ordering::Relaxed);
    }
    size / 2 <= FILLED.load(Ordering::Relaxed)
}

/// The block at `p` is gone, or elsewhere: its pages tell nothing.
fn forget(p: *mut u8) {
    if LAST.load(Ordering::Relaxed) == p.addr() {
        LAST.store(0, Ordering::Relaxed);
    }
}

/// Allocates a block of `size` bytes, more than a span serves or aligned beyond what it does.
#[cold]
pub(crate) fn allocate(size: usize, align: usize) -> Allocated {
    let filled = will_be_filled(size);
    let mut got = Allocated::NONE;
    if size < MAPPING_MIN && align <= RUN_ALIGN_MAX {
        got = allocate_run(size.max(1), align, filled);
    }
    if got.block.is_null() {
        got = mapping::allocate(size, align, filled);
    }
    LAST.store(got.block.addr(), Ordering::Relaxed);
    LAST_SIZE.store(size, Ordering::Relaxed);
    got
}

fn allocate_run(size: usize, align: usize, filled: bool) -> Allocated {
    // A power of two leaves no room for colour; above COLOUR_MIN there is a page more.
    let colourable = align <= COLOUR_STEP;
    let extra = if colourable && size >= COLOUR_MIN { os::page_size() } else { 0 };
    let slices = (size + extra).div_ceil(SLICE_SIZE);
    let lead = (align / SLICE_SIZE).saturating_sub(1);
    let Some(run) = arena::take_run(slices + lead, filled) else {
        return Allocated::NONE;
    };
    let mut index = run.index;
    if lead > 0 {
        // What stands before and behind the aligned part goes back.
        let address = address_map::slice_address(index).addr();
        let before = (os::round_up(address, align) - address) / SLICE_SIZE;
        arena::release(index, before, !run.zero);
        arena::release(index + before + slices, lead - before, !run.zero);
        index += before;
    }
    let room = slices * SLICE_SIZE - size;
    let colour = if colourable { next_colour(room) } else { 0 };
    let start = address_map::slice_address(index).wrapping_add(colour);
    let slot = address_map::slot(index);
    // SAFETY: a slot is never unmapped; it is ours with the run.
    let large = unsafe { &*slot.cast::<Large>() };
    large.start.store(start, Ordering::Relaxed);
    large.slices.store(slices, Ordering::Relaxed);
    large.has_grown.store(false, Ordering::Relaxed);
    // Only now: who looks for the block around an address finds it whole.
    arena::mark_head(index, true);
    address_map::describe(index, 1, slot, OWNER_LARGE, 0);
    Allocated { block: start, zero: run.zero }
}

/// The block that starts at `p`, whose descriptor's owner is LARGE; None if it starts elsewhere.
fn at(p: *mut u8) -> Option<&'static Large> {
    let large: *mut Large = address_map::descriptor(p).slot.load(Ordering::Relaxed).cast();
    // SAFETY: metadata is never unmapped; its owner, by the caller's right to `p`, is the caller.
    Some(unsafe { &*large }).filter(|large| large.run().0 == p)
}

/// Frees the large block at `p`; false if none starts there.
#[cold]
pub(crate) fn free(p: *mut u8) -> bool {
    let Some(large) = at(p) else { return false };
    // Relaxed: of two threads that free the same block, one is told so.
    let was = address_map::descriptor(p).owner.swap(OWNER_NONE, Ordering::Relaxed);
    (was == OWNER_LARGE).then(|| give_back(large.run())).is_some()
}

/// Gives what has been a block's (start, slices) to the arena.
fn give_back((start, slices): (*mut u8, usize)) {
    forget(start);
    let index = address_map::slice_of(start);
    arena::mark_head(index, false);
    arena::release(index, slices, true);
}

/// Keeps the block at `p`, which is being freed, in `kept`, a place for one that the caller
/// alone fills, for the one there; false if none starts there, or if it has more than `most` slices.
/// To the arena it is in use still, to everybody else nothing.
pub(crate) fn keep(kept: &mut *mut Large, p: *mut u8, most: usize) -> bool {
    let Some(large) = at(p).filter(|large| large.run().1 <= most) else { return false };
    // Relaxed, and not in one step: of two threads that free the same block at the same time,
    // neither is told so.
    address_map::descriptor(p).owner.store(OWNER_NONE, Ordering::Relaxed);
    drop_kept(kept);
    place(kept).store(core::ptr::from_ref(large).cast_mut(), Ordering::Relaxed);
    true
}

/// Allocates `size` bytes, aligned to at most a line, out of `kept`, the caller's, with a run in
/// it; null if they do not fit, or too loosely.
pub(crate) fn reuse(kept: &mut *mut Large, size: usize) -> *mut u8 {
    // SAFETY: what is kept is the caller's.
    let large = unsafe { &**kept };
    let usable = large.usable();
    if size > usable || usable - size > SLICE_SIZE + size / 8 {
        return null_mut();
    }
    place(kept).store(null_mut(), Ordering::Relaxed);
    let (start, _) = large.run();
    address_map::descriptor(start).owner.store(OWNER_LARGE, Ordering::Relaxed);
    start
}

/// Gives what the caller keeps in `kept` to the arena.
pub(crate) fn drop_kept(kept: &mut *mut Large) {
    // Before the arena's lock is taken: a child that is forked when the arena has the run does not
    // find it here, too.
    let large = *kept;
    place(kept).store(null_mut(), Ordering::Relaxed);
    if !large.is_null() {
        // SAFETY: what is kept is the caller's.
        give_back(unsafe { (*large).run() });
    }
}

/// What a heap keeps, as an account may read it while the heap's thread changes it.
fn place(kept: *const *mut Large) -> &'static AtomicPtr<Large> {
    // SAFETY: heaps are never unmapped.
    unsafe { AtomicPtr::from_ptr(kept.cast_mut()) }
}

/// The run in `kept`, any heap's: (address, bytes).
pub(crate) fn kept_run(kept: *const *mut Large) -> Option<(*mut u8, usize)> {
    // SAFETY: a slot, or null; slots are never unmapped.
    unsafe { place(kept).load(Ordering::Relaxed).as_ref() }.and_then(run_of)
}

/// Bytes usable from `p`, the start of a large block; None if none starts there.
pub(crate) fn usable_size(p: *mut u8) -> Option<usize> {
    at(p).map(Large::usable)
}

/// The large block around `p`, which points into the window: (start, usable bytes).
pub(crate) fn block_around(p: *const u8) -> Option<(*mut u8, usize)> {
    let head = arena::head_below(address_map::slice_of(p))?;
    // SAFETY: `heads` marks slots of large blocks.
    let large = unsafe { &*address_map::slot(head).cast::<Large>() };
    let ((start, _), usable) = (large.run(), large.usable());
    let inside = p.addr() >= start.addr() && p.addr() < start.addr() + usable;
    inside.then_some((start, usable))
}

/// The run of the large block whose first slice is `index`: (address, bytes).
pub(crate) fn run_at(index: usize) -> Option<(*mut u8, usize)> {
    arena::head_below(index).filter(|&head| head == index)?;
    // SAFETY: as in `block_around`; what is not a block's any more is still numbers.
    run_of(unsafe { &*address_map::slot(index).cast() })
}

/// The run of a large block, read while others may be at work: (address, bytes).
fn run_of(large: &Large) -> Option<(*mut u8, usize)> {
    let (start, slices) = large.run();
    let index = address_map::contains(start).then(|| address_map::slice_of(start))?;
    let slices = slices.min(address_map::committed().checked_sub(index)?);
    Some((address_map::slice_address(index), slices * SLICE_SIZE))
}

/// Resizes the large block at `p` to `size` > MEDIUM_MAX bytes, in place or moved; None if copying
/// is due.
///
/// # Safety
/// A live large block starts at `p`, the caller's to resize.
#[cold]
pub(crate) unsafe fn reallocate(p: *mut u8, size: usize) -> Option<*mut u8> {
    let large = at(p)?;
    let usable = large.usable();
    if size <= usable {
        large.shrink(size);
        return Some(p);
    }
    let spare = if large.has_grown.load(Ordering::Relaxed) { size / 8 } else { 0 };
    if large.extend(size + spare) || spare > 0 && large.extend(size) {
        return Some(p);
    }
    if size >= MOVE_MIN {
        // Without colour: powers of two shall fill huge pages.
        let new = mapping::allocate(size, os::HUGE_PAGE, true).block;
        if !new.is_null() {
            // SAFETY: both blocks are the caller's, and as long.
            unsafe { new.copy_from_nonoverlapping(p, usable) };
            free(p);
            return Some(new);
        }
    }
    // What grows has been filled.
    FILLED.store(FILLED.load(Ordering::Relaxed).max(usable), Ordering::Relaxed);
    LAST.store(0, Ordering::Relaxed);
    None
}

impl Large {
    /// Where its block starts, in its first slice, and how many slices it has.
    fn run(&self) -> (*mut u8, usize) {
        (self.start.load(Ordering::Relaxed), self.slices.load(Ordering::Relaxed))
    }

    fn usable(&self) -> usize {
        self.run().1 * SLICE_SIZE - self.colour()
    }

    fn colour(&self) -> usize {
        self.run().0.addr() & (SLICE_SIZE - 1)
    }

    /// Gives whole slices behind `size` bytes back.
    fn shrink(&self, size: usize) {
        debug_assert!(size > MEDIUM_MAX);
        let (start, slices) = self.run();
        let keep = (self.colour() + size).div_ceil(SLICE_SIZE);
        // An eighth may stay: a block that breathes does not pay each time.
        if slices - keep > slices / 8 {
            arena::release(address_map::slice_of(start) + keep, slices - keep, true);
            self.slices.store(keep, Ordering::Relaxed);
        }
    }

    /// Grows in place to hold `size` bytes.
    fn extend(&self, size: usize) -> bool {
        let (start, slices) = self.run();
        let (end, need) = (address_map::slice_of(start) + slices, self.colour() + size);
        let more = need.div_ceil(SLICE_SIZE) - slices;
        let fits = need < EXTEND_MAX && arena::take_exactly(end, more).is_some();
        if fits {
            self.slices.store(slices + more, Ordering::Relaxed);
            self.has_grown.store(true, Ordering::Relaxed);
        }
        fits
    }
}
