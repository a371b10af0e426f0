//! The HTML page: everything that a result holds, in one file that needs no network.
//!
//! ```text
//! charts     options of Apache ECharts: time against memory, and curves
//! browser    a headless Chromium, for the charts as pictures
//! ```
//!
//! The page itself is `assets/report.html`, with `report.css` and `report.js` beside it. What it has in common with the
//! command's pages is `cairn_sight::BASE_STYLE`.

pub mod browser;
mod charts;

use crate::evaluate::{self, Entry, Line, Standing, mean, mean_of};
use crate::result::{Allocator, LabResult, SUBJECT};
use crate::table::{bounded, ratio, show, title};
use anyhow::{Context, Result};
use cairn_sight::BASE_STYLE;
use cairn_workloads::case::{Group, Table};
use flate2::read::GzDecoder;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, UndefinedBehavior, context};
use serde::Serialize;
use std::path::{Path, PathBuf};

const TEMPLATE: &str = include_str!("../../assets/report.html");
const ECHARTS: &[u8] = include_bytes!("../../assets/echarts/echarts.min.js.gz");

/// Ratios above this have the same colour.
const DARKEST: f64 = 4.0;

/// A cell of the tables: its text, the figure itself, and how far it is from the best, from 0 to 100;
/// none without a ratio.
fn cell(text: String, median: Option<f64>, ratio_to_best: Option<f64>) -> Value {
    let heat = |ratio: f64| (100.0 * ratio.clamp(1.0, DARKEST).log(DARKEST)) as u32;
    context! { text, median => median.map_or(String::new(), ratio), heat => ratio_to_best.map(heat) }
}

/// The page of a result.
pub fn page(result: &LabResult) -> Result<String> {
    let lines = evaluate::lines(result);
    let charts = charts::all(result, &lines);
    let tables = evaluate::tables(&lines);
    let options: serde_json::Map<_, _> =
        charts.iter().map(|chart| (chart.id.clone(), chart.option.clone())).collect();
    let cases = result.cases.iter().map(|case| (case.label(), case));
    let page = context! {
        date => &*result.date,
        command => &*result.command,
        rounds => result.rounds,
        machine => Serde(&result.machine),
        allocators => Serde(&result.allocators),
        cases => Serde(cases.collect::<Vec<_>>()),
        sentences => sentences(result, &lines),
        titles => tables.iter().map(|table| title(*table)).collect::<Vec<_>>(),
        means => means(result, &lines, &tables),
        tables => tables.iter().map(|table| all_rows(result, &lines, *table)).collect::<Vec<_>>(),
        charts => charts.iter().map(|chart| chart.id.clone()).collect::<Vec<_>>(),
        failures => evaluate::failures(result),
        // The result, and the options of all charts, as JSON.
        result => embedded(result)?,
        options => embedded(&options)?,
        style => [BASE_STYLE, include_str!("../../assets/report.css")].concat(),
        echarts => std::io::read_to_string(GzDecoder::new(ECHARTS))?,
        script => include_str!("../../assets/report.js"),
    };
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.add_template("report.html", TEMPLATE)?;
    Ok(environment.get_template("report.html")?.render(page)?)
}

/// Writes the page of a result.
pub fn write(result: &LabResult, path: &Path) -> Result<()> {
    let text = page(result)?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Has a browser draw the page, and writes each of its charts into a file below `directory`.
pub fn pictures(result: &LabResult, directory: &Path) -> Result<Vec<PathBuf>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("report.html");
    write(result, &path)?;
    let html = browser::dump(&path, 1280)?;
    std::fs::create_dir_all(directory)?;
    let write = |part: &str| {
        let (id, _) = part.split_once('"')?;
        let (_, picture) = part.split_once("<svg")?;
        let (picture, _) = picture.split_once("</svg>")?;
        // The one name that HTML has and XML has not.
        let picture = format!("<svg{picture}</svg>\n").replace("&nbsp;", "\u{a0}");
        let path = directory.join(format!("{id}.svg"));
        Some(std::fs::write(&path, picture).map(|()| path).context("cannot write a picture"))
    };
    html.split("data-chart=\"").skip(1).map(|part| write(part).context("no picture")?).collect()
}

