//! Owns: sampled blocks with an inaccessible page at their end, and in front.
//! Idea: what the sampler draws goes into a bay of its own, with guard pages on both sides; a freed block stays
//!   inaccessible until all other free bays have been used. The processor does the rest.
//! Never: costs an instruction of a fast path; takes a lock; keeps more than a MiB of memory.
//! Threads: any; holds nothing.
//! Checked: tests/guards.rs here and in the C layer.
//! Story: docs/guide/guards.md

pub(crate) mod bay;
mod report;

pub(crate) use report::misused;

use crate::base::random::mixed;
use crate::base::{AtomicPtr, AtomicU64, AtomicUsize, BLOCK_MAX, MIN_ALIGN, Ordering};
use crate::os::{self, Overcommit};
use crate::samples::asked::Asked;
use crate::samples::sampling::{self, Draw};
use crate::samples::tuning::{
    BAYS, EACH_BELOW, RESIDENT_MAX, SAMPLE_MS, SAMPLES_IN_A_ROW, UNDERFLOW_EACH,
};
use crate::stacks::{self, Registers, machine};
use bay::{Bay, State};
use core::ptr::null_mut;

// Invariants
//  1. The pool is `BAYS` bays, each of `BAY_BYTES` behind a page that is never accessible, and one more such page.
//  2. Accessible is what a live block touches, whole pages, and nothing else: see `Place`. Of these there are
//     `PAGES` in all, at most `RESIDENT_MAX` bytes.
//  3. A bay's words change as `bay` says; what else is known of it belongs to who has it in a passing state.

/// The largest block that a sample can be.
const BAY_BYTES: usize = BLOCK_MAX;
/// Samples in a row after a pause; tests want many.
pub(crate) static IN_A_ROW: AtomicU64 = AtomicU64::new(SAMPLES_IN_A_ROW);
/// What is between a block and the ends of its pages.
const PATTERN: u8 = 0xca;

/// The pool's first byte; null: there is none.
static POOL: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// What is known of its bays. Relaxed: it is stored before the pool.
static KNOWN: AtomicPtr<Bay> = AtomicPtr::new(null_mut());
/// Counts changes of bays. Relaxed: a number is all it is.
static TICKETS: AtomicUsize = AtomicUsize::new(0);
/// Pages of live blocks. Relaxed: the same.
static PAGES: AtomicUsize = AtomicUsize::new(0);
/// Up to when, on the clock of milliseconds, samples have been taken. Relaxed: two threads may take one at once.
static TAKEN_MS: AtomicU64 = AtomicU64::new(0);
/// Blocks that have just been drawn, by their addresses: 0 or the block's with all bits inverted, so that a tool that searches
/// memory for pointers does not find it. Relaxed: the same thread stores and finds it; if another one comes between, there is
/// a sample less.
static DRAWN: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];

/// Bytes from one guarded block to the next.
pub(crate) static ASKED: Asked = Asked::nothing();

/// Guards one allocation in every so many bytes from now on; 0: none. False if there is no memory for it.
pub(crate) fn set(bytes: usize) -> bool {
    let done = apply(bytes);
    ASKED.settle();
    done
}

/// The same without a word to who has asked for it.
#[inline(never)]
fn apply(bytes: usize) -> bool {
    if bytes > 0 && !has_pool() && !make_pool() {
        return false;
    }
    // First: who takes the sampler over says otherwise.
    ASKED.set_done(bytes);
    if bytes > 0 {
        let draw = if bytes < EACH_BELOW { Draw::Each } else { Draw::Refills };
        sampling::set(bytes, draw, drawn, Some(&ASKED));
    } else {
        sampling::end(drawn);
    }
    os::notify_all();
    true
}

/// Does what somebody outside has asked for.
pub(crate) fn follow() {
    ASKED.follow(apply);
}

fn pool() -> *mut u8 {
    // Acquire: pairs with `make_pool`.
    POOL.load(Ordering::Acquire)
}

fn has_pool() -> bool {
    !pool().is_null()
}

/// From one bay to the next.
fn stride() -> usize {
    BAY_BYTES + os::page_size()
}

fn pool_bytes() -> usize {
    BAYS * stride() + os::page_size()
}

#[cold]
fn make_pool() -> bool {
    let known = os::map(BAYS * size_of::<Bay>());
    if known.is_null() {
        return false;
    }
    let pool = os::reserve(null_mut(), pool_bytes(), Overcommit::Granted);
    let is_first = !pool.is_null()
        && KNOWN
            .compare_exchange(null_mut(), known.cast(), Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
    if is_first {
        stacks::find_own_code();
        report::begin();
        // Release: who finds the pool finds what is known of its bays.
        POOL.store(pool, Ordering::Release);
        return true;
    }
    // SAFETY: mapped just now, and nobody else's.
    unsafe {
        os::release(known, BAYS * size_of::<Bay>());
        if !pool.is_null() {
            os::release(pool, pool_bytes());
        }
    }
    // Another thread makes it.
    !pool.is_null()
}

fn known(index: usize) -> &'static Bay {
    debug_assert!(index < BAYS);
    // SAFETY: there is a pool; zeros are bays, which are never unmapped.
    unsafe { &*KNOWN.load(Ordering::Relaxed).add(index) }
}

