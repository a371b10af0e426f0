//! The tables, as Markdown that a terminal shows well.

use crate::evaluate::{self, Entry, Line, Mean, mean};
use crate::result::{LabResult, SUBJECT};
use cairn_workloads::case::Table;
use comfy_table::{CellAlignment, presets};

/// Spreads above this are shown.
const SHOWN_SPREAD: f64 = 0.05;

/// The whole result.
pub fn print(result: &LabResult) -> String {
    let lines = evaluate::lines(result);
    let mut out = vec![result.machine.describe(), format!("`{}`", result.command), String::new()];
    for allocator in &result.allocators {
        out.push(format!("- {}: {} ({})", allocator.name, allocator.version, allocator.source));
    }
    for table in evaluate::tables(&lines) {
        let lines: Vec<&Line<'_>> = lines.iter().filter(|line| line.table == table).collect();
        out.extend([String::new(), format!("### {}", title(table)), String::new()]);
        out.push(one(result, &lines));
    }
    out.push(String::new());
    out.push(format!(
        "Medians of {} rounds, as ratios to the best of the row. `=` ties with the best within the \
         noise of the row, which is {SUBJECT} measured against itself. `±` is a spread over {:.0}%, \
         `≥` was stopped at a limit, `!` failed in some rounds. The last column is {SUBJECT} over \
         the best of all others, the frontier; below 1 it is ahead of all. The means are over each \
         row's frontier.",
        result.rounds,
        SHOWN_SPREAD * 100.0
    ));
    let failures = evaluate::failures(result);
    if !failures.is_empty() {
        out.push("\nFailures:\n".into());
        out.extend(failures.iter().map(|failure| format!("- {failure}")));
    }
    out.join("\n")
}

/// A heading.
pub fn title(table: Table) -> &'static str {
    match table {
        Table::Time => "Time",
        Table::Memory => "Memory",
        Table::Latency => "Tail latency",
        Table::Counts => "Counts",
        Table::Alone => "Only cairn",
    }
}

fn one(result: &LabResult, lines: &[&Line<'_>]) -> String {
    let names = result.allocators.iter().map(|allocator| allocator.name.clone());
    let header = ["", "best", "noise"].map(str::to_owned).into_iter().chain(names);
    let mut rows = vec![header.chain(["frontier".to_owned()]).collect()];
    for line in lines {
        let best = line.best.map_or("-".into(), |best| line.show(best));
        let fixed = [line.label.clone(), best, format!("{:.0}%", line.noise * 100.0)];
        let subject = line.subject.map_or("-".into(), ratio);
        rows.push(
            fixed.into_iter().chain(line.entries.iter().map(show)).chain([subject]).collect(),
        );
    }
    let means = (0..result.allocators.len()).map(|column| {
        mean(lines.iter().copied(), column).map_or("-".into(), |mean| match mean.rows {
            rows if rows == lines.len() => bounded(&mean),
            rows => format!("{} of {rows}", bounded(&mean)),
        })
    });
    let label = format!("geometric mean of {}", lines.len());
    rows.push([label, String::new(), String::new()].into_iter().chain(means).collect());
    laid_out(rows, 1)
}

/// Rows of a table; the first is the header. So many columns are words, the others numbers.
pub fn laid_out(rows: Vec<Vec<String>>, words: usize) -> String {
    let mut rows = rows.into_iter();
    let mut printed = comfy_table::Table::new();
    printed
        .load_preset(presets::ASCII_MARKDOWN)
        .set_header(rows.next().unwrap_or_default())
        .add_rows(rows);
    for column in printed.column_iter_mut().skip(words) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    printed.to_string()
}

/// A mean, marked if it is a bound.
pub fn bounded(mean: &Mean) -> String {
    format!("{}{}", if mean.bounds > 0 { "≥" } else { "" }, ratio(mean.ratio))
}

impl Line<'_> {
    /// A figure of this row as it was measured, with its unit.
    pub fn show(&self, figure: f64) -> String {
        format!("{} {}", ratio(self.value(figure)), self.unit).trim_end().to_owned()
    }
}

/// An entry in a few characters.
pub fn show(entry: &Entry) -> String {
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
        Entry::Failed(what) => (*what).into(),
        Entry::Absent => "-".into(),
    }
}

/// Three significant digits, no more than two after the point.
pub fn ratio(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}
