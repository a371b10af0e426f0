//! Owns: a core file: what of a process's memory is in it, and which files the process had mapped.
//! Idea: a core answers as a process does. What is not in the file is not resident, and holes of the file are not in it.
//!   Of what was mapped of other files, kernels write what has been changed: the rest is read there.
//! Never: believes that a segment is where it says: all of them together are no longer than the file.
//! Threads: one.
//! Checked: tests/inspect.rs and tests/hostile.rs of the command.
//! Story: docs/design/outside-view.md

use crate::Error;
use crate::memory::{Area, Kind, Memory, overlapping, u32_at, u64_at};
use crate::process::Registers;
use crate::symbol;
use object::elf::{
    FileHeader64, NT_AUXV, NT_FILE, NT_PRFPREG, NT_PRSTATUS, NT_X86_XSTATE, PT_LOAD, PT_NOTE,
    ProgramHeader64,
};
use object::read::elf::{FileHeader, NoteIterator, ProgramHeader};
use object::read::{ReadCache, ReadRef};
use object::{Endian, Endianness};
use rustix::fs::SeekFrom;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Segments and mapped files at most: the kernel allows a process 65,530 mappings, unless it is told otherwise.
const AREAS_MAX: usize = 1 << 18;
/// Bytes of notes at most: each thread has some.
const NOTES_MAX: u64 = 1 << 28;
const AT_PAGESZ: u64 = 6;
const AT_EXECFN: u64 = 31;
/// Where a note of a thread has its number.
const THREAD_NUMBER: usize = 32;
/// Where it has registers, and which of them is the end of the stack.
const REGISTERS: usize = 112;
const STACK: usize = if cfg!(target_arch = "aarch64") { 31 } else { 19 };

/// Part of the target's memory, and where it is in the file.
struct Segment {
    range: Range<u64>,
    offset: u64,
}

/// A core file.
pub(crate) struct Core {
    file: File,
    segments: Vec<Segment>,
    areas: Vec<Area>,
    page: u64,
    /// That the file is shorter than it says.
    pub(crate) cut_off: Option<Error>,
    /// The numbers of its threads.
    pub(crate) threads: BTreeSet<u32>,
    /// And what was in their registers.
    pub(crate) registers: Registers,
    /// Mapped files, as far as they have been read.
    mapped: RefCell<BTreeMap<PathBuf, Option<File>>>,
}

/// What the notes tell.
#[derive(Default)]
struct Notes {
    page: Option<u64>,
    threads: BTreeSet<u32>,
    registers: Registers,
    /// An address on the stack of the first thread.
    stack: Option<u64>,
    files: Vec<(Range<u64>, u64, PathBuf)>,
}

type Header = FileHeader64<Endianness>;

impl Core {
    /// Reads what a file tells of itself.
    pub(crate) fn open(path: &Path) -> Result<Core, Error> {
        let name = path.display().to_string();
        let failed =
            |error: std::io::Error| Error::File { path: name.clone(), why: error.to_string() };
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let contents = ReadCache::new(file.try_clone().map_err(failed)?);
        let damaged = |_| Error::NoCore(name.clone());
        let header = Header::parse(&contents).map_err(damaged)?;
        let endian = header.endian().map_err(damaged)?;
        let is_core = header.e_type(endian) == object::elf::ET_CORE;
        if !is_core || endian.is_little_endian() != cfg!(target_endian = "little") {
            return Err(Error::NoCore(name.clone()));
        }
        let headers = header.e_phoff(endian).saturating_add(
            u64::from(header.e_phentsize(endian)) * u64::from(header.e_phnum(endian)),
        );
        if headers > length {
            return Err(Error::CutOff { there: length, whole: headers });
        }
        let headers = header.program_headers(endian, &contents).map_err(damaged)?;
        let (segments, areas, threads, registers, mapped) = Default::default();
        let cut_off = cut_off(endian, headers, length);
        let mut core =
            Core { file, segments, areas, page: 4096, cut_off, threads, registers, mapped };
        core.add_segments(endian, headers, length)?;
        let notes = notes(endian, headers, &contents);
        core.page = notes.page.filter(|page| (4096..=1 << 16).contains(page)).unwrap_or(4096);
        core.name_files(&notes.files);
        core.name_stack(notes.stack);
        (core.threads, core.registers) = (notes.threads, notes.registers);
        core.count_resident();
        Ok(core)
    }

    /// Why something is not found in it, if that is an error which it can be the reason of.
    pub(crate) fn reason(&self, error: Error) -> Error {
        match (&self.cut_off, error) {
            (Some(cut_off), Error::Damaged(_) | Error::NoCairn { .. }) => cut_off.clone(),
            (_, error) => error,
        }
    }

