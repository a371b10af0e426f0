//! What a file says of its addresses: its debug information, and its symbols.
//!
//! Owns: the bytes of the file and of the package beside it, each opened once, and what is made of them.
//! Idea: who understands debug information gets bytes, and opens nothing.
//! Never: goes on in files that debug information names: a path may lead to anything.
//! Threads: one.
//! Checked: tests/profile.rs of the command.
//! Story: docs/guide/profile.md

use super::Frame;
use crate::symbol;
use addr2line::gimli::{self, AbbreviationsCacheStrategy, Dwarf, DwarfPackage};
use addr2line::gimli::{EndianSlice, RunTimeEndian};
use addr2line::{Context, LookupContinuation, LookupResult, SplitDwarfLoad};
use memmap2::Mmap;
use object::elf::FileHeader64;
use object::read::elf::ElfFile;
use object::{CompressionFormat, Endianness, Object, ObjectSection, SymbolMap, SymbolMapName};
use std::borrow::Cow;
use std::fs::File;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::slice;
use std::sync::Arc;

/// Bytes of all files that are read as a whole. What is beyond is mapped: as much of it is resident as is looked at, but whoever
/// cuts such a file off meanwhile ends this process.
const READ_MAX: u64 = 128 << 20;
/// Bytes of all sections that are unpacked.
const UNPACKED_MAX: u64 = 1 << 32;

/// What may be kept in memory still.
pub(super) struct Room {
    read: u64,
    unpacked: u64,
}

impl Default for Room {
    fn default() -> Room {
        Room { read: READ_MAX, unpacked: UNPACKED_MAX }
    }
}

/// Takes so many from what is left, if there are as many.
fn take(left: &mut u64, bytes: u64) -> Option<()> {
    *left = left.checked_sub(bytes)?;
    Some(())
}

type Elf = ElfFile<'static, FileHeader64<Endianness>>;
/// A section. It is there as long as the [`Kept`] that it is made of.
type Part = EndianSlice<'static, RunTimeEndian>;

/// What is known of the addresses of a file.
pub(super) struct Debug {
    context: Option<Context<Part>>,
    package: Option<DwarfPackage<Part>>,
    symbols: SymbolMap<SymbolMapName<'static>>,
    /// The last to be dropped: the others refer to it.
    _kept: Kept,
}

impl Debug {
    /// Reads a file, and the package beside its path. None if it is no program.
    pub(super) fn of(file: &File, path: &Path, room: &mut Room) -> Option<Debug> {
        let mut kept = Kept::default();
        let elf = kept.elf(file, room)?;
        let symbols = elf.symbol_map();
        let context = kept.context(&elf, room);
        let mut beside = path.as_os_str().to_owned();
        beside.push(".dwp");
        let package = symbol::open(Path::new(&beside)).and_then(|file| kept.package(&file, room));
        Some(Debug { context, package, symbols, _kept: kept })
    }

    /// The functions at an address, the innermost first; None if nothing is known of it.
    pub(super) fn frames(&self, address: u64) -> Option<Vec<Frame>> {
        let found = self.described(address).unwrap_or_default();
        let (named, nameless): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|frame| !frame.function.is_empty());
        if !named.is_empty() {
            return Some(named);
        }
        // A copy first: in a mapping it may be another one by now than when it was looked at.
        let name = self.symbols.containing(address)?.name().as_bytes().to_vec();
        let name = String::from_utf8_lossy(&name);
        let function = readable(name, None);
        // Its line is known without its name where another file describes it.
        let place = nameless.into_iter().next().map(|frame| (frame.source, frame.line));
        let (source, line) = place.unwrap_or_default();
        Some(vec![Frame { function, source, line }])
    }

    /// Those that debug information describes, with or without a name.
    fn described(&self, address: u64) -> Option<Vec<Frame>> {
        let mut lookup = self.context.as_ref()?.find_frames(address);
        let mut found = loop {
            match lookup {
                LookupResult::Output(found) => break found.ok()?,
                LookupResult::Load { load, continuation } => {
                    lookup = continuation.resume(self.in_package(&load));
                }
            }
        };
        let mut frames = Vec::new();
        while let Ok(Some(frame)) = found.next() {
            let name = frame
                .function
                .as_ref()
                .and_then(|name| name.raw_name().ok().map(|raw| readable(raw, name.language)));
            let (source, line) = frame.location.map_or(("", 0), |location| {
                (location.file.unwrap_or(""), location.line.unwrap_or(0))
            });
            let function = name.unwrap_or_default();
            frames.push(Frame { function, source: source.to_owned(), line: line.into() });
        }
        Some(frames)
    }

    /// What the file only refers to.
    fn in_package(&self, wanted: &SplitDwarfLoad<Part>) -> Option<Arc<Dwarf<Part>>> {
        let unit = self.package.as_ref()?.find_cu(wanted.dwo_id, &wanted.parent).ok()?;
        unit.map(Arc::new)
    }
}

