//! Owns: the reservation and its slices: which are free, dirty, or have gone back.
//! Idea: addresses are cheap, resident pages dear.
//! Never: knows what stands in a slice.
//! Threads: any; one lock.
//! Checked: the arena's `check`; tests/arena.rs.
//! Story: docs/design/purging.md

pub(crate) mod arena;
pub(crate) mod fences;
pub(crate) mod limit;
pub(crate) mod reservation;
mod tuning;

pub(crate) use arena::{Leave, Memory, Partitions, Run, Use};
pub(crate) use fences::{Fence, Fences, GUARD, Taken};
pub(crate) use tuning::{AHEAD, PURGE_DELAY_MS};
