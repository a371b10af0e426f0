//! What a benchmark case is: a name, the table rows it fills, and a function to run.

use crate::child::{Failure, Limits};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Named results of one run, e.g. `ns`, `peak_mib`.
pub type Values = BTreeMap<String, f64>;

/// One entry of the benchmark: a workload or a program.
pub struct Case {
    /// Name on the command line; also the label of its rows unless they say otherwise.
    pub name: &'static str,
    /// One line for `--list`.
    pub about: &'static str,
    /// Rows of the tables that this case fills.
    pub rows: &'static [Row],
    /// Share of the full size in a `--quick` run.
    pub quick_scale: f64,
    /// How it runs.
    pub run: Run,
}

/// Where the measured code lives.
#[derive(Clone, Copy)]
pub enum Run {
    /// In `cairn-workload`, under the allocator that process was started with.
    Workload(fn(&Settings) -> Values),
    /// A program of its own, started by the driver.
    Program(fn(&Subject<'_>) -> Result<Values, Failure>),
}

/// Which table a row belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Table {
    /// Less is faster.
    Time,
    /// Less is smaller.
    Memory,
}

/// One row of one table. Smaller values are better in every row.
#[derive(Clone, Copy)]
pub struct Row {
    /// Added to the name of the case, for a case with several rows in one table.
    pub suffix: &'static str,
    /// The table.
    pub table: Table,
    /// Key in [`Values`].
    pub key: &'static str,
    /// Unit shown beside the best value.
    pub unit: &'static str,
    /// Key of the value it is divided by, one that is the same for all allocators.
    pub per: Option<&'static str>,
    /// Values below this count as this: keeps ratios finite where the best is near nothing.
    pub floor: f64,
}

impl Row {
    /// A time row in `unit`; the value's key is the unit.
    pub const fn time(unit: &'static str) -> Row {
        Row { suffix: "", table: Table::Time, key: unit, unit, per: None, floor: 0.0 }
    }

    /// The row of the peak resident set.
    pub const PEAK: Row = Row::memory("", "peak_mib", "MiB", 0.0);

    /// A row of the memory table.
    pub const fn memory(
        suffix: &'static str,
        key: &'static str,
        unit: &'static str,
        floor: f64,
    ) -> Row {
        Row { suffix, table: Table::Memory, key, unit, per: None, floor }
    }
}

/// How large a workload should be.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Threads, where the workload has a choice.
    pub threads: Option<usize>,
    /// Size or duration, 1.0 being the full run.
    pub scale: f64,
    /// Take every step but the allocations (for the workloads that subtract a baseline).
    pub no_alloc: bool,
}

impl Settings {
    /// `n` scaled, at least 1.
    pub fn scaled(&self, n: usize) -> usize {
        ((n as f64 * self.scale) as usize).max(1)
    }
}

/// An allocator under a program.
pub struct Subject<'a> {
    /// Library to preload; none for the C library's own malloc.
    pub preload: Option<&'a Path>,
    /// Size or duration, 1.0 being the full run.
    pub scale: f64,
    /// When to give up.
    pub limits: Limits,
    /// A directory to write to, kept over all runs.
    pub scratch: &'a Path,
}

impl Subject<'_> {
    /// A command that runs `program` under the allocator, its environment otherwise fixed.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("LC_ALL", "C.UTF-8");
        if let Some(library) = self.preload {
            command.env("LD_PRELOAD", library);
        }
        command
    }

    /// `n` scaled, at least 1.
    pub fn scaled(&self, n: usize) -> usize {
        ((n as f64 * self.scale) as usize).max(1)
    }
}

/// The JSON line that `cairn-workload` prints.
#[derive(Serialize, Deserialize)]
pub struct Line {
    /// Name of the workload.
    pub workload: String,
    /// The object file that `malloc` was resolved to: shows a preload that did not happen.
    pub malloc_from: PathBuf,
    /// The results.
    pub values: Values,
}
