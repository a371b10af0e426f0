//! The figures: measured, printed, and compared with the golden table, which has what the fast
//! paths cost when they were last looked at.

use super::Args;
use super::trace::{self, Counts};
use crate::library::{self, Build};
use anyhow::{Context, Result, ensure};
use programs::stats::median;
use serde::Deserialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use xshell::cmd;

/// Each counted call, and what subject.c is told for it: the function, who makes its block and of
/// what size, its two arguments, and who gets the result.
const CALLS: [(&str, &str); 13] = [
    ("malloc(16)", "malloc - 0 16 0 free"),
    ("malloc(64)", "malloc - 0 64 0 free"),
    ("malloc(1024)", "malloc - 0 1024 0 free"),
    ("malloc(4096)", "malloc - 0 4096 0 free"),
    ("malloc(32768)", "malloc - 0 32768 0 free"),
    ("free(64)", "free malloc 64 0 0 -"),
    ("calloc(1, 64)", "calloc - 0 1 64 free"),
    ("realloc(60 -> 64)", "realloc malloc 60 0 64 free"),
    // Its blocks stay in use.
    ("malloc_usable_size(64)", "malloc_usable_size malloc 64 0 0 -"),
    ("new(64)", "_Znwm - 0 64 0 _ZdlPv"),
    ("delete(64)", "_ZdlPv _Znwm 64 0 0 -"),
    ("sized delete(64)", "_ZdlPvm _Znwm 64 0 64 -"),
    ("aligned new(64, 64)", "_ZnwmSt11align_val_t - 0 64 64 _ZdlPvSt11align_val_t"),
];

/// The two halves of a batch, in the order of the subject's series.
const BATCHES: [&str; 2] = ["malloc(64)", "free(64)"];
const BATCH: f64 = 1000.0;

/// A row whose calls agree less often than this gets a warning.
const AGREEMENT_PERCENT: usize = 80;

/// Upper bounds of instructions that hold whatever the golden table says.
const YARDSTICK: [(&str, f64); 4] = [
    ("malloc(64)", 15.0),
    ("free(64)", 23.0),
    ("amortised malloc(64)", 22.0),
    ("amortised free(64)", 32.0),
];

/// The amortised rows contain slow paths, and those may ask the clock; half a hundred
/// instructions in a batch of a thousand are not a change.
const SLACK: f64 = 0.05;

const GOLDEN: &str = "docs/results/fast-path-golden.toml";
const HEADER: &str = "\
# Machine instructions executed inside libcairn.so, counted one by one on x86-64.
#
#   cargo xtask fast-path            compare; any count above this table is a failure
#   cargo xtask fast-path --update   write this table anew
#
# [calls]      one warm call: the most frequent outcome of 40, each traced from the first
#              instruction inside the library to the return. A load or store is an
#              instruction that reads or writes memory, push and pop included, the return
#              address of call and ret not; branches are jumps, conditional or not.
# [amortised]  instructions per call in batches of 1,000 malloc(64) and then 1,000
#              free, oldest first, in steady state, refills and all.
#
# Yardstick, asserted by the command whatever stands below:
";

/// The figures of one library, as measured, or as they stand in the file. What the library does
/// not define is absent.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// Single calls.
    calls: BTreeMap<String, Counts>,
    /// Instructions per call in batches.
    amortised: BTreeMap<String, f64>,
}

/// Measures, prints, and compares cairn's column with the golden table.
pub(crate) fn run(args: &Args) -> Result<()> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let folder = folder.path().canonicalize()?;
    let (source, subject) = (folder.join("subject.c"), folder.join("subject"));
    std::fs::write(&source, include_str!("subject.c"))?;
    let shell = library::shell()?;
    cmd!(shell, "cc -O1 -fno-builtin -o {subject} {source} -ldl").quiet().run()?;

    let mut columns = Vec::new();
    for library in [&Build::default().library()?].into_iter().chain(&args.library) {
        // The C library is not preloaded, the subject is linked with it.
        let path = match library.to_str() {
            Some("glibc") => None,
            _ => Some(library.canonicalize().context(library.display().to_string())?),
        };
        let name = library.file_name().context("a library is a file")?.to_string_lossy();
        let name = name.split(".so").next().unwrap_or(&name).trim_start_matches("lib").to_owned();
        let table = Table::measure(&subject, &name, path)?;
        columns.push((name, table));
    }
    print(&columns);
    judge(&columns[0].1, args.update)
}

