//! Tables in Markdown, and the pages that they go into.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// A table; `right` are the columns of numbers.
pub(crate) fn markdown<const N: usize>(
    columns: [&str; N],
    right: &[usize],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let ruler: Vec<String> =
        (0..N).map(|it| if right.contains(&it) { "---:" } else { "---" }.to_owned()).collect();
    let mut text = line(&columns.map(str::to_owned)) + &line(&ruler);
    for cells in rows {
        text += &line(&cells.map(|cell| cell.replace('|', "/")));
    }
    text
}

/// Processor, cores, system: a number without its machine says little.
pub(crate) fn machine() -> String {
    let value = |file: &str, key: &str, separator: char| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(key));
        let value = line.and_then(|line| line.split_once(separator));
        value.map_or("?".to_owned(), |(_, value)| value.trim().trim_matches('"').to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{}, {cores} cores, {}, Linux {}",
        value("/proc/cpuinfo", "model name", ':'),
        value("/etc/os-release", "PRETTY_NAME", '='),
        kernel.split('-').next().unwrap_or_default().trim()
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_replaces_only_what_is_between_the_markers() {
        let page = "text\n<!-- a:begin -->\nold\n<!-- a:end -->\nmore\n";
        let text = between_markers(page, "a", "new\n").unwrap();
        assert_eq!(text, "text\n<!-- a:begin -->\n\nnew\n\n<!-- a:end -->\nmore\n");
        assert!(between_markers(page, "b", "new").is_none());
    }

    #[test]
    fn bars_do_not_end_cells() {
        let text = markdown(["a", "b"], &[1], [["x|y".to_owned(), "2".to_owned()]].into_iter());
        assert_eq!(text, "| a | b |\n| --- | ---: |\n| x/y | 2 |\n");
    }
}
