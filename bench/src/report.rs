//! Tables out of outcomes: ratios to the best of the row, ties, geometric means; and JSON.

use crate::case::{Row, Table};
use crate::child::Failure;
use crate::machine::Machine;
use crate::peers::Peer;
use crate::rounds::{Cell, Outcome, control};
use crate::stats::{Summary, geometric_mean};
use comfy_table::{CellAlignment, presets};
use serde::Serialize;
use std::collections::BTreeMap;

/// Differences below this are never called differences.
const LEAST_NOISE: f64 = 0.01;
/// Spreads above this are shown.
const SHOWN_SPREAD: f64 = 0.05;

/// One row of a table, ready to print.
#[derive(Serialize)]
pub struct Line {
    /// Name of the case, and which of its rows this is.
    pub label: String,
    /// The table.
    pub table: Table,
    /// Unit of `best`.
    pub unit: &'static str,
    /// The smallest median of the row.
    pub best: Option<f64>,
    /// How far the control ended from itself, at least 1%.
    pub noise: f64,
    /// One entry per peer.
    pub entries: Vec<Entry>,
}

/// One peer in one row.
#[derive(Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Entry {
    /// It ran in at least one round that counts.
    Value {
        /// The median.
        median: f64,
        /// To the best of the row.
        ratio: f64,
        /// Not the best, but not distinguishable from it.
        tie: bool,
        /// Relative spread (MAD).
        spread: f64,
        /// Other rounds failed.
        flaky: bool,
    },
    /// It was stopped at a limit: the true value is larger.
    AtLeast {
        /// The limit over the best of the row.
        ratio: f64,
    },
    /// It never ran to its end.
    Failed {
        /// One word for the table.
        what: &'static str,
    },
    /// The allocator is not here.
    Missing,
}

impl Entry {
    fn ratio(&self) -> Option<f64> {
        match self {
            Entry::Value { ratio, .. } | Entry::AtLeast { ratio } => Some(*ratio),
            Entry::Failed { .. } | Entry::Missing => None,
        }
    }
}

/// Everything there is to report.
#[derive(Serialize)]
pub struct Report<'a> {
    /// As typed, without the path of the executable.
    pub command: String,
    /// Where.
    pub machine: Machine,
    /// Rounds that counted.
    pub rounds: usize,
    /// Columns.
    pub peers: &'a [Peer],
    /// The peer that the last cell of each case ran once more.
    pub control: Option<&'a str>,
    /// The rows of both tables.
    pub lines: Vec<Line>,
    /// Every value, by case: a cell per peer, the control last.
    pub cases: BTreeMap<&'static str, &'a [Cell]>,
}

impl<'a> Report<'a> {
    /// Evaluates the outcomes.
    pub fn new(
        peers: &'a [Peer],
        outcomes: &'a [Outcome],
        machine: Machine,
        rounds: usize,
    ) -> Self {
        let control = control(peers);
        let rows = outcomes.iter().flat_map(|o| o.case.rows.iter().map(move |row| (o, row)));
        Report {
            command: ["cairn-bench".to_owned()]
                .into_iter()
                .chain(std::env::args().skip(1))
                .collect::<Vec<_>>()
                .join(" "),
            machine,
            rounds,
            peers,
            control: control.map(|column| peers[column].name.as_str()),
            lines: rows.map(|(outcome, row)| line(outcome, row, peers, control)).collect(),
            cases: outcomes.iter().map(|o| (o.case.name, o.cells.as_slice())).collect(),
        }
    }

    /// The whole report as text, or as Markdown.
    pub fn print(&self, markdown: bool) -> String {
        let mut out = vec![self.machine.describe(), format!("`{}`", self.command), String::new()];
        for peer in self.peers {
            let state = peer.missing.as_ref().map_or(&peer.version, |missing| missing);
            let note = if peer.missing.is_some() { "missing: " } else { "" };
            out.push(format!("- {}: {note}{state}", peer.name));
        }
        for (table, title) in
            [(Table::Time, "Time, ratio to the best"), (Table::Memory, "Memory, ratio to the best")]
        {
            if self.lines.iter().any(|line| line.table == table) {
                out.extend([String::new(), format!("### {title}"), String::new()]);
                out.push(self.table(table, markdown));
                out.extend(self.left_out(table));
            }
        }
        out.push(String::new());
        out.push(format!(
            "Medians of {} rounds. `=` ties with the best within the noise of the row, which is {} \
             measured against itself. `±` is a spread over {:.0}%, `≥` was stopped at a limit, \
             `!` failed in some rounds.",
            self.rounds,
            self.control.unwrap_or("nothing"),
            SHOWN_SPREAD * 100.0
        ));
        out.extend(self.failures());
        out.join("\n")
    }

