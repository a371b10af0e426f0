//! Every run on disk as soon as it has ended: a lab that was stopped goes on where it was.
//!
//! A file of JSON lines. The first says what is run, with which files; a journal whose first
//! line differs belongs to another plan and is replaced.

use crate::result::Form;
use anyhow::{Context, Result};
use cairn_workloads::case::Results;
use programs::process::Failure;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// One run.
#[derive(Serialize, Deserialize)]
pub struct Entry {
    /// 0 is the warm-up.
    pub round: usize,
    /// Name of the case.
    pub case: String,
    /// Its form.
    pub form: Form,
    /// The column.
    pub allocator: String,
    /// Seconds from start to end of the process.
    pub seconds: f64,
    /// What came of it.
    pub outcome: Result<Results, Failure>,
}

/// An open journal.
pub struct Journal {
    file: File,
    path: PathBuf,
    /// What was done before this process.
    pub done: Vec<Entry>,
}

impl Journal {
    /// Opens the journal at `path`, going on with it if it is of the same plan and `fresh` is not asked for.
    pub fn open(path: &Path, identity: &Value, fresh: bool) -> Result<Journal> {
        let done = if fresh { None } else { read(path, identity) };
        let context = || format!("cannot write {}", path.display());
        // Rewritten rather than appended to: the last line may be half of one.
        let mut file = File::create(path).with_context(context)?;
        writeln!(file, "{identity}")?;
        let mut journal = Journal { file, path: path.to_owned(), done: Vec::new() };
        for entry in done.into_iter().flatten() {
            journal.add(&entry)?;
            journal.done.push(entry);
        }
        Ok(journal)
    }

    /// Adds a run.
    pub fn add(&mut self, entry: &Entry) -> Result<()> {
        writeln!(self.file, "{}", serde_json::to_string(entry)?)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Removes the file: the result is complete.
    pub fn finish(self) -> Result<()> {
        Ok(std::fs::remove_file(self.path)?)
    }
}

fn read(path: &Path, identity: &Value) -> Option<Vec<Entry>> {
    let mut lines = BufReader::new(File::open(path).ok()?).lines().map_while(Result::ok);
    let found: Value = serde_json::from_str(&lines.next()?).ok()?;
    (found == *identity).then(|| lines.map_while(|line| serde_json::from_str(&line).ok()).collect())
}

/// A hash of the contents of these files, so that a rebuilt library is another one.
pub fn hash<'a>(files: impl Iterator<Item = &'a PathBuf>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in files {
        std::fs::read(file).unwrap_or_default().hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(round: usize) -> Entry {
        Entry {
            round,
            case: "case".into(),
            form: Form::Preloaded,
            allocator: "a".into(),
            seconds: 0.5,
            outcome: Ok(Results::of([("ns", 1.5)])),
        }
    }

    #[test]
    fn goes_on_after_half_a_line_but_not_with_another_plan() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let mut journal = Journal::open(&path, &json!(1), false).unwrap();
        journal.add(&entry(0)).unwrap();
        journal.add(&entry(1)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 10]).unwrap();
        let journal = Journal::open(&path, &json!(1), false).unwrap();
        assert_eq!(journal.done.iter().map(|e| e.round).collect::<Vec<_>>(), [0]);
        assert_eq!(Journal::open(&path, &json!(1), false).unwrap().done.len(), 1);
        assert_eq!(Journal::open(&path, &json!(2), false).unwrap().done.len(), 0);
        Journal::open(&path, &json!(2), false).unwrap().add(&entry(0)).unwrap();
        assert_eq!(Journal::open(&path, &json!(2), true).unwrap().done.len(), 0);
    }
}
