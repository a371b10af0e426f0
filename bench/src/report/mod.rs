//! The HTML page: everything that a result holds, in one file that needs no network.
//!
//! ```text
//! summary    words, means, and every row that is not won
//! charts     options of charts; assets/options.js has the functions that they name
//!   bars, heat, curves
//!   colours    one colour per allocator
//! details    cases and allocators in text and raw numbers
//! browser    a headless Chromium
//! pictures   single charts as SVG
//! ```
//!
//! The page itself is `assets/report.html`, with `report.css` and `report.js` beside it.

mod bars;
pub mod browser;
mod charts;
mod colours;
mod curves;
mod details;
mod heat;
mod pictures;
mod summary;

pub use pictures::pictures;

use crate::evaluate::{self, Entry, Line, mean};
use crate::result::{LabResult, SUBJECT};
use crate::table::title;
use anyhow::{Context, Result};
use bars::Bar;
use cairn_workloads::case::{Group, Plot, Table};
use charts::{Both, Chart, slug};
use colours::Colours;
use details::{AllocatorDetails, CaseDetails};
use heat::HeatRow;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::Path;
use summary::Summary;

const TEMPLATE: &str = include_str!("../../assets/report.html");
const STYLE: &str = include_str!("../../assets/report.css");
const ECHARTS: &str = include_str!("../../assets/echarts/echarts.min.js");
const OPTIONS: &str = include_str!("../../assets/options.js");
const SCRIPT: &str = include_str!("../../assets/report.js");

/// Charts below one heading.
#[derive(Serialize)]
struct Section {
    id: String,
    title: String,
    charts: Vec<Chart>,
}

impl Section {
    fn new(id: String, title: &str, charts: Vec<Chart>) -> Option<Section> {
        (!charts.is_empty()).then(|| Section { id, title: title.to_owned(), charts })
    }
}

/// Everything that the template shows.
#[derive(Serialize)]
struct Page<'a> {
    facts: Vec<(&'static str, String)>,
    date: &'a str,
    summary: Summary,
    standings: Chart,
    means: Vec<Chart>,
    scatter: Option<Chart>,
    groups: Vec<Chart>,
    heat: Vec<Section>,
    bars: Vec<Section>,
    curves: Vec<Section>,
    cases: Vec<CaseDetails>,
    allocators: Vec<AllocatorDetails>,
    failures: Vec<String>,
    rounds: usize,
    style: &'static str,
    echarts: &'static str,
    options: &'static str,
    script: &'static str,
    /// The options of all charts.
    data: String,
}

/// The page of a result.
pub fn page(result: &LabResult) -> Result<String> {
    let lines = evaluate::lines(result);
    let colours = Colours::new(&result.allocators);
    let names: Vec<&str> = result.allocators.iter().map(|a| &*a.name).collect();
    let summary = summary::summary(result, &lines);
    let mut page = Page {
        facts: facts(result),
        date: &result.date,
        standings: charts::standings(&summary.standings),
        summary,
        means: means(&lines, &names, &colours),
        scatter: scatter(&lines, &names, &colours),
        groups: groups(&lines, &names),
        heat: heat(&lines, &names),
        bars: bars(&lines, &names, &colours),
        curves: curves(result, &colours),
        cases: result.cases.iter().map(|case| details::case(result, case)).collect(),
        allocators: allocators(result, &colours),
        failures: evaluate::failures(result),
        rounds: result.rounds,
        style: STYLE,
        echarts: ECHARTS,
        options: OPTIONS,
        script: SCRIPT,
        data: String::new(),
    };
    page.data = page.options();
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.add_template("report.html", TEMPLATE)?;
    Ok(environment.get_template("report.html")?.render(Serde(&page))?)
}

/// Writes the page of a result.
pub fn write(result: &LabResult, path: &Path) -> Result<()> {
    let text = page(result)?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

impl Page<'_> {
    fn charts(&self) -> impl Iterator<Item = &Chart> {
        let sections = self.heat.iter().chain(&self.bars).chain(&self.curves);
        let single = self.means.iter().chain(&self.scatter).chain(&self.groups);
        single.chain([&self.standings]).chain(sections.flat_map(|section| &section.charts))
    }

    /// As JSON that may stand inside a script element.
    fn options(&self) -> String {
        let options: Map<String, Value> =
            self.charts().map(|chart| (chart.id.clone(), chart.option.clone())).collect();
        Value::Object(options).to_string().replace('<', "\\u003c")
    }
}

fn facts(result: &LabResult) -> Vec<(&'static str, String)> {
    let machine = &result.machine;
    vec![
        ("Processor", format!("{}, {} cores", machine.cpu, machine.cores)),
        ("Kernel", format!("Linux {}", machine.kernel)),
        (
            "Memory",
            format!(
                "{:.1} GiB, transparent huge pages {}, overcommit {}",
                machine.memory_mib as f64 / 1024.0,
                machine.thp,
                machine.overcommit
            ),
        ),
        ("Load before the run", machine.load.clone()),
        ("Command", result.command.clone()),
        ("Date", result.date.clone()),
    ]
}

fn of<'a>(lines: &'a [Line<'a>], table: Table) -> impl Iterator<Item = &'a Line<'a>> {
    lines.iter().filter(move |line| line.table == table)
}

