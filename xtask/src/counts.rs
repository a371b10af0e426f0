//! What small programs cost on the shipped library: instructions, page faults, peak memory.
//!
//! Unlike seconds these are the same on a busy machine, so a table of them can be kept, and a
//! change that costs a little everywhere is seen at once. The programs are the workloads of
//! subject.c, each a process, and a few real ones.

mod measure;
mod table;

use crate::library::{Build, workspace};
use anyhow::{Context, Result, ensure};
use measure::Place;
use table::{Cost, Table};

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write docs/results/counts.toml instead of comparing with it.
    #[arg(long)]
    update: bool,
}

const KEPT: &str = "docs/results/counts.toml";

/// Measures, prints, and compares with the table that is kept.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        println!("counts: not applicable here");
        return Ok(());
    }
    let place = Place::prepare(&Build::default().library()?)?;
    let now = place.table()?;
    let path = workspace().join(KEPT);
    if args.update {
        println!("{}", now.print(&Table::default()));
        std::fs::write(&path, now.render()).with_context(|| format!("cannot write {KEPT}"))?;
        eprintln!("wrote {}", path.display());
        return Ok(());
    }
    let text = std::fs::read_to_string(&path);
    let before =
        Table::parse(&text.with_context(|| format!("no {KEPT}; write it with --update"))?)?;
    println!("{}", now.print(&before));
    judge(&before, &now)
}

/// An error that names what has risen. With other tools than the table's nothing is: they count, too.
fn judge(before: &Table, now: &Table) -> Result<()> {
    let changes = before.compare(now);
    changes.fallen.iter().for_each(|line| eprintln!("fallen: {line}"));
    if !changes.fallen.is_empty() {
        eprintln!("`cargo xtask counts --update` keeps what was gained");
    }
    changes.bad.iter().for_each(|line| eprintln!("{line}"));
    let others = before.other_tools(now);
    if !others.is_empty() {
        others.iter().for_each(|line| eprintln!("measured with another {line}"));
        eprintln!(
            "so nothing is judged; `--update`, once before a change, gives a table to compare with"
        );
        return Ok(());
    }
    let rows = changes.bad_rows.join(", ");
    ensure!(changes.bad.is_empty(), "costs more than {KEPT} has, or cannot be compared: {rows}");
    Ok(())
}
