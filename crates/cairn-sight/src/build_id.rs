//! Owns: which build of cairn a target runs, by the number that the linker gives each file.
//! Idea: it is read where the file is mapped, so it is that of what runs, whatever lies on the disk.
//! Never: reads more than a page of notes.
//! Threads: one.
//! Checked: tests here; tests/inspect.rs of the command.
//! Story: docs/guide/inspect.md

use crate::memory::{Memory, u16_at, u32_at, u64_at};

const ELF: &[u8] = b"\x7fELF\x02";
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const SEGMENTS_MAX: u16 = 64;
const LOAD: u32 = 1;
const NOTES: u32 = 4;
const NOTES_MAX: u64 = 4096;
/// A note's name and type.
const OWNER: &[u8] = b"GNU\0";
const BUILD_ID: u32 = 3;
const ID_MAX: usize = 64;

/// The number of the file whose first byte is mapped there, in hexadecimal.
pub(crate) fn of(memory: &dyn Memory, base: u64) -> Option<String> {
    let mut header = [0; HEADER_BYTES];
    if !memory.read(base, &mut header) || !header.starts_with(ELF) {
        return None;
    }
    let (offset, count) = (u64_at(&header, 32), u16_at(&header, 56).min(SEGMENTS_MAX));
    let mut segments = vec![0; usize::from(count) * SEGMENT_BYTES];
    if !memory.read(base.checked_add(offset)?, &mut segments) {
        return None;
    }
    let segments = || segments.chunks_exact(SEGMENT_BYTES);
    let is_first = |segment: &&[u8]| u32_at(segment, 0) == LOAD && u64_at(segment, 8) == 0;
    let first = u64_at(segments().find(is_first)?, 16);
    segments().filter(|segment| u32_at(segment, 0) == NOTES).find_map(|segment| {
        let at = u64_at(segment, 16).wrapping_sub(first).wrapping_add(base);
        let mut notes = vec![0; u64_at(segment, 40).min(NOTES_MAX) as usize];
        memory.read(at, &mut notes).then(|| id(&notes))?
    })
}

/// The number in some notes: (length of the name, of the contents, type), the name, the contents, by four bytes.
fn id(notes: &[u8]) -> Option<String> {
    let mut rest = notes;
    while rest.len() > 12 {
        let (name, bytes) = (u32_at(rest, 0) as usize, u32_at(rest, 4) as usize);
        let contents = 12_usize.checked_add(name)?.checked_next_multiple_of(4)?;
        let end = contents.checked_add(bytes)?;
        let found = rest.get(contents..end)?;
        if rest.get(12..)?.starts_with(OWNER) && u32_at(rest, 8) == BUILD_ID && bytes <= ID_MAX {
            return Some(found.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        rest = rest.get(end.checked_next_multiple_of(4)?..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::id;

    fn note(name: &[u8], kind: u32, contents: &[u8]) -> Vec<u8> {
        let numbers = [name.len() as u32, contents.len() as u32, kind];
        let mut bytes: Vec<u8> = numbers.into_iter().flat_map(u32::to_ne_bytes).collect();
        for part in [name, contents] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn the_number_is_found_behind_other_notes() {
        let other = note(b"GNU\0", 5, &[1; 7]);
        let own = note(b"GNU\0", 3, &[0xab, 1, 0x20]);
        let all = [other, note(b"Go\0", 3, &[9; 3]), own].concat();
        assert_eq!(id(&all).as_deref(), Some("ab0120"));
        for length in 0..all.len() - 4 {
            assert_eq!(id(&all[..length]), None, "{length}");
        }
        assert_eq!(id(&[0xff; 100]), None);
        assert_eq!(id(&[0; 100]), None);
    }
}
