//! The generated parts of the project's pages: between `<!-- NAME -->` and `<!-- /NAME -->`.

use crate::allocators;
use crate::core_hash::{self, EARLIER};
use crate::evaluate::{self, Entry, Line, Standing, mean_of};
use crate::result::{Allocator, LabResult, SUBJECT};
use crate::table::{self, bounded, ratio};
use anyhow::{Context, Result};
use cairn_workloads::case::Table;
use programs::tables::{markdown, replaced};
use std::collections::BTreeSet;
use std::path::Path;

/// Replaces the part named `name` of the page at `path`; without a name, all of it.
pub fn replace(path: &Path, name: &str, text: &str) -> Result<()> {
    let page = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let page = renewed(&page, name, text)
        .with_context(|| format!("{} has no part <!-- {name} -->", path.display()))?;
    Ok(std::fs::write(path, page)?)
}

fn renewed(page: &str, name: &str, text: &str) -> Option<String> {
    if name.is_empty() { Some(text.to_owned()) } else { replaced(page, name, text) }
}

/// What is generated where the tree has this core: the page, the name of the part, the text.
pub fn parts(result: Option<&LabResult>, core: &str) -> Vec<(&'static str, &'static str, String)> {
    const BENCHMARKS: &str = "docs/results/benchmarks.md";
    let mut parts = vec![("CONTRIBUTING.md", "packages", packages())];
    if let Some(result) = result.filter(|result| result.suite.is_some()) {
        parts.push(("README.md", "suite", suite(result, core)));
    } else if let Some(result) = result {
        parts.push(("README.md", "figures", headline(result, core)));
        parts.push((BENCHMARKS, "head", head(result, core)));
        parts.push((BENCHMARKS, "means", standings(result)));
        parts.push(("docs/results/rows.csv", "", rows(result)));
    }
    parts
}

/// The command that installs everything that can take part.
pub fn packages() -> String {
    let peers = allocators::packages().expect("peers.toml can be read");
    let all: BTreeSet<String> = programs::packages().map(str::to_owned).chain(peers).collect();
    let all = Vec::from_iter(all);
    let lines: Vec<String> = all.chunks(6).map(|line| line.join(" ")).collect();
    format!("```sh\napt-get install \\\n    {}\n```\n", lines.join(" \\\n    "))
}

/// The allocators that the README sets the subject beside.
const RIVALS: [&str; 5] = ["glibc", "mimalloc", "snmalloc", "jemalloc", "rpmalloc"];

/// What is to be said of the core that a result measured, where the tree has this one.
fn of_core(result: &LabResult, core: &str) -> String {
    if core_hash::is_earlier(result, core) { format!(", {EARLIER}") } else { String::new() }
}

/// The means of time and memory of the subject and its [`RIVALS`].
pub fn headline(result: &LabResult, core: &str) -> String {
    let lines = evaluate::lines(result);
    let named = |(_, it): &(usize, &Allocator)| it.name == SUBJECT || RIVALS.contains(&&*it.name);
    let row = |(column, it): (usize, &Allocator)| {
        let [time, memory] = [Table::Time, Table::Memory].map(|table| told(&lines, table, column));
        vec![format!("{} {}", it.name, number(&it.version)), time, memory]
    };
    let shown = result.allocators.iter().enumerate().filter(named).map(row);
    let text = markdown(&["allocator", "time", "memory"], |at| at > 0, shown);
    let one = |table| {
        let (own, next, rows) = beside_the_best(result, &lines, table);
        let (title, next) =
            (table::title(table).to_lowercase(), next.unwrap_or_else(|| "-".to_owned()));
        format!("over {rows} rows of {title} {SUBJECT} {own}, the best other {next}")
    };
    let means = [Table::Time, Table::Memory].map(one).join("; ");
    let core = of_core(result, core);
    format!("{text}\nIn short, of those that ran in all rows: {means}{core}.\n")
}

