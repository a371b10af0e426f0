//! Owns: the tuned constants of this floor: how much a refill brings, what a heap keeps, how much upkeep does at once.
//! Idea: one place for a number that was measured or judged; what follows from another one stands where it is used.
//! Never: holds a size or a format that another one relies on: half and twice of each of these are right, too.
//! Threads: any; holds nothing.
//! Checked: `cargo xtask tidy` asks each of them what half and twice of it do.
//! Story: docs/why-not.md, docs/design/heap.md, docs/design/upkeep.md

use crate::base::{SHARED_REFILLS, in_hardened, in_loom, in_shuttle};
use crate::store::READY;

/// A refill carves at most so many bytes of untouched memory, an OS page, the first few times of a class: that much
/// more than it needs is what a small program shows. Twice of it costs 11 % more page faults in a small bash.
pub(crate) const CARVE_BYTES: usize = 4096;
/// How often that is so. Half, twice: not tried.
pub(crate) const COLD_CARVES: u8 = SHARED_REFILLS + 3;
/// Then it carves so many bytes, which makes the refills of a growing heap rare. With half of it `fifo_many` takes 1.05
/// of the instructions and a small Python 1.05 of the page faults; with twice of it they are as now.
pub(crate) const HOT_CARVE_BYTES: usize = 16384;
/// Blocks that it carves at most. With half of them `batch-random` is 17 % slower, with twice as many the same.
pub(crate) const CARVE_BLOCKS: usize = in_shuttle(in_hardened(64, READY as usize), 3);

/// Spans looked at in one step for frees of others: bounds what one call pays. With half of it `mixed_medium` holds
/// 1.04 of the memory; with twice of it `fifo_many` takes 1.04 of the instructions.
pub(crate) const LOOK_SPANS: usize = 8;
/// Usable spans of a class that a heap takes in, by freeing into them, while others might need them. More: what idle
/// threads leave unusable grows; fewer: threads that exchange blocks abandon what they need next. `rptest` peaks at
/// 0.89 with half of it, at 1.22 with twice of it, where `larson-16` takes 520 ms instead of 605.
pub(crate) const PARTIAL_LIMIT: usize = in_shuttle(4, 1);
/// So many more of a class from which the heap does not allocate, if its frees have emptied as many spans of late. Without
/// these a span is listed, refilled with a few blocks, abandoned, and claimed again: `malloc-test` takes 1.25 of the time. With
/// half or twice of it that takes the same, `xmalloc-test` with four threads 1.1.
pub(crate) const PARTIAL_EARNED: u8 = in_shuttle(12, 1) as u8;
/// Free blocks that make a full span worth a refill. With half of it `chain` takes 0.99 of the instructions and 0.95 of
/// the memory; with twice of it `mixed_small` 1.03 of the memory.
pub(crate) const WORTHWHILE_BLOCKS: u32 = 8;
/// Slices of full spans that a heap tries to keep between upkeeps, if it has not paid. With half of it `remote_mixed`
/// takes 0.985 of the instructions, with twice of it 1.02.
pub(crate) const FULL_PROBE: usize = 4;

/// One empty span of a class may stay with its heap if it is no larger than the heap's share of so many slices: up to
/// eight heaps keep some, of at most 1 MiB in each. With half of it `remote_mixed` takes 1.007 of the instructions;
/// with twice of it the same.
pub(crate) const SPARE_SLICES: usize = 8;
/// Empty spans that a heap keeps at most: 1 MiB, what a core's own cache holds. With twice of it nothing is faster,
/// with half of it threads that fill as much are back at the arena: 34 cycles a pair.
pub(crate) const EMPTY_MAX: usize = in_shuttle(64, 2);
/// The lists of so many that have become empty last are used again: their blocks are in the core's cache. Those of
/// others would be followed from miss to miss, so these spans are carved anew, which writes ahead. With none `threadtest`
/// takes 1.08 to 1.34 of the time; with twice of it 0.91 to 1.01, but 1.11 where blocks are freed in any order.
pub(crate) const EMPTY_WARM: usize = in_shuttle(32, 1);

/// Heaps that are looked at before a new span is taken, up to the first whose thread is away. With half of it a chain of
/// threads holds 1.24 of what lives, with twice of it as much (1.20).
pub(crate) const LOOK_HEAPS: usize = in_loom(16, 0);
/// Spans that who looks lets go of at once: bounds what one call pays. With half and twice of it a chain of threads holds as
/// much.
pub(crate) const LET_GO_SPANS: usize = in_shuttle(64, 1);

