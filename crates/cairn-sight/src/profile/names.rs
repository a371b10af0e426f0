//! Names of functions, and the lines of source, by addresses.
//!
//! Owns: the files in which names are looked up, each opened once.
//! Idea: an address is a place in a file, and that is an address of the file's own.
//! Never: opens what is no ordinary file: a path may lead to anything; takes a name from another build than the process has run.

use super::debug::{Debug, Room};
use super::{HeapProfile, Mapping, path};
use crate::{process, symbol};
use object::elf::FileHeader64;
use object::read::elf::ElfFile;
use object::{Endianness, Object, ObjectSegment, ReadCache};
use std::borrow::Cow;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A function that has called, or is inlined into one that has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Its name; of an unknown one, its place in the file, or the address.
    pub function: String,
    /// The file of its source, or nothing.
    pub source: String,
    /// The line there, or 0.
    pub line: u64,
}

/// What is known of a file.
struct Code {
    debug: Option<Debug>,
    /// Of each segment: its place in the file, its length there, and its address.
    segments: Vec<[u64; 3]>,
    build_id: String,
    is: Known,
}

/// Whether a file is the one that the process has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// It is.
    Same,
    /// It may be another: the profile does not say which build it was, and the file's number on its device is another.
    Doubtful,
    /// It is another build.
    Other,
}

/// What names are looked up in.
#[derive(Default)]
pub struct Names {
    files: HashMap<PathBuf, Option<Code>>,
    known: HashMap<u64, Vec<Frame>>,
    room: Room,
}

impl Names {
    /// None looked up yet.
    #[must_use]
    pub fn new() -> Names {
        Names::default()
    }

    /// The functions at a call that goes back to an address, the innermost first: there is one, and those it is inlined into.
    pub fn frames(&mut self, profile: &HeapProfile, back: u64) -> &[Frame] {
        if !self.known.contains_key(&back) {
            let frames = self.find(profile, back);
            self.known.insert(back, frames);
        }
        self.known.get(&back).map_or(&[], Vec::as_slice)
    }

    fn find(&mut self, profile: &HeapProfile, back: u64) -> Vec<Frame> {
        // The call is in front of where it goes back to.
        let call = back.wrapping_sub(1);
        let mapping = profile.mapping(call).map(|(_, mapping)| mapping);
        let mapping = mapping.filter(|mapping| !mapping.path.as_os_str().is_empty());
        let place = |of: &Mapping| (call - of.start).wrapping_add(of.offset);
        if let Some(mapping) = mapping
            && let Some(code) = self.code(profile, mapping)
            && let Some(found) = code.frames(place(mapping))
            && !found.is_empty()
        {
            return found;
        }
        // Code that was made while the process ran.
        if let Some((_, _, name)) = profile.perf_map.function(call) {
            return vec![Frame { function: name.to_owned(), source: String::new(), line: 0 }];
        }
        let place = mapping.map_or(back, |mapping| place(mapping).wrapping_add(1));
        vec![unknown(mapping.map(|mapping| mapping.path.to_string_lossy()), place)]
    }

    fn code(&mut self, profile: &HeapProfile, mapping: &Mapping) -> Option<&Code> {
        let open = || {
            let build = profile.builds.get(&mapping.path);
            let area = &(mapping.start..mapping.end);
            let as_it_sees = profile.pid.map(|pid| process::file(pid, &mapping.path, area));
            let mut open = |path: PathBuf| Code::open(&path, mapping, build, &mut self.room);
            as_it_sees.and_then(&mut open).or_else(|| open(here(mapping, build)))
        };
        self.files.entry(mapping.path.clone()).or_insert_with(open).as_ref()
    }

    /// The number by which builds of a file are told apart, or nothing.
    pub fn build_id<'a>(&'a mut self, profile: &'a HeapProfile, mapping: &Mapping) -> &'a str {
        match profile.builds.get(&mapping.path) {
            Some(build) => build,
            None => self.code(profile, mapping).map_or("", |code| &code.build_id),
        }
    }

    /// Files that may not be those that the process has run, as far as names have been looked up in them.
    #[must_use]
    pub fn doubtful(&self) -> Vec<&Path> {
        self.paths(|code| code.is_some_and(|code| code.is == Known::Doubtful))
    }

    /// Files that are other builds than the process has run, or are not there: no names come from them.
    #[must_use]
    pub fn replaced(&self) -> Vec<&Path> {
        self.paths(|code| code.is_none_or(|code| code.is == Known::Other))
    }

    fn paths(&self, is: impl Fn(Option<&Code>) -> bool) -> Vec<&Path> {
        let is = |code: &Option<Code>| is(code.as_ref());
        let files = self.files.iter().filter(|(path, code)| path.is_absolute() && is(code));
        let mut paths: Vec<_> = files.map(|(path, _)| path.as_path()).collect();
        paths.sort_unstable();
        paths
    }
}

/// Where the file of a mapping is by its name.
fn here(mapping: &Mapping, build: Option<&str>) -> PathBuf {
    // The system says so of a file that has no name any more: the same build may lie there again.
    let name = mapping.path.as_os_str().as_encoded_bytes();
    match build.and_then(|_| name.strip_suffix(b" (deleted)")) {
        Some(name) => path(name).to_owned(),
        None => mapping.path.clone(),
    }
}

fn unknown(path: Option<Cow<'_, str>>, place: u64) -> Frame {
    let file = path.as_ref().and_then(|path| path.rsplit('/').next()).unwrap_or("");
    let function =
        if file.is_empty() { format!("{place:#x}") } else { format!("{file}+{place:#x}") };
    Frame { function, source: String::new(), line: 0 }
}

impl Code {
    /// Opens the file of a mapping, or one like it; `build` is the number of what the process has run, where it is known.
    fn open(path: &Path, mapping: &Mapping, build: Option<&str>, room: &mut Room) -> Option<Code> {
        let file = symbol::open(path)?;
        let inode = file.metadata().ok()?.ino();
        let cache = ReadCache::new(&file);
        let elf = ElfFile::<FileHeader64<Endianness>, _>::parse(&cache).ok()?;
        let segment = |segment: object::read::elf::ElfSegment64<'_, '_, _, _>| {
            let (offset, bytes) = segment.file_range();
            [offset, bytes, segment.address()]
        };
        let hex = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect();
        let build_id: String = elf.build_id().ok().flatten().map(hex).unwrap_or_default();
        let is = match build {
            Some(build) if build == build_id => Known::Same,
            Some(_) => Known::Other,
            None if mapping.inode != 0 && inode != mapping.inode => Known::Doubtful,
            None => Known::Same,
        };
        Some(Code {
            debug: if is == Known::Other { None } else { Debug::of(&file, path, room) },
            segments: elf.segments().map(segment).collect(),
            build_id,
            is,
        })
    }

    /// The functions at a place in the file.
    fn frames(&self, place: u64) -> Option<Vec<Frame>> {
        let debug = self.debug.as_ref()?;
        let is_in = |[offset, bytes, _]: &&[u64; 3]| place.wrapping_sub(*offset) < *bytes;
        let [offset, _, start] = self.segments.iter().find(is_in)?;
        debug.frames(start.wrapping_add(place - offset))
    }
}
