//! What is measured, and how it is told.

use super::Args;
use super::golden::{self, Golden};
use super::trace::{self, Counts, Stretch, Target};
use crate::library;
use anyhow::{Context, Result, bail, ensure};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One counted call: `symbol(first, second)`. The block that `maker(maker_size)` returns
/// takes the place of `first`; `dropper` gets the result.
struct Row {
    name: &'static str,
    symbol: &'static str,
    maker: &'static str,
    maker_size: usize,
    first: usize,
    second: usize,
    dropper: &'static str,
}

const NOBODY: &str = "-";

const fn malloc(name: &'static str, size: usize) -> Row {
    Row {
        name,
        symbol: "malloc",
        maker: NOBODY,
        maker_size: 0,
        first: size,
        second: 0,
        dropper: "free",
    }
}

const ROWS: [Row; 13] = [
    malloc("malloc(16)", 16),
    malloc("malloc(64)", 64),
    malloc("malloc(1024)", 1024),
    malloc("malloc(4096)", 4096),
    malloc("malloc(32768)", 32768),
    Row {
        symbol: "free",
        maker: "malloc",
        maker_size: 64,
        dropper: NOBODY,
        ..malloc("free(64)", 0)
    },
    Row { symbol: "calloc", second: 64, ..malloc("calloc(1, 64)", 1) },
    Row {
        symbol: "realloc",
        maker: "malloc",
        maker_size: 60,
        second: 64,
        ..malloc("realloc(60 -> 64)", 0)
    },
    // Its blocks stay in use.
    Row {
        symbol: "malloc_usable_size",
        maker: "malloc",
        maker_size: 64,
        dropper: NOBODY,
        ..malloc("malloc_usable_size(64)", 0)
    },
    Row { symbol: "_Znwm", dropper: "_ZdlPv", ..malloc("new(64)", 64) },
    Row {
        symbol: "_ZdlPv",
        maker: "_Znwm",
        maker_size: 64,
        dropper: NOBODY,
        ..malloc("delete(64)", 0)
    },
    Row {
        symbol: "_ZdlPvm",
        maker: "_Znwm",
        maker_size: 64,
        second: 64,
        dropper: NOBODY,
        ..malloc("sized delete(64)", 0)
    },
    Row {
        symbol: "_ZnwmSt11align_val_t",
        second: 64,
        dropper: "_ZdlPvSt11align_val_t",
        ..malloc("aligned new(64, 64)", 64)
    },
];

/// The two halves of a batch, in the order of the subject's series.
const BATCHES: [&str; 2] = ["malloc(64)", "free(64)"];
const BATCH: f64 = 1000.0;

/// A row whose calls agree less often than this gets a warning.
const AGREEMENT_PERCENT: usize = 80;

