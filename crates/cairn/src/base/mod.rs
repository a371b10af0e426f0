//! Owns: what all others stand on: atomics, size classes, what the hardened build does otherwise.
//! Idea: it is known when the program is compiled, or is one number.
//! Never: calls the system, or touches memory of the program's.
//! Threads: see each file.
//! Checked: const assertions; property tests.
//! Story: docs/design/spans.md

pub(crate) mod bits;
pub(crate) mod list;
pub(crate) mod policy;
pub(crate) mod random;
pub(crate) mod shares;
pub(crate) mod size_class;
pub(crate) mod sync;
pub(crate) mod tuning;
pub mod values;
