//! From a result to rows: medians, ratios to the best, ties, means.

use crate::result::{Allocator, CONTROL, CaseResult, Cell, Form, LabResult, SUBJECT};
use cairn_workloads::case::{Better, Row, Table};
use programs::process::Failure;
use programs::stats::{Summary, geometric_mean, median};

/// Differences below this are never called differences.
const LEAST_NOISE: f64 = 0.01;

/// One row of a table.
pub struct Line<'a> {
    /// Name of the case, its form, and which of its rows this is.
    pub label: String,
    /// The case that it is a row of.
    pub result: &'a CaseResult,
    /// The table.
    pub table: Table,
    /// Unit of its values.
    pub unit: &'a str,
    /// Which values are better. All figures here are such that less is: [`Line::value`] turns them back.
    pub better: Better,
    /// The smallest median of the row.
    pub best: Option<f64>,
    /// How far the control ended from itself, at least 1%.
    pub noise: f64,
    /// One entry per allocator, in the result's order.
    pub entries: Vec<Entry>,
    /// Whose median is the least but the subject's: its column.
    pub best_other: Option<usize>,
    /// The row's frontier: that median, to the best of the row.
    pub frontier: Option<f64>,
    /// The subject over the frontier; below 1 it is ahead of all others.
    pub subject: Option<f64>,
    /// The same, round by round, over the one that is best in all other rounds: see [`crossed_mean`].
    pub crossed: Option<f64>,
    /// Up to this far from the frontier it is level: the noise, or the spread of the two.
    pub margin: f64,
}

/// One allocator in one row.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// It ran in at least one round that counts.
    Value {
        /// The median.
        median: f64,
        /// To the best of the row.
        ratio: f64,
        /// Not the best, but not distinguishable from it.
        tie: bool,
        /// Relative spread (median absolute deviation).
        spread: f64,
        /// Other rounds failed.
        flaky: bool,
    },
    /// It was stopped at a limit: the true value is larger.
    AtLeast {
        /// The limit over the best of the row.
        ratio: f64,
    },
    /// It never ran to its end; one word why.
    Failed(&'static str),
    /// It does not exist in this form, or not here.
    Absent,
}

impl Entry {
    /// To the best of the row, or a bound of that.
    pub fn ratio(&self) -> Option<f64> {
        match self {
            Entry::Value { ratio, .. } | Entry::AtLeast { ratio } => Some(*ratio),
            Entry::Failed(_) | Entry::Absent => None,
        }
    }
}

/// How the subject did in a row, in the order of [`standings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Ahead of all others by more than the noise.
    Wins,
    /// Not distinguishable from the best other.
    Ties,
    /// Behind by more than the noise.
    Loses,
    /// It has no value, or nobody else has.
    Unknown,
}

/// In how many rows the subject is ahead, level, behind, and without a figure.
pub fn standings<'a>(lines: impl Iterator<Item = &'a Line<'a>>) -> [usize; 4] {
    let mut counts = [0; 4];
    lines.for_each(|line| counts[line.standing() as usize] += 1);
    counts
}

impl Line<'_> {
    /// How the subject did.
    pub fn standing(&self) -> Standing {
        match self.subject {
            None => Standing::Unknown,
            Some(ratio) if ratio > 1.0 + self.margin => Standing::Loses,
            Some(ratio) if ratio < 1.0 / (1.0 + self.margin) => Standing::Wins,
            Some(_) => Standing::Ties,
        }
    }

    /// The value that was measured, of a figure in this row.
    pub fn value(&self, figure: f64) -> f64 {
        self.better.as_less(figure)
    }
}

/// A mean over the rows of a table.
pub struct Mean {
    /// Geometric mean of the allocator's values over each row's frontier, the best of all
    /// allocators but the subject: only the subject can be below 1.
    pub ratio: f64,
    /// Rows that it has a value for, or a bound.
    pub rows: usize,
    /// Rows where it is a bound, or where it was stopped without one: the mean is then a bound, too.
    pub bounds: usize,
    /// Rows that it should have and failed.
    pub failed: usize,
}

