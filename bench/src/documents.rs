//! The generated parts of the project's pages: between `<!-- NAME -->` and `<!-- /NAME -->`.

use crate::allocators;
use crate::evaluate::{self, Entry, Standing, mean_of};
use crate::result::{LabResult, SUBJECT};
use crate::table::{self, bounded, ratio};
use anyhow::{Context, Result};
use cairn_workloads::case::Table;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

/// Replaces the part named `name` of the page at `path`.
pub fn replace(path: &Path, name: &str, text: &str) -> Result<()> {
    let page = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let page = replaced(&page, name, text)
        .with_context(|| format!("{} has no part <!-- {name} -->", path.display()))?;
    Ok(std::fs::write(path, page)?)
}

/// The page with another text between the part's two marks; none without them.
pub fn replaced(page: &str, name: &str, text: &str) -> Option<String> {
    let (before, rest) = page.split_once(&format!("<!-- {name} -->\n"))?;
    let end = format!("<!-- /{name} -->");
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}<!-- {name} -->\n{}\n{end}{after}", text.trim_end()))
}

/// What is generated: the page, the name of the part, the text.
pub fn parts(result: Option<&LabResult>) -> Vec<(&'static str, &'static str, String)> {
    const BENCHMARKS: &str = "docs/results/benchmarks.md";
    let mut parts = vec![("CONTRIBUTING.md", "packages", packages())];
    if let Some(result) = result {
        parts.push(("README.md", "figures", headline(result)));
        parts.push((BENCHMARKS, "head", head(result)));
        parts.push((BENCHMARKS, "means", standings(result)));
        parts.push((BENCHMARKS, "rows", rows(result)));
        parts.push(("docs/results/scaling.md", "measured", scaling(result)));
    }
    parts
}

/// The command that installs everything that can take part.
pub fn packages() -> String {
    let peers = allocators::packages().expect("peers.toml can be read");
    let all = programs::packages().map(str::to_owned).chain(peers);
    let mut text = String::from("```sh\napt-get install");
    let mut width = 0;
    for package in all.collect::<BTreeSet<String>>() {
        if width + package.len() > 80 {
            text.push_str(" \\\n   ");
            width = 0;
        }
        width += package.len() + 1;
        let _ = write!(text, " {package}");
    }
    text + "\n```\n"
}

/// The allocators that the README sets the subject beside.
const RIVALS: [&str; 5] = ["glibc", "mimalloc", "snmalloc", "jemalloc", "rpmalloc"];

/// The means of time and memory of the subject and its [`RIVALS`].
pub fn headline(result: &LabResult) -> String {
    let lines = evaluate::lines(result);
    let named = |name: &str| name == SUBJECT || RIVALS.contains(&name);
    let mut text = String::from("| allocator | time | memory |\n| --- | ---: | ---: |\n");
    for (column, allocator) in result.allocators.iter().enumerate() {
        if named(&allocator.name) {
            let (name, version) = (&allocator.name, number(&allocator.version));
            let [time, memory] = [Table::Time, Table::Memory].map(|table| {
                mean_of(&lines, table, column).as_ref().map_or("-".to_owned(), bounded)
            });
            let _ = writeln!(text, "| {name} {version} | {time} | {memory} |");
        }
    }
    let rows = |table| lines.iter().filter(|line| line.table == table).count();
    let (time, memory) = (rows(Table::Time), rows(Table::Memory));
    let _ = writeln!(text, "\nOver {time} rows of time and {memory} rows of memory.");
    text
}

/// The head of a page of results: the machine, the day, the run.
pub fn head(result: &LabResult) -> String {
    let LabResult { machine, date, quick, rounds, .. } = result;
    let size = if *quick { "" } else { " --full" };
    format!("{}; {date}; {rounds} rounds of `cargo lab{size}`.\n", machine.describe())
}

