//! Owns: how words of a target's memory are read for the search: ranges of any length, and many small blocks at once.
//! Idea: what is not resident is not read, and what stands side by side is read together.
//! Never: holds more than a piece of the target's memory.
//! Threads: one.
//! Checked: tests/leaks.rs of the command.
//! Story: docs/guide/leaks.md

use super::table::{Block, Table};
use crate::memory::{Area, Memory, Pages, fill_sparse, overlapping};
use std::ops::Range;

/// Bytes that are read at once.
const PIECE: u64 = 1 << 20;
/// Addresses of which pages are asked for at once.
const ASKED: u64 = 1 << 33;
/// Pieces in one call.
const PIECES: usize = 1024;
/// Bytes between two blocks that are read rather than left out.
const GAP: u64 = 1024;
/// Blocks up to here are read many at once.
const SMALL: u64 = 1 << 16;

/// The words of a piece of memory.
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word))
}

/// A target's memory, and which pages of its slices are resident.
pub(super) struct Reader<'a> {
    pub(super) memory: &'a dyn Memory,
    pub(super) window: Range<u64>,
    pub(super) pages: &'a Pages,
}

impl Reader<'_> {
    /// Reads what is resident of a range.
    pub(super) fn range(&self, range: &Range<u64>, each: &mut dyn FnMut(&[u8])) {
        if self.window.contains(&range.start) {
            let end = range.end.min(self.window.end);
            return self.pieces(range.start..end, self.pages, each);
        }
        for area in overlapping(self.memory.areas(), range) {
            let backed = self.memory.backed(area);
            let part = range.start.max(backed.start)..range.end.min(backed.end);
            self.part(area, part, each);
        }
    }

    /// The same of a part of an area, until as much has been seen as there is memory behind it.
    fn part(&self, area: &Area, part: Range<u64>, each: &mut dyn FnMut(&[u8])) {
        let (mut at, mut seen) = (part.start, 0);
        while at < part.end && seen < area.present() {
            let end = part.end.min(at.saturating_add(ASKED));
            let Ok(pages) = Pages::of(self.memory, at..end) else { return };
            let resident = pages.bytes(at..end);
            if resident > 0 {
                self.pieces(at..end, &pages, each);
            }
            (at, seen) = (end, seen + resident);
        }
    }

    fn pieces(&self, range: Range<u64>, pages: &Pages, each: &mut dyn FnMut(&[u8])) {
        let mut bytes = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let end = ((at / PIECE + 1) * PIECE).min(range.end);
            if pages.bytes(at..end) > 0 {
                bytes.resize((end - at) as usize, 0);
                fill_sparse(self.memory, at, &mut bytes, pages);
                each(&bytes);
            }
            at = end;
        }
    }

    /// Reads blocks that stand in order.
    pub(super) fn blocks(
        &self,
        table: &Table,
        blocks: impl Iterator<Item = Block>,
        each: &mut dyn FnMut(Block, &[u8]),
    ) {
        let mut batch = Batch::default();
        for block in blocks {
            let range = table.range(block);
            if range.end - range.start > SMALL || !self.window.contains(&range.start) {
                self.range(&range, &mut |bytes| each(block, bytes));
                continue;
            }
            self.resident(range, &mut |part| batch.add(block, part));
            if batch.is_full() {
                batch.read(self.memory, each);
            }
        }
        batch.read(self.memory, each);
    }

    /// The resident parts of a small block.
    fn resident(&self, range: Range<u64>, each: &mut dyn FnMut(Range<u64>)) {
        let page = self.memory.page();
        let mut at = range.start;
        while at < range.end {
            let mut end = at;
            while end < range.end && self.pages.has(end) {
                end = ((end / page + 1) * page).min(range.end);
            }
            if at < end {
                each(at..end);
                at = end;
            } else {
                at = (at / page + 1) * page;
            }
        }
    }
}

/// Blocks that are read together.
#[derive(Default)]
struct Batch {
    pieces: Vec<(u64, usize)>,
    bytes: usize,
    /// Parts of blocks, and where they are among the bytes.
    parts: Vec<(Block, Range<usize>)>,
    buffer: Vec<u8>,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.pieces.len() + SMALL as usize / 4096 >= PIECES || self.bytes as u64 >= PIECE
    }

    fn add(&mut self, block: Block, part: Range<u64>) {
        let length = (part.end - part.start) as usize;
        if let Some((at, bytes)) = self.pieces.last_mut()
            && let Some(gap) = part.start.checked_sub(*at + *bytes as u64)
            && gap <= GAP
        {
            *bytes += gap as usize + length;
            self.bytes += gap as usize;
        } else {
            self.pieces.push((part.start, length));
        }
        self.parts.push((block, self.bytes..self.bytes + length));
        self.bytes += length;
    }

    fn read(&mut self, memory: &dyn Memory, each: &mut dyn FnMut(Block, &[u8])) {
        self.buffer.resize(self.bytes, 0);
        memory.pieces(&self.pieces, &mut self.buffer);
        for (block, part) in self.parts.drain(..) {
            each(block, &self.buffer[part]);
        }
        self.pieces.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::{Reader, words};
    use crate::memory::Pages;
    use crate::memory::tests::{START, thirds};

    #[test]
    fn what_has_memory_is_read_whether_it_is_resident_or_not() {
        for is_resident in [true, false] {
            let mut memory = thirds();
            if !is_resident {
                let area = &mut memory.0[0];
                area.hugetlb = std::mem::take(&mut area.resident);
            }
            let pages = Pages::of(&memory, 0..0).unwrap();
            let (mut count, reader) = (0, Reader { memory: &memory, window: 0..0, pages: &pages });
            reader.range(&(START..START + (1 << 20)), &mut |bytes| {
                count += words(bytes).filter(|word| *word != 0).count();
            });
            assert_eq!(count, 33 * 512);
        }
    }
}
