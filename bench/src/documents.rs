//! The generated parts of the project's pages: between `<!-- NAME -->` and `<!-- /NAME -->`.

use crate::allocators;
use crate::evaluate::{self, Line, Standing, mean};
use crate::plan::{self, Entry};
use crate::result::{Form, LabResult, SUBJECT};
use crate::table::{self, ratio};
use anyhow::{Context, Result};
use cairn_workloads::case::{Case, Group, Table};
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

/// Every case: what it is, where it comes from, the rows it fills.
pub fn cases() -> String {
    let entries = plan::all();
    let mut text = String::new();
    for group in Group::ALL {
        let of_group = || entries.iter().filter(move |entry| entry.case().group == group);
        if of_group().next().is_none() {
            continue;
        }
        let _ = write!(
            text,
            "\n### {}\n\n| case | what it stands for | described first | rows |\n",
            group.title()
        );
        text.push_str("| --- | --- | --- | --- |\n");
        for entry in of_group().filter(|entry| entry.form == Form::Preloaded) {
            let case = entry.case();
            let linked =
                |other: &Entry| other.form == Form::Linked && *other.case().name == *case.name;
            let linked = if entries.iter().any(linked) { "; also linked" } else { "" };
            let origin = if case.origin.is_empty() { "here" } else { &case.origin };
            let (name, about) = (&*case.name, &*case.about);
            let _ = writeln!(text, "| `{name}` | {about} | {origin} | {}{linked} |", rows(case));
        }
    }
    text
}

/// The command that installs everything that can take part.
pub fn packages() -> String {
    let peers = allocators::packages();
    let mut all: Vec<&str> = programs::packages().chain(peers).collect();
    all.sort_unstable();
    all.dedup();
    let mut text = String::from("```sh\napt-get install");
    let mut width = 0;
    for package in all {
        if width + package.len() > 80 {
            text.push_str(" \\\n   ");
            width = 0;
        }
        width += package.len() + 1;
        let _ = write!(text, " {package}");
    }
    text + "\n```\n"
}

/// The rows of a case in a few words.
fn rows(case: &Case) -> String {
    let row = |row: &cairn_workloads::case::Row| {
        let suffix = row.suffix.trim();
        let space = if suffix.is_empty() { "" } else { " " };
        format!("{suffix}{space}({})", &*row.unit)
    };
    case.rows.iter().map(row).collect::<Vec<_>>().join(", ")
}

/// The headline of a result: the means of all allocators, and how often the subject is first.
pub fn headline(result: &LabResult) -> String {
    let lines = evaluate::lines(result);
    let mut text = String::from(
        "| | version | time | memory | rows of time, memory | failed |\n\
         | --- | --- | ---: | ---: | ---: | ---: |\n",
    );
    for (column, allocator) in result.allocators.iter().enumerate() {
        let of = |table| mean(lines.iter().filter(move |line| line.table == table), column);
        let (time, memory) = (of(Table::Time), of(Table::Memory));
        let shown = |mean: &Option<evaluate::Mean>| {
            let open = |mean: &evaluate::Mean| if mean.bounds > 0 { "≥" } else { "" };
            mean.as_ref().map_or("-".into(), |mean| format!("{}{}", open(mean), ratio(mean.ratio)))
        };
        let rows = |mean: &Option<evaluate::Mean>| mean.as_ref().map_or(0, |mean| mean.rows);
        let failed = |mean: &Option<evaluate::Mean>| mean.as_ref().map_or(0, |mean| mean.failed);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {}, {} | {} |",
            allocator.name,
            allocator.version,
            shown(&time),
            shown(&memory),
            rows(&time),
            rows(&memory),
            failed(&time) + failed(&memory),
        );
    }
    text.push('\n');
    for table in Table::ALL {
        let count = |standing| {
            lines.iter().filter(|line| line.table == table && line.standing() == standing).count()
        };
        let (wins, ties, loses) =
            (count(Standing::Wins), count(Standing::Ties), count(Standing::Loses));
        if wins + ties + loses > 0 {
            let _ = write!(
                text,
                "- {}: {SUBJECT} is ahead of every other allocator in {wins} rows, level with the \
                 best in {ties}, behind in {loses}.",
                table::title(table)
            );
            let of_table = lines.iter().filter(|line| line.table == table);
            if let Some(mean) = evaluate::crossed_mean(of_table) {
                let _ = write!(
                    text,
                    " Over a frontier that each round takes from the others: {}.",
                    ratio(mean)
                );
            }
            text.push('\n');
        }
    }
    text
}

