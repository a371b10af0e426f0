//! Charts as options of Apache ECharts.

use crate::evaluate::{Line, Mean, mean_of};
use crate::result::{CaseResult, LabResult, SUBJECT};
use cairn_workloads::case::{Plot, Table};
use programs::stats::rounded;
use serde_json::{Value, json};

/// The subject's is its alone; the others' are told apart with any colour vision as far as so many can be.
const OWN: &str = "#1f6feb";
const OTHERS: [&str; 9] = [
    "#80808a", "#e69f00", "#009e73", "#d54a1e", "#b05aa8", "#8c6d46", "#3fb4c8", "#a8a01c",
    "#e377a6",
];
/// For lines: where the colours end, they begin anew with another of these.
const DASHES: [&str; 3] = ["solid", "dashed", "dotted"];
/// Curves with fewer points than this show them.
const FEW_POINTS: usize = 12;

/// A chart and its place in the page.
pub(super) struct Chart {
    /// Unique in the page; also the name of its picture.
    pub(super) id: String,
    /// What ECharts is given.
    pub(super) option: Value,
}

impl Chart {
    fn new(id: String, title: &str, note: &str, mut option: Value) -> Chart {
        option["title"] = json!({
            "text": title, "subtext": note, "itemGap": 4,
            "textStyle": {"fontSize": 15},
            "subtextStyle": {"width": 560, "overflow": "break", "lineHeight": 15},
        });
        Chart { id, option }
    }
}

