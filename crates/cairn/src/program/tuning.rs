//! Owns: the tuned constants of this floor: which blocks had better move, and how long a prefix of variables may be.
//! Idea: one place for a number that was measured or judged; what follows from another one stands where it is used.
//! Never: holds a size or a format that another one relies on: half and twice of each of these are right, too.
//! Threads: any; holds nothing.
//! Checked: `cargo xtask tidy` asks each of them what half and twice of it do.
//! Story: docs/guide/memory.md

/// A span of which no more than this part is free has no room: to empty it costs more than it gives.
/// Half, twice: not tried.
pub(crate) const NO_ROOM_PART: usize = 8;
/// Averages of blocks in use are kept in these parts of a block. Half, twice: not tried.
pub(crate) const BLOCK_PARTS: usize = 16;

/// Bytes of the longest prefix of the variables' names. Half, twice: not tried.
pub(crate) const PREFIX_BYTES_MAX: usize = 32;