/// JSON that may stand inside a script element.
fn embedded(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string(value)?.replace('<', "\\u003c"))
}

fn sentences(result: &LabResult, lines: &[Line<'_>]) -> Vec<String> {
    let [ahead, tied, behind, unknown] = evaluate::standings(lines.iter());
    let columns = (0..).zip(&result.allocators).filter(|(_, a)| a.is_other());
    let ran = |column: usize| lines.iter().any(|line| line.entries[column].ratio().is_some());
    let (others, missing): (Vec<_>, Vec<_>) = columns.partition(|(column, _)| ran(*column));
    let missing: Vec<&str> = missing.into_iter().map(|(_, a)| &*a.name).collect();
    let mut told = vec![format!(
        "{SUBJECT} beside {} other allocators in {} cases with {} rows, each a median of rounds.",
        others.len(),
        result.cases.len(),
        lines.len(),
    )];
    if !missing.is_empty() {
        told.push(format!("Without any value, and not counted: {}.", missing.join(", ")));
    }
    if let Some(suite) = &result.suite {
        told.push(format!("The cases are those of the suite {suite}, not the lab's own."));
    }
    if result.quick {
        told.push("It was a quick run: small sizes, so more noise.".into());
    }
    told.push(format!(
        "{SUBJECT} is ahead of all others in {ahead} rows, ties with the best of them in {tied}, \
         is behind in {behind}, and has no figure in {unknown}."
    ));
    told
}

/// One row per allocator, the least mean of the first table first: for each table the mean, of how
/// many rows, and how many failed.
fn means(result: &LabResult, lines: &[Line<'_>], tables: &[Table]) -> Vec<Value> {
    let of = |table: Table| lines.iter().filter(move |line| line.table == table);
    let row = |(column, allocator): (usize, &Allocator)| {
        let cell = |table: &Table| match mean_of(lines, *table, column) {
            Some(mean) => (bounded(&mean), mean.rows, mean.failed),
            None => {
                let failed = |line: &&Line<'_>| matches!(line.entries[column], Entry::Failed(_));
                ("-".to_owned(), 0, of(*table).filter(failed).count())
            }
        };
        let first = tables.first().and_then(|table| mean_of(lines, *table, column));
        let cells = Serde(tables.iter().map(cell).collect::<Vec<_>>());
        let row = context! { name => &*allocator.name, cells };
        (first.map_or(f64::INFINITY, |mean| mean.ratio), row)
    };
    let mut rows: Vec<_> = result.allocators.iter().enumerate().map(row).collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    rows.into_iter().map(|(_, row)| row).collect()
}

/// A table with all its rows by group, and above those of each group the means over them.
fn all_rows(result: &LabResult, lines: &[Line<'_>], table: Table) -> Value {
    let group = |group: Group| {
        let inside = |line: &&Line<'_>| line.table == table && line.result.case.group == group;
        let inside: Vec<&Line<'_>> = lines.iter().filter(inside).collect();
        let mean_in = |column| match mean(inside.iter().copied(), column) {
            Some(mean) => cell(bounded(&mean), None, Some(mean.ratio)),
            None => cell("-".into(), None, None),
        };
        let means: Vec<Value> = (0..result.allocators.len()).map(mean_in).collect();
        let rows: Vec<Value> = inside.iter().map(|line| row(line)).collect();
        (!rows.is_empty()).then(|| context! { title => group.title(), means, rows })
    };
    let groups: Vec<Value> = Group::ALL.into_iter().filter_map(group).collect();
    context! { title => title(table), groups }
}

fn row(line: &Line<'_>) -> Value {
    let standing = match line.standing() {
        Standing::Wins => "ahead",
        Standing::Ties => "tied",
        Standing::Loses => "behind",
        Standing::Unknown => "unknown",
    };
    let of = |entry: &Entry| match entry {
        Entry::Value { median, .. } => cell(show(entry), Some(line.value(*median)), entry.ratio()),
        _ => cell(show(entry), None, entry.ratio()),
    };
    context! {
        label => &*line.label,
        standing,
        ratio => line.subject.map_or("-".into(), ratio),
        noise => format!("{:.0}%", line.noise * 100.0),
        unit => line.unit,
        cells => line.entries.iter().map(of).collect::<Vec<_>>(),
    }
}