/// Whether an address is in the pool.
#[cfg(test)]
pub(crate) fn holds(p: *const u8) -> bool {
    offset_of(p.addr()).is_some()
}

/// The first byte of a bay.
#[inline(never)]
fn bay_start(index: usize) -> *mut u8 {
    pool().wrapping_add(index * stride() + os::page_size())
}

/// How far into the pool an address is; None: elsewhere.
#[inline(never)]
fn offset_of(address: usize) -> Option<usize> {
    let pool = pool();
    let offset = address.wrapping_sub(pool.addr());
    (!pool.is_null() && offset < pool_bytes()).then_some(offset)
}

/// The bay around an address of the pool, if it is not in a guard page.
fn bay_around(address: usize) -> Option<usize> {
    let offset = offset_of(address)?;
    let inside = offset % stride() >= os::page_size();
    inside.then_some(offset / stride())
}

/// The live block that `p` points to or into: its bay, first byte and size.
#[inline(never)]
fn live_around(p: *const u8) -> Option<(usize, usize, usize)> {
    let index = bay_around(p.addr())?;
    let bay = known(index);
    let (start, size) = bay.block();
    let inside = p.addr() >= start && p.addr() - start < size.max(1);
    (inside && bay.state() == State::Live).then_some((index, start, size))
}

/// Bytes usable from `p`, the start of a live guarded block: what was asked for.
pub(crate) fn usable_size(p: *const u8) -> Option<usize> {
    live_around(p).filter(|&(_, start, _)| start == p.addr()).map(|(_, _, size)| size)
}

/// The live guarded block around `p`: (start, usable bytes).
pub(crate) fn block_around(p: *const u8) -> Option<(*mut u8, usize)> {
    live_around(p).map(|(_, start, size)| (p.with_addr(start).cast_mut(), size))
}

/// What live blocks keep, for the account: whole pages.
pub(crate) fn live() -> impl Iterator<Item = (*mut u8, usize)> {
    let bays = if has_pool() { BAYS } else { 0 };
    (0..bays).filter(|&index| known(index).state() == State::Live).map(|index| {
        let place = Place::of(index, known(index).block());
        (place.first, place.bytes)
    })
}

/// What is known of the bays: (address, bytes).
pub(crate) fn metadata() -> (*mut u8, usize) {
    let bytes = if has_pool() { BAYS * size_of::<Bay>() } else { 0 };
    (KNOWN.load(Ordering::Relaxed).cast(), os::round_up(bytes, os::page_size()))
}

/// A block, and the pages that it touches.
struct Place {
    block: *mut u8,
    size: usize,
    first: *mut u8,
    bytes: usize,
}

impl Place {
    /// Where a block goes: against the page behind the bay, as near as its alignment allows, or against
    /// that in front of it.
    fn new(index: usize, size: usize, align: usize, at_start: bool) -> Place {
        let start = bay_start(index);
        let end = start.addr() + BAY_BYTES;
        let block = if at_start { start.addr() } else { (end - size.max(1)) & !(align - 1) };
        Place::of(index, (block, size))
    }

    #[inline(never)]
    fn of(index: usize, (start, size): (usize, usize)) -> Place {
        let page = os::page_size();
        let bay = bay_start(index);
        let first = start & !(page - 1);
        let bytes = os::round_up(start + size.max(1), page) - first;
        Place { block: bay.with_addr(start), size, first: bay.with_addr(first), bytes }
    }

    fn pages(&self) -> usize {
        self.bytes / os::page_size()
    }

    /// What lies in front of the block on its pages, and what behind: (first byte, length).
    fn gaps(&self) -> [(*mut u8, usize); 2] {
        let front = self.block.addr() - self.first.addr();
        let end = self.block.wrapping_add(self.size);
        [(self.first, front), (end, self.first.addr() + self.bytes - end.addr())]
    }

    /// Fills what is not the block's.
    ///
    /// # Safety
    /// The pages are accessible and the caller's.
    unsafe fn fill_gaps(&self) {
        for (at, bytes) in self.gaps() {
            // SAFETY: the caller's.
            unsafe { at.write_bytes(PATTERN, bytes) };
        }
    }

    /// The first byte in front of the block or behind it that the program has written, the nearest.
    ///
    /// # Safety
    /// As for `fill_gaps`, which has been called.
    #[inline(never)]
    unsafe fn damage(&self) -> Option<usize> {
        let [front, behind] = self.gaps();
        // SAFETY: the caller's.
        let read = |(at, bytes): (*mut u8, usize)| unsafe {
            core::slice::from_raw_parts(at.cast_const(), bytes)
        };
        let is_written = |&byte: &u8| byte != PATTERN;
        let after = read(behind).iter().position(is_written).map(|at| behind.0.addr() + at);
        let before = || read(front).iter().rposition(is_written).map(|at| front.0.addr() + at);
        after.or_else(before)
    }
}

