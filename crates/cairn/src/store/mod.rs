//! Owns: how free blocks are kept where a thread allocates from: lists, or hardened rows of places; and what
//!   says that a block is the program's. Here each build gets its own.
//! Idea: a pair of malloc and free stays here.
//! Never: decides where blocks come from.
//! Threads: the thread whose caches they are.
//! Checked: oracle tests; tests/quarantine.rs, tests/canary.rs.
//! Story: docs/design/heap.md, docs/design/policy.md

pub(crate) mod caches;
pub(crate) mod canary;
pub(crate) mod filling;
pub(crate) mod live;
pub(crate) mod quarantine;
mod tuning;

use crate::base::InHardened;
use crate::map::{HEAP_BYTES, HEAP_SIZE};
pub(crate) use caches::{Limit, Store};
pub(crate) use canary::Behind;
pub(crate) use filling::{Filling, READY};
pub(crate) use live::{Bits, FREED_TWICE, Known, PLACES};
pub(crate) use quarantine::zero_heads;

/// What stands behind the bytes that the program has of a block.
pub(crate) type Canary = InHardened<canary::Nothing, canary::Canaries>;

/// What is known of the blocks that the program has.
pub(crate) type Live = InHardened<live::Nothing, live::Bits>;

/// The caches: what a thread allocates from.
pub(crate) type Caches = InHardened<caches::Lists, quarantine::Rows>;

const _: () = assert!(HEAP_BYTES + Caches::BEHIND_BYTES <= HEAP_SIZE);
