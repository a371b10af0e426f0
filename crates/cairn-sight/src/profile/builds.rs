//! Which builds of files a process has mapped.
//!
//! Owns: the numbers that linkers have given them, by their paths as the system lists them.
//! Idea: a path leads to whatever lies there now; the number says whether that is what has run.
//! Never: has more of them, or longer ones, than a process could.
//! Threads: one.
//! Checked: tests here; tests/profile.rs of the command.
//! Story: docs/guide/profile.md

use crate::build_id;
use crate::memory::Memory;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Files at most: a process has as many mappings.
const FILES_MAX: usize = 1 << 16;
/// Digits of a number at most.
const DIGITS_MAX: usize = 128;

/// Numbers of builds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Builds {
    by_path: HashMap<PathBuf, String>,
}

impl Builds {
    /// Those of the files that a target has mapped.
    pub(crate) fn of(memory: &dyn Memory) -> Builds {
        let mut builds = Builds::default();
        let starts = memory.areas().iter().filter(|area| area.offset == 0);
        for area in starts {
            let path = area.path.as_deref().filter(|path| path.is_absolute());
            if let Some(path) = path
                && !builds.by_path.contains_key(path)
                && let Some(build) = build_id::of(memory, area.range.start)
            {
                builds.add(&build, path);
            }
        }
        builds
    }

    /// Adds a file, if its number is one, in hexadecimal, and there are not too many.
    pub(super) fn add(&mut self, build: &str, path: &Path) -> Option<()> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_number =
            !build.is_empty() && build.len() <= DIGITS_MAX && build.bytes().all(is_digit);
        let has_room = self.by_path.len() < FILES_MAX;
        if is_number && has_room {
            self.by_path.entry(path.to_owned()).or_insert_with(|| build.to_owned());
        }
        (is_number && has_room).then_some(())
    }

    /// The number of a file, where it is known.
    #[must_use]
    pub fn get(&self, path: &Path) -> Option<&str> {
        self.by_path.get(path).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::Builds;
    use std::path::Path;

    #[test]
    fn numbers_are_bounded() {
        let mut builds = Builds::default();
        let (one, other) = (Path::new("/a b"), Path::new("/a"));
        assert_eq!(builds.add("0af9", one), Some(()));
        assert_eq!(builds.add("77", one), Some(()));
        assert_eq!((builds.get(one), builds.get(other)), (Some("0af9"), None));
        for bad in ["", "xx", "0A", &"0".repeat(129)] {
            assert_eq!(builds.add(bad, other), None, "{bad}");
        }
        let path = |nth| format!("/{nth}");
        let added = (0..1 << 17).filter(|&nth| builds.add("00", path(nth).as_ref()).is_some());
        assert_eq!(added.count(), (1 << 16) - 1);
    }
}
