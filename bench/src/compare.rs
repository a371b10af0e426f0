//! Two results: what became better and what became worse from the first to the second.
//!
//! Between two runs the machine itself drifts. The other allocators did not change, so the
//! median of their changes in a row is what the machine did to it; the verdict is on the
//! change beyond that, where enough of them are in both results.

use crate::evaluate::{self, Entry, Line, mean_of};
use crate::result::{Allocator, LabResult};
use crate::table::{laid_out, ratio, title};
use anyhow::{Context, Result};
use cairn_workloads::case::Table;
use programs::stats::{geometric_mean, median};
use std::collections::BTreeMap;

/// Other allocators that must be in both results, at the same version, to be the control.
const ENOUGH_PEERS: usize = 3;

/// What became of a row. The order is that of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It had a value and now fails, or is stopped at a limit.
    Fails,
    /// More than before, by more than the noise of both.
    Worse,
    /// Less than before, by more than the noise of both.
    Improved,
    /// It has a value for the first time.
    Runs,
    /// Only the later result has the row.
    New,
    /// Only the earlier result has the row.
    Gone,
    /// Within the noise, or without a value in both.
    Same,
}

/// A row of either result.
pub struct Change {
    /// Its label.
    pub label: String,
    /// Its table.
    pub table: Table,
    /// What became of it.
    pub verdict: Verdict,
    /// The allocator's medians.
    pub values: [Option<f64>; 2],
    /// Their unit.
    pub unit: String,
    /// The later over the earlier median, turned round where more is better.
    pub change: Option<f64>,
    /// The median change of the others, if they are enough.
    pub control: Option<f64>,
    /// The noise of both.
    pub noise: f64,
}

/// Two results compared.
pub struct Comparison {
    /// Whose values these are.
    pub allocator: String,
    /// What differs besides the allocator.
    pub warnings: Vec<String>,
    /// All rows: by table and verdict, the largest change first.
    pub changes: Vec<Change>,
    /// Per table: the allocator's means over the frontier, earlier and later.
    pub means: Vec<(Table, [Option<f64>; 2])>,
}

impl Change {
    /// The change beyond that of the control.
    pub fn net(&self) -> Option<f64> {
        self.change.map(|change| change / self.control.unwrap_or(1.0))
    }

    fn size(&self) -> f64 {
        self.net().map_or(0.0, |net| net.ln().abs())
    }
}

