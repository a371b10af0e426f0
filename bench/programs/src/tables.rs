//! Tables in Markdown, and the pages that they go into.

use anyhow::{Context, Result};
use std::fs;
use std::ops::Range;
use std::path::Path;

/// A table; `right` are the columns of numbers.
pub(crate) fn markdown(
    columns: &[&str],
    right: Range<usize>,
    rows: impl Iterator<Item = Vec<String>>,
) -> String {
    let ruler = |at: usize| if right.contains(&at) { "---:" } else { "---" };
    let ruler: Vec<&str> = (0..columns.len()).map(ruler).collect();
    let mut text = format!("|{}|\n|{}|\n", columns.join("|"), ruler.join("|"));
    for cells in rows {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "/")).collect();
        text += &format!("|{}|\n", cells.join("|"));
    }
    text
}

/// Puts the table between the markers of that name in an existing page, or makes a file of it.
pub(crate) fn write(out: &Path, name: &str, table: &str) -> Result<()> {
    let page = fs::read_to_string(out).unwrap_or_default();
    let text = between_markers(&page, name, table).unwrap_or_else(|| table.to_owned());
    fs::write(out, text).with_context(|| format!("cannot write {}", out.display()))
}

fn between_markers(page: &str, name: &str, table: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- {name}:begin -->"), format!("<!-- {name}:end -->"));
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n\n{table}\n{end}{after}"))
}
