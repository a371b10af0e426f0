//! The one list of everything that is measured.

use crate::case::Case;
use crate::{programs, workloads};

/// All cases, in the order of the tables.
pub static ALL: &[&[Case]] = &[
    workloads::pair::CASES,
    workloads::batch::CASES,
    workloads::random_small::CASES,
    workloads::prodcons::CASES,
    workloads::larson::CASES,
    workloads::realloc::CASES,
    workloads::chain::CASES,
    workloads::idle::CASES,
    programs::hello::CASES,
    programs::python::CASES,
    programs::redis::CASES,
];

/// All cases, flat.
pub fn all() -> impl Iterator<Item = &'static Case> {
    ALL.iter().copied().flatten()
}
