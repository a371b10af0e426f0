//! Curves: a line per allocator.

use super::charts::{Chart, slug};
use super::colours::Colours;
use crate::result::{CaseResult, LabResult, SUBJECT};
use cairn_workloads::case::{Curve, Plot};
use serde_json::{Value, json};

/// Curves with fewer points than this show them.
const FEW_POINTS: usize = 12;

/// A case's curves, a line per allocator.
pub(crate) fn chart(
    case: &CaseResult,
    plot: &Plot,
    result: &LabResult,
    colours: &Colours,
) -> Option<Chart> {
    let lines: Vec<(&str, Curve)> = result
        .allocators
        .iter()
        .filter_map(|allocator| {
            let curve = case.cells.get(&allocator.name)?.curves.get(&*plot.key)?;
            Some((&*allocator.name, drawable(curve, plot)))
        })
        .filter(|(_, curve)| !curve.is_empty())
        .collect();
    let few = lines.iter().all(|(_, curve)| curve.len() < FEW_POINTS);
    let series: Vec<Value> =
        lines.iter().map(|(name, curve)| line(name, curve, few, colours)).collect();
    let axis = |name: &str, log: bool, gap: u32| {
        let (format, name) = axis_format(name, plot);
        let mut axis = json!({
            "type": if log { "log" } else { "value" }, "name": name, "nameGap": gap,
            "axisLabel": {"formatter": format, "hideOverlap": true}, "splitLine": {"show": true},
        });
        if &*plot.key == "scaling" && log {
            axis["logBase"] = json!(2);
        }
        axis
    };
    (!series.is_empty()).then(|| Chart {
        id: slug(&format!("{} {}", &*plot.key, case.label())),
        title: case.label(),
        note: case.case.about.to_string(),
        height: 340,
        width: 900,
        option: json!({
            "grid": {"left": 68, "right": 38, "top": 14, "bottom": 46},
            "legend": {"show": false, "itemStyle": {"opacity": 0}},
            "tooltip": {
                "trigger": "axis", "order": "valueAsc",
                "valueFormatter": axis_format(&plot.y, plot).0,
            },
            "xAxis": axis(&plot.x, plot.log.0, 28),
            "yAxis": axis(&plot.y, plot.log.1, 50),
            "series": series,
        }),
    })
}

fn line(name: &str, curve: &Curve, points: bool, colours: &Colours) -> Value {
    let own = name == SUBJECT;
    json!({
        "type": "line", "name": name, "data": curve, "z": if own { 4 } else { 2 },
        "symbol": if points { "circle" } else { "none" }, "symbolSize": 5,
        "color": colours.of(name), "emphasis": {"focus": "series"},
        "lineStyle": {
            "color": colours.of(name), "type": colours.dash(name),
            "width": if own { 3.5 } else { 1.6 },
        },
    })
}

/// The formatter of an axis, and its name as people say it.
fn axis_format<'a>(name: &'a str, plot: &Plot) -> (&'static str, &'a str) {
    if name == &*Plot::MALLOC_LATENCY.x {
        ("@percentile", "percentile of all operations")
    } else if let Some(what) = name.strip_suffix(", ns").filter(|_| plot.log.1) {
        ("@nanoseconds", what)
    } else {
        ("@number", name)
    }
}

/// What has a place on the plot's axes.
fn drawable(curve: &Curve, plot: &Plot) -> Vec<[f64; 2]> {
    let fits = |log: bool, value: f64| value.is_finite() && (!log || value > 0.0);
    let inside = |point: &&[f64; 2]| fits(plot.log.0, point[0]) && fits(plot.log.1, point[1]);
    curve.iter().filter(inside).copied().collect()
}