/// Rows in which the subject is not first or level, worst first, with who is; at most so many of
/// each table.
pub fn behind(result: &LabResult, most: usize) -> String {
    let lines = evaluate::lines(result);
    let mut text = String::new();
    for table in Table::ALL {
        let mut lost: Vec<&Line<'_>> = lines
            .iter()
            .filter(|line| line.table == table && line.standing() == Standing::Loses)
            .collect();
        lost.sort_by(|a, b| b.subject.partial_cmp(&a.subject).expect("numbers"));
        if lost.is_empty() {
            continue;
        }
        let _ = write!(text, "\n**{}**: ", table::title(table));
        let named: Vec<String> = lost.iter().take(most).map(|line| named(result, line)).collect();
        text.push_str(&named.join(", "));
        text.push_str(".\n");
    }
    text
}

/// The measured throughput by threads of every case that has such a curve.
pub fn scaling(result: &LabResult) -> String {
    let mut text = String::new();
    for case in &result.cases {
        let curve = |name: &str| Some(case.cells.get(name)?.curves.get("scaling")?.as_slice());
        let Some(first) = result.allocators.iter().find_map(|a| curve(&a.name)) else { continue };
        let _ = write!(text, "\n`{}`: {}\n\n|", &*case.case.name, &*case.case.about);
        for [threads, _] in first {
            let _ = write!(text, " | {threads}");
        }
        text.push_str(" |\n| ---");
        text.push_str(&" | ---:".repeat(first.len()));
        text.push_str(" |\n");
        for allocator in &result.allocators {
            let Some(points) = curve(&allocator.name) else { continue };
            let _ = write!(text, "| {}", allocator.name);
            for [_, throughput] in points {
                let _ = write!(text, " | {}", ratio(*throughput));
            }
            text.push_str(" |\n");
        }
    }
    text
}

fn named(result: &LabResult, line: &Line<'_>) -> String {
    let others = result.allocators.iter().zip(&line.entries).filter(|(a, _)| a.name != SUBJECT);
    let first = others
        .filter_map(|(allocator, entry)| Some((entry.ratio()?, &allocator.name)))
        .min_by(|a, b| a.0.total_cmp(&b.0));
    let first = first.map_or("", |(_, name)| name);
    format!("{} {} ({first})", line.label, ratio(line.subject.unwrap_or(f64::NAN)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::tests::result;

    #[test]
    fn a_part_is_replaced_and_nothing_else() {
        let page = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n";
        assert_eq!(replaced(page, "x", "new\n").unwrap(), page.replace("old", "new"));
        assert_eq!(replaced(page, "y", "new"), None);
    }

    #[test]
    fn every_lost_row_is_named() {
        let result = result(&[("a", &[100.0], &[]), (SUBJECT, &[110.0], &[])]);
        assert!(behind(&result, 9).contains("case 1.10 (a)"), "{}", behind(&result, 9));
        assert!(headline(&result).contains("behind in 1"));
    }

    /// `cargo lab document` was run after the last change of the cases.
    #[test]
    fn the_page_of_the_cases_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("docs/benchmarks.md");
        let page = std::fs::read_to_string(path).unwrap();
        let fresh = replaced(&page, "cases", &cases()).unwrap();
        let fresh = replaced(&fresh, "packages", &packages()).unwrap();
        assert!(fresh == page, "docs/benchmarks.md is out of date: cargo lab document");
    }
}
