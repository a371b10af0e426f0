//! Single charts as SVG files, from the same options as those of the page.

use super::{Colours, ECHARTS, OPTIONS, browser, curves, groups, heat, means, scatter};
use crate::evaluate;
use crate::result::LabResult;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Draws the overviews, the heat maps and all curves into files below `directory`.
pub fn pictures(result: &LabResult, directory: &Path) -> Result<Vec<PathBuf>> {
    let lines = evaluate::lines(result);
    let colours = Colours::new(&result.allocators);
    let names: Vec<&str> = result.allocators.iter().map(|a| &*a.name).collect();
    let sections = heat(&lines, &names).into_iter().chain(curves(result, &colours));
    let charts = means(&lines, &names, &colours)
        .into_iter()
        .chain(scatter(&lines, &names, &colours))
        .chain(groups(&lines, &names))
        .chain(sections.flat_map(|section| section.charts));
    let wanted: Vec<Value> = charts
        .map(|chart| {
            json!({
                "id": chart.id, "title": chart.title, "note": chart.note, "width": chart.width,
                "height": chart.height, "option": chart.option,
            })
        })
        .collect();
    let folder = tempfile::tempdir()?;
    let page = folder.path().join("pictures.html");
    let wanted = Value::Array(wanted).to_string().replace('<', "\\u003c");
    std::fs::write(
        &page,
        format!(
            "<!doctype html><meta charset=\"utf-8\"><pre id=\"pictures\"></pre>\
             <script>{ECHARTS}</script><script>{OPTIONS}</script>\
             <script>document.getElementById('pictures').textContent = \
             JSON.stringify(pictures({wanted}));</script>"
        ),
    )?;
    let html = browser::dump(&page)?;
    let drawn =
        html.split_once("<pre id=\"pictures\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let (drawn, _) = drawn.context("the browser did not show the page")?;
    let drawn: BTreeMap<String, String> =
        serde_json::from_str(&unescaped(drawn)).context("the browser did not draw the charts")?;
    std::fs::create_dir_all(directory)?;
    let write = |(id, svg): (String, String)| {
        let path = directory.join(format!("{id}.svg"));
        std::fs::write(&path, svg + "\n").map(|()| path).context("cannot write a picture")
    };
    drawn.into_iter().map(write).collect()
}

/// Text as it was before the browser wrote it as HTML.
fn unescaped(text: &str) -> String {
    let spaces = text.replace("&nbsp;", "\u{a0}");
    spaces.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}