/// Time against memory, and every curve.
pub(super) fn all(result: &LabResult, lines: &[Line<'_>]) -> Vec<Chart> {
    let curves = result
        .cases
        .iter()
        .flat_map(|case| case.case.plots.iter().filter_map(|plot| curves(case, plot, result)));
    scatter(result, lines).into_iter().chain(curves).collect()
}

/// Mean time over mean memory, a labelled point per allocator.
fn scatter(result: &LabResult, lines: &[Line<'_>]) -> Option<Chart> {
    let of = |table: Table, column: usize| mean_of(lines, table, column);
    let both = |column: usize| Some((column, of(Table::Time, column)?, of(Table::Memory, column)?));
    let points: Vec<(usize, Mean, Mean)> = (0..result.allocators.len()).filter_map(both).collect();
    let point = |(column, time, memory): &(usize, Mean, Mean)| {
        let name = &*result.allocators[*column].name;
        let own = name == SUBJECT;
        let incomplete = |mean: &Mean| mean.failed + mean.bounds > 0;
        // A label stands where no other point is.
        let beside = |other: &(usize, Mean, Mean)| {
            let (right, above) = (other.1.ratio / time.ratio, other.2.ratio / memory.ratio);
            other.0 != *column && (1.0..1.25).contains(&right) && (0.95..1.05).contains(&above)
        };
        json!({
            "name": name, "value": [rounded(time.ratio, 4), rounded(memory.ratio, 4)],
            "symbol": if incomplete(time) || incomplete(memory) { "emptyCircle" } else { "circle" },
            "symbolSize": if own { 18 } else { 11 },
            "itemStyle": {"color": colour(name, *column), "borderWidth": 2, "opacity": 1},
            "label": {
                "fontWeight": if own { "bold" } else { "normal" },
                "position": if points.iter().any(beside) { "left" } else { "right" },
            },
        })
    };
    let data: Vec<Value> = points.iter().map(point).collect();
    let axis = |what: &str, ratios: Vec<f64>| {
        let low = ratios.iter().copied().fold(1.0, f64::min);
        let high = ratios.iter().copied().fold(1.0, f64::max);
        json!({
            "type": "log", "logBase": 2, "min": rounded(low / 1.1, 4), "max": rounded(high * 1.1, 4),
            "name": format!("{what}, × the frontier"), "nameLocation": "middle", "nameGap": 30,
            "axisLabel": {"customValues": MARKS}, "axisTick": {"customValues": MARKS},
        })
    };
    let note = "Geometric means over the frontier: nearer to the lower left is better. Hollow: it \
                failed in some rows, or was stopped at a limit.";
    let option = json!({
        "grid": {"left": 60, "right": 110, "top": 80, "bottom": 50},
        "tooltip": {},
        "xAxis": axis("time", points.iter().map(|(_, time, _)| time.ratio).collect()),
        "yAxis": axis("memory", points.iter().map(|(.., memory)| memory.ratio).collect()),
        "series": [{
            "type": "scatter", "data": data,
            "label": {"show": true, "formatter": "{b}"},
        }],
    });
    let title = "Time and memory at once";
    (!data.is_empty()).then(|| Chart::new("time-memory".into(), title, note, option))
}

/// Values that an axis of ratios may mark.
const MARKS: [f64; 15] =
    [0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 7.0, 10.0];

/// A case's curves, a line per allocator; none if nobody has one.
fn curves(case: &CaseResult, plot: &Plot, result: &LabResult) -> Option<Chart> {
    let mut series = Vec::new();
    for (column, allocator) in result.allocators.iter().enumerate() {
        let curve = case.cells.get(&allocator.name).and_then(|cell| cell.curves.get(&plot.key));
        // What has a place on the axes.
        let fits = |log: bool, value: f64| value.is_finite() && (!log || value > 0.0);
        let points: Vec<&[f64; 2]> = curve
            .into_iter()
            .flatten()
            .filter(|[x, y]| fits(plot.log.0, *x) && fits(plot.log.1, *y))
            .collect();
        if points.is_empty() {
            continue;
        }
        let own = allocator.name == SUBJECT;
        let floor = case.cells[&allocator.name].values.get("floor_mib").filter(|_| own);
        // The process had something before its first block.
        let floor: Vec<_> = floor
            .and_then(|rounds| rounds.first())
            .map(|mib| json!({"yAxis": mib + points[0][1]}))
            .into_iter()
            .collect();
        series.push(json!({
            "type": "line", "name": allocator.name, "data": points, "z": if own { 4 } else { 2 },
            "symbol": if points.len() < FEW_POINTS { "circle" } else { "none" },
            "color": colour(&allocator.name, column), "emphasis": {"focus": "series"},
            "markLine": {
                "silent": true, "symbol": "none", "lineStyle": {"type": "dashed", "color": "#808080"},
                "label": {"formatter": "pages with a live byte", "position": "insideEndBottom"},
                "data": floor,
            },
            "lineStyle": {
                "type": DASHES[column / OTHERS.len() % DASHES.len()],
                "width": if own { 3.5 } else { 1.5 },
            },
        }));
    }
    let axis = |name: &str, log: bool| {
        json!({
            "type": if log { "log" } else { "value" }, "name": name, "nameLocation": "middle",
            "nameGap": if name == plot.x { 28 } else { 46 }, "axisLabel": {"hideOverlap": true},
        })
    };
    let option = json!({
        "grid": {"left": 68, "right": 180, "top": 80, "bottom": 46},
        "legend": {"type": "scroll", "orient": "vertical", "right": 0, "top": 70, "bottom": 10},
        "tooltip": {"trigger": "axis", "order": "valueAsc", "confine": true},
        "xAxis": axis(&plot.x, plot.log.0),
        "yAxis": axis(&plot.y, plot.log.1),
        "series": series,
    });
    let id = format!("{}-{}", plot.key, case.label().replace(' ', "-"));
    let title = format!("{}: {} by {}", case.label(), plot.y, plot.x);
    (!series.is_empty()).then(|| Chart::new(id, &title, &case.case.about, option))
}

/// The same in every chart of a page.
fn colour(name: &str, column: usize) -> &'static str {
    if name == SUBJECT { OWN } else { OTHERS[column % OTHERS.len()] }
}
