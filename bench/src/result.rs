//! The file with everything measured: all later steps read this and nothing else.

use crate::machine::Machine;
use anyhow::{Context, Result, ensure};
use cairn_workloads::case::{Case, Curve, Table};
use flate2::read::GzDecoder;
use programs::process::Failure;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Changes when an older reader would misread the file.
pub const FORMAT: u32 = 2;

/// The result that the project's pages are made from, seen from the project's folder.
pub const STORED: &str = "docs/results/data/lab-0.1.0.json.gz";

/// The allocator that the lab is about.
pub const SUBJECT: &str = "cairn";

/// Its hardened build: a column like any, but none of the others that it is set beside.
pub const HARDENED: &str = "cairn-hardened";

/// The column in which [`SUBJECT`] runs once more: how far it ends from itself is the noise.
pub const CONTROL: &str = "cairn, again";

/// A result.
#[derive(Serialize, Deserialize)]
pub struct LabResult {
    /// [`FORMAT`]
    pub format: u32,
    /// As typed, without the path of the executable.
    pub command: String,
    /// Day of the first run, as 2026-01-31.
    pub date: String,
    /// Where.
    pub machine: Machine,
    /// Sizes of a quick run.
    pub quick: bool,
    /// The suite whose rows these are; none for the lab's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<String>,
    /// The core that was measured, see [`crate::core_hash`]; none if it was not the tree's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<String>,
    /// Rounds that counted.
    pub rounds: usize,
    /// Who took part, or was missing; in the order of the columns.
    pub allocators: Vec<Allocator>,
    /// What was run.
    pub cases: Vec<CaseResult>,
}

/// An allocator, as the result tells of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Allocator {
    /// Column header.
    pub name: String,
    /// Version of the project.
    pub version: String,
    /// Where it comes from: a crate or package.
    pub source: String,
    /// How it was built, where the lab did it.
    pub flags: String,
    /// What it is, in a sentence.
    pub about: String,
    /// Why it cannot be preloaded here, if so.
    pub no_preload: Option<String>,
    /// Why it cannot be linked here, if so.
    pub no_engine: Option<String>,
    /// Another build of cairn, given as a library.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_cairn: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Allocator {
    /// Whether it is none of this project's.
    pub fn is_other(&self) -> bool {
        self.name != SUBJECT && self.name != HARDENED && !self.is_cairn
    }
}

/// How an allocator came into the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// By LD_PRELOAD, as C's malloc.
    Preloaded,
    /// Built in, as Rust's global allocator.
    Linked,
}

/// A case in one form, under everyone.
#[derive(Serialize, Deserialize)]
pub struct CaseResult {
    /// The case.
    pub case: Case,
    /// The form.
    pub form: Form,
    /// By allocator; [`CONTROL`] too.
    pub cells: BTreeMap<String, Cell>,
}

/// The runs of one case under one allocator.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Cell {
    /// Every value that the case reported, one per round.
    pub values: BTreeMap<String, Vec<f64>>,
    /// The curves of the first round that counted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub curves: BTreeMap<String, Curve>,
    /// Failures, in any round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
}

impl LabResult {
    /// Reads a result from a file, compressed by gzip or not.
    pub fn read(path: &Path) -> Result<LabResult> {
        let name = || path.display().to_string();
        let mut text = std::fs::read(path).with_context(name)?;
        let packed = GzDecoder::new(&text[..]);
        if packed.header().is_some() {
            text = std::io::read_to_string(packed).with_context(name)?.into();
        }
        let result: LabResult = serde_json::from_slice(&text)
            .with_context(|| format!("{} is not a result of this lab", name()))?;
        ensure!(result.format == FORMAT, "{} has format {}", name(), result.format);
        Ok(result)
    }

    /// Writes it, a line per case.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = Vec::new();
        serde_json::to_writer(&mut text, self)?;
        // One line per case keeps differences between two results readable.
        let text = String::from_utf8(text)?.replace("{\"case\":", "\n{\"case\":") + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Name of a case, the form where it is not the usual one, and whether the heap has a past.
pub fn label(case: &Case, form: Form) -> String {
    let aged = if case.aged { " aged" } else { "" };
    match form {
        Form::Preloaded => format!("{}{aged}", case.name),
        Form::Linked => format!("{} linked{aged}", case.name),
    }
}

impl CaseResult {
    /// Name of the case, and the form where it is not the usual one.
    pub fn label(&self) -> String {
        label(&self.case, self.form)
    }
}

impl Cell {
    /// What a run that hit a limit says about a row, before any division: at least this much.
    pub fn lower_bound(&self, table: Table, key: &str) -> Option<f64> {
        self.failures.iter().find_map(|failure| match (failure, table, key) {
            (Failure::Timeout { seconds, .. }, Table::Time, "ms") => Some(seconds * 1e3),
            (Failure::Timeout { mib, .. } | Failure::Memory { mib }, Table::Memory, "peak_mib") => {
                Some(*mib)
            }
            _ => None,
        })
    }
}
