//! Resident memory, at the peak and over time.

pub(crate) mod chain;
pub(crate) mod drift;
pub(crate) mod free_only;
pub(crate) mod idle;
pub(crate) mod large_return;
pub(crate) mod phase_change;
pub(crate) mod sawtooth;
mod steps;
pub(crate) mod survive;