    fn table(&self, table: Table, markdown: bool) -> String {
        let mut printed = comfy_table::Table::new();
        printed.load_preset(if markdown {
            presets::ASCII_MARKDOWN
        } else {
            presets::UTF8_FULL_CONDENSED
        });
        let fixed = ["", "best", "noise"].into_iter();
        printed.set_header(fixed.chain(self.peers.iter().map(|peer| peer.name.as_str())));
        for line in self.lines.iter().filter(|line| line.table == table) {
            let best =
                line.best.map_or("-".into(), |best| format!("{} {}", ratio(best), line.unit));
            let fixed = [line.label.clone(), best, format!("{:.0}%", line.noise * 100.0)];
            printed.add_row(fixed.into_iter().chain(line.entries.iter().map(show)));
        }
        let (label, means) = self.means(table);
        printed.add_row([label, String::new(), String::new()].into_iter().chain(means));
        for column in printed.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        printed.to_string()
    }

    /// Rows that all peers have a number for: only those can be averaged fairly. A peer
    /// without any number in the table has no mean, and does not take away the others'.
    fn complete(&self, table: Table) -> impl Iterator<Item = &Line> {
        let lines = || self.lines.iter().filter(move |line| line.table == table);
        let counts = |column: usize| lines().any(|line| line.entries[column].ratio().is_some());
        let counted: Vec<usize> = (0..self.peers.len()).filter(|&column| counts(column)).collect();
        lines().filter(move |l| counted.iter().all(|&column| l.entries[column].ratio().is_some()))
    }

    fn means(&self, table: Table) -> (String, Vec<String>) {
        let means = (0..self.peers.len()).map(|column| {
            let entries: Vec<&Entry> =
                self.complete(table).map(|line| &line.entries[column]).collect();
            let ratios: Vec<f64> = entries.iter().filter_map(|entry| entry.ratio()).collect();
            let open = entries.iter().any(|entry| matches!(entry, Entry::AtLeast { .. }));
            geometric_mean(&ratios).map_or("-".into(), |mean| {
                format!("{}{}", if open { "≥" } else { "" }, ratio(mean))
            })
        });
        (format!("geometric mean of {}", self.complete(table).count()), means.collect())
    }

    fn left_out(&self, table: Table) -> Option<String> {
        let complete: Vec<&Line> = self.complete(table).collect();
        let left_out = |line: &&Line| {
            line.table == table && !complete.iter().any(|&counted| std::ptr::eq(counted, *line))
        };
        let left: Vec<&str> =
            self.lines.iter().filter(left_out).map(|line| line.label.as_str()).collect();
        (!left.is_empty())
            .then(|| format!("\nNot in the mean, as not all ran: {}", left.join(", ")))
    }

    fn failures(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (case, cells) in &self.cases {
            for (peer, cell) in self.peers.iter().zip(*cells) {
                if let Some(last) = cell.failures.last() {
                    let times = cell.failures.len();
                    notes.push(format!("- {} on {case}: {last} ({times} times)", peer.name));
                }
            }
        }
        if !notes.is_empty() {
            notes.insert(0, "\nFailures:\n".into());
        }
        notes
    }
}

fn line(outcome: &Outcome, row: &Row, peers: &[Peer], control: Option<usize>) -> Line {
    let divisor = row.per.and_then(|key| outcome.cells.iter().find_map(|c| c.values.get(key)));
    let scaled = |value: f64| value.max(row.floor) / divisor.map_or(1.0, |d| d.median);
    let summary = |cell: &'_ Cell| -> Option<Summary> {
        let found = cell.values.get(row.key)?;
        Summary::of(found.samples.iter().map(|&value| scaled(value)).collect())
    };
    let summaries: Vec<Option<Summary>> = outcome.cells.iter().map(summary).collect();
    let (columns, again) = summaries.split_at(peers.len());
    let best = columns.iter().flatten().min_by(|a, b| a.median.total_cmp(&b.median));

    let itself = control.and_then(|column| columns[column].as_ref()).zip(again[0].as_ref());
    let noise = itself.map_or(0.0, |(one, other)| (other.median / one.median - 1.0).abs());
    let noise = noise.max(LEAST_NOISE);

    let entry = |column: usize, peer: &Peer| match (&columns[column], best) {
        _ if peer.missing.is_some() => Entry::Missing,
        (Some(summary), Some(best)) => {
            let ratio = summary.median / best.median;
            let margin = noise.max(summary.relative_mad() + best.relative_mad());
            Entry::Value {
                median: summary.median,
                ratio,
                tie: !std::ptr::eq(summary, best) && ratio - 1.0 <= margin,
                spread: summary.relative_mad(),
                flaky: !outcome.cells[column].failures.is_empty(),
            }
        }
        (_, best) => {
            let cell = &outcome.cells[column];
            match cell.lower_bound(row.table, row.key).zip(best) {
                Some((bound, best)) => Entry::AtLeast { ratio: scaled(bound) / best.median },
                None => Entry::Failed { what: cell.failures.last().map_or("-", one_word) },
            }
        }
    };
    Line {
        label: format!("{}{}", outcome.case.name, row.suffix),
        table: row.table,
        unit: row.unit,
        best: best.map(|best| best.median),
        noise,
        entries: peers.iter().enumerate().map(|(column, peer)| entry(column, peer)).collect(),
    }
}