/// Batches of frees to others under way at once. Twice of it holds back more blocks of threads that free at random;
/// half of it evicts batches of one when 16 threads free to each other. With a quarter, half and twice of it times are
/// within 2 %, and `swap` peaks at 7.2 to 8.9 MiB.
pub(crate) const BATCHES: usize = in_shuttle(16, 2);
/// A batch leaves at this many blocks: with a quarter of it a thread that frees what another allocates falls behind,
/// twice of it is no faster.
pub(crate) const BATCH_BLOCKS: u32 = in_hardened(16, 8);
/// Or at so many bytes: 128 KiB may lie in all batches. Half of it takes 1.067 of the best's time in threaded programs
/// of others, twice of it 1.029, but could hold 256 KiB back.
pub(crate) const BATCH_BYTES: u32 = 8192;
/// Recent remote frees (upkeep halves their number) that a thread must have made before it batches: one that frees now
/// and then holds nothing back. With half of it `remote_mixed` takes 1.007 of the instructions; with twice of it 1.18,
/// and `remote_small` 2.1.
pub(crate) const BATCH_AFTER: u32 = in_shuttle(64, 2);
/// One free of so many into abandoned spans goes there. Without any, where the cache takes in all frees, the heap never
/// learns that the spans were its own. With half of it `chain` takes 1.008 of the instructions and `mixed_medium` 1.02
/// of the memory; with twice of it `chain` 0.994.
pub(crate) const PROBE_EACH: u32 = 16;

/// Slow ticks between upkeeps. Half of it reads the clock more often than a refill is long; twice of it leaves batches
/// of remote frees lying. A power of two.
pub(crate) const UPKEEP_TICKS: u32 = in_shuttle(64, 4);
/// Large blocks for a slow tick: a loop over one that the heap keeps takes 10 ns, and upkeep 300. With half of it
/// `mixed_large` takes 0.99 of the instructions; with twice of it, too, and 1.03 of the memory.
pub(crate) const LARGE_TICKS: u32 = 16;
/// Classes looked at in one upkeep; a whole round takes 14. With half of it `remote_mixed` takes 0.99 of the
/// instructions; with twice of it 1.035, and 1.02 of the memory.
pub(crate) const CLASSES_AT_ONCE: usize = in_shuttle(4, if cfg!(miri) { 4 } else { 56 });
/// Hardened: slow ticks after which a cache is emptied when a span has been released. Half, twice: not tried.
pub(crate) const RELEASE_TICKS: u32 = 8;

/// A heap is quiet if it has fewer slow ticks than milliseconds pass, and this many: the clock is coarse. Half of it
/// takes a few ticks around the clock's step for a quiet heap. Or a 16th of the purge delay: where nothing is purged
/// by time, none is quiet.
pub(crate) const QUIET_MS: usize = 16;
/// Findings in a row, after which it looks for holes: a pause between two phases is none. With half or twice of it the
/// rows of `cargo xtask counts` are the same.
pub(crate) const HOLES_AFTER: u32 = 2;
/// Spans that are looked at in one sweep, for holes or whether they are empty, at most. With half or twice of it
/// the rows of `cargo xtask counts` are the same.
pub(crate) const SWEEP_SPANS: usize = 128;
/// Or as many as this time allows, in nanoseconds: a hole in a huge page may take 0.1 ms. Twice of it shows in the
/// slowest allocation of a program, half of it is the time of one such hole.
pub(crate) const SWEEP_NS: u64 = 200_000;

/// Nurseries that a heap of the program's has at most: then it has so many blocks that classes of their own pay.
/// Half, twice: not tried.
pub(crate) const NURSERIES_MAX: usize = 8;
/// Free nurseries that a thread keeps for its next heaps of the program's, and as many handles: two heaps' worth.
/// Half, twice: not tried.
pub(crate) const SPARES_MAX: usize = 2 * NURSERIES_MAX;
/// Lists of parts in a shared heap. With half as many, threads that meet wait longer for their part to be found.
pub(crate) const PART_LISTS: usize = 16;
/// Pieces of memory for handles, each twice as large as the one before. Half, twice: not tried.
pub(crate) const HANDLE_PIECES: usize = 12;
/// Handles in the first of them. Half, twice: not tried.
pub(crate) const FIRST_HANDLES: usize = 64;
