//! Owns: what a program or library on disk says: where cairn's header is in it.
//! Idea: only names are searched, a piece at a time; a table of symbols is read where a name has been found.
//! Never: holds more of a file than a piece, whatever the file says of itself.
//! Threads: any.
//! Checked: tests here; tests/inspect.rs of the command.
//! Story: docs/design/outside-view.md

use crate::memory::{u16_at, u32_at, u64_at};
use memchr::memmem;
use object::elf::{FileHeader64, PT_LOAD, SHT_DYNSYM, SHT_SYMTAB, SectionHeader64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endian, Endianness, ReadCache};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

type Header = FileHeader64<Endianness>;
type Section = SectionHeader64<Endianness>;

/// A name, and the end of it.
const NAME: &[u8] = b"cairn_header\0";
/// Other names may end with it.
const NAMES_MAX: usize = 16;
const SYMBOL_BYTES: usize = 24;
/// Bytes that are read at once: whole symbols.
const PIECE: usize = SYMBOL_BYTES << 14;
/// Segments and sections at most.
const HEADERS_MAX: u32 = 1 << 16;

/// What a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// How far behind the file's first byte the header is.
    pub(crate) header: Option<u64>,
    pub(crate) has_symbols: bool,
}

/// None if it is no file of the kind, or cannot be read, or has more of names and symbols than are left to read.
pub(crate) fn look(file: &File, left: &mut u64) -> Option<Seen> {
    let contents = ReadCache::new(file.try_clone().ok()?);
    let header = Header::parse(&contents).ok()?;
    let endian = header.endian().ok()?;
    let is_native = endian.is_little_endian() == cfg!(target_endian = "little");
    let count = header.phnum(endian, &contents).ok()?.max(header.shnum(endian, &contents).ok()?);
    if !is_native || count > HEADERS_MAX {
        return None;
    }
    let segments = header.program_headers(endian, &contents).ok()?;
    let is_first = |segment: &&object::elf::ProgramHeader64<Endianness>| {
        segment.p_type(endian) == PT_LOAD && segment.p_offset(endian) == 0
    };
    let first = segments.iter().find(is_first)?.p_vaddr(endian);
    let sections = header.section_headers(endian, &contents).ok()?;
    let tables = sections.iter().filter(|section| {
        [SHT_DYNSYM, SHT_SYMTAB].contains(&section.sh_type(endian)) && section.sh_size(endian) > 0
    });
    let mut seen = Seen { header: None, has_symbols: false };
    for table in tables {
        seen.has_symbols = true;
        let Some(names) = sections.get(table.sh_link(endian) as usize) else { continue };
        let (table, names) = (range(table, endian), range(names, endian));
        let bytes = (table.end - table.start).saturating_add(names.end - names.start);
        *left = left.checked_sub(bytes)?;
        if let Some(address) = symbol(file, table, names) {
            seen.header = Some(address.wrapping_sub(first));
            break;
        }
    }
    Some(seen)
}

fn range(section: &Section, endian: Endianness) -> Range<u64> {
    let start = section.sh_offset(endian);
    start..start.saturating_add(section.sh_size(endian))
}

/// The address of the symbol in a table, by the places of its name.
fn symbol(file: &File, table: Range<u64>, names: Range<u64>) -> Option<u64> {
    let mut places = Vec::new();
    pieces(file, names, NAME.len() - 1, |at, piece| {
        places.extend(memmem::find_iter(piece, NAME).map(|place| at + place as u64));
        places.len() < NAMES_MAX
    });
    if places.is_empty() {
        return None;
    }
    let mut address = None;
    pieces(file, table, 0, |_, piece| {
        let is_it = |symbol: &&[u8]| {
            places.contains(&u64::from(u32_at(symbol, 0))) && u16_at(symbol, 6) != 0
        };
        address = piece.chunks_exact(SYMBOL_BYTES).find(is_it).map(|symbol| u64_at(symbol, 8));
        address.is_none()
    });
    address
}

/// Reads a range in pieces, each with so many bytes of the one before it, until `each` has enough. What it is given
/// first is the piece's place in the range.
fn pieces(file: &File, range: Range<u64>, again: usize, mut each: impl FnMut(u64, &[u8]) -> bool) {
    let mut bytes = vec![0; PIECE];
    let mut at = range.start;
    while at < range.end {
        let count = (range.end - at).min(PIECE as u64) as usize;
        let piece = &mut bytes[..count];
        if file.read_exact_at(piece, at).is_err() || !each(at - range.start, piece) {
            return;
        }
        let is_last = at + count as u64 == range.end;
        at += if is_last { count } else { count - again } as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::{NAME, PIECE, pieces};
    use crate::memory::u64_at;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    const LEFT: u64 = 1 << 30;

    /// A name that lies across two pieces is found once.
    #[test]
    fn pieces_overlap_by_a_name() {
        let mut file = tempfile::tempfile().unwrap();
        let at = PIECE - 5;
        let mut bytes = vec![b'x'; 2 * PIECE + 7];
        bytes[at..at + NAME.len()].copy_from_slice(NAME);
        file.write_all(&bytes).unwrap();
        let (mut found, mut all) = (Vec::new(), 0);
        pieces(&file, 0..bytes.len() as u64, NAME.len() - 1, |at, piece| {
            all += piece.len();
            found.extend(memchr::memmem::find_iter(piece, NAME).map(|place| at as usize + place));
            true
        });
        assert_eq!(found, [at]);
        assert_eq!(all, bytes.len() + 2 * (NAME.len() - 1));
        // Behind the file's end there is nothing.
        pieces(&file, bytes.len() as u64..u64::MAX, 0, |_, _| panic!("a piece"));
    }

    /// Whatever a file says of itself, there is an answer.
    #[test]
    fn damaged_files_do_no_harm() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&program, 0).unwrap();
        let sections = u64_at(&program, 40);
        let places: Vec<u64> = (16..64).chain(64..1000).chain(sections..sections + 2500).collect();
        let mut state = 1_u64;
        for _ in 0..500 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = places[(state >> 33) as usize % places.len()];
            let mut old = [0; 8];
            let count = file.read_at(&mut old, at).unwrap();
            let new = [0, u64::MAX, 1 << (state >> 58), state][(state >> 20) as usize % 4];
            file.write_all_at(&new.to_ne_bytes()[..count], at).unwrap();
            super::look(&file, &mut { LEFT });
            file.write_all_at(&old[..count], at).unwrap();
        }
        let whole = super::look(&file, &mut { LEFT });
        assert!(whole.is_some_and(|seen| seen.has_symbols), "{whole:?}");
    }

    /// A file of a terabyte, of which nothing is on the disk.
    #[test]
    fn a_long_file_takes_no_memory() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&program[..64], 0).unwrap();
        file.set_len(1 << 40).unwrap();
        for (offset, bytes) in [(32_u64, 1_u64 << 39), (40, 1 << 39), (56, u64::MAX)] {
            file.write_all_at(&bytes.to_ne_bytes(), offset).unwrap();
            assert_eq!(super::look(&file, &mut { LEFT }), None);
        }
    }

    #[test]
    fn this_program_has_symbols_and_no_header() {
        let program = std::fs::File::open("/proc/self/exe").unwrap();
        let seen = super::look(&program, &mut { LEFT }).unwrap();
        assert!(seen.has_symbols && seen.header.is_none(), "{seen:?}");
    }
}