/// All figures of one library; `None` where it does not define the function.
pub(super) struct Column {
    /// The library.
    pub(super) name: String,
    /// Single calls.
    pub(super) calls: Vec<(&'static str, Option<Counts>)>,
    /// Instructions per call in batches.
    pub(super) batches: Vec<(&'static str, Option<f64>)>,
}

impl Column {
    /// The figures of the single call `name`.
    pub(super) fn call(&self, name: &str) -> Option<Counts> {
        self.measured_calls().find(|call| call.0 == name).map(|call| call.1)
    }

    /// The amortised figure of `name`.
    pub(super) fn amortised(&self, name: &str) -> Option<f64> {
        self.measured_batches().find(|batch| batch.0 == name).map(|batch| batch.1)
    }

    /// The single calls that exist.
    pub(super) fn measured_calls(&self) -> impl Iterator<Item = (&'static str, Counts)> {
        self.calls.iter().filter_map(|(name, counts)| counts.map(|counts| (*name, counts)))
    }

    /// The amortised figures that exist.
    pub(super) fn measured_batches(&self) -> impl Iterator<Item = (&'static str, f64)> {
        self.batches.iter().filter_map(|(name, figure)| figure.map(|figure| (*name, figure)))
    }
}

/// Measures, prints, and compares cairn's column with the golden table.
pub(super) fn run(args: &Args) -> Result<()> {
    ensure!(!(args.update && args.peers_only), "--update needs cairn's own figures");
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let subject = compile_subject(&folder.path().canonicalize()?)?;
    let mut columns = Vec::new();
    if !args.peers_only {
        columns.push(measure(&subject, "cairn", &preload(&library::build()?.shared)?)?);
    }
    for peer in &args.library {
        let (name, target) = resolve(peer)?;
        columns.push(measure(&subject, &name, &target)?);
    }
    ensure!(!columns.is_empty(), "--peers-only without a --library measures nothing");
    if args.json {
        println!("{}", serde_json::to_string_pretty(&json(&columns))?);
    } else {
        print_table(&columns);
    }
    if args.peers_only { Ok(()) } else { judge(&columns[0], args.update) }
}

fn judge(cairn: &Column, update: bool) -> Result<()> {
    let path = library::workspace().join("docs/results/fast-path-golden.toml");
    let over = golden::over_the_yardstick(cairn);
    for line in &over {
        eprintln!("over the yardstick: {line}");
    }
    if update {
        std::fs::write(&path, golden::render(cairn)?).context("cannot write the golden table")?;
        eprintln!("wrote docs/results/fast-path-golden.toml");
        ensure!(over.is_empty(), "the new table breaks the yardstick");
        return Ok(());
    }
    let found = Golden::read(&path)?.compare(cairn);
    for line in &found.worse {
        eprintln!("worse than golden: {line}");
    }
    for line in &found.better {
        eprintln!("better than golden: {line}");
    }
    if !found.better.is_empty() {
        eprintln!("`cargo xtask fast-path --update` keeps what was gained");
    }
    if !over.is_empty() || !found.worse.is_empty() {
        bail!("{} counts are too high", over.len() + found.worse.len());
    }
    Ok(())
}

fn compile_subject(folder: &Path) -> Result<PathBuf> {
    let (source, subject) = (folder.join("subject.c"), folder.join("subject"));
    std::fs::write(&source, include_str!("subject.c"))?;
    let status = Command::new("cc")
        .args(["-O1", "-fno-builtin", "-o"])
        .args([&subject, &source])
        .arg("-ldl")
        .status()
        .context("cannot start cc")?;
    ensure!(status.success(), "cc cannot compile the traced program");
    Ok(subject)
}

fn preload(path: &Path) -> Result<Target> {
    let absolute = path.canonicalize().with_context(|| format!("no {}", path.display()))?;
    Ok(Target::Preload(absolute))
}

/// The column name and target that a `--library` names.
fn resolve(peer: &Path) -> Result<(String, Target)> {
    if peer == Path::new("glibc") {
        return Ok(("glibc".into(), Target::Glibc));
    }
    let name = peer.file_name().context("a library is a file")?.to_string_lossy();
    let name = name.split(".so").next().unwrap_or(&name).trim_start_matches("lib").to_owned();
    Ok((name, preload(peer)?))
}

fn measure(subject: &Path, name: &str, target: &Target) -> Result<Column> {
    let mut calls = Vec::new();
    for row in &ROWS {
        let arguments = [
            "call".into(),
            row.symbol.into(),
            row.maker.into(),
            row.maker_size.to_string(),
            row.first.to_string(),
            row.second.to_string(),
            row.dropper.into(),
        ];
        let stretches = trace::run(subject, &arguments, target)
            .with_context(|| format!("{name}: cannot trace {}", row.name))?;
        let counts = stretches.as_deref().and_then(|stretches| {
            let (mode, agreeing) = mode(stretches)?;
            if agreeing * 100 < stretches.len() * AGREEMENT_PERCENT {
                let all = stretches.len();
                eprintln!("warning: {name}: {}: only {agreeing} of {all} calls agree", row.name);
            }
            Some(mode)
        });
        calls.push((row.name, counts));
    }
    let stretches = trace::run(subject, &["batch".into()], target)
        .with_context(|| format!("{name}: cannot trace the batches"))?;
    let batches = BATCHES.iter().zip(0..).map(|(name, series)| {
        (*name, stretches.as_deref().and_then(|stretches| median_per_call(stretches, series)))
    });
    Ok(Column { name: name.into(), calls, batches: batches.collect() })
}

/// The most frequent outcome and how often it came; of two as frequent the cheaper.
fn mode(stretches: &[Stretch]) -> Option<(Counts, usize)> {
    let mut seen: HashMap<Counts, usize> = HashMap::new();
    for stretch in stretches {
        *seen.entry(stretch.counts).or_default() += 1;
    }
    seen.into_iter().max_by_key(|&(counts, times)| (times, std::cmp::Reverse(counts)))
}

fn median_per_call(stretches: &[Stretch], series: u64) -> Option<f64> {
    let of_series = stretches.iter().filter(|stretch| stretch.series == series);
    let mut totals: Vec<u64> = of_series.map(|stretch| stretch.counts.instructions).collect();
    totals.sort_unstable();
    let median = *totals.get(totals.len() / 2)?;
    Some(golden::round(median as f64 / BATCH))
}

fn print_table(columns: &[Column]) {
    println!("instructions loads/stores/branches/calls (+ instructions in other libraries)\n");
    let width = columns.iter().map(|column| column.name.len()).max().unwrap_or(0).max(18) + 2;
    let line = |first: &str, cells: Vec<String>| {
        let cells: String = cells.iter().map(|cell| format!("{cell:<width$}")).collect();
        println!("{}", format!("{first:<30}{cells}").trim_end());
    };
    line("", columns.iter().map(|column| column.name.clone()).collect());
    for (name, _) in &columns[0].calls {
        line(name, columns.iter().map(|column| cell(column.call(name))).collect());
    }
    for (name, _) in &columns[0].batches {
        let figure = |column: &Column| match column.amortised(name) {
            Some(figure) => format!("{figure:.2}"),
            None => NOBODY.into(),
        };
        line(&format!("amortised {name}"), columns.iter().map(figure).collect());
    }
}

fn cell(counts: Option<Counts>) -> String {
    let Some(counts) = counts else { return NOBODY.into() };
    let Counts { instructions, loads, stores, branches, calls, outside } = counts;
    let elsewhere = if outside == 0 { String::new() } else { format!(" +{outside}") };
    format!("{instructions:>3} {loads}/{stores}/{branches}/{calls}{elsewhere}")
}

fn json(columns: &[Column]) -> serde_json::Value {
    let column = |column: &Column| {
        let calls: HashMap<_, _> = column.calls.iter().copied().collect();
        let amortised: HashMap<_, _> = column.batches.iter().copied().collect();
        serde_json::json!({ "library": column.name, "calls": calls, "amortised": amortised })
    };
    columns.iter().map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(series: u64, instructions: u64) -> Stretch {
        Stretch { series, counts: Counts { instructions, ..Counts::default() } }
    }

    #[test]
    fn the_most_frequent_outcome_wins_and_the_cheaper_of_two() {
        let three = [stretch(0, 12), stretch(0, 90), stretch(0, 12)];
        assert_eq!(mode(&three).map(|(counts, times)| (counts.instructions, times)), Some((12, 2)));
        let two = [stretch(0, 90), stretch(0, 12)];
        assert_eq!(mode(&two).map(|(counts, times)| (counts.instructions, times)), Some((12, 1)));
        assert!(mode(&[]).is_none());
    }

    #[test]
    fn batches_report_the_median_of_their_own_series() {
        let all = [stretch(0, 19_500), stretch(1, 1), stretch(0, 50_000), stretch(0, 19_000)];
        assert_eq!(median_per_call(&all, 0), Some(19.5));
        assert_eq!(median_per_call(&all, 2), None);
    }
}
