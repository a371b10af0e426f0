//! Where recorded calls of programs are, and the command that records and replays them.

use std::path::{Path, PathBuf};

/// Of all cases.
#[derive(Clone)]
pub struct Traces {
    pub(crate) cairn: PathBuf,
    folder: PathBuf,
}

impl Traces {
    /// Of this command, in this folder.
    pub fn new(cairn: PathBuf, folder: PathBuf) -> Traces {
        Traces { cairn, folder }
    }

    /// Where they are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the trace of a case is, if it has been made.
    pub fn path(&self, case: &str) -> PathBuf {
        self.folder.join(case.trim_start_matches("trace-")).with_extension("trace")
    }
}
