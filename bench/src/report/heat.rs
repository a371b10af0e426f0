//! Heat maps: rows by allocators.

use super::charts::{CLIP, Chart, rounded, weight};
use super::summary::quantity;
use crate::evaluate::{Entry, Line};
use crate::table::{ratio, show};
use serde_json::{Value, json};

/// Rows of a heat map; more are split over several, so that each fits a printed page.
const MOST_ROWS: usize = 36;

impl Chart {
    /// Adds to a heat map what its colours mean.
    pub(crate) fn show_scale(&mut self) {
        self.note = "Geometric means of the ratios to the frontier.".into();
        self.height += 40;
        self.option["grid"]["bottom"] = json!(44);
        self.option["visualMap"]["show"] = json!(true);
    }
}

/// A row of a heat map: its label and, for every allocator that is in it, a ratio, if there is
/// one, and what is written into the cell.
pub(crate) struct HeatRow {
    /// At the left; what follows a tab is in small print.
    pub(crate) label: String,
    /// In the order of the columns.
    pub(crate) cells: Vec<Option<(Option<f64>, String)>>,
}

impl HeatRow {
    /// A row of a table.
    pub(crate) fn of(line: &Line<'_>) -> HeatRow {
        let best = line.best.map_or(String::new(), |best| quantity(best, line.unit));
        let cell = |entry: &Entry| match entry {
            Entry::Absent => None,
            Entry::Value { ratio: r, tie, .. } => {
                Some((Some(*r), format!("{}{}", ratio(*r), if *tie { "=" } else { "" })))
            }
            _ => Some((entry.ratio(), show(entry))),
        };
        HeatRow {
            label: format!("{}\t{best}", line.label),
            cells: line.entries.iter().map(cell).collect(),
        }
    }
}

/// Rows by allocators, coloured by the logarithm of the ratio; as many charts as it takes.
pub(crate) fn charts(id: &str, heading: &str, rows: &[HeatRow], names: &[&str]) -> Vec<Chart> {
    let parts = rows.len().div_ceil(MOST_ROWS).max(1);
    let size = rows.len().div_ceil(parts).max(1);
    let part = |(number, rows): (usize, &[HeatRow])| {
        let number = number + 1;
        let (id, heading) = match parts {
            1 => (id.to_owned(), heading.to_owned()),
            _ => (format!("{id}-{number}"), format!("{heading} ({number} of {parts})")),
        };
        heat_part(id, heading, rows, names)
    };
    rows.chunks(size).enumerate().map(part).collect()
}

fn heat_part(id: String, title: String, rows: &[HeatRow], names: &[&str]) -> Chart {
    let mut data: Vec<Value> = Vec::new();
    for (y, row) in rows.iter().enumerate() {
        for (x, cell) in row.cells.iter().enumerate() {
            let Some((ratio, text)) = cell else { continue };
            let value = json!([x, y, rounded(ratio.unwrap_or(CLIP).clamp(1.0, CLIP).log2()), text]);
            data.push(match ratio {
                Some(ratio) if *ratio <= 1.0 => {
                    json!({"value": value, "label": {"fontWeight": "bold"}})
                }
                Some(_) => value,
                None => {
                    json!({"value": value, "visualMap": false, "itemStyle": {"color": "@failed"}})
                }
            });
        }
    }
    let header: Vec<Value> = names
        .iter()
        .map(|name| json!({"value": name, "textStyle": {"fontWeight": weight(name)}}))
        .collect();
    Chart {
        id,
        title,
        note: String::new(),
        height: 20 * rows.len() + 96,
        width: 1080,
        option: json!({
            "grid": {"left": 236, "right": 48, "top": 92, "bottom": 4},
            "tooltip": {"formatter": "@cell"},
            "xAxis": {
                "type": "category", "position": "top", "data": header,
                "axisTick": {"show": false}, "axisLine": {"show": false},
                "axisLabel": {"interval": 0, "rotate": -45, "fontSize": 12},
            },
            "yAxis": {
                "type": "category", "inverse": true,
                "data": rows.iter().map(|row| &row.label).collect::<Vec<_>>(),
                "axisTick": {"show": false}, "axisLine": {"show": false},
                "axisLabel": {"interval": 0, "formatter": "@row"},
            },
            "visualMap": {
                "show": false, "dimension": 2, "min": 0, "max": CLIP.log2(),
                "inRange": {"color": "@heat"}, "orient": "horizontal",
                "left": "center", "bottom": 0,
                "formatter": "@scale", "itemHeight": 220, "itemWidth": 12, "hoverLink": false,
                "text": ["4× and more", "1×"],
            },
            "series": [{
                "type": "heatmap", "data": data,
                "itemStyle": {"borderWidth": 1, "borderColor": "@paper"},
                "label": {"show": true, "formatter": "@value3", "fontSize": 11},
            }],
        }),
    }
}