/// Where the best of all others has so many times the subject's figure, the row stands in a table of its own: a mean of
/// what all are good at says more of what users run.
const ALONE: f64 = 2.0;

/// All rows of a result, in its order. Of the lab's own those in which only the subject is good are in no other table.
pub fn lines(result: &LabResult) -> Vec<Line<'_>> {
    let mut lines = lines_as_measured(result);
    let counts = |table| matches!(table, Table::Time | Table::Memory);
    let is_alone = |line: &&mut Line<'_>| {
        counts(line.table) && line.subject.is_some_and(|ratio| ratio * ALONE < 1.0)
    };
    if result.suite.is_none() {
        lines.iter_mut().filter(is_alone).for_each(|line| line.table = Table::Alone);
    }
    lines
}

/// All rows of a result, each in its own table.
pub fn lines_as_measured(result: &LabResult) -> Vec<Line<'_>> {
    let rows =
        result.cases.iter().flat_map(|case| case.case.rows.iter().map(move |row| (case, row)));
    rows.map(|(case, row)| line(&result.allocators, case, row)).collect()
}

/// The tables that have rows, in the order of the report.
pub fn tables(lines: &[Line<'_>]) -> Vec<Table> {
    let has_rows = |table: &Table| lines.iter().any(|line| line.table == *table);
    Table::ALL.into_iter().filter(has_rows).collect()
}

/// The mean of the allocator in this column over the lines of a table; none without a value.
pub fn mean_of(lines: &[Line<'_>], table: Table, column: usize) -> Option<Mean> {
    mean(lines.iter().filter(|line| line.table == table), column)
}

/// The mean of the allocator in this column over lines of one table, or a part of it; none without a value.
pub fn mean<'a>(lines: impl Iterator<Item = &'a Line<'a>>, column: usize) -> Option<Mean> {
    let (mut ratios, mut bounds, mut failed) = (Vec::new(), 0, 0);
    for line in lines {
        match (&line.entries[column], line.frontier) {
            (Entry::Failed(why), _) => {
                failed += 1;
                bounds += usize::from([TIMEOUT, MEMORY].contains(why));
            }
            (entry, Some(frontier)) => {
                bounds += usize::from(matches!(entry, Entry::AtLeast { .. }));
                ratios.extend(entry.ratio().map(|ratio| ratio / frontier));
            }
            _ => {}
        }
    }
    let rows = ratios.len();
    geometric_mean(&ratios).map(|ratio| Mean { ratio, rows, bounds, failed })
}

/// The subject over the frontier with the luck taken out: the mean of [`Line::crossed`].
///
/// Of many that are near, the one with the best median is also the luckiest, so the frontier lies
/// below what any of them would show again. Here it is chosen by some rounds and timed by another;
/// if the choice is wrong, the frontier lies too high. The truth is between the two means.
pub fn crossed_mean<'a>(lines: impl Iterator<Item = &'a Line<'a>>) -> Option<f64> {
    geometric_mean(&lines.filter_map(|line| line.crossed).collect::<Vec<f64>>())
}

/// For each round, the subject over whoever has the best median in all other rounds, both in this
/// one; the geometric mean. Only those take part that have a value in each of the rounds.
fn crossed(subject: &Summary, others: &[&Summary]) -> Option<f64> {
    let rounds = subject.samples.len();
    let others: Vec<&Summary> =
        others.iter().copied().filter(|other| other.samples.len() == rounds).collect();
    let rest = |summary: &Summary, round: usize| {
        let mut samples = summary.samples.clone();
        samples.remove(round);
        median(&samples)
    };
    let ratio = |round: usize| {
        let medians = others.iter().filter_map(|other| Some((rest(other, round)?, other)));
        let (_, chosen) = medians.min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(subject.samples[round] / chosen.samples[round])
    };
    geometric_mean(&(0..rounds).map(ratio).collect::<Option<Vec<f64>>>()?)
}