fn judge(cairn: &Table, update: bool) -> Result<()> {
    let mut bad = cairn.over_the_yardstick();
    let path = library::workspace().join(GOLDEN);
    if update {
        std::fs::write(&path, cairn.render()).context("cannot write the golden table")?;
        eprintln!("wrote {}", path.display());
    } else {
        let text = std::fs::read_to_string(&path);
        let text = text.with_context(|| format!("no {GOLDEN}; write it with --update"))?;
        let (worse, better) = toml::from_str::<Table>(&text).context(GOLDEN)?.compare(cairn);
        bad.extend(worse);
        better.iter().for_each(|line| eprintln!("better than golden: {line}"));
        if !better.is_empty() {
            eprintln!("`cargo xtask fast-path --update` keeps what was gained");
        }
    }
    bad.iter().for_each(|line| eprintln!("{line}"));
    ensure!(bad.is_empty(), "{} counts are too high", bad.len());
    Ok(())
}

impl Table {
    /// Of a library to preload, or of the C library.
    fn measure(subject: &Path, name: &str, library: Option<PathBuf>) -> Result<Table> {
        let trace = |what: &str, arguments: &str| {
            let counts = trace::run(subject, arguments.split(' '), library.as_deref());
            counts.with_context(|| format!("{name}: cannot trace {what}"))
        };
        let mut table = Table::default();
        for (call, arguments) in CALLS {
            let [counts, _] = trace(call, &format!("call {arguments}"))?;
            let Some((mode, agreeing)) = mode(&counts) else { continue };
            let all = counts.len();
            if agreeing * 100 < all * AGREEMENT_PERCENT {
                eprintln!("warning: {name}: {call}: only {agreeing} of {all} calls agree");
            }
            table.calls.insert(call.to_owned(), mode);
        }
        for (batch, counts) in BATCHES.iter().zip(trace("the batches", "batch")?) {
            let figure = median_per_call(&counts).map(|figure| (batch.to_string(), figure));
            table.amortised.extend(figure);
        }
        Ok(table)
    }

    /// All figures by row and name.
    fn figures(&self) -> BTreeMap<(String, &'static str), f64> {
        let calls = self.calls.iter().flat_map(|(row, counts)| {
            counts.named().map(|(name, count)| ((row.clone(), name), count as f64))
        });
        let amortised = self.amortised.iter();
        let amortised =
            amortised.map(|(row, f)| ((format!("amortised {row}"), "instructions"), *f));
        calls.chain(amortised).collect()
    }

    /// What is worse in `now` than in this table, or missing in one of them, a line each; and what is better.
    fn compare(&self, now: &Table) -> (Vec<String>, Vec<String>) {
        let (golden, now) = (self.figures(), now.figures());
        let (mut worse, mut better) = (Vec::new(), Vec::new());
        for (key @ (row, name), before) in &golden {
            let Some(after) = now.get(key) else {
                worse.push(format!("{row}: {name} in the golden table, but not measured"));
                continue;
            };
            let change = round(after - before);
            let line = format!("{row}: {name} {before} -> {after} ({change:+})");
            let slack = if row.starts_with("amortised") { SLACK } else { 0.0 };
            if change > slack {
                worse.push(format!("worse than golden: {line}"));
            } else if change < -slack {
                better.push(line);
            }
        }
        let new = now.keys().filter(|key| !golden.contains_key(key));
        worse.extend(new.map(|(row, name)| format!("{row}: {name} not golden; --update adds it")));
        (worse, better)
    }

    /// Where this breaks the yardstick.
    fn over_the_yardstick(&self) -> Vec<String> {
        let figures = self.figures();
        let figure = |row: &str| figures.get(&(row.to_owned(), "instructions"));
        let over = YARDSTICK.iter().filter(|(row, most)| figure(row).is_none_or(|f| f > most));
        over.map(|(row, most)| format!("over the yardstick: {row}: more than {most}")).collect()
    }