/// How the names begin that C++'s and Rust's compilers make.
const MADE: [&str; 7] = ["_Z", "__Z", "___Z", "____Z", "_GLOBAL_", "_R", "__R"];

/// A function's name as its source has it. Without such a beginning it is the source's own: who reads made names takes types,
/// too, and `f` is one for `float`.
fn readable(name: Cow<'_, str>, language: Option<gimli::DwLang>) -> String {
    match MADE.iter().any(|begin| name.starts_with(begin)) {
        true => addr2line::demangle_auto(name, language).into_owned(),
        false => name.into_owned(),
    }
}

/// Bytes to which others refer.
#[derive(Default)]
struct Kept(Vec<Bytes>);

impl Kept {
    /// Keeps bytes, and lends them for as long as they are kept. Nothing that is made of them may be there longer.
    fn lend(&mut self, bytes: Bytes) -> &'static [u8] {
        let (start, length) = (bytes.as_ptr(), bytes.len());
        self.0.push(bytes);
        // SAFETY: they are on the heap or in a mapping, and stay where they are when their owner moves. Nobody here writes them,
        // and `Debug` drops them behind all that refers to them and hands out copies alone.
        unsafe { slice::from_raw_parts(start, length) }
    }

    fn elf(&mut self, file: &File, room: &mut Room) -> Option<Elf> {
        Elf::parse(self.lend(Bytes::of(file, room)?)).ok()
    }

    /// The debug information in a file.
    fn context(&mut self, elf: &Elf, room: &mut Room) -> Option<Context<Part>> {
        let load = |id: gimli::SectionId| Ok(self.section(elf, Some(id.name()), room));
        let mut dwarf = Dwarf::load::<_, gimli::Error>(load).ok()?;
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        Context::from_dwarf(dwarf).ok()
    }

    /// The debug information in a package.
    fn package(&mut self, file: &File, room: &mut Room) -> Option<DwarfPackage<Part>> {
        let elf = self.elf(file, room)?;
        let nothing = self.section(&elf, None, room);
        let load = |id: gimli::SectionId| Ok(self.section(&elf, id.dwo_name(), room));
        DwarfPackage::load::<_, gimli::Error>(load, nothing).ok()
    }

    /// A section, unpacked; nothing if there is none, or it cannot be.
    fn section(&mut self, elf: &Elf, name: Option<&str>, room: &mut Room) -> Part {
        let read = |name: &str| {
            let data = elf.section_by_name(name)?.compressed_data().ok()?;
            if data.format != CompressionFormat::None {
                take(&mut room.unpacked, data.uncompressed_size)?;
            }
            data.decompress().ok()
        };
        let bytes = match name.and_then(read).unwrap_or_default() {
            Cow::Borrowed(bytes) => bytes,
            Cow::Owned(bytes) => self.lend(Bytes::Read(bytes)),
        };
        let endian = match elf.endian() {
            Endianness::Little => RunTimeEndian::Little,
            Endianness::Big => RunTimeEndian::Big,
        };
        EndianSlice::new(bytes, endian)
    }
}

/// The bytes of a file, or of a part that was packed.
enum Bytes {
    Read(Vec<u8>),
    Mapped(Mmap),
}

impl Bytes {
    fn of(file: &File, room: &mut Room) -> Option<Bytes> {
        let length = file.metadata().ok()?.len();
        if take(&mut room.read, length).is_none() {
            // SAFETY: whoever writes into the file changes what is read; nobody relies on it being the same twice: names are copied
            // before they count as text.
            return unsafe { Mmap::map(file) }.ok().map(Bytes::Mapped);
        }
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, 0).ok()?;
        Some(Bytes::Read(bytes))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Read(bytes) => bytes,
            Bytes::Mapped(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::readable;
    use addr2line::gimli;

    #[test]
    fn names_that_compilers_make_are_made_readable() {
        for (name, expected) in [
            ("_Z1fi", "f(int)"),
            ("__Z1fi", "f(int)"),
            ("_ZN5fills1fE", "fills::f"),
            ("_RNvC5fills1f", "fills::f"),
            ("__RNvC5fills1f", "fills::f"),
        ] {
            assert_eq!(readable(name.into(), None), expected, "{name}");
        }
    }

    /// Of C's, and of C++'s with `extern "C"`: some are types' names to who makes names readable.
    #[test]
    fn other_names_stay() {
        for name in ["f", "v", "i", "Pc", "St", "5fills", "main", "", "_R", "_Z", "R", "ZN1fE"] {
            for language in [None, Some(gimli::DW_LANG_C_plus_plus), Some(gimli::DW_LANG_Rust)] {
                assert_eq!(readable(name.into(), language), name);
            }
        }
    }
}
