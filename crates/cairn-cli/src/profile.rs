//! `cairn profile`: what a heap profile says, with names.
//!
//! Owns how it is printed, and into which files it goes; `cairn_sight` reads it. The one idea: a table for people, and the
//! forms that other viewers read. It must never write over the profile that it reads.

use anyhow::{Context, Result, ensure};
use cairn_sight::profile::{Amounts, Frame, HeapProfile, Names, Row, View, collapsed, pprof, rows};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Rows that the table shows.
const ROWS: usize = 20;
/// Letters of a function's name that it shows: those of templates have hundreds.
const LETTERS: usize = 80;
/// Functions of each that it shows.
const FRAMES: usize = 4;

/// Say which code has allocated what a process holds, from its heap profile
///
/// The profile comes from `cairn run --profile FILE PROGRAM`, from the variable CAIRN_PROFILE, or from a call of the program's.
/// Figures are estimates: a sample stands for all blocks that are like it. Names come from the files that the process has run,
/// where they were then: look at the profile where it was made.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cairn run --profile heap -- python3 app.py
  cairn profile heap                          a table of what was live at exit
  cairn profile --allocated heap              of all that was allocated
  cairn profile heap --pprof heap.pb.gz       then: go tool pprof -http : heap.pb.gz
  cairn profile heap --collapsed heap.txt     then: inferno-flamegraph <heap.txt >heap.svg")]
pub(crate) struct Args {
    /// The profile
    file: PathBuf,

    /// Write it as pprof reads it, with alloc_objects, alloc_space, inuse_objects and inuse_space
    #[arg(long, value_name = "OUT")]
    pprof: Option<PathBuf>,

    /// Write a line for each stack, with bytes, as flame graphs are drawn from
    #[arg(long, value_name = "OUT")]
    collapsed: Option<PathBuf>,

    /// Say what has been allocated since the start, not what is live
    #[arg(long)]
    allocated: bool,
}

/// Prints the profile, or writes it in the forms that are asked for.
pub(crate) fn run(args: &Args) -> Result<()> {
    let shown = || args.file.display().to_string();
    let profile = HeapProfile::read(&args.file).with_context(shown)?;
    let view = if args.allocated { View::Allocated } else { View::Live };
    let mut names = Names::new();
    if let Some(out) = &args.pprof {
        let packed = pprof(&profile, &mut names).context("--pprof")?;
        write_to(out, &args.file, &packed).context("--pprof")?;
    }
    if let Some(out) = &args.collapsed {
        let text = collapsed(&profile, &mut names, view);
        write_to(out, &args.file, text.as_bytes()).context("--collapsed")?;
    }
    if args.pprof.is_none() && args.collapsed.is_none() {
        let rows = rows(&profile, &mut names, view);
        crate::print(text(&profile, &rows, view)?.as_bytes())?;
    }
    for path in names.doubtful() {
        let path = path.escape_debug();
        eprintln!("cairn: {path} is not the file that the process has run: names may be wrong");
    }
    Ok(())
}

fn write_to(out: &Path, profile: &Path, bytes: &[u8]) -> Result<()> {
    let is_same = fs::canonicalize(out)
        .is_ok_and(|out| fs::canonicalize(profile).is_ok_and(|profile| profile == out));
    ensure!(!is_same, "{} is the profile itself", out.display());
    fs::write(out, bytes).with_context(|| out.display().to_string())
}

/// The profile for people.
fn text(profile: &HeapProfile, rows: &[Row], view: View) -> Result<String> {
    let mut text = String::new();
    let (live, allocated) = (profile.sum(View::Live), profile.sum(View::Allocated));
    writeln!(text, "cairn: a heap profile of {} sites", profile.sites.len())?;
    writeln!(text, "  {:>12}  live, in {:.0} blocks", human(live.bytes), live.objects)?;
    let (bytes, objects) = (human(allocated.bytes), allocated.objects);
    writeln!(text, "  {bytes:>12}  allocated since the start, in {objects:.0} blocks")?;
    if profile.dropped > 0 {
        writeln!(text, "  There was no room for {} samples: use a larger rate.", profile.dropped)?;
    }
    let (what, whole) = match view {
        View::Live => ("live", live),
        View::Allocated => ("allocated", allocated),
    };
    writeln!(text, "\n  {what:>12}      %      blocks  by")?;
    for row in rows.iter().take(ROWS) {
        let amounts = if view == View::Live { row.live } else { row.allocated };
        add_row(&mut text, amounts, whole, &row.frames)?;
    }
    if rows.len() > ROWS {
        writeln!(text, "  {:>12}  and {} more stacks", "", rows.len() - ROWS)?;
    }
    Ok(text)
}

fn add_row(text: &mut String, amounts: Amounts, whole: Amounts, frames: &[Frame]) -> Result<()> {
    let share = 100.0 * amounts.bytes / whole.bytes.max(1.0);
    let (bytes, objects) = (human(amounts.bytes), amounts.objects);
    let first = frames.first().map_or("an unknown stack".to_owned(), place);
    writeln!(text, "  {bytes:>12}  {share:>5.1}  {objects:>10.0}  {first}")?;
    for frame in frames.iter().take(FRAMES).skip(1) {
        writeln!(text, "  {:>12}  {:>5}  {:>10}    < {}", "", "", "", place(frame))?;
    }
    Ok(())
}

/// A function, and where in the source it is.
fn place(frame: &Frame) -> String {
    let source = frame.source.rsplit('/').next().unwrap_or("");
    let mut function = frame.function.escape_debug().to_string();
    if function.chars().count() > LETTERS {
        function = function.chars().take(LETTERS).chain("...".chars()).collect();
    }
    match source {
        "" => function,
        source => format!("{function} ({}:{})", source.escape_debug(), frame.line),
    }
}

/// Bytes with a unit.
fn human(bytes: f64) -> String {
    crate::units::human(bytes as u64)
}