    fn add_segments(
        &mut self,
        endian: Endianness,
        headers: &[ProgramHeader64<Endianness>],
        length: u64,
    ) -> Result<(), Error> {
        let mut all = 0_u64;
        for header in headers.iter().filter(|header| header.p_type(endian) == PT_LOAD) {
            let (start, bytes) = (header.p_vaddr(endian), header.p_memsz(endian));
            let offset = header.p_offset(endian);
            let Some(end) = start.checked_add(bytes) else { continue };
            // A file that is cut off has the first part of it.
            let there = header.p_filesz(endian).min(bytes).min(length.saturating_sub(offset));
            all += there;
            if all > length || self.areas.len() >= AREAS_MAX {
                return Err(Error::Damaged("its segments overlap"));
            }
            self.segments.push(Segment { range: start..start + there, offset });
            self.areas.push(Area {
                range: start..end,
                kind: Kind::Anonymous,
                path: None,
                offset: 0,
                reads: header.p_flags(endian).contains(object::elf::PF_R),
                runs: header.p_flags(endian).contains(object::elf::PF_X),
                writes: header.p_flags(endian).contains(object::elf::PF_W),
                shared: false,
                resident: 0,
                swapped: 0,
                huge: 0,
                hugetlb: 0,
            });
        }
        self.segments.sort_by_key(|segment| segment.range.start);
        self.areas.sort_by_key(|area| area.range.start);
        let apart = |areas: &[Area]| areas[0].range.end <= areas[1].range.start;
        if !self.areas.windows(2).all(apart) {
            return Err(Error::Damaged("its segments overlap"));
        }
        Ok(())
    }

    fn name_files(&mut self, files: &[(Range<u64>, u64, PathBuf)]) {
        for (range, offset, path) in files {
            let first = self.areas.partition_point(|area| area.range.end <= range.start);
            if let Some(area) = self.areas.get_mut(first)
                && area.range.start == range.start
            {
                (area.kind, area.path, area.offset) = (Kind::File, Some(path.clone()), *offset);
            }
        }
    }

    fn name_stack(&mut self, at: Option<u64>) {
        let first = |at| self.areas.partition_point(|area| area.range.end <= at);
        if let Some((nth, at)) = at.map(|at| (first(at), at))
            && let Some(area) = self.areas.get_mut(nth)
            && area.range.contains(&at)
            && area.kind == Kind::Anonymous
        {
            area.kind = Kind::Stack;
        }
    }

    fn count_resident(&mut self) {
        for nth in 0..self.areas.len() {
            let area = self.areas[nth].clone();
            let mut pages = 0;
            let count = (area.range.end - area.range.start) / self.page;
            self.look(area.range.start, count, &area, &mut |_| pages += 1);
            self.areas[nth].resident = pages * self.page;
        }
    }

    /// The first part of the file in a range that is in no hole. A file system that cannot say has none.
    fn data(&self, from: u64, end: u64) -> Option<Range<u64>> {
        let first = match rustix::fs::seek(&self.file, SeekFrom::Data(from)) {
            Ok(first) => first,
            Err(rustix::io::Errno::NXIO) => return None,
            Err(_) => return (from < end).then_some(from..end),
        };
        let hole = rustix::fs::seek(&self.file, SeekFrom::Hole(first));
        let last = hole.unwrap_or(end).min(end);
        (first < last).then_some(first..last)
    }

    /// Reads what was mapped of another file, and is not in this one.
    fn read_mapped(&self, area: &Area, at: u64, into: &mut [u8]) -> bool {
        let Some(path) = &area.path else { return false };
        let mut mapped = self.mapped.borrow_mut();
        let file = mapped.entry(path.clone()).or_insert_with(|| symbol::open(path));
        let place = area.offset.checked_add(at - area.range.start);
        file.as_ref().zip(place).is_some_and(|(file, at)| file.read_exact_at(into, at).is_ok())
    }

    fn segment(&self, at: u64) -> Option<&Segment> {
        let nth = self.segments.partition_point(|segment| segment.range.end <= at);
        self.segments.get(nth).filter(|segment| segment.range.start <= at)
    }
}

/// Whether a file of so many bytes ends before its segments do.
fn cut_off(
    endian: Endianness,
    headers: &[ProgramHeader64<Endianness>],
    there: u64,
) -> Option<Error> {
    let ends = headers
        .iter()
        .map(|header| header.p_offset(endian).saturating_add(header.p_filesz(endian)));
    let whole = ends.max().filter(|&whole| whole > there)?;
    Some(Error::CutOff { there, whole })
}

