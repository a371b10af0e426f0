//! The one list of everything that runs inside `cairn-workload`.

use crate::case::Workload;
use crate::{footprint, latency, single, threads};

/// All workloads, in the order of the tables.
pub static ALL: &[&[Workload]] = &[
    single::small::WORKLOADS,
    single::functions::WORKLOADS,
    single::alloc_test::WORKLOADS,
    single::sh6bench::WORKLOADS,
    single::mostly::WORKLOADS,
    single::grow::WORKLOADS,
    single::smalloc::WORKLOADS,
    single::cfrac::WORKLOADS,
    single::espresso::WORKLOADS,
    single::barnes::WORKLOADS,
    single::lean::WORKLOADS,
    single::json::WORKLOADS,
    single::containers::WORKLOADS,
    threads::larson::WORKLOADS,
    threads::xmalloc::WORKLOADS,
    threads::swap::WORKLOADS,
    threads::cache::WORKLOADS,
    threads::superserver::WORKLOADS,
    footprint::idle::WORKLOADS,
    footprint::phases::WORKLOADS,
    footprint::free_only::WORKLOADS,
    footprint::drift::WORKLOADS,
    latency::WORKLOADS,
];

/// All workloads, flat.
pub fn all() -> impl Iterator<Item = &'static Workload> {
    ALL.iter().copied().flatten()
}

#[cfg(test)]
mod tests {
    use super::all;
    use crate::case::{Plot, Settings, TINY, Table};
    use std::collections::HashSet;

    /// Every workload checks its own answer.
    #[test]
    fn every_case_runs_and_fills_its_rows_and_plots() {
        let mut names = HashSet::new();
        for workload in all() {
            let case = &workload.case;
            assert!(names.insert(&*case.name), "{} twice", &*case.name);
            assert!(!case.rows.is_empty(), "{} has no rows", &*case.name);
            // It starts its executable again, which is not the workloads' here.
            if case.name.starts_with("idle-") {
                continue;
            }
            for threads in [1, 3] {
                let settings = Settings { threads: Some(threads), ..TINY };
                let mut results = (workload.run)(&settings);
                crate::process::add_facts(&mut results.values);
                for row in case.rows.iter() {
                    let found = results.values.get(&*row.key).copied().unwrap_or(f64::NAN);
                    let plausible = found > 0.0 || row.table != Table::Time && found.is_finite();
                    assert!(plausible, "{} {} {found}", &*case.name, &*row.key);
                }
                let drawn = |plot: &Plot| !results.curves[&*plot.key].is_empty();
                assert!(case.plots.iter().all(drawn), "{}", &*case.name);
            }
        }
    }
}
