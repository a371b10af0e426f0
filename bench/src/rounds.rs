//! Who runs when.
//!
//! In each round every allocator runs every case once. The cases of a round are interleaved
//! over the allocators, in an order that is drawn for each case and round: a slow minute of the
//! machine hits all of them, and nobody always comes after the same one. Before that every case runs
//! once to warm the machine up, under a drawn allocator; those runs are dropped, every workload warms
//! up its own process besides, and each run finds a GiB of memory that has just been in use.
//!
//! The subject takes part twice, as itself and as its own control: how far apart those two end is the noise of the row.

use crate::allocators::{Candidate, run_workload};
use crate::journal::{self, Journal};
use crate::plan::{Entry, Run};
use crate::progress::Progress;
use crate::result::{CONTROL, CaseResult, Cell, Form, SUBJECT};
use anyhow::Result;
use cairn_workloads::case::{Curve, Results, Settings};
use programs::Stage;
use programs::process::{Failure, Limits};
use programs::stats::rounded;
use programs::traces::Traces;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// How to run.
pub struct Plan<'a> {
    /// What to measure.
    pub entries: Vec<Entry<'a>>,
    /// Under whom.
    pub candidates: &'a [Candidate],
    /// Rounds that count.
    pub rounds: usize,
    /// Use the cases' quick scale.
    pub quick: bool,
    /// Threads, where a case leaves them open.
    pub threads: Option<usize>,
    /// For each single run; slow ones end earlier, see [`SLOWEST`].
    pub limits: Limits,
    /// The `cairn-workload` executable.
    pub workload: &'a Path,
    /// A directory for the programs to write to.
    pub scratch: &'a Path,
    /// Where recorded calls are, if a case replays any.
    pub traces: Option<&'a Traces>,
}

/// A run is given up at this many times the best run of its case so far...
const SLOWEST: f64 = 30.0;
/// ... but not before.
const PATIENCE: Duration = Duration::from_secs(10);
/// Points kept of a curve.
const POINTS: usize = 120;
/// Digits kept of a value: more are noise, and the file is kept.
const DIGITS: usize = 5;

/// One column of a run: an allocator, or the control.
struct Column<'a> {
    name: &'a str,
    candidate: &'a Candidate,
}

impl<'a> Plan<'a> {
    fn columns(&self) -> Vec<Column<'a>> {
        let named = self.candidates.iter();
        let columns = named.map(|candidate| Column { name: &candidate.public.name, candidate });
        let control = self.candidates.iter().find(|c| c.public.name == SUBJECT);
        columns.chain(control.map(|candidate| Column { name: CONTROL, candidate })).collect()
    }

    /// What a journal must be of to be gone on with: the cases, the columns with a hash of their
    /// files and with their settings, traces, sizes and limits.
    pub fn identity(&self) -> serde_json::Value {
        let hashed = |column: &Column<'_>| {
            let Candidate { library, engine, environment, .. } = column.candidate;
            let files = journal::hash(library.iter().chain(engine));
            (column.name.to_owned(), files, environment.clone())
        };
        let trace = |entry: &Entry<'_>| Some(self.traces?.path(&entry.trace()?.case.name));
        let traces: Vec<_> = self.entries.iter().filter_map(trace).collect();
        serde_json::json!({
            "cases": self.entries.iter().map(Entry::identity).collect::<Vec<_>>(),
            "columns": self.columns().iter().map(hashed).collect::<Vec<_>>(),
            "traces": journal::hash(traces.iter()),
            "settings": format!("{} {:?} {:?}", self.quick, self.threads, self.limits),
        })
    }

    /// Runs what the journal does not have yet; the results of all.
    pub fn run(&self, journal: &mut Journal) -> Result<Vec<CaseResult>> {
        let mut state = State::default();
        for entry in std::mem::take(&mut journal.done) {
            state.add(entry);
        }
        let mut columns = self.columns();
        let mut order = fastrand::Rng::with_seed(1);
        let runs =
            |entry: &Entry<'_>| columns.iter().filter(|c| c.candidate.runs(entry.form)).count();
        let total = self.rounds * self.entries.iter().map(runs).sum::<usize>() + self.entries.len();
        let mut progress = Progress::of_runs(total);
        for round in 0..=self.rounds {
            for entry in &self.entries {
                let group = entry.case().group.title();
                progress.step(&match round {
                    0 => format!("warming up: {group}"),
                    _ => format!("round {round} of {}: {group}", self.rounds),
                });
                // The same when a run is gone on with.
                order.shuffle(&mut columns);
                let most = if round == 0 { 1 } else { columns.len() };
                let runs = |column: &&Column<'_>| column.candidate.runs(entry.form);
                for column in columns.iter().filter(runs).take(most) {
                    progress.run(&format!("{} {}", entry.label(), column.name));
                    if let Some(done) = self.once(&state, round, entry, column) {
                        journal.add(&done)?;
                        state.add(done);
                    }
                }
            }
        }
        Ok(self.entries.iter().map(|entry| state.case(entry)).collect())
    }

    /// One run of one case, unless it is done or hopeless.
    fn once(
        &self,
        state: &State,
        round: usize,
        entry: &Entry<'_>,
        column: &Column<'_>,
    ) -> Option<journal::Entry> {
        let case = entry.case();
        let key = (case.name.to_string(), entry.form);
        let known = state.cells.get(&key).and_then(|cells| cells.get(column.name));
        if known.is_some_and(|known| known.rounds > round || known.hopeless()) {
            return None;
        }
        let best = state.fastest.get(&key).copied().unwrap_or(f64::INFINITY);
        let timeout = PATIENCE.as_secs_f64().max(SLOWEST * best);
        let timeout = entry.limit().unwrap_or(self.limits.timeout).as_secs_f64().min(timeout);
        let limits = Limits { timeout: Duration::from_secs_f64(timeout), ..self.limits.clone() };
        let scale = if self.quick { case.quick_scale } else { 1.0 };
        warm_memory_up();
        let start = Instant::now();
        let outcome = match entry.run {
            Run::Workload(_) => {
                let aged = case.aged;
                let settings = Settings { threads: self.threads, scale, no_alloc: false, aged };
                let Column { candidate, .. } = column;
                run_workload(self.workload, candidate, entry.form, &case.name, &settings, &limits)
            }
            Run::Program(program) => program.run(&self.stage(column, scale, &limits)),
            Run::Given(given) => given.run(&self.stage(column, scale, &limits)),
        };
        let seconds = start.elapsed().as_secs_f64();
        let ((case, form), allocator) = (key, column.name.to_owned());
        Some(journal::Entry { round, case, form, allocator, seconds, outcome })
    }

    /// Where a program runs under the allocator of this column.
    fn stage(&self, column: &Column<'_>, scale: f64, limits: &Limits) -> Stage {
        let Candidate { library, environment, .. } = column.candidate;
        let stage = Stage::of_lab(library.as_deref(), environment, scale, limits, self.scratch);
        stage.with_traces(self.traces)
    }
}

