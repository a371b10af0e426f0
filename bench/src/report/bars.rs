//! Bars: one chart per row, and the means.

use super::charts::{CLIP, Chart, rounded, weight};
use super::colours::Colours;
use super::summary::quantity;
use crate::evaluate::{Entry, Line};
use crate::table::{show, title};
use serde_json::{Value, json};

/// One bar per allocator.
pub(crate) struct Bar<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Its length; none for one that failed.
    pub(crate) value: Option<f64>,
    /// Written at its end.
    pub(crate) text: String,
    /// Relative spread.
    pub(crate) spread: f64,
}

/// Horizontal bars, the shortest first; long ones are cut off and end in their number.
pub(crate) fn chart(
    id: String,
    title: String,
    note: String,
    mut bars: Vec<Bar<'_>>,
    colours: &Colours,
) -> Chart {
    let length = |bar: &Bar<'_>| bar.value.unwrap_or(f64::INFINITY);
    bars.sort_by(|a, b| length(a).total_cmp(&length(b)));
    let longest = bars.iter().filter_map(|bar| bar.value).fold(1.0, f64::max).min(CLIP);
    let data: Vec<Value> = bars
        .iter()
        .map(|bar| {
            let cut = bar.value.is_some_and(|value| value > CLIP);
            json!({
                "value": rounded(bar.value.unwrap_or(0.0).min(CLIP)),
                "text": if cut { format!("{} ▸", bar.text) } else { bar.text.clone() },
                "itemStyle": {"color": colours.of(bar.name)},
                "label": {"fontWeight": weight(bar.name)},
            })
        })
        .collect();
    let letters = bars.iter().map(|bar| bar.text.chars().count()).max().unwrap_or(0);
    let right = 7 * letters.max(8) + 16;
    let names: Vec<Value> = bars
        .iter()
        .map(|bar| json!({"value": bar.name, "textStyle": {"fontWeight": weight(bar.name)}}))
        .collect();
    Chart {
        id,
        title,
        note,
        height: 17 * bars.len() + 6,
        width: 620,
        option: json!({
            "grid": {"left": 112, "right": right, "top": 2, "bottom": 4},
            "tooltip": {"show": false},
            "xAxis": {
                "type": "value", "min": 0, "max": longest, "interval": 1,
                "axisLabel": {"show": false},
            },
            "yAxis": {
                "type": "category", "inverse": true, "data": names, "axisTick": {"show": false},
                "axisLabel": {"interval": 0, "fontSize": 11},
            },
            "series": [
                {
                    "type": "bar", "data": data, "barCategoryGap": "24%", "silent": true,
                    "label": {
                        "show": true, "position": "right", "distance": 8, "formatter": "@text",
                        "fontSize": 11,
                    },
                },
                {
                    "type": "custom", "renderItem": "@whisker", "data": whiskers(&bars), "silent": true,
                    "z": 5,
                },
            ],
        }),
    }
}

/// Of each bar with a spread: where it begins and ends, and which it is.
fn whiskers(bars: &[Bar<'_>]) -> Vec<[f64; 3]> {
    let whisker = |(index, bar): (i32, &Bar<'_>)| {
        let value = bar.value.filter(|value| *value <= CLIP && bar.spread >= 0.01)?;
        let high = (value * (1.0 + bar.spread)).min(CLIP);
        Some([rounded(value * (1.0 - bar.spread)), rounded(high), f64::from(index)])
    };
    (0..).zip(bars).filter_map(whisker).collect()
}

/// The bars of one row.
pub(crate) fn row(id: String, line: &Line<'_>, names: &[&str], colours: &Colours) -> Chart {
    let present = names.iter().zip(&line.entries).filter(|(_, entry)| **entry != Entry::Absent);
    let all = present.map(|(name, entry)| Bar {
        name,
        value: entry.ratio(),
        text: show(entry),
        spread: if let Entry::Value { spread, .. } = entry { *spread } else { 0.0 },
    });
    let best = line
        .best
        .map_or("no value".into(), |best| format!("1.00 is {}", quantity(best, line.unit)));
    let note = format!("{}; {best}; noise {:.0}%", title(line.table), line.noise * 100.0);
    chart(id, line.label.clone(), note, all.collect(), colours)
}
