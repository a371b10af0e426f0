//! Tables in Markdown, and the pages that they go into: between `<!-- NAME -->` and `<!-- /NAME -->`.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// A table; `right` says which columns are of numbers.
pub fn markdown(
    columns: &[&str],
    right: impl Fn(usize) -> bool,
    rows: impl Iterator<Item = Vec<String>>,
) -> String {
    let ruler = |at: usize| if right(at) { "---:" } else { "---" };
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
    let text = replaced(&page, name, table).unwrap_or_else(|| table.to_owned());
    fs::write(out, text).with_context(|| format!("cannot write {}", out.display()))
}

/// The page with another text between the part's two marks; none without them.
pub fn replaced(page: &str, name: &str, text: &str) -> Option<String> {
    let (before, rest) = page.split_once(&format!("<!-- {name} -->\n"))?;
    let end = format!("<!-- /{name} -->");
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}<!-- {name} -->\n{}\n{end}{after}", text.trim_end()))
}
