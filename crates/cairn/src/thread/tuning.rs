//! Owns: the tuned constants of this floor: when a thread gets a heap, and how often the purge thread looks.
//! Idea: one place for a number that was measured or judged; what follows from another one stands where it is used.
//! Never: holds a size or a format that another one relies on: half and twice of each of these are right, too.
//! Threads: any; holds nothing.
//! Checked: `cargo xtask tidy` asks each of them what half and twice of it do.
//! Story: docs/why-not.md, docs/design/tls.md, docs/design/purging.md

use crate::base::{SLICE_SIZE, in_shuttle};

/// Beyond so many heaps in use a thread gets one only when it has shown that it needs it: a MiB of them is nothing to
/// a program with as many threads. With a quarter or half of it `idle-10000` is no better.
pub(crate) const CROWD: usize = in_shuttle(256, 1);
/// Slow ticks of a thread before a heap is made for it in a crowd, and frees to others before one is made for these, in a crowd or
/// not: as it ends, the C library frees a few. A heap is a page; each of these ticks takes the
/// shared heap's lock. Half, twice: not tried.
pub(crate) const TICKS_WITHOUT_HEAP: usize = in_shuttle(16, 2);
/// What a heap gets of the shared one at once is at most one block, or so many bytes. Half, twice: not tried.
pub(crate) const SHARED_BYTES: usize = 1024;

/// Deleted heaps that are kept are looked at when there are more than so many. Half, twice: not tried.
pub(crate) const LEFT_MIN: usize = in_shuttle(16, 2);
/// They are looked at each second (four purge delays), or, where nothing comes home, after a pause that has doubled so many
/// times: a minute. Half, twice: not tried.
pub(crate) const LEFT_PAUSES: u32 = 6;

/// In a forked child, slices looked at in one upkeep: 64 MiB, some tenths of a millisecond if all were a dead
/// thread's. Half, twice: not tried.
pub(crate) const SALVAGE_SLICES: usize = (64 << 20) / SLICE_SIZE;

/// Bytes of the purge thread's stack. A few small frames, and what the C library puts there: thread storage, and the
/// frame of the signal by which it changes the user of all threads. Half, twice: not tried.
pub(crate) const PURGE_STACK_BYTES: usize = 64 << 10;
/// Milliseconds between two batches of the purge thread, so that other threads come to the locks.
/// Half, twice: not tried.
pub(crate) const PURGE_PAUSE_MS: usize = 1;
/// The clock that upkeep reads lags behind by so many milliseconds at most: less, and every other tick of the purge
/// thread would find itself too early. Half, twice: not tried.
pub(crate) const CLOCK_LAG_MS: usize = 10;
/// Milliseconds. Where nothing is given back: until the purge thread looks whether that is so still.
/// Half, twice: not tried.
pub(crate) const KEPT_LOOK_MS: usize = 10_000;

/// Purge delays, 5 s of them, from one look of the purge thread's at threads that wait to the next: the second one takes their
/// spans. With half of it a server whose four threads are each asked once a second takes 3.7 page faults a request, with twice
/// of it 2.2, now 2.9; 1.4 where nobody looks.
pub(crate) const LOOK_DELAYS: usize = 20;

/// A memory cgroup is near its limit when it has less than this part of it left. Half, twice: not tried.
pub(crate) const GROUP_NEAR: u64 = 8;
/// How fast the room in a group may go, in bytes a millisecond (2 GiB/s): so long the purge thread may sleep, but not
/// less than `GROUP_LOOK_MS`. Half, twice: not tried.
pub(crate) const GROUP_FILL: u64 = 2 << 20;
/// Milliseconds between two looks at a group, at least. Half, twice: not tried.
pub(crate) const GROUP_LOOK_MS: usize = 5;
/// Bytes: where giving back all there is brings less, the next look is `GROUP_REST` times as far. Each one goes
/// through all that nobody holds, and asks all threads. Half, twice: not tried.
pub(crate) const GROUP_WORTHWHILE: usize = 1 << 20;
/// So many times as far. Half, twice: not tried.
pub(crate) const GROUP_REST: usize = 10;
