//! The system as the model of the whole core has it: memory whose pages know what may be done to them,
//! threads that are scheduled at random, a clock that goes on when it is read.

mod shared;

pub(crate) use crate::whole::memory::{
    address_space_limit, allow_huge_pages, commit, is_filled, locked_memory_limit, look,
    make_readable, map, map_at, may_ask, page_size, populate, purge, purged_is_committed, release, remap, reserve, use_huge_page,
};
pub(crate) use crate::whole::threads::{now_ms, on_fork, wait, wait_for, wake, with_own};
pub use shared::*;
