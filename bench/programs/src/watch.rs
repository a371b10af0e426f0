//! Looks at running processes through `/proc`: who has the library.
//!
//! Everything is read by polling, so a process that lives for less than a tick may go unseen; a
//! program's work must last longer than that in the executables it names.

use anyhow::{Result, ensure};
use runner::descendants;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Which processes had the library mapped, by executable.
#[derive(Clone)]
pub(crate) struct Watch {
    library: PathBuf,
    /// Whether the library is meant to be there.
    wanted: bool,
    /// Between two looks.
    pub(crate) pause: Duration,
    loaded: RefCell<HashSet<(u32, String)>>,
}

impl Watch {
    pub(crate) fn new(library: &Path, wanted: bool, pause: Duration) -> Self {
        let (library, loaded) = (library.to_owned(), RefCell::default());
        Self { library, wanted, pause, loaded }
    }

    /// Looks once at every descendant of this process.
    pub(crate) fn tick(&self) {
        for pid in descendants(std::process::id()) {
            // Gone, or another user's: nothing to learn.
            let Ok(exe) = fs::read_link(format!("/proc/{pid}/exe")) else { continue };
            let name = exe.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let key = (pid, name);
            if !self.loaded.borrow().contains(&key) && maps(pid, &self.library) {
                self.loaded.borrow_mut().insert(key);
            }
        }
    }

    /// How many processes of each executable had the library mapped, which none may have if nobody asked for it.
    pub(crate) fn loaded(&self) -> Result<BTreeMap<String, usize>> {
        let mut loaded = BTreeMap::new();
        for (_, name) in self.loaded.borrow().iter() {
            *loaded.entry(name.clone()).or_insert(0) += 1;
        }
        let right = self.wanted || loaded.is_empty();
        ensure!(right, "the library is mapped although nobody asked: {loaded:?}");
        Ok(loaded)
    }
}

fn maps(pid: u32, file: &Path) -> bool {
    let file = file.to_string_lossy();
    fs::read_to_string(format!("/proc/{pid}/maps"))
        .is_ok_and(|maps| maps.lines().any(|line| line.ends_with(file.as_ref())))
}
