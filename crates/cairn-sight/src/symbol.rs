//! Owns: the way to the header: the symbol `cairn_header` of the files that a target runs code of, or what it names.
//! Idea: the files on disk say where it is, and the magic there whether that is so.
//! Never: takes a file for what the target runs if the magic is not there.
//! Threads: one.
//! Checked: tests/inspect.rs of the command.
//! Story: docs/design/outside-view.md

use crate::Error;
use crate::elf::{self, Seen};
use crate::header::MAGIC;
use crate::memory::{Area, Kind, Memory};
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Files that are looked at in a target, and that are remembered.
const FILES_MAX: usize = 1 << 12;
/// Bytes that are searched for a target: names and symbols of large programs are a tenth of that.
const SYMBOLS_MAX: u64 = 1 << 32;

/// A copy of cairn in a target.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    /// Where its header is.
    pub(crate) at: u64,
    /// Where the file's first byte is.
    pub(crate) base: u64,
    /// The file that it is part of.
    pub(crate) path: PathBuf,
}

/// What a search of a target's files has brought.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Copies, by what the files say until they are confirmed.
    pub(crate) copies: Vec<Copy>,
    /// Files that could not be read, or are not those that the target runs.
    pub(crate) missing: Vec<String>,
}

/// Looks for cairn in all files that a target runs code of; `place` says where they are here, by their names and where
/// their first area is.
pub(crate) fn find(
    files: &mut Files,
    areas: &[Area],
    place: impl Fn(&Path, &Range<u64>) -> PathBuf,
) -> Found {
    let (mut found, mut left) = (Found::default(), SYMBOLS_MAX);
    for (range, path) in with_code(areas).into_iter().take(FILES_MAX) {
        let base = range.start;
        match files.look(&place(&path, &range), &mut left) {
            None => found.missing.push(shown(&path)),
            Some(Some(offset)) => {
                found.copies.push(Copy { at: base.wrapping_add(offset), base, path });
            }
            Some(None) => {}
        }
    }
    found
}

impl Found {
    /// Leaves the copies whose header is where the files say.
    pub(crate) fn confirm(&mut self, memory: &dyn Memory) {
        let is_there = |copy: &Copy| {
            let mut magic = [0; MAGIC.len()];
            memory.read(copy.at, &mut magic) && magic == MAGIC
        };
        let (there, others) = std::mem::take(&mut self.copies).into_iter().partition(is_there);
        self.copies = there;
        self.missing.extend(others.into_iter().map(|copy: Copy| shown(&copy.path)));
    }

    /// Why there is no copy.
    pub(crate) fn nothing(self) -> Error {
        Error::NoCairn { missing: self.missing }
    }
}

/// What files say, by what the system knows them by: a file is read once.
#[derive(Debug, Default)]
pub(crate) struct Files(HashMap<[u64; 5], Seen>);

impl Files {
    fn look(&mut self, path: &Path, left: &mut u64) -> Option<Seen> {
        let known = path.metadata().ok()?;
        let times = [known.mtime(), known.mtime_nsec()].map(i64::cast_unsigned);
        let key = [known.dev(), known.ino(), known.len(), times[0], times[1]];
        if let Some(seen) = self.0.get(&key) {
            return Some(*seen);
        }
        let seen = elf::look(&open(path)?, left)?;
        if self.0.len() >= FILES_MAX {
            self.0.clear();
        }
        self.0.insert(key, seen);
        Some(seen)
    }
}

/// A path as text, as far as it is some.
pub(crate) fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The files with code, and where the first area of each is.
fn with_code(areas: &[Area]) -> Vec<(Range<u64>, PathBuf)> {
    let mut files: Vec<(Range<u64>, &Path, bool)> = Vec::new();
    for area in areas.iter().filter(|area| area.kind == Kind::File) {
        let Some(path) = area.path.as_deref() else { continue };
        let is_new = files.last().is_none_or(|last| last.1 != path);
        if area.offset == 0 && is_new {
            files.push((area.range.clone(), path, false));
        }
        if let Some(last) = files.last_mut().filter(|last| last.1 == path) {
            last.2 |= area.runs;
        }
    }
    let with_code = files.into_iter().filter(|file| file.2);
    with_code.map(|(range, path, _)| (range, path.to_owned())).collect()
}

/// Opens a file that the target names. To open another kind of file may wait, or do something.
pub(crate) fn open(path: &Path) -> Option<File> {
    path.metadata().ok().filter(Metadata::is_file)?;
    // It may be another one by now: a pipe does not wait for its other end.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().is_ok_and(|known| known.is_file()).then_some(file)
}