/// Bytes that are touched and given back before each run.
const WARM: usize = 1 << 30;

/// Sees to it that much of the machine's free memory has been in use just now. In a virtual machine
/// the host takes back what has been free for some seconds: the first to touch a huge page of it
/// pays fifty times as much as the next one, whoever that is.
fn warm_memory_up() {
    // Where there is not as much, the run finds what there is.
    let Ok(mut memory) = memmap2::MmapMut::map_anon(WARM) else { return };
    let _ = memory.advise(memmap2::Advice::HugePage);
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
}

/// A case and its form.
type Key = (String, Form);

/// What the runs so far have given.
#[derive(Default)]
struct State {
    cells: BTreeMap<Key, BTreeMap<String, Known>>,
    fastest: BTreeMap<Key, f64>,
}

#[derive(Default)]
struct Known {
    /// Rounds done, the warm-up included.
    rounds: usize,
    cell: Cell,
}

impl Known {
    /// Past a limit once is past it always, and the next round would take as long.
    fn hopeless(&self) -> bool {
        let open = |f: &Failure| matches!(f, Failure::Crash { .. } | Failure::Wrong { .. });
        self.cell.failures.iter().any(|failure| !open(failure))
    }
}

impl State {
    fn add(&mut self, entry: journal::Entry) {
        let key = (entry.case, entry.form);
        let cells = self.cells.entry(key.clone()).or_default();
        let known = cells.entry(entry.allocator).or_default();
        known.rounds = known.rounds.max(entry.round + 1);
        match entry.outcome {
            Ok(results) => {
                let fastest = self.fastest.entry(key).or_insert(f64::INFINITY);
                *fastest = fastest.min(entry.seconds);
                if entry.round > 0 {
                    known.cell.add(results);
                }
            }
            Err(failure) => known.cell.failures.push(failure),
        }
    }

    fn case(&mut self, entry: &Entry<'_>) -> CaseResult {
        let cells = self.cells.remove(&(entry.case().name.to_string(), entry.form));
        let cells = cells.unwrap_or_default().into_iter().map(|(name, known)| (name, known.cell));
        CaseResult { case: entry.case().clone(), form: entry.form, cells: cells.collect() }
    }
}

impl Cell {
    fn add(&mut self, results: Results) {
        for (key, value) in results.values {
            self.values.entry(key).or_default().push(rounded(value, DIGITS));
        }
        for (key, curve) in results.curves {
            self.curves.entry(key).or_insert_with(|| thinned(&curve));
        }
    }
}

/// At most [`POINTS`] of the curve's points, the first and last among them.
fn thinned(curve: &Curve) -> Curve {
    let last = curve.len().saturating_sub(1);
    let count = curve.len().min(POINTS);
    let at = |n: usize| curve[if count > 1 { n * last / (count - 1) } else { 0 }];
    (0..count).map(|n| at(n).map(|x| rounded(x, DIGITS))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_keep_their_ends() {
        let curve: Curve = (0..1000).map(|n| [f64::from(n), 1.0 / 3.0]).collect();
        let thin = thinned(&curve);
        assert_eq!(
            (thin.len(), thin[0], thin[POINTS - 1]),
            (POINTS, [0.0, 0.33333], [999.0, 0.33333])
        );
        assert_eq!(thinned(&vec![[1.0, 2.0]]), vec![[1.0, 2.0]]);
        assert!(thinned(&Curve::new()).is_empty());
    }
}
