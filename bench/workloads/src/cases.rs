//! The one list of everything that runs inside `cairn-workload`.

use crate::case::Workload;
use crate::{footprint, latency, single, threads};

/// All workloads, in the order of the tables.
pub static ALL: &[&[Workload]] = &[
    single::pair::WORKLOADS,
    single::batch::WORKLOADS,
    single::random_small::WORKLOADS,
    single::realloc::WORKLOADS,
    single::alloc_test::WORKLOADS,
    single::sh6bench::WORKLOADS,
    single::glibc_simple::WORKLOADS,
    single::large::WORKLOADS,
    single::mostly::WORKLOADS,
    single::grow::WORKLOADS,
    single::zeroed::WORKLOADS,
    single::aligned::WORKLOADS,
    single::smalloc::WORKLOADS,
    single::cfrac::WORKLOADS,
    single::espresso::WORKLOADS,
    single::barnes::WORKLOADS,
    single::lean::WORKLOADS,
    single::json::WORKLOADS,
    single::containers::WORKLOADS,
    threads::prodcons::WORKLOADS,
    threads::larson::WORKLOADS,
    threads::alloc_test::WORKLOADS,
    threads::sh8bench::WORKLOADS,
    threads::smalloc::WORKLOADS,
    threads::xmalloc::WORKLOADS,
    threads::swap::WORKLOADS,
    threads::mstress::WORKLOADS,
    threads::rptest::WORKLOADS,
    threads::cache::WORKLOADS,
    threads::superserver::WORKLOADS,
    threads::scaling::WORKLOADS,
    footprint::chain::WORKLOADS,
    footprint::idle::WORKLOADS,
    footprint::survive::WORKLOADS,
    footprint::sawtooth::WORKLOADS,
    footprint::phase_change::WORKLOADS,
    footprint::free_only::WORKLOADS,
    footprint::large_return::WORKLOADS,
    footprint::drift::WORKLOADS,
    latency::server::WORKLOADS,
];

/// All workloads, flat.
pub fn all() -> impl Iterator<Item = &'static Workload> {
    ALL.iter().copied().flatten()
}

#[cfg(test)]
mod tests {
    use super::all;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_everything_is_described() {
        let mut names = HashSet::new();
        for workload in all() {
            let case = &workload.case;
            assert!(names.insert(&*case.name), "{} twice", &*case.name);
            assert!(case.about.len() > 20, "{}: what does it stand for?", &*case.name);
            assert!(!case.rows.is_empty(), "{} has no rows", &*case.name);
        }
    }
}
