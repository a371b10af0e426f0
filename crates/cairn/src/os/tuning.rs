//! Owns: the tuned constants of this floor: how long is waited, how often is asked, how much room there is for a text.
//! Idea: one place for a number that was measured or judged; what follows from another one stands where it is used.
//! Never: holds a number of the system's: half and twice of each of these are right, too.
//! Threads: any; holds nothing.
//! Checked: `cargo xtask tidy` asks each of them what half and twice of it do.
//! Story: docs/design/systems.md, docs/design/huge-pages.md

use crate::base::{in_loom, in_shuttle};

/// How often a waiter looks at a lock before it sleeps: about the length of the short sections that locks guard.
/// Half, twice: not tried.
pub(crate) const LOCK_SPINS: u32 = in_loom(in_shuttle(60, 1), 1);

/// Nanoseconds. A huge page that takes longer comes from memory that the host of a virtual machine has yet to find.
/// 512 small ones take as long, and come from what is warm. Half, twice: not tried.
pub(crate) const HUGE_PAGE_SLOW_NS: u64 = 1_000_000;
/// Nanoseconds that pass at most after a slow huge page before another one is asked for. Always as many: `survive-10`
/// fills in 34 ms, 28 with a pause of twice the slow one's time; `free-all` 58 and 24. Half, twice: not tried.
pub(crate) const HUGE_PAGE_PAUSE_MAX_NS: u64 = 2_000_000_000;
/// Pages of a block that are looked at to tell whether all of it is resident. Eight of each 8th block, or four of each
/// 32nd: `aligned-heavy` takes 46.4 and 37.8 ns, 34.8 without looking. Half, twice: not tried.
pub(crate) const FILLED_PROBES: usize = 4;

/// Ranges that are mappings of their own where the kernel has no guard pages. Each may make two mappings more: a
/// process may have 65,530. Half, twice: not tried.
pub(crate) const PROTECTED_MAX: usize = 400;

/// Room for the path of a cgroup's file, in bytes. A group whose path is longer counts as one without a limit.
/// Half, twice: not tried.
pub(crate) const CGROUP_PATH_BYTES: usize = 512;
/// Room for a line of the list of mappings, in bytes; what is longer is cut. Half, twice: not tried.
pub(crate) const MAPS_LINE_BYTES: usize = 320;
/// Bytes at a file's start among which the number of its build is looked for. Of 2324 programs and libraries of Debian's it is
/// there in all but six, as with twice of it; with half of it in 17.
pub(crate) const FILE_START_BYTES: usize = 1024;
/// Room for the entries of the auxiliary vector: it has some 22. Half, twice: not tried.
pub(crate) const AUXILIARY_ENTRIES: usize = 64;

/// Milliseconds after which who waits for a turn looks again: nobody is woken, for that would be a second atomic step
/// of each free. Half, twice: not tried.
pub(crate) const TURN_LOOK_MS: usize = 1;

/// A thread that has not been at work on its spans for so many milliseconds loses them to one that needs some. Where more
/// threads run than there are processors, each is away while others run: `larson` with 64 threads on two takes 1.3 to 1.7 of
/// the time with half of it, before the doubling below, and 1.0 to 1.3 with twice of it (0.9 to 1.4).
/// With assertions 20, so that long tests let go often; but not in the unit tests, whose threads wait for each other and count on
/// what they keep.
pub(crate) const AWAY_MS: u32 =
    in_loom(in_shuttle(if cfg!(debug_assertions) && !cfg!(test) { 20 } else { 100 }, 0), 0);
/// The same for spans of one long class, by one that needs such: more than a tick of the coarse clock, which may last 10. With
/// half and twice of it 30 threads on two processors that swap blocks of up to 60 KB hold 0.87 and 1.12 of the memory.
pub(crate) const AWAY_TURN_MS: u32 =
    in_loom(in_shuttle(if cfg!(debug_assertions) && !cfg!(test) { 11 } else { 20 }, 0), 0);
/// So often at most that time doubles, where threads come back that soon after they have lost theirs. With half and twice of
/// it `larson` with 64 threads takes 0.92 and 0.95 of the time, which is noise.
pub(crate) const REGRETS_MAX: u32 = 6;