    /// The text of a golden file for this.
    fn render(&self) -> String {
        let line = |row: &str, figure: String| format!("{:<24} = {figure}", format!("\"{row}\""));
        let mut lines = YARDSTICK.map(|(row, most)| format!("#   {row} <= {most}")).to_vec();
        lines.push("\n[calls]".to_owned());
        for (row, counts) in CALLS.iter().filter_map(|(row, _)| self.calls.get_key_value(*row)) {
            let counts = counts.named().map(|(what, count)| format!("{what} = {count}"));
            lines.push(line(row, format!("{{ {} }}", counts.join(", "))));
        }
        lines.push("\n[amortised]".to_owned());
        for (row, figure) in BATCHES.iter().filter_map(|row| self.amortised.get_key_value(*row)) {
            lines.push(line(row, format!("{figure:.2}")));
        }
        format!("{HEADER}{}\n", lines.join("\n"))
    }
}

/// The most frequent outcome and how often it came; of two as frequent the cheaper.
fn mode(counts: &[Counts]) -> Option<(Counts, usize)> {
    let mut seen: HashMap<Counts, usize> = HashMap::new();
    for counts in counts {
        *seen.entry(*counts).or_default() += 1;
    }
    seen.into_iter().max_by_key(|&(counts, times)| (times, Reverse(counts)))
}

fn median_per_call(batches: &[Counts]) -> Option<f64> {
    let totals: Vec<f64> = batches.iter().map(|counts| counts.instructions as f64).collect();
    median(&totals).map(|median| round(median / BATCH))
}

/// To two digits, as the file has them.
fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn print(columns: &[(String, Table)]) {
    println!("instructions loads/stores/branches/calls (+ instructions in other libraries)\n");
    let width = columns.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(18) + 2;
    let line = |first: &str, cell: &dyn Fn(&(String, Table)) -> Option<String>| {
        let cells = columns.iter().map(|column| cell(column).unwrap_or_else(|| "-".to_owned()));
        let cells: String = cells.map(|cell| format!("{cell:<width$}")).collect();
        println!("{}", format!("{first:<30}{cells}").trim_end());
    };
    line("", &|(name, _)| Some(name.clone()));
    for (row, _) in CALLS {
        line(row, &|(_, table)| table.calls.get(row).map(Counts::to_string));
    }
    for row in BATCHES {
        let cell = |table: &Table| table.amortised.get(row).map(|figure| format!("{figure:.2}"));
        line(&format!("amortised {row}"), &|(_, table)| cell(table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(instructions: u64, amortised: f64) -> Table {
        let counts = Counts { instructions, loads: 4, ..Counts::default() };
        Table {
            calls: BATCHES.map(|row| (row.to_owned(), counts)).into(),
            amortised: BATCHES.map(|row| (row.to_owned(), amortised)).into(),
        }
    }

    #[test]
    fn a_written_table_reads_back_and_more_is_a_failure_and_less_a_hint() {
        let golden: Table = toml::from_str(&table(12, 19.25).render()).unwrap();
        assert_eq!(golden.compare(&table(12, 19.25)), (vec![], vec![]));
        let (worse, better) = golden.compare(&table(13, 19.0));
        assert_eq!(worse[1], "worse than golden: malloc(64): instructions 12 -> 13 (+1)");
        assert_eq!(better[1], "amortised malloc(64): instructions 19.25 -> 19 (-0.25)");
        assert_eq!(golden.compare(&Table::default()).0.len(), 12);
        assert_eq!(Table::default().compare(&golden).0.len(), 12);
    }

    #[test]
    fn the_yardstick_holds_whatever_the_table_says() {
        assert!(table(15, 22.0).over_the_yardstick().is_empty());
        assert_eq!(table(16, 22.5).over_the_yardstick().len(), 2);
        assert_eq!(Table::default().over_the_yardstick().len(), 4);
    }

    #[test]
    fn the_most_frequent_outcome_wins_and_batches_report_their_median() {
        let counts = |instructions| Counts { instructions, ..Counts::default() };
        assert_eq!(mode(&[12, 90, 12].map(counts)), Some((counts(12), 2)));
        assert_eq!(mode(&[90, 12].map(counts)), Some((counts(12), 1)));
        assert_eq!(median_per_call(&[19_500, 50_000, 19_000].map(counts)), Some(19.5));
    }
}
