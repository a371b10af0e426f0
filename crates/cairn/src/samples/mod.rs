//! Owns: which allocations somebody wants to see; guard pages around some of them, and the heap profile.
//! Idea: nothing is counted while nobody asks.
//! Never: costs a fast path an instruction.
//! Threads: see each file.
//! Checked: tests/sample.rs, tests/sample/profile.rs, tests/guards.rs.
//! Story: docs/guide/guards.md

mod asked;
pub(crate) mod deferred_frees;
pub(crate) mod guards;
pub(crate) mod probes;
pub(crate) mod profile;
pub(crate) mod sampling;
mod tuning;

pub(crate) use asked::Asked;
pub use deferred_frees::DeferredFree;
pub(crate) use deferred_frees::{Beats, Deferred, Reason};
pub(crate) use sampling::{Draw, Sampling};
pub use sampling::{ThreadCounts, Told};
use tuning::LISTEN_TICKS;

/// Whether a heap at this slow tick, one in some, finds that a tool outside has asked for something.
#[inline(always)]
pub(crate) fn hears_at(tick: u32) -> bool {
    tick.is_multiple_of(LISTEN_TICKS) && is_asked()
}

/// Whether a tool outside has asked for something that `guards::follow` and `profile::follow` have not done yet, nor taken back.
#[inline(always)]
pub(crate) fn is_asked() -> bool {
    guards::ASKED.is_new() || profile::CONTROL.asked.is_new()
}
