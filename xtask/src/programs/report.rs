//! Compares the two sides and writes the table.

use super::{Evidence, Program};
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// What became of a program.
pub(super) enum Verdict {
    Same,
    /// Both sides ran, and some facts are not the same.
    Differs(String),
    /// Only the side with the library failed.
    Fails(String),
    /// It does not work here without the library either, so nothing is proven.
    Broken(String),
    Missing(String),
    /// Not there, and that was allowed.
    Skipped(String),
}

impl Verdict {
    pub(super) fn fails(&self) -> bool {
        !matches!(self, Self::Same | Self::Skipped(_))
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Differs(_) => "DIFFERS",
            Self::Fails(_) => "FAILS",
            Self::Broken(_) => "BROKEN",
            Self::Missing(_) => "MISSING",
            Self::Skipped(_) => "skipped",
        }
    }

    fn reason(&self) -> &str {
        match self {
            Self::Same => "",
            Self::Differs(why)
            | Self::Fails(why)
            | Self::Broken(why)
            | Self::Missing(why)
            | Self::Skipped(why) => why,
        }
    }
}

/// One line of the table.
pub(super) struct Row {
    program: &'static Program,
    pub(super) version: String,
    pub(super) baseline: String,
    pub(super) preloaded: String,
    /// The processes that were seen with the library mapped.
    pub(super) loaded: String,
    pub(super) baseline_seconds: f64,
    pub(super) preloaded_seconds: f64,
    pub(super) verdict: Verdict,
}

impl Row {
    pub(super) fn new(program: &'static Program) -> Self {
        Self {
            program,
            version: String::new(),
            baseline: String::new(),
            preloaded: String::new(),
            loaded: String::new(),
            baseline_seconds: 0.0,
            preloaded_seconds: 0.0,
            verdict: Verdict::Skipped(String::new()),
        }
    }

    /// The line for whoever watches.
    pub(super) fn detail(&self) -> String {
        let mut line = format!(
            "  {} ({:.1} s, {:.1} s)",
            self.verdict.name(),
            self.baseline_seconds,
            self.preloaded_seconds
        );
        if !self.loaded.is_empty() {
            let _ = write!(line, ", library in {}", self.loaded);
        }
        for reason in self.verdict.reason().lines() {
            let _ = write!(line, "\n    {reason}");
        }
        line
    }

    fn cells(&self) -> [String; 9] {
        [
            self.program.name.to_owned(),
            self.version.clone(),
            self.program.what.to_owned(),
            self.baseline.clone(),
            self.preloaded.clone(),
            self.loaded.clone(),
            format!("{:.1}", self.baseline_seconds),
            format!("{:.1}", self.preloaded_seconds),
            match self.verdict.reason().lines().next() {
                Some(reason) => format!("{}: {reason}", self.verdict.name()),
                None => self.verdict.name().to_owned(),
            },
        ]
    }
}

/// The verdict on two sides that both came to their end.
pub(super) fn compare(baseline: &Evidence, preloaded: &Evidence) -> Verdict {
    let mut differences = String::new();
    for (name, before) in &baseline.facts {
        match preloaded.facts.iter().find(|(other, _)| other == name) {
            Some((_, after)) if after == before => {}
            Some((_, after)) => {
                let _ = writeln!(differences, "{name}: {before} became {after}");
            }
            None => {
                let _ = writeln!(differences, "{name}: missing with the library");
            }
        }
    }
    for (name, _) in &preloaded.facts {
        if !baseline.facts.iter().any(|(other, _)| other == name) {
            let _ = writeln!(differences, "{name}: only with the library");
        }
    }
    if differences.is_empty() { Verdict::Same } else { Verdict::Differs(differences) }
}

/// The whole table, with the machine it comes from.
pub(super) fn table(rows: &[Row], library: &Path) -> String {
    let name = library.file_name().unwrap_or_default().to_string_lossy();
    let seconds: f64 = rows.iter().map(|row| row.baseline_seconds + row.preloaded_seconds).sum();
    let mut text = format!(
        "With {name}, on {}; {} programs in {seconds:.0} s.\n\n\
         | program | version | what was run | baseline | with cairn | library mapped in | \
         s | s with cairn | verdict |\n\
         | --- | --- | --- | --- | --- | --- | ---: | ---: | --- |\n",
        machine(),
        rows.len()
    );
    for row in rows {
        let cells = row.cells().map(|cell| cell.replace('|', "/"));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

/// Processor, cores, system: a number without its machine says little.
pub(crate) fn machine() -> String {
    let value = |file: &str, key: &str, separator: char| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines()
            .find(|line| line.starts_with(key))
            .and_then(|line| line.split_once(separator))
            .map_or_else(|| "?".to_owned(), |(_, value)| value.trim().trim_matches('"').to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{} ({cores} cores), {}, Linux {}",
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
    fn every_difference_is_named() {
        let one = Evidence::default().fact("a", "1").fact("b", "2");
        let two = Evidence::default().fact("a", "1").fact("b", "3").fact("c", "4");
        assert!(matches!(compare(&one, &one), Verdict::Same));
        let Verdict::Differs(why) = compare(&one, &two) else { panic!("these differ") };
        assert_eq!(why, "b: 2 became 3\nc: only with the library\n");
    }
}
