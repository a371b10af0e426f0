//! Owns: what the rest asks of a target: its memory, its areas, which of its pages have memory behind them.
//! Idea: a live process and a core file answer the same questions. Memory that is not resident reads as zeros, and is not
//!   touched: to read it would change the target.
//! Never: believes an address: what cannot be read is said, and what is read is the caller's to check.
//! Threads: one.
//! Checked: tests here; tests/hostile.rs of the command.
//! Story: docs/design/outside-view.md

use crate::Error;
use std::ops::Range;
use std::path::PathBuf;

/// Pages asked about at most in one target: 1 TiB of small ones.
const PAGES_MAX: u64 = 1 << 28;

/// Addresses that a program has.
pub(crate) const ADDRESSES: u64 = 1 << 57;

/// What an area of addresses is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    File,
    Anonymous,
    Brk,
    Stack,
}

/// A mapping of the target's.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    pub(crate) range: Range<u64>,
    pub(crate) kind: Kind,
    pub(crate) path: Option<PathBuf>,
    /// Where in its file it begins.
    pub(crate) offset: u64,
    pub(crate) reads: bool,
    pub(crate) runs: bool,
    pub(crate) writes: bool,
    /// With other processes, or with the file.
    pub(crate) shared: bool,
    pub(crate) resident: u64,
    pub(crate) swapped: u64,
    pub(crate) huge: u64,
    /// In pages of the kernel's pool for huge ones, which it does not count as resident.
    pub(crate) hugetlb: u64,
}

impl Area {
    /// Bytes with memory behind them.
    pub(crate) fn present(&self) -> u64 {
        self.resident.saturating_add(self.hugetlb)
    }
}

/// A process, or a core file.
pub(crate) trait Memory {
    /// Fills `into` from `at` on; false if not all of it can be read.
    fn read(&self, at: u64, into: &mut [u8]) -> bool;

    /// Reads a word at each place; 0 where none can be read.
    fn words(&self, places: &[u64]) -> Vec<u64>;

    /// Fills `into` with pieces, one behind the other; zeros where one cannot be read.
    fn pieces(&self, pieces: &[(u64, usize)], into: &mut [u8]) {
        let mut rest = into;
        for &(at, bytes) in pieces {
            let (piece, behind) = rest.split_at_mut(bytes);
            if !self.read(at, piece) {
                piece.fill(0);
            }
            rest = behind;
        }
    }

    /// The part of an area in which anything can be resident.
    fn backed(&self, area: &Area) -> Range<u64> {
        area.range.clone()
    }

    /// All areas, by address.
    fn areas(&self) -> &[Area];

    /// Bytes of a page.
    fn page(&self) -> u64;

    /// The process, if it is one that runs.
    fn pid(&self) -> Option<u32> {
        None
    }

    /// Marks which of so many pages of an area, from `from` on, are resident.
    fn look(&self, from: u64, count: u64, area: &Area, mark: &mut dyn FnMut(u64));

    /// The word at an address.
    fn number(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes).then(|| u64::from_ne_bytes(bytes))
    }
}

/// Which pages of a range have memory behind them.
pub(crate) struct Pages {
    first: u64,
    page: u64,
    bits: Vec<u64>,
}

impl Pages {
    /// Asks about all pages that have a part in a range.
    pub(crate) fn of(memory: &dyn Memory, range: Range<u64>) -> Result<Pages, Error> {
        if range.end > ADDRESSES {
            return Err(Error::Damaged("an address is none"));
        }
        let page = memory.page();
        let (first, end) = (range.start / page, range.end.div_ceil(page));
        let count = end.saturating_sub(first);
        if count > PAGES_MAX {
            return Err(Error::Damaged("its heap is larger than any that can be"));
        }
        let mut bits = vec![0; count.div_ceil(64) as usize];
        for area in overlapping(memory.areas(), &(first * page..end * page)) {
            let from = area.range.start.max(first * page);
            let pages = (area.range.end.min(end * page) - from) / page;
            memory.look(from, pages, area, &mut |at| {
                let nth = (at / page).wrapping_sub(first);
                if let Some(word) = bits.get_mut((nth / 64) as usize) {
                    *word |= 1 << (nth % 64);
                }
            });
        }
        Ok(Pages { first, page, bits })
    }

    /// Whether the page of an address is resident.
    pub(crate) fn has(&self, at: u64) -> bool {
        let nth = (at / self.page).wrapping_sub(self.first);
        self.bits.get((nth / 64) as usize).is_some_and(|word| word >> (nth % 64) & 1 != 0)
    }

    /// Resident bytes of a range. A page may be larger than what lies in it: the first one and the last one count as far as
    /// the range has them.
    pub(crate) fn bytes(&self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let known = self.first..self.first + self.bits.len() as u64 * 64;
        let (mut nth, end) = (
            (range.start / self.page).clamp(known.start, known.end) - self.first,
            range.end.div_ceil(self.page).clamp(known.start, known.end) - self.first,
        );
        let mut count = 0;
        while nth < end {
            let room = (64 - nth % 64).min(end - nth);
            let mask = u64::MAX >> (64 - room) << (nth % 64);
            let word = self.bits.get((nth / 64) as usize).copied().unwrap_or(0);
            count += u64::from((word & mask).count_ones());
            nth += room;
        }
        let cut = |at: u64, bytes: u64| if self.has(at) { bytes } else { 0 };
        let behind = self.page - 1 - (range.end - 1) % self.page;
        count * self.page - cut(range.start, range.start % self.page) - cut(range.end - 1, behind)
    }
}

