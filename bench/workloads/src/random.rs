//! Random sizes.

/// The smallest and largest request of the "random small" workloads.
pub const SMALL: std::ops::RangeInclusive<usize> = 16..=1024;