impl Memory for Core {
    fn read(&self, mut at: u64, mut into: &mut [u8]) -> bool {
        while !into.is_empty() {
            let segment = self.segment(at);
            let Some(area) = overlapping(&self.areas, &(at..at.saturating_add(1))).next() else {
                return false;
            };
            let end = segment.map_or(area.range.end, |segment| segment.range.end);
            let room = (end - at).min(into.len() as u64);
            let (now, rest) = into.split_at_mut(room as usize);
            let read = match segment {
                Some(segment) => {
                    let offset = segment.offset + (at - segment.range.start);
                    self.file.read_exact_at(now, offset).is_ok()
                }
                None => self.read_mapped(area, at, now),
            };
            if !read {
                return false;
            }
            at += room;
            into = rest;
        }
        true
    }

    fn words(&self, places: &[u64]) -> Vec<u64> {
        places.iter().map(|&at| self.number(at).unwrap_or(0)).collect()
    }

    fn backed(&self, area: &Area) -> Range<u64> {
        let segment = self.segment(area.range.start);
        segment.map_or(0..0, |segment| segment.range.clone())
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn page(&self) -> u64 {
        self.page
    }

    fn look(&self, from: u64, count: u64, area: &Area, mark: &mut dyn FnMut(u64)) {
        let Some(segment) = self.segment(from).filter(|_| overlaps(area, from)) else { return };
        let end = (from + count * self.page).min(segment.range.end);
        let place = |at: u64| segment.offset + (at - segment.range.start);
        let (mut at, last) = (place(from), place(end));
        // A page that has a part in the file is in it.
        let mut next = from;
        while let Some(data) = self.data(at, last) {
            let first = (data.start - place(from)) / self.page * self.page + from;
            let behind = from + (data.end - place(from));
            next = next.max(first);
            while next < behind {
                mark(next);
                next += self.page;
            }
            at = data.end;
        }
    }
}

fn overlaps(area: &Area, at: u64) -> bool {
    overlapping(std::slice::from_ref(area), &(at..at + 1)).next().is_some()
}

fn notes<'data, R: ReadRef<'data>>(
    endian: Endianness,
    headers: &[ProgramHeader64<Endianness>],
    contents: R,
) -> Notes {
    let mut found = Notes::default();
    let headers = headers
        .iter()
        .filter(|header| header.p_type(endian) == PT_NOTE && header.p_filesz(endian) <= NOTES_MAX);
    for header in headers {
        let align = header.p_align(endian);
        let Ok(bytes) = contents.read_bytes_at(header.p_offset(endian), header.p_filesz(endian))
        else {
            continue;
        };
        let Ok(mut notes) = NoteIterator::<Header>::new(endian, align, bytes) else { continue };
        while let Ok(Some(note)) = notes.next() {
            match note.n_type(endian) {
                NT_FILE => found.files = files(note.desc()),
                NT_PRSTATUS => {
                    found.threads.insert(u32_at(note.desc(), THREAD_NUMBER));
                    let registers = note.desc().get(REGISTERS..).unwrap_or_default();
                    found.registers.words.extend(words(registers));
                    found.registers.stacks.push(u64_at(registers, 8 * STACK));
                }
                NT_PRFPREG | NT_X86_XSTATE => found.registers.words.extend(words(note.desc())),
                NT_AUXV => {
                    found.page = auxiliary(note.desc(), AT_PAGESZ);
                    found.stack = auxiliary(note.desc(), AT_EXECFN);
                }
                _ => {}
            }
        }
    }
    found
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|word| u64_at(word, 0))
}

/// A value of the auxiliary vector.
fn auxiliary(bytes: &[u8], key: u64) -> Option<u64> {
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
    let pair = bytes.chunks_exact(16).find(|pair| number(&pair[..8]) == key)?;
    Some(number(&pair[8..]))
}

/// The files of the note: a count, the bytes of a page, (start, end, page of the file) of each, their names.
fn files(bytes: &[u8]) -> Vec<(Range<u64>, u64, PathBuf)> {
    let number = |nth: usize| crate::memory::u64_at(bytes, nth * 8);
    let count = usize::try_from(number(0)).unwrap_or(usize::MAX).min(bytes.len() / 24);
    let names = bytes.get(16 + count * 24..).unwrap_or_default().split(|&byte| byte == 0);
    let entry = |(nth, name): (usize, &[u8])| {
        let at = 2 + 3 * nth;
        let path = PathBuf::from(OsStr::from_bytes(name));
        (number(at)..number(at + 1), number(at + 2).wrapping_mul(number(1)), path)
    };
    names.take(count).enumerate().map(entry).filter(|(range, ..)| range.start < range.end).collect()
}