fn one_word(failure: &Failure) -> &'static str {
    match failure {
        Failure::Timeout { .. } => "timeout",
        Failure::Memory { .. } => "memory",
        Failure::Crash { .. } => "crash",
        Failure::Absent { .. } => "absent",
        Failure::Wrong { .. } => "wrong",
    }
}

fn show(entry: &Entry) -> String {
    match entry {
        Entry::Value { ratio: r, tie, spread, flaky, .. } => {
            let spread = (*spread > SHOWN_SPREAD).then(|| format!(" ±{:.0}%", spread * 100.0));
            format!(
                "{}{}{}{}",
                ratio(*r),
                if *tie { " =" } else { "" },
                spread.unwrap_or_default(),
                if *flaky { " !" } else { "" }
            )
        }
        Entry::AtLeast { ratio: r } => format!("≥{}", ratio(*r)),
        Entry::Failed { what } => (*what).into(),
        Entry::Missing => "missing".into(),
    }
}

/// Three significant digits, no more than two after the point.
fn ratio(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Case, Run, Values};

    static CASE: Case = Case {
        name: "case",
        about: "",
        rows: &[Row::time("ms")],
        quick_scale: 1.0,
        run: Run::Workload(|_| Values::new()),
    };

    fn peer(name: &str, missing: bool) -> Peer {
        let missing = missing.then(|| "apt-get install it".to_owned());
        Peer { name: name.into(), library: None, version: String::new(), missing }
    }

    fn cell(samples: &[f64], failures: Vec<Failure>) -> Cell {
        let mut cell = Cell { failures, ..Cell::default() };
        cell.values.extend(Summary::of(samples.to_vec()).map(|s| ("ms".to_owned(), s)));
        cell
    }

    #[test]
    fn every_kind_of_entry_is_shown() {
        let peers = [
            peer("a", false),
            peer("b", false),
            peer("c", false),
            peer("d", false),
            peer("e", true),
        ];
        let crash = Failure::Crash { status: "signal 11".into(), message: String::new() };
        let cells = vec![
            cell(&[100.0], vec![]),
            cell(&[102.0], vec![crash.clone()]),
            cell(&[], vec![Failure::Timeout { seconds: 2.0, mib: 1.0 }]),
            cell(&[], vec![crash]),
            cell(&[], vec![]),
            cell(&[103.0], vec![]),
        ];
        let outcome = Outcome { case: &CASE, cells };
        let line = line(&outcome, &CASE.rows[0], &peers, control(&peers));
        let shown: Vec<String> = line.entries.iter().map(show).collect();
        assert_eq!(shown, ["1.00", "1.02 = !", "≥20.0", "crash", "missing"]);
        assert!((line.noise - 0.03).abs() < 1e-9);
    }

    #[test]
    fn a_row_that_some_failed_is_not_averaged() {
        let peers = [peer("a", false), peer("b", false)];
        let crash = Failure::Crash { status: "signal 6".into(), message: String::new() };
        let both = vec![cell(&[1.0], vec![]), cell(&[2.0], vec![]), cell(&[1.0], vec![])];
        let one = vec![cell(&[1.0], vec![]), cell(&[], vec![crash]), cell(&[1.0], vec![])];
        let outcomes = [both, one].map(|cells| Outcome { case: &CASE, cells });
        let report = Report::new(&peers, &outcomes, Machine::read(), 1);
        assert_eq!(report.complete(Table::Time).count(), 1);
        let text = report.print(true);
        assert!(text.contains("Not in the mean, as not all ran: case"), "{text}");
        assert!(text.contains("b on case: signal 6"), "{text}");
    }
}