/// The sampler's: the block that is about to be handed out is a sample.
fn drawn(block: *mut u8, _: usize) {
    drawn_place(block).store(!block.addr(), Ordering::Relaxed);
}

fn drawn_place(block: *mut u8) -> &'static AtomicUsize {
    DRAWN.get(block.addr() / MIN_ALIGN % DRAWN.len()).unwrap_or(&DRAWN[0])
}

/// Whether a block that a refill has just given has been drawn; only the first to ask is told.
pub(crate) fn is_drawn(block: *mut u8) -> bool {
    let place = drawn_place(block);
    let is = !block.is_null() && place.load(Ordering::Relaxed) == !block.addr();
    if is {
        place.store(0, Ordering::Relaxed);
    }
    is
}

/// Allocates a guarded block; null if there is no bay, or no memory. It may hold anything.
#[cold]
#[inline(never)]
pub(crate) fn allocate(size: usize, align: usize) -> *mut u8 {
    // Asked first, in a frame that holds nothing else: what an earlier call has left in it is taken for calls.
    allocate_for(machine::registers(), size, align)
}

#[inline(never)]
fn allocate_for(here: Registers, size: usize, align: usize) -> *mut u8 {
    let align = align.max(MIN_ALIGN);
    if !has_pool() || size > BAY_BYTES || align > os::page_size() || !is_in_time() {
        return null_mut();
    }
    let Some((index, since, was)) = take_oldest() else { return null_mut() };
    let ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
    let at_start = is_at_start(ticket);
    let place = Place::new(index, size, align, at_start);
    let bay = known(index);
    if !open(&place) {
        bay.settle(was, since);
        return null_mut();
    }
    bay.describe(place.block.addr(), size);
    bay.allocated.keep(&stacks::callers(here));
    bay.settle(State::Live, ticket);
    place.block
}

/// Whether the block with that ticket lies at the start of its bay. Drawn: what the program does in turns shows in the
/// tickets, which frees take, too.
fn is_at_start(ticket: usize) -> bool {
    mixed(os::seed() as u64 ^ ticket as u64).is_multiple_of(UNDERFLOW_EACH)
}

/// Whether there may be a sample now; it counts as taken then.
fn is_in_time() -> bool {
    if ASKED.done() < EACH_BELOW {
        return true;
    }
    let now = os::now_ms();
    let since = now.saturating_sub(IN_A_ROW.load(Ordering::Relaxed) * SAMPLE_MS);
    let taken = TAKEN_MS.load(Ordering::Relaxed).max(since) + SAMPLE_MS;
    if taken <= now {
        TAKEN_MS.store(taken, Ordering::Relaxed);
    }
    taken <= now
}

/// Takes the bay that has been free for the longest: which, since when, and what it was.
#[inline(never)]
fn take_oldest() -> Option<(usize, usize, State)> {
    // If another thread is faster, there is a sample less.
    let mut oldest = (usize::MAX, 0);
    for index in 0..BAYS {
        if let Some(since) = known(index).free_since()
            && since < oldest.0
        {
            oldest = (since, index);
        }
    }
    let (since, index) = oldest;
    known(index).take(since).map(|was| (index, since, was))
}

/// Makes a place accessible, if that is not too much.
#[inline(never)]
fn open(place: &Place) -> bool {
    let pages = place.pages();
    let before = PAGES.fetch_add(pages, Ordering::Relaxed);
    let can =
        (before + pages) * os::page_size() <= RESIDENT_MAX && os::commit(place.first, place.bytes);
    if can {
        // SAFETY: the caller's bay's, and accessible.
        unsafe { place.fill_gaps() };
    } else {
        PAGES.fetch_sub(pages, Ordering::Relaxed);
    }
    can
}

/// Frees the guarded block at `p`; false if none starts there.
#[cold]
#[inline(never)]
pub(crate) fn free(p: *mut u8, call: &str) -> bool {
    free_for(machine::registers(), p, call)
}

#[inline(never)]
fn free_for(here: Registers, p: *mut u8, call: &str) -> bool {
    match live_around(p) {
        Some((index, start, _)) if start == p.addr() && known(index).begin_to_free(start) => {
            close(index, here, call);
            true
        }
        _ => false,
    }
}

#[inline(never)]
fn close(index: usize, here: Registers, call: &str) {
    let bay = known(index);
    let place = Place::of(index, bay.block());
    bay.freed.keep(&stacks::callers(here));
    // SAFETY: the bay is the caller's, its place accessible and filled; the program has freed the block.
    unsafe {
        if let Some(at) = place.damage() {
            report::damaged(index, call, at);
        }
        // Should the system refuse, accesses are not noticed: nothing else depends on it.
        // In this order other processors are interrupted once: there are no pages left to withdraw.
        os::purge(place.first, place.bytes);
        os::withdraw(place.first, place.bytes);
    }
    PAGES.fetch_sub(place.pages(), Ordering::Relaxed);
    bay.settle(State::Freed, TICKETS.fetch_add(1, Ordering::Relaxed));
}
