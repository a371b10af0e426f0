//! What is measured, and how it is told.

use super::Args;
use super::golden::{Table, round};
use super::trace::{self, Counts, Target};
use crate::library;
use anyhow::{Context, Result, bail, ensure};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each counted call, and what subject.c is told for it: the function, who makes its block and of
/// what size, its two arguments, and who gets the result.
pub(super) const CALLS: [(&str, &str); 13] = [
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
pub(super) const BATCHES: [&str; 2] = ["malloc(64)", "free(64)"];
const BATCH: f64 = 1000.0;

/// A row whose calls agree less often than this gets a warning.
const AGREEMENT_PERCENT: usize = 80;

/// Measures, prints, and compares cairn's column with the golden table.
pub(super) fn run(args: &Args) -> Result<()> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let subject = compile_subject(&folder.path().canonicalize()?)?;
    let cairn = Target::Preload(library::build()?.shared.canonicalize()?);
    let mut columns = vec![("cairn".to_owned(), measure(&subject, "cairn", &cairn)?)];
    for peer in &args.library {
        let (name, target) = resolve(peer)?;
        let table = measure(&subject, &name, &target)?;
        columns.push((name, table));
    }
    print(&columns);
    judge(&columns[0].1, args.update)
}

fn judge(cairn: &Table, update: bool) -> Result<()> {
    let path = library::workspace().join("docs/results/fast-path-golden.toml");
    let over = cairn.over_the_yardstick();
    over.iter().for_each(|line| eprintln!("over the yardstick: {line}"));
    if update {
        std::fs::write(&path, cairn.render()).context("cannot write the golden table")?;
        eprintln!("wrote {}", path.display());
        ensure!(over.is_empty(), "the new table breaks the yardstick");
        return Ok(());
    }
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("no {}; write it with --update", path.display()))?;
    let golden: Table = toml::from_str(&text).context(path.display().to_string())?;
    let (worse, better) = golden.compare(cairn);
    worse.iter().for_each(|line| eprintln!("worse than golden: {line}"));
    better.iter().for_each(|line| eprintln!("better than golden: {line}"));
    if !better.is_empty() {
        eprintln!("`cargo xtask fast-path --update` keeps what was gained");
    }
    if !over.is_empty() || !worse.is_empty() {
        bail!("{} counts are too high", over.len() + worse.len());
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

/// The column name and target that a `--library` names.
fn resolve(peer: &Path) -> Result<(String, Target)> {
    if peer == Path::new("glibc") {
        return Ok(("glibc".into(), Target::Glibc));
    }
    let path = peer.canonicalize().with_context(|| format!("no {}", peer.display()))?;
    let name = peer.file_name().context("a library is a file")?.to_string_lossy();
    let name = name.split(".so").next().unwrap_or(&name).trim_start_matches("lib").to_owned();
    Ok((name, Target::Preload(path)))
}

fn measure(subject: &Path, name: &str, target: &Target) -> Result<Table> {
    let trace = |what: &str, arguments: &str| {
        let counts = trace::run(subject, arguments.split(' '), target);
        counts.with_context(|| format!("{name}: cannot trace {what}"))
    };
    let mut table = Table::default();
    for (call, arguments) in CALLS {
        let [counts, _] = trace(call, &format!("call {arguments}"))?;
        let Some((mode, agreeing)) = mode(&counts) else { continue };
        if agreeing * 100 < counts.len() * AGREEMENT_PERCENT {
            eprintln!("warning: {name}: {call}: only {agreeing} of {} calls agree", counts.len());
        }
        table.calls.insert(call.to_owned(), mode);
    }
    for (batch, counts) in BATCHES.iter().zip(trace("the batches", "batch")?) {
        table.amortised.extend(median_per_call(&counts).map(|figure| (batch.to_string(), figure)));
    }
    Ok(table)
}

/// The most frequent outcome and how often it came; of two as frequent the cheaper.
fn mode(counts: &[Counts]) -> Option<(Counts, usize)> {
    let mut seen: HashMap<Counts, usize> = HashMap::new();
    for counts in counts {
        *seen.entry(*counts).or_default() += 1;
    }
    seen.into_iter().max_by_key(|&(counts, times)| (times, std::cmp::Reverse(counts)))
}

fn median_per_call(batches: &[Counts]) -> Option<f64> {
    let mut totals: Vec<u64> = batches.iter().map(|counts| counts.instructions).collect();
    totals.sort_unstable();
    let median = *totals.get(totals.len() / 2)?;
    Some(round(median as f64 / BATCH))
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
    for (name, _) in CALLS {
        line(name, &|(_, table)| table.calls.get(name).map(Counts::to_string));
    }
    for name in BATCHES {
        let figure = |table: &Table| Some(format!("{:.2}", table.amortised.get(name)?));
        line(&format!("amortised {name}"), &|(_, table)| figure(table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_outcome_wins_and_batches_report_their_median() {
        let counts = |instructions| Counts { instructions, ..Counts::default() };
        assert_eq!(mode(&[12, 90, 12].map(counts)), Some((counts(12), 2)));
        assert_eq!(mode(&[90, 12].map(counts)), Some((counts(12), 1)));
        assert_eq!(mode(&[]), None);
        assert_eq!(median_per_call(&[19_500, 50_000, 19_000].map(counts)), Some(19.5));
        assert_eq!(median_per_call(&[]), None);
    }
}
