//! Owns: the tuned constants of this floor: how much free memory stays, for how long, and in what steps it comes and
//!   goes.
//! Idea: one place for a number that was measured or judged; what follows from another one stands where it is used.
//! Never: holds a size or a format that another one relies on: half and twice of each of these are right, but for
//!   the largest reservation.
//! Threads: any; holds nothing.
//! Checked: `cargo xtask tidy` asks each of them what half and twice of it do.
//! Story: docs/why-not.md, docs/design/purging.md, docs/design/huge-pages.md

use crate::base::{SLICE_SIZE, in_shuttle};
use crate::map::CHUNK_SLICES;
use crate::os;

/// Milliseconds that memory lies idle before it is given back, unless somebody says otherwise. Half, twice: not tried.
pub(crate) const PURGE_DELAY_MS: usize = 250;
/// Dirty memory that is always kept, in slices: 512 KiB. Twice of it shows in every small process; half of it purges
/// what a loop is about to use again.
pub(crate) const KEEP_MIN: usize = in_shuttle((512 << 10) / SLICE_SIZE, 2);
/// Beyond that a 16th of what is in use, and has not gone to holes, may stay dirty. Half, twice: not tried.
pub(crate) const KEEP_SHARE: usize = 16;
/// What was needed between two ticks stays for so many purge delays, 10 s, at least, for it may be needed again. With
/// half or twice of it a server that is asked five times a second has no faults either.
pub(crate) const NEEDED_DELAYS: u64 = 40;
/// But not more than so much, in slices: 2 MiB. With half of it such a server takes 0.3 faults a request instead of 0.0, with
/// twice of it as many.
pub(crate) const NEEDED_MAX: usize = in_shuttle((2 << 20) / SLICE_SIZE, 4);
/// Slices purged in one go, 4 MiB: about 0.3 ms of system time. Half, twice: not tried.
pub(crate) const PURGE_BATCH: usize = in_shuttle((4 << 20) / SLICE_SIZE, 4);

/// Dirty slices that make a release purge at once: 4 MiB, or `BURST_SHARE` if that is more. A process that frees
/// everything and falls idle keeps that; twice of it is seen by its owner: `free-all-idle` keeps 18 MiB instead of 13,
/// though `sawtooth` takes 277 ms instead of 323.
pub(crate) const BURST_MIN: usize = in_shuttle((4 << 20) / SLICE_SIZE, 24);
/// A quarter of what is in use. With a half or a third of it, in place of what is regretted, `large-churn` takes 107
/// and 398 ms; 34 with regret.
pub(crate) const BURST_SHARE: usize = 4;
/// Where an eighth of what is in use or more has gone to holes, so small a part of the rest, dirty and waiting. With half
/// of it bursts leave 0.01 to 0.02 of their floor more, with twice of it as much, in the same time.
pub(crate) const HOLLOW_SHARE: usize = 64;
/// Or 1 MiB, in slices, whatever the frames of huge pages: with the 4 MiB of `BURST_MIN`, and twice as much where slices are
/// scattered, bursts leave 1.17 to 1.28 of their floor instead of 1.08 to 1.15. With half or twice of it as much is left.
pub(crate) const HOLLOW_MIN: usize = in_shuttle((1 << 20) / SLICE_SIZE, 24);
/// Milliseconds. What is purged so and needed again within this time should have stayed: from then on more may be
/// dirty. Without regret `sawtooth` takes 442 ms instead of 243. Half, twice: not tried.
pub(crate) const REGRET_MS: u64 = 1000;
/// For what was regretted as many slices more may be dirty as are in use, or 32 MiB. As much as is in use and no more: `mstress` takes
/// 49 ns instead of 33, and `free-only` keeps 16 MiB instead of 37. Twice: not tried.
pub(crate) const BURST_KEPT: usize = (32 << 20) / SLICE_SIZE;
/// After so many regrets in a row all of it, whatever is in use: else mimalloc's mstress with 4 threads takes 1.11 of the time, with
/// 97,000 faults instead of 26,000. With twice of it 35,000 in the same time; with half of it `phase-change` ends with 106 MiB
/// instead of 36.
pub(crate) const BURST_SURE: u32 = 4;
/// Up to 512 MiB, in slices. Half, twice: not tried.
pub(crate) const BURST_MAX: usize = (512 << 20) / SLICE_SIZE;

/// Clean slices that are taken at once, a power of two. A quarter of it leaves twice as many borders between threads;
/// with an eighth two threads take 27.3 cycles for a pair instead of 24.3. Half, twice: not tried.
pub(crate) const AHEAD: usize = in_shuttle(32, 4);
/// The longest run whose length is told apart from longer ones, in slices: 64 MiB. Half, twice: not tried.
pub(crate) const RUN_MAX: usize = 64 * CHUNK_SLICES;

/// The reservation grows by what it holds, in slices, at least by 4 MiB. Half, twice: not tried.
pub(crate) const GROW_MIN: usize = in_shuttle((4 << 20) / SLICE_SIZE, 64);
/// At most by 64 MiB, in slices. Half, twice: not tried.
pub(crate) const GROW_MAX: usize = in_shuttle((64 << 20) / SLICE_SIZE, 64);

/// Slices in use from which on a heap is backed by huge pages as it grows: 16 MiB, so that one of them is an eighth of
/// it at most. Half of it gains nothing; with twice of it
/// `phase-change` takes 62 ms instead of 50, `free-only` 177 instead of 92, and peaks are 0 to 5 % lower.
pub(crate) const HUGE_MIN: usize = in_shuttle((16 << 20) / SLICE_SIZE, 4);
/// No huge pages where more than so manieth a part of what is in use may be spans of which little is touched: 30 threads with a
/// block of up to 60 KB each hold 18 MiB, not 63 to 165. With half or twice of it the same; `phase-change` and `free-only`
/// take as long.
pub(crate) const THIN_SHARE: usize = in_shuttle(4, 1);
/// Slices of spans that have been taken in a row and make the front dense: a huge page's. Half, twice: not tried.
pub(crate) const DENSE_MIN: usize = in_shuttle(os::HUGE_PAGE / SLICE_SIZE, 2);

/// Reservation sizes to try, in bytes. 1 TiB is a fraction of any 47-bit space and more than machines hold; the
/// smaller ones serve small address spaces. The arena has no place for more than the largest. Half, twice: not tried.
pub(crate) const LADDER: [usize; 4] = [
    1024 << 30,
    64 << 30,
    4 << 30,
    in_shuttle(256 << 20, if cfg!(miri) { 64 << 20 } else { 256 << 20 }),
];
/// Draws for a place of the reservation; in the hardened build each fails with a probability of a half.
/// Half, twice: not tried.
pub(crate) const PLACE_DRAWS: usize = 32;
/// Where reservations count as locked, one is for so many times the limit: metadata takes a tenth of that, and the
/// heap has room when the program unlocks its memory. Half, twice: not tried.
pub(crate) const LOCKED_TIMES: usize = 8;