/// Compares how one allocator did in the earlier result, and it or another one in the later.
pub fn compare(old: &LabResult, new: &LabResult, names: [&str; 2]) -> Result<Comparison> {
    let column = |result: &LabResult, name: &str| {
        let place = result.allocators.iter().position(|a| a.name == name);
        place.with_context(|| format!("{name} is not in the result of {}", result.date))
    };
    let columns = [column(old, names[0])?, column(new, names[1])?];
    let lines = [old, new].map(evaluate::lines_as_measured);
    let mut rows: BTreeMap<(Table, &str), [Option<&Line<'_>>; 2]> = BTreeMap::new();
    for (side, lines) in lines.iter().enumerate() {
        for line in lines {
            rows.entry((line.table, &line.label)).or_default()[side] = Some(line);
        }
    }
    let peers = peers(old, new, names);
    let of = |sides: [Option<&Line<'_>>; 2]| change(sides, columns, &peers);
    let mut changes: Vec<Change> = rows.into_values().map(of).collect();
    changes.sort_by(|a, b| {
        let order = a.table.cmp(&b.table).then(a.verdict.cmp(&b.verdict));
        order.then(b.size().total_cmp(&a.size())).then(a.label.cmp(&b.label))
    });
    let mean = |side: usize, table| Some(mean_of(&lines[side], table, columns[side])?.ratio);
    let means = Table::ALL.map(|table| (table, [mean(0, table), mean(1, table)]));
    // Builds of cairn alone have rows, but no frontier.
    let has_rows = |(table, _): &(Table, _)| changes.iter().any(|change| change.table == *table);
    let means = means.into_iter().filter(has_rows).collect();
    let allocator = match names {
        [before, after] if before == after => after.to_owned(),
        [before, after] => format!("{before}, then {after}"),
    };
    Ok(Comparison { allocator, warnings: warnings(old, new), changes, means })
}

/// The columns of all others that did not change.
fn peers(old: &LabResult, new: &LabResult, names: [&str; 2]) -> Vec<[usize; 2]> {
    let is_other =
        |(_, peer): &(usize, &Allocator)| peer.is_other() && !names.contains(&&*peer.name);
    let others = old.allocators.iter().enumerate().filter(is_other);
    let column = |(before, peer): (usize, &Allocator)| {
        let same = |a: &Allocator| a.name == peer.name && a.version == peer.version;
        Some([before, new.allocators.iter().position(same)?])
    };
    others.filter_map(column).collect()
}

fn warnings(old: &LabResult, new: &LabResult) -> Vec<String> {
    let mut warnings = Vec::new();
    let machine = |result: &LabResult| {
        let machine = &result.machine;
        format!("{}, {} cores, Linux {}", machine.cpu, machine.cores, machine.kernel)
    };
    if machine(old) != machine(new) {
        warnings.push(format!("Different machines: {} and {}.", machine(old), machine(new)));
    }
    if old.quick != new.quick {
        warnings.push("One is a quick run: its sizes are smaller, so no value compares.".into());
    }
    warnings
}

/// What became of a row: its lines in the two results, of which one may lack it.
fn change(sides: [Option<&Line<'_>>; 2], columns: [usize; 2], peers: &[[usize; 2]]) -> Change {
    let value = |side: usize, column: usize| match sides[side]?.entries[column] {
        Entry::Value { median, spread, .. } => Some((median, sides[side]?.noise.max(spread))),
        _ => None,
    };
    let grown = |columns: &[usize; 2]| {
        let ((before, _), (after, _)) = (value(0, columns[0])?, value(1, columns[1])?);
        Some(after / before)
    };
    let changes: Vec<f64> = peers.iter().filter_map(grown).filter(|c| c.is_finite()).collect();
    let values = [value(0, columns[0]), value(1, columns[1])];
    let line = sides[1].or(sides[0]).expect("a row of either result");
    let mut change = Change {
        label: line.label.clone(),
        table: line.table,
        verdict: Verdict::Same,
        values: values.map(|value| value.map(|(median, _)| line.value(median))),
        unit: line.unit.to_owned(),
        change: grown(&columns),
        control: median(&changes).filter(|_| changes.len() >= ENOUGH_PEERS),
        noise: values.iter().flatten().map(|(_, noise)| noise).sum(),
    };
    change.verdict = match (sides, values, change.net()) {
        ([None, _], ..) => Verdict::New,
        ([_, None], ..) => Verdict::Gone,
        (_, [Some(_), None], _) => Verdict::Fails,
        (_, [None, Some(_)], _) => Verdict::Runs,
        (.., Some(net)) if net > 1.0 + change.noise => Verdict::Worse,
        (.., Some(net)) if net < 1.0 / (1.0 + change.noise) => Verdict::Improved,
        _ => Verdict::Same,
    };
    change
}

impl Comparison {
    /// As Markdown.
    pub fn print(&self) -> String {
        let mut out: Vec<String> = self.warnings.clone();
        out.extend(self.means.iter().map(|(table, means)| self.mean(*table, means)));
        for (table, _) in &self.means {
            let rows = self.changes.iter().filter(|change| change.table == *table);
            let (same, told): (Vec<&Change>, Vec<&Change>) =
                rows.partition(|change| change.verdict == Verdict::Same);
            out.push(format!("\n### {}\n", title(*table)));
            if !told.is_empty() {
                out.push(print_rows(&told));
            }
            out.push(format!("{} rows within the noise.", same.len()));
        }
        out.push(format!(
            "\nValues of {}; below 1 is better than before. `others` is the median change of the \
             other allocators, which did not change: what the machine did. `net` is the change \
             beyond that, and beyond the noise of both results is what is told here.",
            self.allocator
        ));
        out.join("\n")
    }

    fn mean(&self, table: Table, [before, after]: &[Option<f64>; 2]) -> String {
        let shown = |mean: &Option<f64>| mean.map_or("-".into(), ratio);
        let nets = self.changes.iter().filter(|c| c.table == table).filter_map(Change::net);
        let nets: Vec<f64> = nets.filter(|net| net.is_finite() && *net > 0.0).collect();
        let net = geometric_mean(&nets).map_or(String::new(), |net| {
            format!("; over the {} rows in both, net {net:.3}", nets.len())
        });
        format!(
            "- {}: mean over the frontier {} -> {}{net}",
            title(table),
            shown(before),
            shown(after)
        )
    }
}

fn print_rows(changes: &[&Change]) -> String {
    let header = ["", "verdict", "before", "after", "change", "others", "net", "noise"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for change in changes {
        let value = |value: Option<f64>| {
            value.map_or("-".into(), |value| format!("{} {}", ratio(value), change.unit))
        };
        let factor = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.3}"));
        rows.push(vec![
            change.label.clone(),
            format!("{:?}", change.verdict).to_lowercase(),
            value(change.values[0]),
            value(change.values[1]),
            factor(change.change),
            factor(change.control),
            factor(change.net()),
            format!("{:.0}%", change.noise * 100.0),
        ]);
    }
    laid_out(rows, 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::tests::result;
    use crate::result::SUBJECT;
    use programs::process::Failure;

    fn verdict(own: [f64; 2], peers: [f64; 2]) -> (Verdict, Option<f64>) {
        let side = |own: f64, peer: f64| {
            result(&[
                ("a", &[peer], &[]),
                ("b", &[peer * 2.0], &[]),
                ("c", &[peer * 1.5], &[]),
                (SUBJECT, &[own], &[]),
            ])
        };
        let comparison =
            compare(&side(own[0], peers[0]), &side(own[1], peers[1]), [SUBJECT; 2]).unwrap();
        let time = comparison.changes.iter().find(|change| change.table == Table::Time).unwrap();
        (time.verdict, time.control)
    }

    #[test]
    fn a_change_is_one_beyond_that_of_the_others() {
        assert_eq!(verdict([100.0, 110.0], [50.0, 50.0]), (Verdict::Worse, Some(1.0)));
        assert_eq!(verdict([100.0, 90.0], [50.0, 50.0]), (Verdict::Improved, Some(1.0)));
        assert_eq!(verdict([100.0, 101.0], [50.0, 50.0]).0, Verdict::Same);
        // The machine became slower by a fifth.
        assert_eq!(verdict([100.0, 120.0], [50.0, 60.0]), (Verdict::Same, Some(1.2)));
        assert_eq!(verdict([100.0, 100.0], [50.0, 60.0]).0, Verdict::Improved);
    }

    #[test]
    fn rows_come_and_go_and_fail() {
        let crash = Failure::Crash { status: "signal 11".into(), message: String::new() };
        let well = result(&[("a", &[1.0], &[]), (SUBJECT, &[1.0], &[])]);
        let fails = result(&[("a", &[1.0], &[]), (SUBJECT, &[], std::slice::from_ref(&crash))]);
        let mut empty = result(&[("a", &[1.0], &[]), (SUBJECT, &[1.0], &[])]);
        empty.cases.clear();
        let first = |old: &LabResult, new: &LabResult| {
            compare(old, new, [SUBJECT; 2]).unwrap().changes.first().map(|change| change.verdict)
        };
        assert_eq!(first(&well, &fails), Some(Verdict::Fails));
        assert_eq!(first(&fails, &well), Some(Verdict::Runs));
        assert_eq!(first(&empty, &well), Some(Verdict::New));
        assert_eq!(first(&well, &empty), Some(Verdict::Gone));
        assert_eq!(first(&empty, &empty), None);
        assert!(compare(&well, &well, [SUBJECT, "nobody"]).is_err());
    }

    #[test]
    fn the_text_tells_means_and_rows() {
        let old = result(&[("a", &[200.0], &[]), (SUBJECT, &[100.0], &[])]);
        let new = result(&[("a", &[200.0], &[]), (SUBJECT, &[150.0], &[])]);
        let text = compare(&old, &new, [SUBJECT; 2]).unwrap().print();
        assert!(
            text.contains("- Time: mean over the frontier 0.50 -> 0.75; over the 1 rows"),
            "{text}"
        );
        assert!(text.contains("| case | worse   | 100 ms | 150 ms |  1.500 |"), "{text}");
    }

    #[test]
    fn two_builds_of_one_result_are_compared() {
        let mut result = result(&[("b", &[104.0], &[]), (SUBJECT, &[100.0], &[])]);
        result.allocators[0].is_cairn = true;
        let comparison = compare(&result, &result, [SUBJECT, "b"]).unwrap();
        let time = comparison.changes.iter().find(|change| change.table == Table::Time).unwrap();
        assert_eq!((time.change, time.verdict), (Some(1.04), Verdict::Worse));
        let text = comparison.print();
        assert!(text.contains("net 1.040") && text.contains("Values of cairn, then b;"), "{text}");
    }
}
