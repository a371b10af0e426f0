//! Owns: the heap profile: which sampled blocks are live, and what has been allocated where.
//! Idea: a block stands for as many bytes as one of its size is a sample of; who reads the profile multiplies.
//! Never: costs an instruction of a fast path; allocates from a heap; calls anybody.
//! Threads: any; one lock, inside which nothing is taken. Readers take none.
//! Checked: tests/sample/profile.rs here and in the C layer.
//! Story: docs/guide/profile.md

mod table;

pub(crate) use table::{Live, Sample, Site, settle_in_child};

use crate::base::{AtomicPtr, AtomicUsize, Ordering};
use crate::map::address_map;
use crate::os::{self, Lock};
use crate::samples::asked::Asked;
use crate::samples::sampling::{self, Draw};
use crate::samples::tuning::PROFILE_FRAMES;
use crate::stacks::{self, Registers, machine};
use core::ptr::null_mut;
use table::Table;

/// What is asked for, what is done, and where the rest is. A tool outside writes the first word and reads the rest.
// Relaxed, all but the table: a number is all each of them is.
#[repr(C)]
pub(crate) struct Control {
    /// Bytes from one sample to the next on average.
    pub(crate) asked: Asked,
    /// Samples for which there was no room.
    dropped: AtomicUsize,
    /// What is known; null: nothing yet. Never unmapped.
    table: AtomicPtr<Table>,
    layout: table::Layout,
}

/// What the header leads to.
pub(crate) static CONTROL: Control = Control {
    asked: Asked::nothing(),
    dropped: AtomicUsize::new(0),
    table: AtomicPtr::new(null_mut()),
    layout: table::LAYOUT,
};
/// Bytes from one sample to the next at most.
const RATE_MAX: usize = 1 << 30;
/// Whoever changes the table holds it.
static CHANGING: Lock<()> = Lock::new(());
/// Live samples. Relaxed: whoever frees one has seen it counted.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Takes a sample of every so many bytes on average; 0: none. False if there is no memory for it.
pub(crate) fn set(rate: usize) -> bool {
    let done = apply(rate);
    CONTROL.asked.settle();
    done
}

/// The same without a word to who has asked for it.
#[inline(never)]
fn apply(rate: usize) -> bool {
    // Beyond that no number of blocks is kept that come before a sample.
    let rate = rate.min(RATE_MAX);
    if rate > 0 && table().is_none() && !make_table() {
        return false;
    }
    // First: who takes the sampler over says otherwise.
    CONTROL.asked.set_done(rate);
    if rate > 0 {
        sampling::set(rate, Draw::Chance, nobody, Some(&CONTROL.asked));
    } else {
        sampling::end(nobody);
    }
    os::notify_all();
    true
}

/// Does what somebody outside has asked for.
pub(crate) fn follow() {
    CONTROL.asked.follow(apply);
}

/// Who is told of samples: by this the sampler knows the profile.
fn nobody(_: *mut u8, _: usize) {}

fn table() -> Option<&'static Table> {
    // Acquire: pairs with `make_table`.
    // SAFETY: null, or a table, which is never unmapped.
    unsafe { CONTROL.table.load(Ordering::Acquire).as_ref() }
}

#[cold]
fn make_table() -> bool {
    stacks::find_own_code();
    // Zeros are a table with nothing in it.
    let made: *mut Table = os::map(size_of::<Table>()).cast();
    if made.is_null() {
        return false;
    }
    // Each part is used from its beginning on.
    os::keep_small_pages(made.cast(), size_of::<Table>());
    let order = Ordering::AcqRel;
    if CONTROL.table.compare_exchange(null_mut(), made, order, Ordering::Acquire).is_err() {
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
/// `weighed`, at that rate, in place of one at `near`, or null; false if there is no room.
#[cold]
#[inline(never)]
pub(crate) fn insert(
    block: *mut u8,
    asked: usize,
    near: *mut u8,
    weighed: usize,
    rate: usize,
) -> bool {
    // Asked first, in a frame that holds nothing else: what an earlier call has left in it is taken for calls.
    let here = machine::registers();
    insert_for(here, Sample::new(block, asked, slice_number(near)), weighed, rate)
}

/// The number of a slice plus 1; 0: it is none of the reservation's.
fn slice_number(p: *mut u8) -> u32 {
    if address_map::contains(p) { address_map::slice_of(p) as u32 + 1 } else { 0 }
}

#[inline(never)]
fn insert_for(here: Registers, mut sample: Sample, weighed: usize, rate: usize) -> bool {
    let Some(table) = table() else { return false };
    let mut calls = [0; PROFILE_FRAMES];
    stacks::find_callers(here, &mut calls);
    os::notice_fork();
    let held = CHANGING.lock();
    let done = table.site(&calls, weighed, rate).is_some_and(|site| {
        sample.site = site;
        table.insert(sample)
    });
    if done {
        table.count_allocated(&sample);
        LIVE.fetch_add(1, Ordering::Relaxed);
    }
    drop(held);
    if !done {
        CONTROL.dropped.fetch_add(1, Ordering::Relaxed);
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
    let mut sample = table.remove(block.addr())?;
    table.count_freed(&mut sample);
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
        table.count_kept(&sample);
        LIVE.fetch_add(1, Ordering::Relaxed);
    }
}

/// Where samples were allocated: a site for each stack and size, in the order in which they came up.
pub(crate) fn sites() -> impl Iterator<Item = Site<'static>> {
    table().into_iter().flat_map(Table::sites)
}

/// Live samples, as they are found while others allocate and free.
pub(crate) fn live() -> impl Iterator<Item = Live> {
    table().into_iter().flat_map(Table::live)
}

/// Bytes from one sample to the next on average; 0: none are taken.
pub(crate) fn rate() -> usize {
    CONTROL.asked.done()
}

/// Samples for which there was no room.
pub(crate) fn dropped() -> usize {
    CONTROL.dropped.load(Ordering::Relaxed)
}

/// What the table takes: (address, bytes).
pub(crate) fn metadata() -> (*mut u8, usize) {
    let at = CONTROL.table.load(Ordering::Relaxed);
    let bytes = if at.is_null() { 0 } else { size_of::<Table>() };
    (at.cast(), os::round_up(bytes, os::page_size()))
}
