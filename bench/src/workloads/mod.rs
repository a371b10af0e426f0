//! The workloads: one file each, run inside `cairn-workload`.

pub mod batch;
pub mod chain;
pub mod idle;
pub mod larson;
pub mod pair;
pub mod prodcons;
pub mod random_small;
pub mod realloc;

use crate::case::Values;

/// The smallest and largest request of the "random small" workloads.
const SMALL: std::ops::RangeInclusive<usize> = 16..=1024;

/// A result of a few named numbers.
fn values<const N: usize>(pairs: [(&str, f64); N]) -> Values {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
