//! Everything that runs inside `cairn-workload`: the code here, what the tables know of it in
//! workloads.toml. The process that runs a workload does not read that: it would add to its memory.

use crate::case::{Case, Group, Interface, Results, Row, Settings, Workload};
use crate::footprint::burst::{self, Burst, FreedBy, Then};
use crate::footprint::{self, drift, free_only, idle, phases};
use crate::latency;
use crate::malloc::SMALL;
use crate::single::{
    alloc_test, barnes, cfrac, containers, espresso, functions, grow, json, lean, mostly, requests,
    sh6bench, small, smalloc,
};
use crate::threads::{cache, larson, superserver, swap, xmalloc};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use toml::Value;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

type Run = fn(&Settings) -> Results;

/// What allocates by C's functions.
const C: &[(&str, Run)] = &[
    ("pair-16", small::pair::<16>),
    ("pair-64", small::pair::<64>),
    ("pair-256", small::pair::<256>),
    ("pair-1k", small::pair::<1024>),
    ("pair-4k", small::pair::<4096>),
    ("pair-32k", small::pair::<{ 32 * KIB }>),
    ("pair-64k", small::pair::<{ 64 * KIB }>),
    ("pair-128k", small::pair::<{ 128 * KIB }>),
    ("pair-256k", small::pair::<{ 256 * KIB }>),
    ("pair-1m", small::pair::<MIB>),
    ("pair-4m", small::pair::<{ 4 * MIB }>),
    ("batch-fifo", |s| small::batch(s, |_| 64, |_, _| {})),
    ("batch-lifo", |s| small::batch(s, |_| 64, |_, order| order.reverse())),
    ("batch-random", |s| small::batch(s, |_| 64, |rng, order| rng.shuffle(order))),
    ("batch-mixed", |s| small::batch(s, |rng| rng.usize(SMALL), |rng, order| rng.shuffle(order))),
    ("random-small", small::random),
    ("glibc-simple", small::glibc_simple),
    ("realloc-double", functions::double),
    ("realloc-step-64m", |s| functions::step(s, 64 * MIB)),
    ("realloc-step-256m", |s| functions::step(s, 256 * MIB)),
    ("calloc-heavy", |s| functions::replace(s, 5000, 200_000, functions::dirtied)),
    ("aligned-heavy", |s| functions::replace(s, 10_000, 1_000_000, functions::aligned)),
    ("malloc-large", |s| functions::large(s, 10, 5 * MIB..=25 * MIB, 60)),
    ("large-churn", |s| functions::large(s, 32, MIB / 8..=4 * MIB, 1500)),
    ("alloc-test-1", alloc_test::alone),
    ("alloc-test-n", alloc_test::together),
    ("sh6bench-lifo", |s| sh6bench::retaining(s, sh6bench::lifo)),
    ("sh6bench-reverse", |s| sh6bench::retaining(s, sh6bench::REVERSE)),
    ("sh8bench", sh6bench::together),
    ("calloc-sparse", mostly::sparse),
    ("holes-80k", mostly::holes),
    ("account", mostly::account),
    ("fork", mostly::forks),
    ("requests", requests::served),
    ("requests-live", requests::live),
    ("containers-cxx", containers::cxx),
    ("larson-2", |s| larson::run(s, 2)),
    ("larson-16", |s| larson::run(s, 16)),
    ("larson-100", |s| larson::run(s, 100)),
    ("scale-local", |s| larson::curve(s, larson::LOCAL, 1, larson::local)),
    ("scale-larson", |s| larson::curve(s, larson::REPLACED, 1, larson::replace)),
    ("scale-xmalloc", |s| larson::curve(s, larson::XMALLOC, 2, larson::pass_on)),
    ("prodcons", xmalloc::one_by_one),
    ("xmalloc-sweep", xmalloc::sweep),
    ("xmalloc-1x1", |s| xmalloc::random(s, 1)),
    ("xmalloc-2x2", |s| xmalloc::random(s, 2)),
    ("xmalloc-8x8", |s| xmalloc::random(s, 8)),
    ("swap", swap::run),
    ("mstress", swap::stress),
    ("cache-scratch-1", |s| cache::run(s, 1, true)),
    ("cache-scratch-n", |s| cache::run(s, s.threads().max(2), true)),
    ("cache-thrash-1", |s| cache::run(s, 1, false)),
    ("cache-thrash-n", |s| cache::run(s, s.threads().max(2), false)),
    ("superserver", superserver::run),
    ("rptest", superserver::rptest),
    ("idle-200", |s| idle::run(s, &idle::FEW)),
    ("idle-10000", |s| idle::run(s, &idle::MANY)),
    ("survive-10", |s| phases::survive(s, 10, footprint::light_activity)),
    ("free-all", |s| phases::survive(s, 0, footprint::light_activity)),
    ("free-all-idle", |s| phases::survive(s, 0, std::thread::sleep)),
    ("burst-threads", |s| burst::run(s, &BURST_OF_THREADS)),
    ("burst-busy", |s| burst::run(s, &Burst { then: Then::GoOn, ..BURST_OF_THREADS })),
    ("burst-others", |s| burst::run(s, &Burst { freed_by: FreedBy::Another, ..BURST_OF_THREADS })),
    ("burst-middle", |s| {
        burst::run(s, &Burst { fill: 366, sizes: 512..=2048, kept: 20, ..BURST_OF_ONE })
    }),
    ("burst-small", |s| {
        burst::run(s, &Burst { fill: 512, sizes: 16..=1024, kept: 10, ..BURST_OF_ONE })
    }),
    ("sawtooth", phases::sawtooth),
    ("phase-change", phases::phase_change),
    ("large-return", phases::large_return),
    ("free-only", free_only::run),
    ("chain-200", free_only::chain),
    ("drift", drift::run),
    ("latency-server", |s| latency::run(s, s.threads(), latency::REQUESTS)),
    ("latency-1", |s| latency::run(s, s.threads.unwrap_or(1), latency::REQUESTS / 2)),
    ("latency-16", |s| latency::run(s, s.threads.unwrap_or(16), latency::REQUESTS)),
];