fn line<'a>(allocators: &[Allocator], result: &'a CaseResult, row: &'a Row) -> Line<'a> {
    let divisor = row.per.as_ref().and_then(|key| {
        let values = result.cells.values().find_map(|cell| cell.values.get(key));
        values.and_then(|values| Summary::of(values.clone()))
    });
    let divisor = divisor.map_or(1.0, |divisor| divisor.median);
    let scaled = |value: f64| row.better.as_less(value.max(row.floor) / divisor);
    let summary = |name: &str| -> Option<Summary> {
        let values = result.cells.get(name)?.values.get(&row.key)?;
        Summary::of(values.iter().map(|&value| scaled(value)).collect())
    };
    let summaries: Vec<Option<Summary>> = allocators.iter().map(|a| summary(&a.name)).collect();
    let best = summaries.iter().flatten().min_by(|a, b| a.median.total_cmp(&b.median));

    let itself = summary(SUBJECT).zip(summary(CONTROL));
    let noise = itself.map_or(0.0, |(one, again)| (again.median / one.median - 1.0).abs());
    let noise = noise.max(LEAST_NOISE);

    let entry = |(allocator, summary): (&Allocator, &Option<Summary>)| {
        let empty = Cell::default();
        let cell = result.cells.get(&allocator.name).unwrap_or(&empty);
        let bound = cell.lower_bound(row.table, &row.key).zip(best);
        let bound = bound.map(|(bound, best)| scaled(bound) / best.median);
        entry(cell, summary.as_ref().zip(best), noise, bound)
    };
    let entries: Vec<Entry> = allocators.iter().zip(&summaries).map(entry).collect();
    let own = allocators.iter().position(|allocator| allocator.name == SUBJECT);
    let value = |column: usize| match entries[column] {
        Entry::Value { ratio, spread, .. } => Some((ratio, spread)),
        _ => None,
    };
    let others = (0..entries.len()).filter(|column| allocators[*column].is_other());
    let ratios = others.clone().filter_map(|column| Some((column, value(column)?.0)));
    let best_other = ratios.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(column, _)| column);
    let frontier = best_other.and_then(value);
    let both = own.and_then(value).zip(frontier);
    let samples = |column: usize| summaries[column].as_ref();
    let all_others: Vec<&Summary> = others.filter_map(samples).collect();
    Line {
        crossed: own.and_then(samples).and_then(|own| crossed(own, &all_others)),
        label: format!("{}{}", result.label(), row.suffix),
        result,
        table: row.table,
        unit: &row.unit,
        better: row.better,
        best: best.map(|best| best.median),
        noise,
        best_other,
        frontier: frontier.map(|(ratio, _)| ratio),
        subject: both.map(|(subject, frontier)| subject.0 / frontier.0),
        margin: both.map_or(noise, |(subject, frontier)| noise.max(subject.1 + frontier.1)),
        entries,
    }
}

/// What one allocator has in a row: its own figure beside the best, or a bound, or why not.
fn entry(cell: &Cell, both: Option<(&Summary, &Summary)>, noise: f64, bound: Option<f64>) -> Entry {
    if let Some((summary, best)) = both {
        let ratio = summary.median / best.median;
        let margin = noise.max(summary.spread + best.spread);
        return Entry::Value {
            median: summary.median,
            ratio,
            tie: !std::ptr::eq(summary, best) && ratio - 1.0 <= margin,
            spread: summary.spread,
            flaky: !cell.failures.is_empty(),
        };
    }
    match (bound, cell.failures.last()) {
        (Some(ratio), _) => Entry::AtLeast { ratio },
        (None, Some(last)) => Entry::Failed(one_word(last)),
        (None, None) => Entry::Absent,
    }
}

/// Who was stopped at a limit has a figure beyond it.
const TIMEOUT: &str = "timeout";
const MEMORY: &str = "memory";

fn one_word(failure: &Failure) -> &'static str {
    match failure {
        Failure::Timeout { .. } => TIMEOUT,
        Failure::Memory { .. } => MEMORY,
        Failure::Crash { .. } => "crash",
        Failure::Absent { .. } => "absent",
        Failure::Wrong { .. } => "wrong",
    }
}

