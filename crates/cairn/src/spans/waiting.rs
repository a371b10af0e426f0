//! Owns: which pages inside spans wait to go back to the system, and who takes them there.
//! Idea: who finds a page free sets a bit. Whoever takes the bit decides about the page: its span's owner, who needs it again, or
//!   the one thread that gives back what waits anywhere, in address order, while others go on.
//! Never: knows blocks; has an owner wait for more than the pages of one area.
//! Threads: `add` and `recall` the span's owner; `sweep` any.
//! Checked: the model `sweeps`; tests/holes/thinning.rs.
//! Story: docs/design/purging.md

use crate::base::{Apart, AtomicU32, AtomicU64, AtomicUsize, Ordering, SLICE_SIZE};
use crate::map::{WAITING_SLICES, address_map};
use crate::spans::tuning::{RECALL_LOOK_MS, SWEEP_LOOK_BYTES, SWEEP_RUNS};
use crate::{os, slices::arena};
use core::array;
use core::ops::Range;

/// Pages of a span: a bit for each quarter of a slice, all bits of a page alike.
pub(crate) type Pages = u128;

/// Bytes of a bit; no page is smaller.
const UNIT: usize = SLICE_SIZE / UNITS;
const UNITS: usize = u64::BITS as usize / WAITING_SLICES;

/// The pages that hold a part of these bytes of a span.
pub(crate) fn pages_of(bytes: Range<usize>) -> Pages {
    let in_page = os::page_size() - 1;
    let (first, end) = (bytes.start & !in_page, (bytes.end + in_page) & !in_page);
    Pages::MAX >> (Pages::BITS as usize - (end - first) / UNIT) << (first / UNIT)
}

/// How many bytes they are.
#[inline(never)]
pub(crate) fn bytes_of(pages: Pages) -> usize {
    pages.count_ones() as usize * UNIT
}

/// The first run of pages: their bytes in the span. There is one.
pub(crate) fn first_run(pages: Pages) -> Range<usize> {
    let first = pages.trailing_zeros();
    let count = (pages >> first).trailing_ones();
    first as usize * UNIT..(first + count) as usize * UNIT
}

// | bit of a page | what is on it                  | next                                           |
// |---------------|--------------------------------|------------------------------------------------|
// | 0             | anything                       | `add`: 1                                       |
// | 1             | nothing that anybody needs     | `recall`: 0, the owner's; `sweep`: 0, it goes  |
//
// While a page goes, `SWEPT` names its area. Who sweeps says so before it takes bits there, and who recalls looks after it has
// taken them: either the sweep has not got the bit, or the owner finds the area named, or done. Who sweeps takes no lock, so who
// recalls may hold any.

/// Words of an area, 512 KiB: no span is longer.
const AREA: usize = (512 << 10) / UNIT / u64::BITS as usize;
const AREA_SLICES: usize = AREA * WAITING_SLICES;

/// The area that somebody sweeps, by its number plus 1; 0: nobody sweeps; `u32::MAX`: none yet.
static SWEPT: Apart<AtomicU32> = Apart(AtomicU32::new(0));
/// The area where the sweep that is under way goes on; 0: none is. Relaxed: written by whoever sweeps.
static NEXT: Apart<AtomicU32> = Apart(AtomicU32::new(0));
/// Bytes of pages that wait: `count` has the sign. Relaxed: a measure.
static WAITING: Apart<AtomicUsize> = Apart(AtomicUsize::new(0));

/// So many more pages wait, or fewer; bytes of those that did before.
fn count(more: u32, fewer: u32) -> usize {
    let change = (more as usize).wrapping_sub(fewer as usize).wrapping_mul(UNIT);
    in_all(WAITING.0.fetch_add(change, Ordering::Relaxed))
}

/// Bytes of pages that wait.
pub(crate) fn bytes() -> usize {
    in_all(WAITING.0.load(Ordering::Relaxed))
}

/// Bits are set and taken first, and counted then, so that for a moment it may be less than none.
fn in_all(waiting: usize) -> usize {
    (waiting as isize).max(0) as usize
}

/// Pages of a span wait: nobody needs what is on them, until `recall`. True if so much waits that it is time for a sweep, or for
/// the next part of one.
pub(crate) fn add(index: usize, pages: Pages) -> bool {
    // Spans are aligned to their size: of one that covers less than a word all bits stand in one.
    let (shift, mut more) = (index % WAITING_SLICES * UNITS, 0);
    for (nth, bits) in
        [(pages as u64) << shift, (pages >> u64::BITS) as u64].into_iter().enumerate()
    {
        if bits != 0 {
            let word = address_map::waiting(index + nth * WAITING_SLICES);
            // Release: who takes the bits gives back what has been freed before.
            more += (bits & !word.fetch_or(bits, Ordering::Release)).count_ones();
        }
    }
    let before = count(more, 0);
    let after = before + more as usize * UNIT;
    let steps = |bytes: usize| bytes / SWEEP_LOOK_BYTES;
    NEXT.0.load(Ordering::Relaxed) > 0 || steps(after) > steps(before) && after > arena::may_wait()
}

/// The pages of a span of so many slices that wait, for checks: others may be taking them.
pub(crate) fn seen(index: usize, slices: usize) -> Pages {
    let word = |nth: usize| match nth * WAITING_SLICES < slices {
        true => address_map::waiting(index + nth * WAITING_SLICES).load(Ordering::Relaxed),
        false => 0,
    };
    let all = Pages::from(word(1)) << u64::BITS | Pages::from(word(0));
    let of_span = Pages::MAX >> (Pages::BITS as usize - slices * UNITS);
    all >> (index % WAITING_SLICES * UNITS) & of_span
}

