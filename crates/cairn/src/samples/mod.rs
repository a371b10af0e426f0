//! Owns: which allocations somebody wants to see; guard pages around some of them, and the heap profile.
//! Idea: nothing is counted while nobody asks.
//! Never: costs a fast path an instruction.
//! Threads: see each file.
//! Checked: tests/sample.rs, tests/sample/profile.rs, tests/guards.rs.
//! Story: docs/guide/guards.md

pub(crate) mod guards;
mod machine;
pub(crate) mod profile;
pub(crate) mod sampling;
mod stack;
mod tuning;
mod unwind;

pub(crate) use sampling::{Draw, Sampling};
pub use sampling::{ThreadCounts, Told};
#[cfg(test)]
pub(crate) use {stack::own_callers, unwind::has_rule};
