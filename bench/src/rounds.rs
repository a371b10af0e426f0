//! Who runs when.
//!
//! In each round every allocator runs every case once. The cases of a round are interleaved
//! over the allocators and the order rotates, so that a slow minute of the machine hits all
//! of them. The first round warms the machine up and is dropped.
//!
//! One allocator takes part twice, as itself and as its own control: how far apart those
//! two end is the noise of the row.

use crate::case::{Case, Run, Settings, Subject, Table, Values};
use crate::child::{Failure, Limits};
use crate::peers::{Peer, run_workload};
use crate::stats::Summary;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// How to run.
pub struct Plan<'a> {
    /// What to measure.
    pub cases: Vec<&'static Case>,
    /// Rounds that count.
    pub rounds: usize,
    /// Use the cases' quick scale.
    pub quick: bool,
    /// For each single run.
    pub limits: Limits,
    /// The `cairn-workload` executable.
    pub workload: &'a Path,
    /// A directory for the programs to write to.
    pub scratch: &'a Path,
}

/// The runs of one case under one allocator.
#[derive(Default, Serialize)]
pub struct Cell {
    /// Every value the case reported, over the rounds.
    pub values: BTreeMap<String, Summary>,
    /// Failures, in any round.
    pub failures: Vec<Failure>,
    #[serde(skip)]
    pub(crate) runs: Vec<Values>,
}

/// Results of one case: a cell per peer and one for the control.
pub struct Outcome {
    /// The case.
    pub case: &'static Case,
    /// In the order of the peers; the control last.
    pub cells: Vec<Cell>,
}

/// Which peer is run against itself: cairn if it is here, else the first that is.
pub fn control(peers: &[Peer]) -> Option<usize> {
    let here = |peer: &Peer| peer.missing.is_none();
    peers.iter().position(|p| here(p) && p.name == "cairn").or(peers.iter().position(here))
}

/// Runs the plan.
pub fn run(plan: &Plan<'_>, peers: &[Peer]) -> Vec<Outcome> {
    let mut columns: Vec<(usize, &Peer)> = peers.iter().enumerate().collect();
    columns.retain(|(_, peer)| peer.missing.is_none());
    if let Some(control) = control(peers) {
        columns.push((peers.len(), &peers[control]));
    }
    let mut outcomes: Vec<Outcome> = plan
        .cases
        .iter()
        .map(|&case| Outcome { case, cells: (0..=peers.len()).map(|_| Cell::default()).collect() })
        .collect();

    let total = (plan.rounds + 1) * plan.cases.len() * columns.len();
    let style = "{elapsed_precise} {wide_bar} {pos}/{len} {msg}";
    let bar = ProgressBar::new(total as u64)
        .with_style(ProgressStyle::with_template(style).expect("a valid template"));
    for round in 0..=plan.rounds {
        for outcome in &mut outcomes {
            columns.rotate_left(1);
            for &(column, peer) in &columns {
                bar.set_message(format!("{} {}", outcome.case.name, peer.name));
                run_once(plan, outcome.case, peer, &mut outcome.cells[column], round == 0);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    for cell in outcomes.iter_mut().flat_map(|outcome| &mut outcome.cells) {
        cell.summarise();
    }
    outcomes
}

/// One run of one case; a success in the warm-up round leaves no trace.
fn run_once(plan: &Plan<'_>, case: &Case, peer: &Peer, cell: &mut Cell, warm_up: bool) {
    // Past a limit once is past it always, and the next round would take as long.
    let hopeless = |f: &Failure| !matches!(f, Failure::Crash { .. } | Failure::Wrong { .. });
    if cell.failures.iter().any(hopeless) {
        return;
    }
    let scale = if plan.quick { case.quick_scale } else { 1.0 };
    let result = match case.run {
        Run::Workload(_) => {
            let settings = Settings { threads: None, scale, no_alloc: false };
            run_workload(plan.workload, peer, case.name, &settings, plan.limits)
        }
        Run::Program(run) => run(&Subject {
            preload: peer.library.as_deref(),
            scale,
            limits: plan.limits,
            scratch: plan.scratch,
        }),
    };
    match result {
        Ok(values) if !warm_up => cell.runs.push(values),
        Ok(_) => {}
        Err(failure) => cell.failures.push(failure),
    }
}

impl Cell {
    fn summarise(&mut self) {
        let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (key, value) in self.runs.drain(..).flatten() {
            samples.entry(key).or_default().push(value);
        }
        self.values = samples.into_iter().filter_map(|(k, v)| Some((k, Summary::of(v)?))).collect();
    }

    /// What a run that hit a limit says about a row, before any division: at least this much.
    pub fn lower_bound(&self, table: Table, key: &str) -> Option<f64> {
        self.failures.iter().find_map(|failure| match (failure, table, key) {
            (Failure::Timeout { seconds, .. }, Table::Time, "ms") => Some(seconds * 1e3),
            (Failure::Timeout { mib, .. } | Failure::Memory { mib }, Table::Memory, "peak_mib") => {
                Some(*mib)
            }
            _ => None,
        })
    }
}
