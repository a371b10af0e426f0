//! Looks at running processes through `/proc`: who descends from whom, and who has a file mapped.
//!
//! Everything is read by polling, so a process that lives for less than a tick may go unseen; a
//! program's work must last longer than that in the executables it names.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Which processes had the library mapped, by executable.
pub(super) struct Watch {
    library: PathBuf,
    loaded: HashSet<(u32, String)>,
}

impl Watch {
    pub(super) fn new(library: &Path) -> Self {
        Self { library: library.to_owned(), loaded: HashSet::new() }
    }

    /// Looks once at every descendant of this process.
    pub(super) fn tick(&mut self) {
        for pid in descendants(std::process::id()) {
            // Gone, or another user's: nothing to learn.
            let Ok(exe) = fs::read_link(format!("/proc/{pid}/exe")) else { continue };
            let name = exe.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let key = (pid, name);
            if !self.loaded.contains(&key) && maps(pid, &self.library) {
                self.loaded.insert(key);
            }
        }
    }

    /// How many processes of each executable had the library mapped.
    pub(super) fn loaded(&self) -> BTreeMap<&str, usize> {
        let mut count = BTreeMap::new();
        for (_, name) in &self.loaded {
            *count.entry(name.as_str()).or_insert(0) += 1;
        }
        count
    }
}

fn maps(pid: u32, file: &Path) -> bool {
    let file = file.to_string_lossy();
    fs::read_to_string(format!("/proc/{pid}/maps"))
        .is_ok_and(|maps| maps.lines().any(|line| line.ends_with(file.as_ref())))
}

/// Every process below `root`, parents before children.
pub(crate) fn descendants(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut unvisited = vec![root];
    while let Some(pid) = unvisited.pop() {
        let below = children.remove(&pid).unwrap_or_default();
        found.extend(&below);
        unvisited.extend(below);
    }
    found
}

/// The parent as `/proc/PID/stat` has it: the second field after the parenthesised name.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_child_and_what_it_maps() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(descendants(std::process::id()).contains(&child.id()));
        let own = fs::read_link("/proc/self/exe").unwrap();
        assert!(maps(std::process::id(), &own));
        assert!(!maps(std::process::id(), Path::new("/nowhere/libnothing.so")));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