/// The areas that have a part in a range.
pub(crate) fn overlapping<'a>(
    areas: &'a [Area],
    range: &Range<u64>,
) -> impl Iterator<Item = &'a Area> + use<'a> {
    let range = range.clone();
    let first = areas.partition_point(|area| area.range.end <= range.start);
    areas[first..].iter().take_while(move |area| area.range.start < range.end)
}

/// Reads a range, with zeros where nothing is resident.
pub(crate) fn read_sparse(memory: &dyn Memory, range: Range<u64>, pages: &Pages) -> Vec<u8> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    fill_sparse(memory, range.start, &mut bytes, pages);
    bytes
}

/// The same into a buffer, which is overwritten.
pub(crate) fn fill_sparse(memory: &dyn Memory, start: u64, bytes: &mut [u8], pages: &Pages) {
    let end = start + bytes.len() as u64;
    let next_page = |at: u64| (at / pages.page + 1) * pages.page;
    bytes.fill(0);
    let mut from = start;
    while from < end {
        let mut to = next_page(from).min(end);
        if pages.has(from) {
            while to < end && pages.has(to) {
                to = next_page(to).min(end);
            }
            let piece = &mut bytes[(from - start) as usize..(to - start) as usize];
            if !memory.read(from, piece) {
                piece.fill(0);
            }
        }
        from = to;
    }
}

/// The number of a kind at a place in bytes; 0 behind their end.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    piece(bytes, at).map_or(0, u16::from_ne_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    piece(bytes, at).map_or(0, u32::from_ne_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    piece(bytes, at).map_or(0, u64::from_ne_bytes)
}

fn piece<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{ADDRESSES, Area, Kind, Memory, Pages, read_sparse};

    /// An area of 100 pages, of which each third is resident, and full of ones; and what a page is.
    pub(crate) struct Thirds(pub(crate) [Area; 1], u64);

    pub(crate) const START: u64 = 7 << 20;

    pub(crate) fn thirds() -> Thirds {
        of_pages(4096)
    }

    fn of_pages(page: u64) -> Thirds {
        let area = Area {
            range: START..START + 100 * page,
            kind: Kind::Anonymous,
            path: None,
            offset: 0,
            reads: true,
            runs: false,
            writes: true,
            shared: false,
            resident: 33 * page,
            swapped: 0,
            huge: 0,
            hugetlb: 0,
        };
        Thirds([area], page)
    }

    impl Thirds {
        fn is_there(&self, at: u64) -> bool {
            (at / self.1).is_multiple_of(3)
        }
    }

    impl Memory for Thirds {
        fn read(&self, at: u64, into: &mut [u8]) -> bool {
            let mut pages = (at..at + into.len() as u64).step_by(self.1 as usize);
            assert!(pages.all(|at| self.is_there(at)), "others are not touched");
            into.fill(1);
            true
        }

        fn words(&self, places: &[u64]) -> Vec<u64> {
            vec![0; places.len()]
        }

        fn areas(&self) -> &[Area] {
            &self.0
        }

        fn page(&self) -> u64 {
            self.1
        }

        fn look(&self, from: u64, count: u64, _area: &Area, mark: &mut dyn FnMut(u64)) {
            let pages = (0..count).map(|nth| from + nth * self.1);
            pages.filter(|&at| self.is_there(at)).for_each(mark);
        }
    }

    #[test]
    fn resident_pages_are_counted_in_any_range() {
        let memory = thirds();
        let pages = Pages::of(&memory, START - 4096..START + 1000 * 4096).unwrap();
        for from in (START - 4096..START + 100 * 4096).step_by(1000) {
            for length in [0, 1, 4096, 5000, 70 * 4096, 300 * 4096] {
                let end = from + length;
                let inside = (from / 4096..end.div_ceil(4096))
                    .map(|nth| nth * 4096)
                    .filter(|&at| memory.is_there(at) && (START..START + 100 * 4096).contains(&at));
                let parts = inside.map(|at| (at + 4096).min(end).saturating_sub(at.max(from)));
                assert_eq!(pages.bytes(from..end), parts.sum::<u64>());
            }
        }
        assert_eq!(pages.bytes(0..ADDRESSES), 33 * 4096);
    }

    /// As spans do that are smaller than a page.
    #[test]
    fn parts_of_a_page_are_not_more_than_the_page() {
        const PAGE: u64 = 1 << 16;
        let memory = of_pages(PAGE);
        let pages = Pages::of(&memory, memory.0[0].range.clone()).unwrap();
        let first = START.next_multiple_of(3 * PAGE);
        let parts = |page: u64| (0..4).map(move |nth| page + nth * (PAGE / 4));
        let sum = |page| parts(page).map(|at| pages.bytes(at..at + PAGE / 4)).sum::<u64>();
        assert_eq!([sum(first - PAGE), sum(first), sum(first + PAGE)], [0, PAGE, 0]);
    }

    #[test]
    fn what_is_not_resident_is_zero() {
        let memory = thirds();
        let range = START + 100..START + 20 * 4096 + 5;
        let pages = Pages::of(&memory, range.clone()).unwrap();
        let bytes = read_sparse(&memory, range.clone(), &pages);
        for (at, byte) in range.zip(bytes) {
            assert_eq!(byte == 1, memory.is_there(at), "{at:#x}");
        }
    }

    #[test]
    fn no_range_is_too_large() {
        for range in [0..u64::MAX, u64::MAX - 1..u64::MAX, 0..1 << 50] {
            assert!(Pages::of(&thirds(), range).is_err());
        }
    }
}
