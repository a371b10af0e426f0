//! Resident memory, at the peak and over time.

pub mod chain;
pub mod drift;
pub mod free_only;
pub mod idle;
pub mod large_return;
pub mod phase_change;
pub mod sawtooth;
pub mod steps;
pub mod survive;
