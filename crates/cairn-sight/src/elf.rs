//! Owns: what a program or library on disk says: where cairn's header is in it.
//! Idea: only names are searched, a piece at a time; a table of symbols is read where a name has been found. Where `strip` has
//!   taken the names, the header's first bytes are searched among the constants that have addresses in them.
//! Never: holds more of a file than a piece, whatever the file says of itself.
//! Threads: any.
//! Checked: tests here; tests/inspect.rs of the command.
//! Story: docs/design/outside-view.md

use crate::header::MAGIC;
use crate::memory::{u16_at, u32_at, u64_at};
use memchr::memmem;
use object::elf::{
    ET_EXEC, FileHeader64, PF_W, PT_LOAD, ProgramHeader64, SHT_DYNSYM, SHT_SYMTAB, SectionHeader64,
};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endian, Endianness, ReadCache};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

type Header = FileHeader64<Endianness>;
type Section = SectionHeader64<Endianness>;
type Segment = ProgramHeader64<Endianness>;

/// A name, and the end of it.
const NAME: &[u8] = b"cairn_header\0";
/// Other names may end with it.
const NAMES_MAX: usize = 16;
const SYMBOL_BYTES: usize = 24;
/// Bytes that are read at once: whole symbols.
const PIECE: usize = SYMBOL_BYTES << 14;
/// Segments and sections at most.
const HEADERS_MAX: u32 = 1 << 16;

/// How far behind the file's first byte the header is, if it is there.
pub(crate) type Seen = Option<u64>;

/// None if it is no file of the kind, or cannot be read, or has more to search than is left to read.
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
    let is_first =
        |segment: &&Segment| segment.p_type(endian) == PT_LOAD && segment.p_offset(endian) == 0;
    let first = segments.iter().find(is_first)?.p_vaddr(endian);
    let sections = header.section_headers(endian, &contents).ok()?;
    let mut is_stripped = true;
    for table in sections.iter().filter(|section| section.sh_size(endian) > 0) {
        let kind = table.sh_type(endian);
        let names = sections.get(table.sh_link(endian) as usize);
        let (SHT_DYNSYM | SHT_SYMTAB, Some(names)) = (kind, names) else { continue };
        is_stripped &= kind == SHT_DYNSYM;
        let (table, names) = (range(table, endian), range(names, endian));
        take(left, &table)?;
        take(left, &names)?;
        if let Some(address) = symbol(file, table, names) {
            return Some(Some(address.wrapping_sub(first)));
        }
    }
    // Constants with addresses in them lie where the loader can write, if it moves the file.
    let is_moved = header.e_type(endian) != ET_EXEC;
    for segment in segments.iter().filter(|segment| segment.p_type(endian) == PT_LOAD) {
        if is_stripped && (segment.p_flags(endian).contains(PF_W) || !is_moved) {
            let (start, bytes) = segment.file_range(endian);
            let range = start..start.saturating_add(bytes);
            take(left, &range)?;
            if let Some(place) = constant(file, range) {
                let address = segment.p_vaddr(endian).wrapping_add(place);
                return Some(Some(address.wrapping_sub(first)));
            }
        }
    }
    Some(None)
}

/// Takes what a range has of bytes.
fn take(left: &mut u64, range: &Range<u64>) -> Option<()> {
    *left = left.checked_sub(range.end - range.start)?;
    Some(())
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

/// The place of a header in a range. Others may have the magic alone: its version follows, a small number.
fn constant(file: &File, range: Range<u64>) -> Option<u64> {
    let mut found = None;
    pieces(file, range, MAGIC.len() + 4, |at, piece| {
        let is_it = |&place: &usize| (1..1 << 16).contains(&u32_at(piece, place + MAGIC.len()));
        found = memmem::find_iter(piece, &MAGIC).find(is_it).map(|place| at + place as u64);
        found.is_none()
    });
    found
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
    use super::{MAGIC, NAME, PIECE, pieces};
    use crate::memory::{u16_at, u32_at, u64_at};
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
        assert_eq!(whole, Some(None));
    }

    /// A file without sections, as one of its kind that is stripped, and with a header where constants with addresses lie.
    #[test]
    fn a_stripped_file_is_searched() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&program, 0).unwrap();
        file.write_all_at(&[0; 2], 60).unwrap();
        assert_eq!(super::look(&file, &mut { LEFT }), Some(None));
        let (table, count) = (u64_at(&program, 32) as usize, u16_at(&program, 56));
        let segments = (0..usize::from(count)).map(|nth| &program[table + nth * 56..]);
        // The first that is loaded and may be written: where it is in the file and in memory.
        let segment = segments.filter(|it| u32_at(it, 0) == 1).find(|it| u32_at(it, 4) & 2 != 0);
        let [offset, address] = [8, 16].map(|at| u64_at(segment.unwrap(), at));
        let mut header = MAGIC.to_vec();
        file.write_all_at(&header, offset + 8).unwrap();
        assert_eq!(super::look(&file, &mut { LEFT }), Some(None), "the magic alone is none");
        header.extend([8, 0, 0, 0]);
        file.write_all_at(&header, offset + 64).unwrap();
        assert_eq!(super::look(&file, &mut { LEFT }), Some(Some(address + 64)));
        assert_eq!(super::look(&file, &mut 1000), None, "more than is left to read");
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
    fn this_program_has_no_header() {
        let program = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(super::look(&program, &mut { LEFT }), Some(None));
    }
}
