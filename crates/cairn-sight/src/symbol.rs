//! Owns: the way to the header: the symbol `cairn_header` of the files that a target runs code of.
//! Idea: the symbol tables of the files on disk say where it is, and the magic there whether that is so.
//! Never: takes a file for what the target runs if the magic is not there.
//! Threads: one.
//! Checked: tests/inspect.rs of the command.
//! Story: docs/design/outside-view.md

use crate::Error;
use crate::header::MAGIC;
use crate::memory::{Area, Kind, Memory};
use object::elf::FileHeader64;
use object::read::elf::ElfFile;
use object::{Endianness, Object, ObjectSegment, ObjectSymbol, ReadCache};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Files that are looked at.
const FILES_MAX: usize = 1 << 12;

/// A copy of cairn in a target.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    /// Where its header is.
    pub(crate) at: u64,
    /// The file that it is part of.
    pub(crate) path: String,
}

/// What a search of a target's files has brought.
pub(crate) struct Found {
    pub(crate) copies: Vec<Copy>,
    /// Files that could not be read, or are not those that the target runs.
    pub(crate) missing: Vec<String>,
    /// Files without any symbols.
    pub(crate) stripped: Vec<String>,
}

/// Looks for cairn in all files that a target runs code of; `place` says where they are here.
pub(crate) fn find(memory: &dyn Memory, place: impl Fn(&str) -> PathBuf) -> Found {
    let mut found = Found { copies: Vec::new(), missing: Vec::new(), stripped: Vec::new() };
    for (base, path) in files(memory.areas()).into_iter().take(FILES_MAX) {
        match look(&place(&path)) {
            None => found.missing.push(path),
            Some(Seen { header: Some(offset), .. }) => {
                let at = base.wrapping_add(offset);
                let mut magic = [0; MAGIC.len()];
                if memory.read(at, &mut magic) && magic == MAGIC {
                    found.copies.push(Copy { at, path });
                } else {
                    found.missing.push(path);
                }
            }
            Some(Seen { has_symbols: false, .. }) => found.stripped.push(path),
            Some(_) => {}
        }
    }
    found
}

impl Found {
    /// Why there is no copy.
    pub(crate) fn nothing(self) -> Error {
        Error::NoCairn { missing: self.missing, stripped: self.stripped }
    }
}

/// The files with code, and where the first byte of each is mapped.
fn files(areas: &[Area]) -> Vec<(u64, String)> {
    let mut files: Vec<(u64, &str, bool)> = Vec::new();
    for area in areas.iter().filter(|area| area.kind == Kind::File) {
        let Some(path) = area.path.as_deref() else { continue };
        let is_new = files.last().is_none_or(|last| last.1 != path);
        if area.offset == 0 && is_new {
            files.push((area.range.start, path, false));
        }
        if let Some(last) = files.last_mut().filter(|last| last.1 == path) {
            last.2 |= area.runs;
        }
    }
    let with_code = files.into_iter().filter(|file| file.2);
    with_code.map(|(base, path, _)| (base, path.to_owned())).collect()
}

/// Opens a file that the target names. To open another kind of file may wait, or do something.
pub(crate) fn open(path: &Path) -> Option<File> {
    path.metadata().is_ok_and(|known| known.is_file()).then(|| File::open(path).ok())?
}

/// What a file says.
struct Seen {
    /// How far behind the file's first byte the header is.
    header: Option<u64>,
    has_symbols: bool,
}

/// None if it is no file of the kind, or cannot be read.
fn look(path: &Path) -> Option<Seen> {
    let contents = ReadCache::new(open(path)?);
    let file = ElfFile::<FileHeader64<Endianness>, _>::parse(&contents).ok()?;
    let first = file.segments().find(|segment| segment.file_range().0 == 0)?;
    let is_header = |name: object::Result<&str>| name == Ok("cairn_header");
    let mut symbols = file.dynamic_symbols().chain(file.symbols());
    let header = symbols.find(|symbol| symbol.is_definition() && is_header(symbol.name()));
    Some(Seen {
        header: header.map(|symbol| symbol.address().wrapping_sub(first.address())),
        has_symbols: file.dynamic_symbols().chain(file.symbols()).next().is_some(),
    })
}
