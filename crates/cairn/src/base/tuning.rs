//! Owns: the tuned constants of this floor: how much a cache holds, and what a heap may keep from others.
//! Idea: one place for a number that was measured or judged; what follows from another one stands where it is used.
//! Never: holds a size or a format that another one relies on: half and twice of each of these are right, too.
//! Threads: any; holds nothing.
//! Checked: `cargo xtask tidy` asks each of them what half and twice of it do.
//! Story: docs/why-not.md, docs/design/heap.md

use crate::base::policy::in_hardened;
use crate::base::sync::in_shuttle;

/// What a heap's list of a class takes in by frees, in bytes. With less, programs that replace blocks at random refill
/// more often: `rptest` takes 24 ns with half of it, 19 as it is, 17 with twice of it.
pub(crate) const CACHE_BYTES: usize = 64 << 10;
/// The same, in blocks. With less, programs that replace blocks at random refill more often: `lean-like` 1.71 times as
/// often with 32. With twice as many, those of a batch freed in random order lie all over, and the next batch misses
/// the cache: `batch-random` takes 5.4 ns with 64, 4.8 with 32 or 48.
pub(crate) const CACHE_BLOCKS: usize = in_shuttle(48, 2);
/// What a block counts for in `cache_limit`. Each free uses up a unit for good (see `block::Limit`): 64 of them cost
/// `random-small` 5 %, 127 cost 4, 1024 nothing; a loop over one block comes by the slow path in 50,000 turns.
/// Half, twice: not tried.
pub(crate) const CACHE_UNITS: i32 = in_shuttle(1024, 4);

/// Full spans that the heaps in use hold on to, in slices: 4 MiB. It is also what a thread that falls idle may keep
/// from others that come later. `random-small` takes 14.2 ns with a quarter of it, 11.5 as it is, 11.4 with twice of
/// it. Hardened, 64 MiB: a free into one that has been let go waits in no cache. With a quarter of that `larson-16`
/// takes 2.5 of the default's time instead of 2.0, `rptest` 2.6 instead of 1.6.
pub(crate) const FULL_SLICES: usize = in_shuttle(in_hardened(256, 4096), 16);
/// As many of them a heap may hold at first. Hardened, all of them would keep from others what they have freed in this
/// heap's spans while its thread rests. With half or twice of it the rows of `cargo xtask counts` are the same.
pub(crate) const FULL_FIRST: usize = in_shuttle(256, 16);
/// As many at most: what a thread frees itself it may keep beyond its share, for only who frees into its own spans
/// earns that. 64 MiB: one that replaces small blocks at random in 58 MiB takes 1.08 of the time with half of it, 0.97 with
/// twice of it; but while the thread waits they keep what others free there.
pub(crate) const FULL_MOST: usize = FULL_FIRST + in_shuttle(4096, 32);
/// So many slices more for each full span that frees of its own thread have made worth a refill, or have found let go
/// of. Half, twice: not tried.
pub(crate) const FULL_STEP: usize = in_hardened(1, 16);

/// A heap asks the shared heap this often for blocks of a class before it takes spans of its own. Hardened it gets one
/// at a time. Half, twice: not tried.
pub(crate) const SHARED_REFILLS: u8 = in_hardened(3, 7);