/// A chart of means per table, time and memory first.
fn means(lines: &[Line<'_>], names: &[&str], colours: &Colours) -> Vec<Chart> {
    let chart = |table: Table| {
        let all = of(lines, table).count();
        let bar = |column: usize| {
            let mean = mean(of(lines, table), column)?;
            let rows =
                if mean.rows == all { String::new() } else { format!(" ({} rows)", mean.rows) };
            let text = format!("{}{rows}", summary::bounded(&mean));
            Some(Bar { name: names[column], value: Some(mean.ratio), text, spread: 0.0 })
        };
        let bars: Vec<Bar<'_>> = (0..names.len()).filter_map(bar).collect();
        let note = format!("Geometric mean of {all} rows, or of as many as it has a value for.");
        let id = format!("means-{}", slug(title(table)));
        (!bars.is_empty()).then(|| {
            bars::chart(id, format!("{} over the frontier", title(table)), note, bars, colours)
        })
    };
    Table::ALL.into_iter().filter_map(chart).collect()
}

fn scatter(lines: &[Line<'_>], names: &[&str], colours: &Colours) -> Option<Chart> {
    let both = |column: usize| {
        Some((mean(of(lines, Table::Time), column)?, mean(of(lines, Table::Memory), column)?))
    };
    let means: Vec<(&str, _)> =
        (0..).zip(names).filter_map(|(column, name)| Some((*name, both(column)?))).collect();
    let points: Vec<Both<'_>> =
        means.iter().map(|(name, (time, memory))| Both { name, time, memory }).collect();
    (!points.is_empty()).then(|| charts::scatter(&points, colours))
}

/// The means of every group, as one heat map.
fn groups(lines: &[Line<'_>], names: &[&str]) -> Vec<Chart> {
    let mut rows = Vec::new();
    for table in Table::ALL {
        for group in Group::ALL {
            let inside = || of(lines, table).filter(|line| line.group() == group);
            let count = inside().count();
            let cell = |column: usize| match mean(inside(), column) {
                Some(mean) => Some((Some(mean.ratio), summary::bounded(&mean))),
                None => {
                    let failed = |line: &Line<'_>| matches!(line.entries[column], Entry::Failed(_));
                    inside().any(failed).then(|| (None, "failed".to_owned()))
                }
            };
            if count > 0 {
                let label = format!(
                    "{}: {}\t{count} {}",
                    title(table),
                    group.title(),
                    if count == 1 { "row" } else { "rows" }
                );
                rows.push(HeatRow { label, cells: (0..names.len()).map(cell).collect() });
            }
        }
    }
    let mut charts = heat::charts("groups", "Means by group", &rows, names);
    if let Some(last) = charts.last_mut() {
        last.show_scale();
    }
    charts
}

fn heat(lines: &[Line<'_>], names: &[&str]) -> Vec<Section> {
    let section = |table: Table| {
        let part = |group: Group| {
            let rows: Vec<HeatRow> =
                of(lines, table).filter(|line| line.group() == group).map(HeatRow::of).collect();
            let id = slug(&format!("heat {} {}", title(table), group.title()));
            let heading = format!("{}: {}", title(table), group.title().to_lowercase());
            heat::charts(&id, &heading, &rows, names)
        };
        let charts = Group::ALL.into_iter().flat_map(part).collect();
        Section::new(format!("heat-{}", slug(title(table))), title(table), charts)
    };
    Table::ALL.into_iter().filter_map(section).collect()
}

fn bars(lines: &[Line<'_>], names: &[&str], colours: &Colours) -> Vec<Section> {
    let section = |group: Group| {
        let inside = lines.iter().enumerate().filter(|(_, line)| line.group() == group);
        let charts =
            inside.map(|(number, line)| bars::row(format!("row-{number}"), line, names, colours));
        let id = format!("bars-{}", slug(group.title()));
        Section::new(id, group.title(), charts.collect())
    };
    Group::ALL.into_iter().filter_map(section).collect()
}

/// Sections by what is drawn: those that every result has first, then any others.
fn curves(result: &LabResult, colours: &Colours) -> Vec<Section> {
    let known = [
        (Plot::SCALING, "Throughput by threads"),
        (Plot::RSS, "Resident memory over time"),
        (Plot::MALLOC_LATENCY, "Latency of malloc"),
        (Plot::FREE_LATENCY, "Latency of free"),
    ];
    let mut kinds = known.map(|(plot, title)| (plot.key.to_string(), title.to_owned())).to_vec();
    for plot in result.cases.iter().flat_map(|case| case.case.plots.iter()) {
        if !kinds.iter().any(|(key, _)| **key == *plot.key) {
            kinds.push((plot.key.to_string(), format!("{} by {}", &*plot.y, &*plot.x)));
        }
    }
    let section = |(key, title): &(String, String)| {
        let charts = result.cases.iter().filter_map(|case| {
            let plot = case.case.plots.iter().find(|plot| *plot.key == **key)?;
            curves::chart(case, plot, result, colours)
        });
        Section::new(format!("curves-{}", slug(key)), title, charts.collect())
    };
    kinds.iter().filter_map(section).collect()
}

fn allocators(result: &LabResult, colours: &Colours) -> Vec<AllocatorDetails> {
    let all = result.allocators.iter().map(|allocator| AllocatorDetails {
        told: allocator.clone(),
        colour: colours.of(&allocator.name),
        dash: colours.dash(&allocator.name),
        own: allocator.name == SUBJECT,
    });
    all.collect()
}
