//! Owns: the tuned constants of this floor: how thin a span is before holes are looked for, and in which steps then; of which
//!   spans the hardened build looks at blocks one by one.
//! Idea: one place for a number that was measured or judged; what follows from another one stands where it is used.
//! Never: holds a size or a format that another one relies on: half and twice of each are right, too.
//! Threads: any; holds nothing.
//! Checked: `cargo xtask tidy` asks what half and twice of each do.
//! Story: docs/design/policy.md, docs/design/purging.md

use crate::base::{SLICE_SIZE, in_shuttle};

/// Hardened: a span of one slice that has fewer blocks is looked at block by block; longer ones always are.
/// Half, twice: not tried.
pub(crate) const FEW_BLOCKS: u16 = 32;

/// Up to so many heaps, each may keep more full spans also for frees of what others have allocated. With half of it `larson`
/// with two threads takes 1.04 of the time; with twice of it a chain of 200 threads peaks at 243 MiB, not 237.
pub(crate) const HEIRS: usize = 4;

/// Slices that a process must have used at once, 32 MiB, before its heaps look for pages around survivors: a small program
/// that frees all that it has pays 8 % more instructions for nothing. With twice of it a burst of 60 MiB leaves all.
pub(crate) const THIN_SLICES: usize = in_shuttle((32 << 20) / SLICE_SIZE, 8);
/// Blocks in use per page of a span, from which on it is looked at while its heap shrinks: with more, one page in eight or
/// less is free where chance decides. With half of it as much is left of five bursts, with twice of it, too, and one in which
/// one block in ten survives takes 1.1 times as long to free.
pub(crate) const THIN_BLOCKS: u32 = 2;
/// Then it is looked at again when so manieth a part of its blocks in use has been freed, while there is more than one for a
/// page: few pages are free then. With two thirds of it as much is left, in the same time, and with twice of it.
pub(crate) const THIN_FIRST_STEP: u32 = 3;
/// And then when so manieth a part of them has been freed. With half of it 1.12 times the floor is left where 1.10 are now, with
/// twice of it as much as now.
pub(crate) const THIN_STEP: u32 = 8;
/// Bytes of pages that have come to wait, after which it is asked whether much waits: that takes the arena's lock.
/// With half or twice of it as much is left, in the same time.
pub(crate) const SWEEP_LOOK_BYTES: usize = in_shuttle(256 << 10, 4096);
/// Runs of pages that one free gives back at most, and the rest of their area: 30 to 110 microseconds.
/// With half or twice of it as much is left, in the same time.
pub(crate) const SWEEP_RUNS: usize = in_shuttle(32, 2);
/// Who needs a page again of an area that is being swept looks again after so many milliseconds: nobody wakes it.
/// Where two or four threads grow and shrink by turns, twice of it takes the same time, and so does none at all.
pub(crate) const RECALL_LOOK_MS: usize = 1;

/// Events of a heap's spans without a refill between them, after which it shrinks. With half or twice of
/// it as much is left, in the same time.
pub(crate) const THIN_AFTER: u32 = in_shuttle(64, 2);
/// Spans of a heap that shrinks whose free blocks are set aside together, so that it waits for the cache lines of several at
/// once. With one, a burst of 1 GiB takes 1.2 times as long to free; with half of it the same; twice does not fit into a heap.
pub(crate) const THIN_QUEUE: usize = in_shuttle(16, 2);
/// Bytes that a heap sends to spans that nobody holds, after which it is judged whether these are only emptied. With
/// half or twice of it as much is left, in the same time.
pub(crate) const SENT_EACH: u32 = in_shuttle(1 << 20, 64) as u32;
/// They are if so manieth a part of that or less has been taken to be filled meanwhile. With half
/// or twice of it the same.
pub(crate) const SENT_SHARE: usize = 4;
/// What is needed again is a waste if so manieth a part of all that there has been had gone. With twice of it threads that
/// fill and others that empty side by side leave 75 to 95 MiB, not 30, in three of eight runs; with half of it the same.
pub(crate) const WASTE_SHARE: usize = 4;
/// Holes are regretted if, within this time, in milliseconds, a part of them is needed again: then none are made for as
/// long. With half or twice of it 20 turns take the same time: the first ones cost.
pub(crate) const THIN_PAUSE_MS: u64 = 1000;
/// That part: one in so many. With half or twice of it the same.
pub(crate) const THIN_REGRET_SHARE: usize = 4;