const BURST_OF_THREADS: Burst = Burst {
    threads: 4,
    fill: 80,
    sizes: 16..=4096,
    kept: 16,
    freed_by: FreedBy::Filler,
    then: Then::Wait,
};
const BURST_OF_ONE: Burst = Burst { threads: 1, ..BURST_OF_THREADS };

/// What allocates by Rust's global allocator.
const RUST: &[(&str, Run)] = &[
    ("vectors-grow", grow::vectors),
    ("strings-grow", grow::strings),
    ("smalloc-alloc", |s| smalloc::alone(s, smalloc::Mix::Alloc)),
    ("smalloc-ad", |s| smalloc::alone(s, smalloc::Mix::AllocFree)),
    ("smalloc-adr", |s| smalloc::alone(s, smalloc::Mix::AllocFreeResize)),
    ("smalloc-grow", |s| smalloc::alone(s, smalloc::Mix::Grow)),
    ("smalloc-alloc-n", |s| smalloc::together(s, smalloc::Mix::Alloc)),
    ("smalloc-ad-n", |s| smalloc::together(s, smalloc::Mix::AllocFree)),
    ("smalloc-adr-n", |s| smalloc::together(s, smalloc::Mix::AllocFreeResize)),
    ("hotspot", smalloc::hotspot),
    ("free-hotspot", smalloc::free_hotspot),
    ("cfrac-like", cfrac::run),
    ("espresso-like", espresso::run),
    ("barnes-like", barnes::run),
    ("lean-like", lean::run),
    ("json-borrowed", |s| json::run(s, json::borrowed)),
    ("json-buffers", |s| json::run(s, json::buffered(simd_json::Buffers::new(json::LARGEST)))),
    ("json-owned", |s| json::run(s, json::owned)),
    ("containers-rust", containers::rust::run),
];

/// How a workload allocates, and what runs it once.
pub(crate) fn code(name: &str) -> Option<(Interface, Run)> {
    let find = |of: &[(&str, Run)]| of.iter().find(|code| code.0 == name).map(|code| code.1);
    let c = find(C).map(|run| (Interface::C, run));
    c.or_else(|| find(RUST).map(|run| (Interface::Rust, run)))
}

/// The names of all workloads.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    C.iter().chain(RUST).map(|code| code.0)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    rows: BTreeMap<String, Value>,
    plots: BTreeMap<String, Value>,
    default: toml::Table,
    set: Vec<Set>,
}

