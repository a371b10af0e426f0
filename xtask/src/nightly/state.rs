//! What is known of the steps that were run with certain sources: a file that is replaced as a whole
//! after each step, so that it is whole whenever the run is stopped.

use anyhow::{Context, Result, ensure};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::NamedTempFile;

/// How a step ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) enum Outcome {
    Passed,
    Failed,
    /// It needs what is not there.
    NotRun,
}

impl Outcome {
    pub(super) fn word(self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Failed => "FAILED",
            Outcome::NotRun => "not run",
        }
    }
}

/// A step that has ended.
#[derive(Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) outcome: Outcome,
    pub(super) seconds: u64,
    /// What it said last.
    pub(super) evidence: String,
    /// When, in UTC.
    pub(super) ended: String,
}

impl Done {
    pub(super) fn not_run(missing: String) -> Done {
        Done { outcome: Outcome::NotRun, seconds: 0, evidence: missing, ended: String::new() }
    }
}

/// All that have ended, by name.
pub(super) struct State {
    path: PathBuf,
    steps: BTreeMap<String, Done>,
    /// Locked: nobody else is at work in the folder.
    _lock: File,
}

impl State {
    /// What is known in this folder; `fresh`, nothing any more.
    pub(super) fn open(folder: &Path, fresh: bool) -> Result<State> {
        let lock = File::create(folder.join("lock"))?;
        // What another thread of this process has forked has a copy of every file until it is a program of its own.
        let is_locked = || flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        let mut tries = std::iter::repeat_n(Duration::from_millis(50), 20);
        let has_it = is_locked() || tries.any(|pause| (std::thread::sleep(pause), is_locked()).1);
        ensure!(has_it, "another run is at work in {}", folder.display());
        let path = folder.join("state.json");
        if fresh && path.exists() {
            std::fs::remove_file(&path)?;
        }
        let steps = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            text => serde_json::from_str(&text?).with_context(|| path.display().to_string())?,
        };
        Ok(State { path, steps, _lock: lock })
    }

    /// Keeps what became of a step.
    pub(super) fn keep(&mut self, name: &str, done: Done) -> Result<()> {
        self.steps.insert(name.to_owned(), done);
        let folder = self.path.parent().context("it lies in a folder")?;
        let mut file = NamedTempFile::new_in(folder)?;
        serde_json::to_writer_pretty(&mut file, &self.steps)?;
        file.flush()?;
        file.persist(&self.path)?;
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Option<&Done> {
        self.steps.get(name)
    }

    pub(super) fn outcome(&self, name: &str) -> Option<Outcome> {
        self.get(name).map(|done| done.outcome)
    }

    /// Only such a step is not run again.
    pub(super) fn has_passed(&self, name: &str) -> bool {
        self.outcome(name) == Some(Outcome::Passed)
    }
}
