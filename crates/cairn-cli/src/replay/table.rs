//! What is printed of replays.
//!
//! Owns the columns, the JSON object and the answer to whether a setting helps. The one idea: a row is the median of its
//! runs, and a difference counts if all runs of the one are on the same side of all runs of the other. It must never
//! advise what only one run has shown.

use super::Outcome;
use super::child::Figures;
use super::plan::Extent;
use crate::units::{human, printable};
use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Write;

/// Of the JSON object.
const SCHEMA: u32 = 1;
/// A difference below this part is none.
const LEAST: f64 = 0.03;

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    trace: &'a Extent,
    allocators: Vec<Row<'a>>,
}

/// The median of an allocator's runs.
#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    milliseconds: f64,
    /// From the fastest run to the slowest.
    all_milliseconds: Vec<f64>,
    processor_milliseconds: f64,
    peak_resident: u64,
    /// The peak of what is resident by that of what is live.
    fragmentation: f64,
    end_resident: u64,
    faults: u64,
    /// Calls without memory, in the run that had most of them.
    failed: u64,
}

impl<'a> Row<'a> {
    fn of(outcome: &'a Outcome, extent: &Extent) -> Self {
        let runs = &outcome.runs;
        let peak_resident = median(runs, |run| run.peak as f64) as u64;
        let mut all_milliseconds: Vec<f64> = runs.iter().map(|run| run.milliseconds).collect();
        all_milliseconds.sort_by(f64::total_cmp);
        Self {
            name: &outcome.name,
            milliseconds: median(runs, |run| run.milliseconds),
            all_milliseconds,
            processor_milliseconds: median(runs, |run| run.processor_milliseconds),
            peak_resident,
            fragmentation: peak_resident as f64 / extent.peak_live.max(1) as f64,
            end_resident: median(runs, |run| run.end as f64) as u64,
            faults: median(runs, |run| run.faults as f64) as u64,
            failed: runs.iter().map(|run| run.failed).max().unwrap_or(0),
        }
    }
}

/// The lower one of two.
fn median(runs: &[Figures], value: impl Fn(&Figures) -> f64) -> f64 {
    let mut values: Vec<f64> = runs.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

pub(super) fn json(extent: &Extent, outcomes: &[Outcome]) -> Result<String> {
    let allocators = outcomes.iter().map(|outcome| Row::of(outcome, extent)).collect();
    let report = Report { schema: SCHEMA, trace: extent, allocators };
    Ok(serde_json::to_string_pretty(&report).context("JSON")? + "\n")
}

pub(super) fn text(extent: &Extent, outcomes: &[Outcome], settings: bool) -> String {
    let rows: Vec<Row> = outcomes.iter().map(|outcome| Row::of(outcome, extent)).collect();
    let mut text = head(extent, outcomes);
    let width = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max(9);
    let titles = ["time", "processor", "peak RSS", "of live", "RSS at end"];
    let _ = write!(text, "  {:width$}", "");
    for title in titles {
        let _ = write!(text, " {title:>11}");
    }
    text.push('\n');
    for row in &rows {
        let columns = [
            time(row.milliseconds),
            time(row.processor_milliseconds),
            human(row.peak_resident),
            format!("{:.2}", row.fragmentation),
            human(row.end_resident),
        ];
        let _ = write!(text, "  {:width$}", printable(row.name));
        for column in columns {
            let _ = write!(text, " {column:>11}");
        }
        text.push('\n');
    }
    for row in rows.iter().filter(|row| row.failed > 0) {
        let name = printable(row.name);
        let _ = writeln!(text, "  {name}: {} calls have got no memory", row.failed);
    }
    if settings {
        text.push('\n');
        for line in advice(outcomes) {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

fn head(extent: &Extent, outcomes: &[Outcome]) -> String {
    let name = printable(&extent.program);
    let runs = outcomes.first().map_or(0, |outcome| outcome.runs.len());
    let counted = |count: u64, what: &str| match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    let (calls, threads) = (counted(extent.calls, "call"), counted(extent.threads, "thread"));
    let (peak, end) = (human(extent.peak_live), human(extent.end_live));
    let how = if runs == 1 { "one run".to_owned() } else { format!("the median of {runs} runs") };
    format!(
        "cairn: {name}: {calls} of {threads}, live {peak} at the peak, {end} at the end; {how}\n"
    )
}

fn time(milliseconds: f64) -> String {
    if milliseconds < 1000.0 {
        format!("{milliseconds:.1} ms")
    } else {
        format!("{:.2} s", milliseconds / 1000.0)
    }
}

/// Whether a setting helps: each against the first row.
fn advice(outcomes: &[Outcome]) -> Vec<String> {
    let Some((base, others)) = outcomes.split_first() else { return Vec::new() };
    if base.runs.len() < 2 {
        return vec!["One run says nothing of a setting: with --runs 3 it does.".to_owned()];
    }
    let mut lines: Vec<String> = others
        .iter()
        .filter_map(|other| {
            let time = change(base, other, |run| run.milliseconds);
            let peak = change(base, other, |run| run.peak as f64);
            let is_better = [time, peak].into_iter().flatten().any(|part| part < 0.0);
            let told = |part: Option<f64>, what: &str| match part {
                Some(part) if part < 0.0 => format!("{:.0} % less {what}", -part * 100.0),
                Some(part) => format!("{:.0} % more {what}", part * 100.0),
                None => format!("as much {what}"),
            };
            let (time, peak) = (told(time, "time"), told(peak, "memory at the peak"));
            is_better.then(|| format!("{} takes {time} and {peak}.", other.name))
        })
        .collect();
    if lines.is_empty() {
        lines.push("No setting helps: none takes less time or memory than without it.".to_owned());
    }
    lines
}

/// By which part another's figure differs, if it does in all runs, and by enough.
fn change(base: &Outcome, other: &Outcome, value: impl Fn(&Figures) -> f64) -> Option<f64> {
    let bounds = |outcome: &Outcome| {
        let values = outcome.runs.iter().map(&value);
        values.fold((f64::MAX, f64::MIN), |(low, high), one| (low.min(one), high.max(one)))
    };
    let (base_bounds, other_bounds) = (bounds(base), bounds(other));
    let is_apart = other_bounds.1 < base_bounds.0 || base_bounds.1 < other_bounds.0;
    let part = median(&other.runs, &value) / median(&base.runs, &value).max(1e-9) - 1.0;
    (is_apart && part.abs() >= LEAST).then_some(part)
}