#[derive(Deserialize)]
struct Set {
    case: Vec<toml::Table>,
    /// What holds for all of them.
    #[serde(flatten)]
    shared: toml::Table,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    toml::from_str(include_str!("../workloads.toml"))
        .unwrap_or_else(|error| panic!("workloads.toml: {error}"))
});

/// The row of this name.
pub fn row(name: &str) -> Row {
    let row = TABLE.rows.get(name).unwrap_or_else(|| panic!("workloads.toml: no rows {name}"));
    row.clone().try_into().unwrap_or_else(|error| panic!("workloads.toml: {error} in {name}"))
}

/// All workloads, in the order of the tables.
pub fn all() -> impl Iterator<Item = &'static Workload> {
    static ALL: LazyLock<Vec<Workload>> = LazyLock::new(|| {
        let cases = TABLE.set.iter().flat_map(|set| set.case.iter().map(move |case| (set, case)));
        let mut all: Vec<_> = cases.map(|(set, case)| workload(&TABLE, set, case)).collect();
        // Each second one, but for those that are about memory from its beginning.
        let young = |workload: &&mut Workload| workload.case.group != Group::Footprint;
        for workload in all.iter_mut().filter(young).skip(1).step_by(2) {
            workload.case.aged = true;
        }
        all
    });
    ALL.iter()
}

fn workload(table: &Table, set: &Set, case: &toml::Table) -> Workload {
    let mut whole = table.default.clone();
    whole.extend(set.shared.clone());
    whole.extend(case.clone());
    for (field, known) in [("rows", &table.rows), ("plots", &table.plots)] {
        for name in whole[field].as_array_mut().expect("a list of names") {
            let found = name.as_str().and_then(|name| known.get(name));
            *name = found.unwrap_or_else(|| panic!("workloads.toml: no {field} {name}")).clone();
        }
    }
    let read = Value::Table(whole).try_into::<Case>();
    let case = read.unwrap_or_else(|error| panic!("workloads.toml: {error} in {case}"));
    let Some((interface, _)) = code(&case.name) else { panic!("no code of {}", case.name) };
    Workload { case, interface }
}

#[cfg(test)]
mod tests {
    use super::{all, code, names};
    use crate::case::{Group, Plot, Settings, TINY, Table, Workload};
    use std::collections::HashSet;

    #[test]
    fn half_of_the_workloads_have_a_heap_with_a_past() {
        let [aged, young] = [true, false].map(|aged| {
            let of = |workload: &&&Workload| {
                workload.case.aged == aged && workload.case.group != Group::Footprint
            };
            all().collect::<Vec<_>>().iter().filter(of).count()
        });
        assert!(aged == young || aged + 1 == young, "{aged} of {}", aged + young);
        let footprint = |workload: &&Workload| workload.case.group == Group::Footprint;
        assert!(all().filter(footprint).all(|workload| !workload.case.aged));
    }

    /// Every workload checks its own answer.
    #[test]
    fn every_case_runs_and_fills_its_rows_and_plots() {
        let mut seen = HashSet::new();
        for workload in all() {
            let case = &workload.case;
            assert!(seen.insert(case.name.clone()), "{} twice", case.name);
            assert!(!case.rows.is_empty(), "{} has no rows", case.name);
            // It starts its executable again, which is not the workloads' here.
            if case.name.starts_with("idle-") {
                continue;
            }
            let (_, run) = code(&case.name).unwrap();
            for threads in [1, 3] {
                let settings = Settings { threads: Some(threads), ..TINY };
                let mut results = run(&settings);
                crate::process::add_facts(&mut results.values);
                for row in case.rows.iter() {
                    let found = results.values.get(&row.key).copied().unwrap_or(f64::NAN);
                    let plausible = found > 0.0 || row.table != Table::Time && found.is_finite();
                    assert!(plausible, "{} {} {found}", case.name, row.key);
                }
                let drawn = |plot: &Plot| !results.curves[&plot.key].is_empty();
                assert!(case.plots.iter().all(drawn), "{}", case.name);
            }
        }
        assert_eq!(seen.len(), names().count(), "code without a case");
    }
}
