//! Owns: what is told of the whole allocator: statistics, and the header for tools.
//! Idea: nothing is counted while the program runs.
//! Never: changes what it looks at.
//! Threads: any.
//! Checked: the reconciliation test.
//! Story: docs/guide/statistics.md

pub(crate) mod figures;
pub(crate) mod json;
pub(crate) mod memory;
pub(crate) mod outside;
pub(crate) mod profile;
pub(crate) mod stats;
mod text;
mod tuning;