/// The means of every allocator, and how often the subject is first.
pub fn standings(result: &LabResult) -> String {
    let lines = evaluate::lines(result);
    let tables: Vec<Table> =
        Table::ALL.into_iter().filter(|&table| lines.iter().any(|l| l.table == table)).collect();
    let mut text = String::from("|allocator|version");
    tables.iter().for_each(|&table| text += &format!("|{}", table::title(table)));
    text += "|failed|\n|---|---";
    text += &"|---:".repeat(tables.len() + 1);
    text += "|\n";
    for (column, allocator) in result.allocators.iter().enumerate() {
        let means: Vec<_> = tables.iter().map(|&table| mean_of(&lines, table, column)).collect();
        let failed: usize = means.iter().flatten().map(|mean| mean.failed).sum();
        let means: Vec<String> =
            means.iter().map(|mean| mean.as_ref().map_or("-".to_owned(), bounded)).collect();
        let (name, version) = (&allocator.name, number(&allocator.version));
        let _ = writeln!(text, "|{name}|{version}|{}|{failed}|", means.join("|"));
    }
    text.push('\n');
    for table in tables {
        let of_table = || lines.iter().filter(move |line| line.table == table);
        let [wins, ties, loses, _] = evaluate::standings(of_table());
        let _ = write!(
            text,
            "- {}: first in {wins}, level with the best in {ties}, behind in {loses}.",
            table::title(table)
        );
        if let Some(mean) = evaluate::crossed_mean(of_table()) {
            let _ = write!(text, " Over the crossed frontier: {}.", ratio(mean));
        }
        text.push('\n');
    }
    text
}

/// Every row: the subject, the best of all others and its name, and the subject over it.
pub fn rows(result: &LabResult) -> String {
    let lines = evaluate::lines(result);
    let Some(subject) = result.allocators.iter().position(|a| a.name == SUBJECT) else {
        return String::new();
    };
    let mut text = String::new();
    for table in Table::ALL {
        let mut of_table = lines.iter().filter(|line| line.table == table).peekable();
        if of_table.peek().is_none() {
            continue;
        }
        let title = table::title(table);
        let _ = write!(text, "\n### {title}\n\n|row|{SUBJECT}|best other|which|ratio|\n");
        text += "|---|---:|---:|---|---:|\n";
        for line in of_table {
            let level = if line.standing() == Standing::Ties { "=" } else { "" };
            let own = match &line.entries[subject] {
                Entry::Value { median, .. } => format!("{} {}", ratio(*median), line.unit),
                _ => "-".to_owned(),
            };
            let (which, best) = match line.best_other.map(|other| (other, &line.entries[other])) {
                Some((other, Entry::Value { median, .. })) => {
                    (&*result.allocators[other].name, ratio(*median))
                }
                _ => ("-", "-".to_owned()),
            };
            let over = line.subject.map_or("-".to_owned(), ratio);
            let _ = writeln!(text, "|{}|{own}|{best}|{which}|{over}{level}|", line.label);
        }
    }
    text
}

/// The measured throughput by threads of every case that has such a curve: the subject's, and the
/// best of all others.
pub fn scaling(result: &LabResult) -> String {
    let mut text = String::from("|case|threads");
    text += &format!("|{SUBJECT}|best other|\n|---|---:|---:|---:|\n");
    for case in &result.cases {
        let curve = |name: &str| Some(case.cells.get(name)?.curves.get("scaling")?.as_slice());
        let Some(own) = curve(SUBJECT) else { continue };
        for &[threads, throughput] in own {
            let others = result.allocators.iter().filter(|a| a.name != SUBJECT);
            let best = others
                .filter_map(|a| {
                    let point = curve(&a.name)?.iter().find(|point| point[0] == threads)?;
                    Some((point[1], &a.name))
                })
                .max_by(|a, b| a.0.total_cmp(&b.0))
                .map_or("-".to_owned(), |(best, name)| format!("{} {name}", ratio(best)));
            let name = &*case.case.name;
            let _ = writeln!(text, "|{name}|{threads}|{}|{best}|", ratio(throughput));
        }
    }
    text
}

/// A version without the project's name before it: "3.3.2" of "mimalloc 3.3.2".
fn number(version: &str) -> &str {
    let is_number =
        |word: &str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    version.rsplit(' ').next().filter(|word| is_number(word)).unwrap_or(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::STORED;

    /// `cargo lab document` was run after the last change of what it writes.
    #[test]
    fn the_pages_are_current() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let result = LabResult::read(&root.join(STORED)).unwrap();
        for (page, name, text) in parts(Some(&result)) {
            let old = std::fs::read_to_string(root.join(page)).unwrap();
            let fresh = replaced(&old, name, &text);
            assert!(fresh == Some(old), "{page}, {name}: run `cargo lab document {STORED}`");
        }
    }
}