/// Every failure, as one line of text each.
pub fn failures(result: &LabResult) -> Vec<String> {
    let mut notes = Vec::new();
    for allocator in &result.allocators {
        let Allocator { name, no_preload, no_engine, .. } = allocator;
        for (form, what, why) in
            [(Form::Preloaded, "preloaded", no_preload), (Form::Linked, "linked", no_engine)]
        {
            let why = why.iter().filter(|_| result.cases.iter().any(|case| case.form == form));
            notes.extend(why.map(|why| format!("{name}, {what}: {why}")));
        }
    }
    for case in &result.cases {
        for (name, cell) in &case.cells {
            if let Some(last) = cell.failures.last() {
                let times = cell.failures.len();
                let times = if times > 1 { format!(" ({times} times)") } else { String::new() };
                notes.push(format!("{name} on {}: {last}{times}", case.label()));
            }
        }
    }
    notes
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::result::FORMAT;
    use crate::table;
    use std::collections::BTreeMap;

    /// A result of one case with one time row, from (name, samples, failures).
    pub(crate) fn result(cells: &[(&str, &[f64], &[Failure])]) -> LabResult {
        const CASE: &str = r#"{"name": "case", "group": "single", "about": "", "origin": "",
            "rows": [{"table": "time", "key": "ms", "unit": "ms"}], "plots": [], "quick_scale": 1}"#;
        let cell = |samples: &[f64], failures: &[Failure]| Cell {
            values: BTreeMap::from([("ms".to_owned(), samples.to_vec())]),
            failures: failures.to_vec(),
            ..Cell::default()
        };
        let allocator = |name: &str| {
            let (name, version) = (name.into(), "1".into());
            Allocator { name, version, ..Allocator::default() }
        };
        LabResult {
            format: FORMAT,
            command: "lab".into(),
            date: "2026-01-31".into(),
            machine: Machine::read(),
            quick: true,
            suite: None,
            core: None,
            rounds: 1,
            allocators: cells
                .iter()
                .filter(|(name, ..)| *name != CONTROL)
                .map(|(name, ..)| allocator(name))
                .collect(),
            cases: vec![CaseResult {
                case: serde_json::from_str(CASE).unwrap(),
                form: Form::Preloaded,
                cells: cells
                    .iter()
                    .map(|(name, samples, failures)| ((*name).to_owned(), cell(samples, failures)))
                    .collect(),
            }],
        }
    }

    #[test]
    fn every_kind_of_entry() {
        let crash = Failure::Crash { status: "signal 11".into(), message: String::new() };
        let slow = Failure::Timeout { seconds: 2.0, mib: 1.0 };
        let result = result(&[
            ("a", &[100.0], &[]),
            ("b", &[102.0], std::slice::from_ref(&crash)),
            ("c", &[], &[slow]),
            ("d", &[], std::slice::from_ref(&crash)),
            ("e", &[], &[]),
            (SUBJECT, &[110.0], &[]),
            (CONTROL, &[113.3], &[]),
        ]);
        let line = &lines(&result)[0];
        let value = |median: f64, tie, flaky| Entry::Value {
            median,
            ratio: median / 100.0,
            tie,
            spread: 0.0,
            flaky,
        };
        assert_eq!(
            line.entries,
            [
                value(100.0, false, false),
                value(102.0, true, true),
                Entry::AtLeast { ratio: 20.0 },
                Entry::Failed("crash"),
                Entry::Absent,
                value(110.0, false, false),
            ]
        );
        assert!((line.noise - 0.03).abs() < 1e-9);
        assert_eq!(line.standing(), Standing::Loses);
        let shown: Vec<String> = line.entries.iter().map(table::show).collect();
        assert_eq!(shown, ["1.00", "1.02 = !", "≥20.0", "crash", "-", "1.10"]);
        assert_eq!(failures(&result).len(), 3);
        assert!(table::print(&result).contains("d on case: signal 11"));
    }

    #[test]
    fn only_the_subject_is_ahead_of_the_frontier() {
        let result =
            result(&[("a", &[200.0], &[]), ("b", &[400.0], &[]), (SUBJECT, &[100.0], &[])]);
        let lines = lines(&result);
        let means: Vec<f64> =
            (0..3).map(|column| mean(lines[..1].iter(), column).unwrap().ratio).collect();
        assert_eq!(lines[0].standing(), Standing::Wins);
        assert!(means.iter().zip([1.0, 2.0, 0.5]).all(|(a, b)| (a - b).abs() < 1e-12), "{means:?}");
    }

    /// Its figure in the row is beyond what was waited for, whatever is measured there.
    #[test]
    fn who_was_stopped_has_a_mean_that_is_a_bound() {
        let stopped = [Failure::Timeout { seconds: 60.0, mib: 1.0 }];
        let cells: [(_, &[f64], &[_]); 2] = [("a", &[10.0], &[]), ("b", &[20.0], &stopped)];
        let mut result = result(&cells);
        let mut second = super::tests::result(&cells);
        second.cases[0].case.rows[0].key = "ns".to_owned();
        for (name, cell) in &mut second.cases[0].cells {
            let values = if name == "a" { vec![10.0] } else { Vec::new() };
            cell.values = BTreeMap::from([("ns".to_owned(), values)]);
        }
        result.cases[0].cells.get_mut("b").unwrap().failures.clear();
        result.cases.append(&mut second.cases);
        let mean = mean_of(&lines(&result), Table::Time, 1).unwrap();
        assert_eq!((mean.ratio, mean.rows, mean.bounds, mean.failed), (2.0, 1, 1, 1));
    }

    #[test]
    fn of_a_rate_the_largest_is_the_best() {
        let mut result =
            result(&[("a", &[50.0], &[]), ("b", &[100.0], &[]), (SUBJECT, &[200.0], &[])]);
        let row = &mut result.cases[0].case.rows[0];
        (row.better, row.unit) = (Better::More, "ops".to_owned());
        let lines = lines(&result);
        let shown: Vec<String> = lines[0].entries.iter().map(table::show).collect();
        assert_eq!(shown, ["4.00", "2.00", "1.00"]);
        assert_eq!((lines[0].standing(), lines[0].subject), (Standing::Wins, Some(0.5)));
        assert!(table::print(&result).contains("200 ops"));
    }

    #[test]
    fn another_build_of_the_subject_is_no_rival() {
        let mut result =
            result(&[("old", &[50.0], &[]), ("a", &[200.0], &[]), (SUBJECT, &[100.0], &[])]);
        result.allocators[0].is_cairn = true;
        let line = &lines(&result)[0];
        assert_eq!((line.best_other, line.subject), (Some(1), Some(0.5)));
    }

    #[test]
    fn a_row_in_which_only_the_subject_is_good_is_in_no_mean() {
        for (own, suite, table) in [
            (49.0, None, Table::Alone),
            (51.0, None, Table::Time),
            (49.0, Some("mine"), Table::Time),
        ] {
            let mut result = result(&[("a", &[100.0], &[]), (SUBJECT, &[own], &[])]);
            result.suite = suite.map(str::to_owned);
            assert_eq!(lines(&result)[0].table, table, "{own} {suite:?}");
            assert_eq!(lines_as_measured(&result)[0].table, Table::Time);
        }
    }

    #[test]
    fn a_lucky_round_makes_the_frontier_but_not_the_crossed_one() {
        let rounds = result(&[
            ("steady", &[100.0, 100.0, 100.0], &[]),
            ("lucky", &[50.0, 200.0, 50.0], &[]),
            ("short", &[1.0], &[]),
            (SUBJECT, &[100.0, 100.0, 100.0], &[]),
        ]);
        // Without the first or the last round "steady" is best, without the second "lucky".
        let line = &lines(&rounds)[0];
        let expected = (100.0 / 200.0f64).cbrt();
        assert!((line.crossed.unwrap() - expected).abs() < 1e-12, "{:?}", line.crossed);
        let once = result(&[("a", &[100.0], &[]), (SUBJECT, &[100.0], &[])]);
        assert_eq!(lines(&once)[0].crossed, None);
    }
}
