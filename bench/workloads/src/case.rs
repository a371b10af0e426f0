//! What a case is: a name, where it comes from, the rows and plots it fills.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Points of a plot: (x, y).
pub type Curve = Vec<[f64; 2]>;

/// What one run of a case says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Results {
    /// Named numbers, e.g. `ns`, `peak_mib`.
    pub values: BTreeMap<String, f64>,
    /// Named curves, e.g. `rss`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub curves: BTreeMap<String, Curve>,
}

impl Results {
    /// Of named numbers.
    pub fn of<const N: usize>(values: [(&str, f64); N]) -> Results {
        let values = values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Results { values, curves: BTreeMap::new() }
    }

    /// The one number `ns`: time per operation.
    pub fn ns(time: Duration, operations: usize) -> Results {
        Results::of([("ns", time.as_nanos() as f64 / operations as f64)])
    }

    /// The one number `ms`: time of the whole.
    pub fn ms(time: Duration) -> Results {
        Results::of([("ms", time.as_secs_f64() * 1e3)])
    }

    /// The same with more numbers.
    pub fn and<const N: usize>(mut self, values: [(&str, f64); N]) -> Results {
        self.values.extend(Results::of(values).values);
        self
    }

    /// The same with one more curve.
    pub fn with_curve(mut self, key: &str, curve: Curve) -> Results {
        self.curves.insert(key.to_owned(), curve);
        self
    }
}

/// Where a case stands in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// One thread.
    Single,
    /// Several threads.
    Threads,
    /// Memory at the peak and over time.
    Footprint,
    /// The slowest operations.
    Latency,
    /// What the allocator adds to a process that does nearly nothing.
    Startup,
    /// Real programs.
    Programs,
    /// Instructions counted by a simulator.
    Instructions,
}

impl Group {
    /// All of them, in the order of the report.
    pub const ALL: [Group; 7] = [
        Group::Single,
        Group::Threads,
        Group::Footprint,
        Group::Latency,
        Group::Startup,
        Group::Programs,
        Group::Instructions,
    ];

    /// A heading.
    pub fn title(self) -> &'static str {
        match self {
            Group::Single => "One thread",
            Group::Threads => "Many threads",
            Group::Footprint => "Memory over time",
            Group::Latency => "Tail latency",
            Group::Startup => "Start-up",
            Group::Programs => "Real programs",
            Group::Instructions => "Instructions",
        }
    }
}

/// What the tables know about a workload or program.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Name on the command line; also the label of its rows unless they say otherwise.
    pub name: String,
    /// Where it stands.
    pub group: Group,
    /// What it does and what that stands for, in a sentence or two.
    pub about: String,
    /// Where it was described first; empty where it is the lab's own.
    pub origin: String,
    /// Rows of the tables that this case fills.
    pub rows: Vec<Row>,
    /// Curves worth drawing.
    pub plots: Vec<Plot>,
    /// Share of the full size in a `--quick` run; 0 leaves it out.
    pub quick_scale: f64,
    /// It begins on a heap with a past.
    #[serde(default)]
    pub aged: bool,
}

/// Which table a row belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Table {
    /// How long; counts for the mean over time.
    Time,
    /// How much memory; counts for the mean over memory.
    Memory,
    /// Percentiles of single operations.
    Latency,
    /// Page faults, system calls, instructions.
    Counts,
    /// Of time and memory, what only cairn is good at: it is in no mean of those.
    Alone,
}

impl Table {
    /// All of them, in the order of the report.
    pub const ALL: [Table; 5] =
        [Table::Time, Table::Memory, Table::Latency, Table::Counts, Table::Alone];
}

/// Which values of a row are better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// The smaller ones: a time, a size.
    #[default]
    Less,
    /// The larger ones: a rate.
    More,
}

impl Better {
    /// From such a value to one of which less is better, and back.
    pub fn as_less(self, value: f64) -> f64 {
        match self {
            Better::Less => value,
            Better::More => value.recip(),
        }
    }

    /// Whether it is the usual one.
    fn is_less(&self) -> bool {
        *self == Better::Less
    }
}

/// One row of one table.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Added to the name of the case, for a case with several rows in one table.
    #[serde(default)]
    pub suffix: String,
    /// The table.
    pub table: Table,
    /// Key in [`Results::values`].
    pub key: String,
    /// Unit shown beside the best value.
    pub unit: String,
    /// Key of the value it is divided by, one that is the same for all allocators.
    pub per: Option<String>,
    /// Values below this count as this: keeps ratios finite where the best is near nothing.
    #[serde(default)]
    pub floor: f64,
    /// Which values are better. In the lab's own rows it is always less.
    #[serde(default, skip_serializing_if = "Better::is_less")]
    pub better: Better,
}

/// A curve to draw, one line per allocator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plot {
    /// Key in [`Results::curves`].
    pub key: String,
    /// What the x axis shows, with its unit.
    pub x: String,
    /// What the y axis shows, with its unit.
    pub y: String,
    /// Which axes are logarithmic.
    pub log: (bool, bool),
}

/// How large a workload should be.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Threads, where the case does not fix their number; the machine's cores otherwise.
    pub threads: Option<usize>,
    /// Size or duration, 1.0 being the full run.
    pub scale: f64,
    /// Take every step but the allocations (for the workloads that subtract a baseline).
    pub no_alloc: bool,
    /// Begin on a heap with a past.
    pub aged: bool,
}

impl Settings {
    /// `n` scaled, at least 1.
    pub fn scaled(&self, n: usize) -> usize {
        ((n as f64 * self.scale) as usize).max(1)
    }

    /// As many threads as asked for, or as there are cores, but at least two.
    pub fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(2, usize::from).max(2);
        self.threads.unwrap_or_else(cores)
    }

    /// The thread counts of a scaling curve: powers of two up to four times the cores.
    pub fn scaling(&self) -> impl Iterator<Item = usize> {
        let most = 4 * self.threads();
        std::iter::successors(Some(1), |n| Some(n * 2)).take_while(move |&n| n <= most)
    }
}

#[cfg(test)]
pub(crate) const TINY: Settings =
    Settings { threads: Some(3), scale: 0.01, no_alloc: false, aged: false };

/// Through which functions a workload allocates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Interface {
    /// C's: runs preloaded only.
    C,
    /// Rust's global allocator: runs preloaded, where that is C's malloc, and linked.
    Rust,
}

/// A case that runs inside `cairn-workload` or a linked engine.
pub struct Workload {
    /// What the tables know.
    pub case: Case,
    /// How it allocates.
    pub interface: Interface,
}

/// The JSON line that a workload process prints.
#[derive(Serialize, Deserialize)]
pub struct Line {
    /// Name of the workload.
    pub workload: String,
    /// The object file that `malloc` was resolved to: shows a preload that did not happen.
    pub malloc_from: std::path::PathBuf,
    /// The allocator that is linked as Rust's, if one is.
    pub linked: Option<String>,
    /// The results.
    #[serde(flatten)]
    pub results: Results,
}
