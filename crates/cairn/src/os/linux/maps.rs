//! Owns: which file an address is of, and which builds of files are mapped.
//! Idea: the system's list of mappings, line by line; a file's number stands near its start, where that is mapped.
//! Never: allocates, takes a lock, or reads a file by its name: another may have its place.
//! Threads: any, also in a signal's handler.
//! Checked: tests/guards.rs of the C layer; tests/profile.rs of the command.
//! Story: docs/guide/guards.md, docs/guide/profile.md

use super::{File, read_own};
use crate::os::tuning::{FILE_START_BYTES, MAPS_LINE_BYTES};

/// What the process has mapped at a place.
pub(crate) struct Mapped<'a> {
    /// The first address, and the one behind the last.
    pub(crate) range: (usize, usize),
    /// Where the first mapping of the same file begins.
    pub(crate) base: usize,
    /// The file's path; empty if there is none.
    pub(crate) path: &'a [u8],
}

/// The list of what is mapped. The process's own is empty when its first thread has ended before others.
#[inline(never)]
fn open() -> Option<File> {
    File::open(c"/proc/thread-self/maps").or_else(|| File::open(c"/proc/self/maps"))
}

/// Looks up what is mapped around an address; None if nothing is, or the list cannot be read.
pub(crate) fn mapped_around<T>(address: usize, then: impl FnOnce(Mapped<'_>) -> T) -> Option<T> {
    let mut lines = Lines::open()?;
    let (range, base) = search(&mut lines, address)?;
    Some(then(Mapped { range, base, path: path(lines.last()) }))
}

/// Gives what the system says of the process's mappings, piece by piece.
pub(crate) fn mappings(mut each: impl FnMut(&[u8])) {
    let Some(file) = open() else { return };
    let mut room = [0; 512];
    while let Some(piece) = file.read(&mut room).and_then(|count| room.get(..count))
        && !piece.is_empty()
    {
        each(piece);
    }
}

/// Gives of each file whose first bytes are mapped the number that its linker has given it, if that is among them, and its
/// path.
pub(crate) fn builds(mut each: impl FnMut(&[u8], &[u8])) {
    let Some(mut lines) = Lines::open() else { return };
    let mut bytes = [0; FILE_START_BYTES];
    while let Some(start) = next_start(&mut lines) {
        let path = path(lines.last());
        let read = read_own(start, &mut bytes);
        if let Some(build) = bytes.get(..read).and_then(build) {
            each(build, path);
        }
    }
}

/// Reads lines until one is of a file's first bytes, and has a path that is not cut: where they are.
#[inline(never)]
fn next_start(lines: &mut Lines) -> Option<usize> {
    loop {
        let (range, offset) = numbers(lines.next()?)?;
        let line = lines.last();
        if offset == 0 && line.len() < MAPS_LINE_BYTES && !path(line).is_empty() {
            return Some(range.0);
        }
    }
}

/// The number in a file's first bytes: it follows (length of a name, of the number, 3), and that name.
#[inline(never)]
fn build(bytes: &[u8]) -> Option<&[u8]> {
    const HEAD: usize = 16;
    let word = |bytes: &[u8]| bytes.first_chunk().map(|&word| u32::from_ne_bytes(word));
    let mut rest = bytes.starts_with(b"\x7fELF").then_some(bytes)?;
    loop {
        let (head, behind) = rest.split_at_checked(HEAD)?;
        if head.ends_with(b"GNU\0") && word(head) == Some(4) && word(&head[8..]) == Some(3) {
            return behind.get(..word(&head[4..])? as usize);
        }
        rest = &rest[4..];
    }
}

/// The list, as it is read.
struct Lines {
    file: File,
    room: [u8; 512],
    /// What of it has been read, and is still to be looked at.
    left: (usize, usize),
    line: [u8; MAPS_LINE_BYTES],
    length: usize,
}

impl Lines {
    fn open() -> Option<Lines> {
        let file = open()?;
        let (room, line) = ([0; 512], [0; MAPS_LINE_BYTES]);
        Some(Lines { file, room, left: (0, 0), line, length: 0 })
    }

    /// The next line.
    #[inline(never)]
    fn next(&mut self) -> Option<&[u8]> {
        self.length = 0;
        loop {
            let (at, end) = self.left;
            let Some(&byte) = self.room.get(..end).and_then(|room| room.get(at)) else {
                self.left = (0, self.file.read(&mut self.room).filter(|&count| count > 0)?);
                continue;
            };
            self.left.0 += 1;
            if byte == b'\n' {
                return Some(self.last());
            }
            if let Some(place) = self.line.get_mut(self.length) {
                *place = byte;
                self.length += 1;
            }
        }
    }

    /// The line that has been read last.
    fn last(&self) -> &[u8] {
        self.line.get(..self.length).unwrap_or(&[])
    }
}

/// Reads lines until one is of the address: its range, and the base of its file.
fn search(lines: &mut Lines, address: usize) -> Option<((usize, usize), usize)> {
    let mut base = 0;
    loop {
        let (range, offset) = numbers(lines.next()?)?;
        if offset == 0 {
            base = range.0;
        }
        if (range.0..range.1).contains(&address) {
            return Some((range, base));
        }
    }
}

/// Of a line like `5600-5700 r-xp 00001000 08:01 42   /usr/bin/cat`: the range, and the place in the file.
#[inline(never)]
fn numbers(line: &[u8]) -> Option<((usize, usize), usize)> {
    let mut fields = line.split(|&b| b == b' ' || b == b'-');
    let range = (hex(fields.next()?)?, hex(fields.next()?)?);
    // The rights come before it; the last of them may be written as a dash.
    let offset = fields.find(|field| field.len() >= OFFSET_DIGITS)?;
    Some((range, hex(offset)?))
}

/// Digits of a place in a file, at least.
const OFFSET_DIGITS: usize = 8;

fn hex(digits: &[u8]) -> Option<usize> {
    digits
        .iter()
        .try_fold(0, |number, &digit| Some(number << 4 | char::from(digit).to_digit(16)? as usize))
}

/// What stands behind the fields of a line, if that is a path.
fn path(line: &[u8]) -> &[u8] {
    let at = line.iter().position(|&b| b == b'/').unwrap_or(line.len());
    line.get(at..).unwrap_or(&[])
}