/// The subject's mean in a table, the best of all others' with its name, and over how many rows.
fn beside_the_best(
    result: &LabResult,
    lines: &[Line<'_>],
    table: Table,
) -> (String, Option<String>, usize) {
    let columns = || result.allocators.iter().enumerate();
    let rows = lines.iter().filter(|line| line.table == table).count();
    let own = columns().find(|(_, it)| it.name == SUBJECT);
    let own = own.map_or("-".to_owned(), |(column, _)| told(lines, table, column));
    // Only who ran in all rows: a mean over the others would be one of other rows.
    let of_all = |(column, it): (usize, &Allocator)| {
        let mean = mean_of(lines, table, column)?;
        (it.is_other() && mean.rows == rows && mean.bounds == 0)
            .then(|| (mean.ratio, it.name.clone()))
    };
    let best = columns().filter_map(of_all).min_by(|a, b| a.0.total_cmp(&b.0));
    (own, best.map(|(mean, name)| format!("{name} {}", ratio(mean))), rows)
}

/// One sentence on the means of a suite: the subject's, and that of the best of all others.
pub fn suite(result: &LabResult, core: &str) -> String {
    let lines = evaluate::lines(result);
    let one = |table: Table| {
        let (own, best, rows) = beside_the_best(result, &lines, table);
        let best = best.map_or(String::new(), |best| format!(" ({best})"));
        format!("{} {own}{best} over {rows} rows", table::title(table).to_lowercase())
    };
    let means = [Table::Time, Table::Memory].map(one).join(", ");
    let (name, core) = (result.suite.as_deref().unwrap_or_default(), of_core(result, core));
    let title =
        format!("Other people's programs, suite {name}, the best of all others in brackets");
    format!("{title}: {means}{core}.\n")
}

/// A mean in a table.
fn told(lines: &[Line<'_>], table: Table, column: usize) -> String {
    mean_of(lines, table, column).as_ref().map_or("-".to_owned(), bounded)
}

/// The head of a page of results: the machine, the day, the run.
pub fn head(result: &LabResult, core: &str) -> String {
    let LabResult { machine, date, quick, rounds, .. } = result;
    let size = if *quick { "" } else { " --full" };
    let core = of_core(result, core);
    format!("{}; {date}; {rounds} rounds of `cargo lab{size}`{core}.\n", machine.describe())
}

/// The means of every allocator, and how often the subject is first.
pub fn standings(result: &LabResult) -> String {
    let lines = evaluate::lines(result);
    let tables = evaluate::tables(&lines);
    let row = |(column, it): (usize, &Allocator)| {
        let failed =
            tables.iter().filter_map(|&table| Some(mean_of(&lines, table, column)?.failed));
        let means = tables.iter().map(|&table| told(&lines, table, column));
        let (name, version) = (it.name.clone(), number(&it.version).to_owned());
        let last = failed.sum::<usize>().to_string();
        [name, version].into_iter().chain(means).chain([last]).collect()
    };
    let titles = tables.iter().map(|&table| table::title(table));
    let columns: Vec<&str> = ["allocator", "version"].into_iter().chain(titles).collect();
    let columns = [&columns[..], &["failed"]].concat();
    let rows = result.allocators.iter().enumerate().map(row);
    let means = markdown(&columns, |at| at > 1, rows);
    let standing = |&table: &Table| {
        let of_table = || lines.iter().filter(move |line| line.table == table);
        let [wins, ties, loses, _] = evaluate::standings(of_table());
        let crossed = evaluate::crossed_mean(of_table()).map_or("-".to_owned(), ratio);
        let counts = [wins, ties, loses].map(|count| count.to_string());
        [table::title(table).to_owned()].into_iter().chain(counts).chain([crossed]).collect()
    };
    let columns = [SUBJECT, "first", "level with the best", "behind", "over the crossed frontier"];
    means + "\n" + &markdown(&columns, |at| at > 0, tables.iter().map(standing))
}

/// Every row, with commas between: the subject, the best of all others and its name, and the subject over it.
pub fn rows(result: &LabResult) -> String {
    let lines = evaluate::lines(result);
    let Some(subject) = result.allocators.iter().position(|a| a.name == SUBJECT) else {
        return String::new();
    };
    let row = |line: &Line<'_>| {
        let median = |column: usize| match &line.entries[column] {
            Entry::Value { median, .. } => Some(*median),
            _ => None,
        };
        let own = median(subject).map(|own| line.show(own));
        let best = line.best_other.and_then(|at| {
            let (best, name) = (line.value(median(at)?), result.allocators[at].name.clone());
            Some((ratio(best), name))
        });
        let (best, which) = best.unzip();
        let level = if line.standing() == Standing::Ties { "=" } else { "" };
        let over = format!("{}{level}", line.subject.map_or("-".to_owned(), ratio));
        let table = table::title(line.table).to_owned();
        let cells = [Some(table), Some(line.label.clone()), own, best, which, Some(over)];
        cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned()).replace(',', ";")).join(",") + "\n"
    };
    let of_table = |table: Table| lines.iter().filter(move |line| line.table == table);
    let rows: String = evaluate::tables(&lines).into_iter().flat_map(of_table).map(row).collect();
    format!("table,row,{SUBJECT},best other,which,ratio\n{rows}")
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
    use std::collections::BTreeMap;

    /// `cargo lab document` was run after the last change of what it writes, on the lab's result and on each suite's.
    #[test]
    fn the_pages_are_current() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let core = core_hash::of_tree(root).unwrap();
        let mut earlier = BTreeMap::from([("README.md", 0), ("docs/results/benchmarks.md", 0)]);
        for entry in root.join(STORED).parent().unwrap().read_dir().unwrap() {
            let path = entry.unwrap().path();
            let result = LabResult::read(&path).unwrap();
            if path != root.join(STORED) && result.suite.is_none() {
                continue;
            }
            for (page, name, text) in parts(Some(&result), &core) {
                let old = std::fs::read_to_string(root.join(page)).unwrap();
                let fresh = renewed(&old, name, &text);
                let path = path.display();
                assert!(fresh == Some(old), "{page}, {name}: run `cargo lab document {path}`");
                *earlier.entry(page).or_default() += text.matches(EARLIER).count();
            }
            let says = headline(&result, &core).contains(EARLIER);
            assert_eq!(says, result.core.as_ref() != Some(&core));
        }
        // Only what is generated may say so: nobody would take it back.
        for (page, count) in earlier {
            let text = std::fs::read_to_string(root.join(page)).unwrap();
            assert_eq!(text.matches(EARLIER).count(), count, "{page}");
        }
    }

    #[test]
    fn a_suite_has_a_sentence_of_its_own() {
        let cells: [(&str, &[f64], &[_]); 3] =
            [("a", &[2.0], &[]), ("b", &[3.0], &[]), (SUBJECT, &[1.0], &[])];
        let mut result = evaluate::tests::result(&cells);
        (result.suite, result.core) = (Some("mine".into()), Some("1f".into()));
        let parts = parts(Some(&result), "1f");
        let [_, (page, name, text)] = &parts[..] else { panic!("packages and a sentence") };
        assert_eq!((*page, *name), ("README.md", "suite"));
        assert_eq!(
            text,
            "Other people's programs, suite mine, the best of all others in brackets: \
             time 0.50 (a 1.00) over 1 rows, memory - over 0 rows.\n"
        );
        assert!(suite(&result, "2f").contains(EARLIER));
    }

    #[test]
    fn figures_of_another_core_say_so() {
        let mut result = evaluate::tests::result(&[("a", &[2.0], &[]), (SUBJECT, &[1.0], &[])]);
        let says = |result: &LabResult, core: &str| {
            [headline(result, core), head(result, core)].map(|text| text.contains(EARLIER))
        };
        assert_eq!(says(&result, "1f"), [true; 2], "a result without a hash is an earlier one");
        result.core = Some("1f".into());
        assert_eq!(says(&result, "1f"), [false; 2]);
        assert_eq!(says(&result, "2f"), [true; 2]);
    }
}
