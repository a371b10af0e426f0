//! Charts as options of Apache ECharts, and those of the overview.
//!
//! A string that begins with `@` names a function of `assets/options.js`. What all charts
//! share, such as the colours of text and axes in light and dark, is in the theme there.

use super::colours::Colours;
use crate::evaluate::Mean;
use crate::result::SUBJECT;
use serde::Serialize;
use serde_json::{Value, json};

/// Ratios above this look the same: as bars they are cut off, as cells they are the darkest.
pub(super) const CLIP: f64 = 4.0;

/// Values that an axis of ratios may mark.
const MARKS: [f64; 17] =
    [0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0, 20.0];

/// A chart and its place in the page.
#[derive(Serialize)]
pub(crate) struct Chart {
    /// Unique in the page; also the name of its picture.
    pub(crate) id: String,
    /// What it shows.
    pub(crate) title: String,
    /// In small print below the title.
    pub(crate) note: String,
    /// In pixels.
    pub(crate) height: usize,
    /// Width of a picture of its own.
    pub(crate) width: usize,
    /// What ECharts is given.
    #[serde(skip)]
    pub(crate) option: Value,
}

/// An allocator's two means.
pub(crate) struct Both<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Over time.
    pub(crate) time: &'a Mean,
    /// Over memory.
    pub(crate) memory: &'a Mean,
}

/// Mean time over mean memory, a labelled point per allocator.
pub(crate) fn scatter(points: &[Both<'_>], colours: &Colours) -> Chart {
    let incomplete = |mean: &Mean| mean.failed + mean.bounds > 0;
    let data: Vec<Value> = points
        .iter()
        .map(|Both { name, time, memory }| {
            let colour = colours.of(name);
            let own = *name == SUBJECT;
            let hollow = incomplete(time) || incomplete(memory);
            let inside = if hollow { "transparent" } else { &*colour };
            json!({
                "name": name,
                "value": [rounded(time.ratio), rounded(memory.ratio)],
                "symbolSize": if own { 20 } else { 12 },
                "itemStyle": {
                    "color": inside, "borderColor": colour, "borderWidth": 2.5, "opacity": 1,
                },
                "label": if own {
                    json!({"fontWeight": "bold", "fontSize": 15, "color": colour})
                } else {
                    json!({"color": "@ink"})
                },
            })
        })
        .collect();
    let x = axis(
        "time, × the frontier (less is better)",
        points.iter().map(|p| p.time.ratio).collect(),
        32,
    );
    let y = axis(
        "memory, × the frontier (less is better)",
        points.iter().map(|p| p.memory.ratio).collect(),
        52,
    );
    Chart {
        id: "time-memory".into(),
        title: "Time and memory at once".into(),
        note: "Geometric means of all rows over the frontier, the best of all other allocators in \
               each row: nearer to the lower left is better. Hollow: it failed in some rows, or \
               was stopped at a limit."
            .into(),
        height: 520,
        width: 900,
        option: json!({
            "grid": {"left": 76, "right": 96, "top": 24, "bottom": 56},
            "tooltip": {"formatter": "@point"},
            "xAxis": x,
            "yAxis": y,
            "series": [{
                "type": "scatter", "data": data,
                "label": {"show": true, "position": "right", "formatter": "{b}"},
                "labelLayout": "@apart",
                "markLine": {
                    "silent": true, "symbol": "none", "label": {"show": false},
                    "data": [{"xAxis": 1}, {"yAxis": 1}],
                },
            }],
        }),
    }
}

fn axis(name: &str, values: Vec<f64>, gap: u32) -> Value {
    let (low, high) = around(&values);
    let marks: Vec<f64> = MARKS.into_iter().filter(|mark| (low..=high).contains(mark)).collect();
    json!({
        "type": "log", "min": low, "max": high, "name": name, "nameGap": gap,
        "axisLabel": {"customValues": marks, "formatter": "@times"},
        "axisTick": {"customValues": marks}, "splitLine": {"show": true},
    })
}

/// How the rows of each table went, stacked.
pub(crate) fn standings(tables: &[(&str, [usize; 4])]) -> Chart {
    const KINDS: [(&str, &str, &str); 4] = [
        ("ahead", "#2b6cb0", "#fff"),
        ("tied", "#9cc4e4", "#1f2328"),
        ("behind", "#e59140", "#1f2328"),
        ("no figure", "#8b929b", "#fff"),
    ];
    let series = KINDS.iter().enumerate().map(|(kind, (name, colour, ink))| {
        let counts = tables.iter().map(|(_, counts)| match counts[kind] {
            0 => Value::Null,
            count => json!(count),
        });
        json!({
            "type": "bar", "name": name, "stack": "all", "data": counts.collect::<Vec<_>>(),
            "barWidth": 22, "color": colour, "label": {"show": true, "color": ink},
        })
    });
    Chart {
        id: "standings".into(),
        title: format!("Rows by how {SUBJECT} stands against the best of all others"),
        note: String::new(),
        height: 34 * tables.len() + 34,
        width: 900,
        option: json!({
            "grid": {"left": 96, "right": 16, "top": 30, "bottom": 2},
            "legend": {"left": 0, "top": 0, "itemWidth": 14, "itemHeight": 12},
            "tooltip": {"trigger": "axis", "axisPointer": {"type": "shadow"}},
            "xAxis": {"type": "value", "max": "dataMax", "show": false},
            "yAxis": {
                "type": "category", "inverse": true,
                "data": tables.iter().map(|(name, _)| name).collect::<Vec<_>>(),
                "axisTick": {"show": false}, "axisLine": {"show": false},
                "axisLabel": {"fontSize": 13},
            },
            "series": series.collect::<Vec<_>>(),
        }),
    }
}

/// A little room on both sides of the values and of 1.
fn around(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(1.0, f64::min);
    let high = values.iter().copied().fold(1.0, f64::max);
    let room = (high / low).powf(0.06).max(1.03);
    (rounded(low / room), rounded(high * room))
}

pub(super) fn weight(name: &str) -> &'static str {
    if name == SUBJECT { "bold" } else { "normal" }
}

/// Four digits are more than a chart shows.
pub(super) fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().expect("a number")
}

/// Lower case, digits and dashes.
pub(crate) fn slug(text: &str) -> String {
    let word = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let text: String = text.chars().map(word).collect();
    text.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
}
