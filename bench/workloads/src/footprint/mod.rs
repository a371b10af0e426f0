//! Resident memory, at the peak and over time.

pub(crate) mod drift;
pub(crate) mod free_only;
pub(crate) mod idle;
pub(crate) mod phases;
mod steps;
