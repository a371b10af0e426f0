//! Owns: the tuned constants of this floor: how many blocks the hardened build has ready, and how many wait.
//! Idea: one place for a number that was measured or judged; what follows from another one stands where it is used.
//! Never: holds a size or a format that another one relies on.
//! Threads: any; holds nothing.
//! Checked: `cargo xtask tidy` asks each of them what half and twice of it do.
//! Story: docs/design/policy.md

/// Places of a row of blocks that are ready, or wait. A power of two. With half of it 18 rows of the lab take 1.06 of
/// the time; twice of it does not fit behind a heap (`HEAP_SIZE`).
pub(crate) const ROW: usize = 32;
/// A cache that takes in any has room for so many blocks, however large they are: with half of it a loop over one
/// block comes to a refill at each turn.
pub(crate) const LEAST_ROOM: i32 = 4;
/// One in so many times that freed blocks become ready is a slow tick. A power of two. Half, twice: not tried.
pub(crate) const READY_TICK: u64 = 16;
