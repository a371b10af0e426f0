//! Owns: the tuned constant of this floor: how many pieces of memory regions may have.
//! Idea: one place for a number that was measured or judged; what follows from another one stands where it is used.
//! Never: holds a size or a format that another one relies on: half and twice of it are right, too.
//! Threads: any; holds nothing.
//! Checked: `cargo xtask tidy` asks what half and twice of it do.
//! Story: docs/design/regions.md

/// Pieces of memory that all regions can have together. Half, twice: not tried.
pub(crate) const REGION_PIECES: usize = 64;
