//! Owns: what the hardened build marks slices with.
//! Idea: a bit each, beside the chunk's other bits.
//! Never: decides what a mark means.
//! Threads: any; each mark has its rules (see `fences` and `partition_runs`).
//! Checked: tests/partitions.rs, tests/guards.rs
//! Story: docs/design/policy.md

use crate::base::{AtomicU64, AtomicUsize};

/// Slices of a chunk, in the hardened build.
pub(crate) struct Marks {
    /// Those that have guard pages: a word for each kind (see `fences`).
    pub(crate) guards: [AtomicUsize; 3],
    /// Those where runs begin that are a partition's for ever.
    pub(crate) apart: AtomicU64,
}
