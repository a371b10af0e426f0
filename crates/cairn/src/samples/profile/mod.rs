//! Owns: the heap profile: which sampled blocks are live, and what has been allocated where.
//! Idea: a block stands for as many bytes as one of its size is a sample of; who reads the profile multiplies.
//! Never: costs an instruction of a fast path; allocates from a heap; calls anybody.
//! Threads: any; one lock, inside which nothing is taken. Readers take none.
//! Checked: tests/sample/profile.rs here and in the C layer.
//! Story: docs/guide/profile.md

mod table;

pub(crate) use table::{Sample, Site, settle_in_child};

use crate::base::{AtomicPtr, AtomicUsize, Ordering};
use crate::os::{self, Lock};
use crate::samples::machine::{self, Registers};
use crate::samples::sampling::{self, Draw};
use crate::samples::stack;
use crate::samples::tuning::PROFILE_FRAMES;
use core::ptr::null_mut;
use table::Table;

/// What is known; null: nothing yet. Never unmapped.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(null_mut());
/// Whoever changes the table holds it.
static CHANGING: Lock<()> = Lock::new(());
/// Live samples. Relaxed: whoever frees one has seen it counted.
static LIVE: AtomicUsize = AtomicUsize::new(0);
/// Samples for which there was no room. Relaxed: a number is all it is.
static DROPPED: AtomicUsize = AtomicUsize::new(0);
/// Bytes from one sample to the next on average; 0: none are taken. Relaxed: the same.
static RATE: AtomicUsize = AtomicUsize::new(0);

/// Takes a sample of every so many bytes on average; 0: none. False if there is no memory for it.
#[cold]
#[inline(never)]
pub(crate) fn set(rate: usize) -> bool {
    // Beyond that no number of blocks is kept that come before a sample.
    let rate = rate.min(1 << 30);
    if rate > 0 && table().is_none() && !make_table() {
        return false;
    }
    if rate > 0 {
        sampling::set(rate, Draw::Chance, nobody);
    } else {
        sampling::end(nobody);
    }
    RATE.store(rate, Ordering::Relaxed);
    os::notify_all();
    true
}

/// Who is told of samples: by this the sampler knows the profile.
fn nobody(_: *mut u8, _: usize) {}

fn table() -> Option<&'static Table> {
    // Acquire: pairs with `make_table`.
    // SAFETY: null, or a table, which is never unmapped.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

#[cold]
fn make_table() -> bool {
    stack::find_own_code();
    // Zeros are a table with nothing in it.
    let made: *mut Table = os::map(size_of::<Table>()).cast();
    if made.is_null() {
        return false;
    }
    let order = Ordering::AcqRel;
    if TABLE.compare_exchange(null_mut(), made, order, Ordering::Acquire).is_err() {
        // SAFETY: mapped just now, and nobody else's.
        unsafe { os::release(made.cast(), size_of::<Table>()) };
    }
    true
}

/// Bytes that a block of so many counts for when it is drawn: few different ones.
pub(crate) fn weighed(bytes: usize) -> usize {
    /// An eighth of a power of two.
    const BITS: u32 = 4;
    let step = (usize::BITS - bytes.leading_zeros()).saturating_sub(BITS);
    bytes.checked_next_multiple_of(1 << step).unwrap_or(bytes)
}

/// Takes note of a live sampled block of which the program has asked for `asked` bytes, and which has been drawn as one of
/// `weighed`, at that rate; false if there is no room.
#[cold]
#[inline(never)]
pub(crate) fn insert(block: *mut u8, asked: usize, weighed: usize, rate: usize) -> bool {
    // Asked first, in a frame that holds nothing else: what an earlier call has left in it is taken for calls.
    insert_for(machine::registers(), Sample { block: block.addr(), asked, site: 0 }, weighed, rate)
}

#[inline(never)]
fn insert_for(here: Registers, mut sample: Sample, weighed: usize, rate: usize) -> bool {
    let Some(table) = table() else { return false };
    let mut calls = [0; PROFILE_FRAMES];
    stack::find_callers(here, &mut calls);
    os::notice_fork();
    let held = CHANGING.lock();
    let done = table.site(&calls, weighed, rate).is_some_and(|site| {
        sample.site = site;
        table.insert(sample)
    });
    if done {
        table.count_allocated(sample);
        LIVE.fetch_add(1, Ordering::Relaxed);
    }
    drop(held);
    if !done {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
    done
}

/// Whether any live block is a sample.
#[inline(always)]
pub(crate) fn has_live() -> bool {
    LIVE.load(Ordering::Relaxed) > 0
}

/// Takes the block that starts there, if it is a sample, for freed.
#[cold]
#[inline(never)]
pub(crate) fn take(block: *mut u8) -> Option<Sample> {
    let table = table()?;
    os::notice_fork();
    let _held = CHANGING.lock();
    let sample = table.remove(block.addr())?;
    table.count_freed(sample);
    LIVE.fetch_sub(1, Ordering::Relaxed);
    Some(sample)
}

/// Takes back that a sample was taken for freed.
#[cold]
#[inline(never)]
pub(crate) fn put_back(sample: Sample) {
    let Some(table) = table() else { return };
    os::notice_fork();
    let _held = CHANGING.lock();
    // Its place is free still, unless another thread has taken it.
    if table.insert(sample) {
        table.count_kept(sample);
        LIVE.fetch_add(1, Ordering::Relaxed);
    }
}

/// Where samples were allocated: a site for each stack and size, in the order in which they came up.
pub(crate) fn sites() -> impl Iterator<Item = Site<'static>> {
    table().into_iter().flat_map(Table::sites)
}

/// Bytes from one sample to the next on average; 0: none are taken.
pub(crate) fn rate() -> usize {
    RATE.load(Ordering::Relaxed)
}

/// Samples for which there was no room.
pub(crate) fn dropped() -> usize {
    DROPPED.load(Ordering::Relaxed)
}

/// What the table takes: (address, bytes).
pub(crate) fn metadata() -> (*mut u8, usize) {
    let at = TABLE.load(Ordering::Relaxed);
    let bytes = if at.is_null() { 0 } else { size_of::<Table>() };
    (at.cast(), os::round_up(bytes, os::page_size()))
}
