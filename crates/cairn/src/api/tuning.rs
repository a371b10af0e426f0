//! Owns: the tuned constants of this floor: what a thread keeps of what it frees, and how often it asks for its turn.
//! Idea: one place for a number that was measured or judged; what follows from another one stands where it is used.
//! Never: holds a size or a format that another one relies on: half and twice of each of these are right, too.
//! Threads: any; holds nothing.
//! Checked: `cargo xtask tidy` asks each of them what half and twice of it do.
//! Story: docs/design/heap.md, docs/design/large-blocks.md

/// Blocks of other threads' spans that are kept for this one's next allocation have at least so many bytes: smaller
/// ones share a cache line with blocks that others use. Half, twice: not tried.
pub(crate) const FOREIGN_MIN: u32 = 64;
/// Slices of the freed runs that all heaps together keep, one in each: 8 MiB. Half, twice: not tried.
pub(crate) const LARGE_CACHE_SLICES: usize = 512;
/// A thread asks so many times, a millisecond after each other, for its turn at the heap of a partition: who has it has been
/// preempted, or is in a function of the program's. Of 50,000 allocations of 100 threads in 16 partitions, on two processors and
/// with places for 30 heaps, 300 are refused with 3, none with 12, 50, 100 or 200: half and twice of it matter where others have
/// the processors.
pub(crate) const TURN_LOOKS: usize = 1000;