/// None of the pages of a span of so many slices waits any more, or is about to go. Those that waited.
#[inline(never)]
pub(crate) fn recall(index: usize, slices: usize) -> Pages {
    let of_word = u64::MAX >> ((WAITING_SLICES - slices.min(WAITING_SLICES)) * UNITS);
    let shift = index % WAITING_SLICES * UNITS;
    let (mut past, mut waited) = (0, 0);
    while past < slices {
        // Release, and Acquire in `sweep`: what the owner has there now comes before the page waits again.
        let word = address_map::waiting(index + past);
        let taken = word.fetch_and(!(of_word << shift), Ordering::AcqRel) >> shift & of_word;
        waited |= Pages::from(taken) << (past * UNITS);
        past += WAITING_SLICES;
    }
    if waited != 0 {
        count(0, (bytes_of(waited) / UNIT) as u32);
    }
    let area = (index / AREA_SLICES) as u32 + 1;
    // Acquire: what went there is gone.
    while SWEPT.0.load(Ordering::Acquire) == area {
        os::wait_for(&SWEPT.0, area, RECALL_LOOK_MS);
    }
    waited
}

/// Gives back all pages that wait, if nobody does already. False if the system takes some of them not: locked memory, say.
pub(crate) fn sweep() -> bool {
    sweep_from(0, usize::MAX, 0).unwrap_or(true)
}

/// The same after whoever does already. Not for who holds a lock.
pub(crate) fn sweep_after_others() {
    while sweep_from(0, usize::MAX, 0).is_none() {
        let swept = SWEPT.0.load(Ordering::Relaxed);
        if swept != 0 {
            os::wait_for(&SWEPT.0, swept, RECALL_LOOK_MS);
        }
    }
}

/// The next part of that, which one free can wait for; more if much more waits than may: others have been adding while who
/// swept was not at work.
pub(crate) fn sweep_part() -> bool {
    // Before: who sweeps takes no lock.
    let much = 2 * arena::may_wait();
    sweep_from(NEXT.0.load(Ordering::Relaxed), SWEEP_RUNS, much).unwrap_or(true)
}

/// Goes on at an area, through so many runs at least, and until no more than so many bytes wait. None if somebody else sweeps.
fn sweep_from(mut area: u32, runs: usize, much: usize) -> Option<bool> {
    // Acquire: who has swept before has done so; Release, here and below: `recall`.
    let first = SWEPT.0.compare_exchange(0, u32::MAX, Ordering::AcqRel, Ordering::Relaxed);
    if first.is_err() {
        return None;
    }
    let is_any = bytes() > 0 || area > 0;
    let end = if is_any { address_map::described().div_ceil(AREA_SLICES) as u32 } else { 0 };
    let (mut gone, mut done) = (0, true);
    while area < end && (gone < runs || bytes() > much) {
        let words: [_; AREA] = array::from_fn(|nth| {
            address_map::waiting(area as usize * AREA_SLICES + nth * WAITING_SLICES)
        });
        if words.iter().any(|word| word.load(Ordering::Relaxed) != 0) {
            SWEPT.0.store(area + 1, Ordering::Release);
            done &= give_back(area, words.map(take), &mut gone);
        }
        area += 1;
    }
    NEXT.0.store(if area < end { area } else { 0 }, Ordering::Relaxed);
    SWEPT.0.store(0, Ordering::Release);
    Some(done)
}

fn take(word: &AtomicU64) -> u64 {
    // Relaxed: nothing is taken where nothing is. Acquire: see `add`. Release: `recall` finds that the area is swept.
    if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::AcqRel) }
}

/// Gives back the pages of an area whose bits are set, and counts their runs.
fn give_back(area: u32, bits: [u64; AREA], runs: &mut usize) -> bool {
    count(0, bits.iter().map(|word| word.count_ones()).sum());
    let base = address_map::slice_address(area as usize * AREA_SLICES);
    let (mut from, mut done) = (0, true);
    while from < AREA * 64 {
        let rest = bits[from / 64] >> (from % 64);
        if rest == 0 {
            from = (from / 64 + 1) * 64;
            continue;
        }
        from += rest.trailing_zeros() as usize;
        let is_free = |unit: &usize| bits[unit / 64] >> (unit % 64) & 1 != 0;
        let units = (from..AREA * 64).take_while(is_free).count();
        // SAFETY: nobody needs what is on pages that wait, and nobody else has taken their bits.
        if unsafe { os::purge(base.wrapping_add(from * UNIT), units * UNIT) } {
            count_gone(units * UNIT);
        } else {
            done = false;
        }
        from += units;
        *runs += 1;
    }
    done
}

/// Bytes that have gone from spans in use, ever. Relaxed: a measure.
static GONE: AtomicUsize = AtomicUsize::new(0);

/// So many bytes have gone from spans in use.
pub(crate) fn count_gone(bytes: usize) {
    arena::count_holes(bytes);
    GONE.fetch_add(bytes, Ordering::Relaxed);
}

/// Bytes that have been given back, ever: those, and free slices that were dirty.
pub(crate) fn given_back() -> u64 {
    GONE.load(Ordering::Relaxed) as u64 + arena::counts().purged * SLICE_SIZE as u64
}

/// In a forked child, before it has a second thread: nobody sweeps. Pages whose bits were taken stay.
pub(crate) fn settle_in_child() {
    SWEPT.0.store(0, Ordering::Relaxed);
}

/// Sweeps until it is dropped, for tests.
#[cfg(test)]
pub(crate) fn hold() -> impl Drop {
    struct Sweeps;
    impl Drop for Sweeps {
        fn drop(&mut self) {
            SWEPT.0.swap(0, Ordering::AcqRel);
        }
    }
    assert_eq!(SWEPT.0.swap(u32::MAX, Ordering::AcqRel), 0);
    Sweeps
}
