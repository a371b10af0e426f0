//! Owns: which block an address is in: all live blocks of a target, and a few bits for each.
//! Idea: blocks of a span are a run of equal blocks, a large block is a run of one. The bits of all runs stand in a row, so
//!   that a heap of many blocks takes little room.
//! Never: has more bits than the target's memory can be the reason for.
//! Threads: one.
//! Checked: tests/leaks.rs and tests/hostile.rs of the command.
//! Story: docs/guide/leaks.md

use crate::Error;
use crate::blocks::Blocks;
use crate::header::Header;
use crate::memory::Pages;
use crate::walk::{Census, Large};
use std::ops::Range;

/// Blocks that a target may have whose pages have never been touched.
const ABSENT_MAX: u64 = 1 << 24;
/// Slices of which the runs stand together.
const LEAF: usize = 1 << 10;
/// The bit of heaps that are the program's own, in a span's owner.
const CLOSED: u32 = 1 << 3;
/// Owners below are no heaps.
const FIRST_HEAP: u32 = 16;

/// A bit for each block.
#[derive(Clone)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn new(count: u64) -> Bits {
        Bits(vec![0; count.div_ceil(64) as usize])
    }

    pub(super) fn has(&self, nth: u64) -> bool {
        self.0[(nth / 64) as usize] >> (nth % 64) & 1 != 0
    }

    /// Sets a bit; false if it was set.
    pub(super) fn set(&mut self, nth: u64) -> bool {
        let (word, bit) = (&mut self.0[(nth / 64) as usize], 1 << (nth % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    pub(super) fn clear(&mut self, nth: u64) {
        self.0[(nth / 64) as usize] &= !(1 << (nth % 64));
    }

    pub(super) fn clear_all(&mut self) {
        self.0.fill(0);
    }

    /// Leaves those bits that neither of two others has.
    pub(super) fn retain_unless(&mut self, one: &Bits, other: &Bits) {
        for (word, (one, other)) in self.0.iter_mut().zip(one.0.iter().zip(&other.0)) {
            *word &= !(one | other);
        }
    }

    /// How many bits of a range are set, and how many here or in others.
    pub(super) fn count(&self, other: &Bits, range: Range<u64>) -> (u64, u64) {
        let (mut here, mut both, mut at) = (0, 0, range.start);
        while at < range.end {
            let end = ((at / 64 + 1) * 64).min(range.end);
            let mask = u64::MAX >> (64 - (end - at)) << (at % 64);
            let nth = (at / 64) as usize;
            here += u64::from((self.0[nth] & mask).count_ones());
            both += u64::from(((self.0[nth] | other.0[nth]) & mask).count_ones());
            at = end;
        }
        (here, both)
    }

    /// The first set bit from a place on.
    pub(super) fn next(&self, from: u64) -> Option<u64> {
        let mut nth = (from / 64) as usize;
        let mut word = self.0.get(nth)? & (u64::MAX << (from % 64));
        while word == 0 {
            nth += 1;
            word = *self.0.get(nth)?;
        }
        Some(nth as u64 * 64 + u64::from(word.trailing_zeros()))
    }
}

/// Blocks of one size in a row.
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) count: u64,
    /// The number of the first one's bit.
    pub(super) first: u64,
    /// Whether it is a large block.
    pub(super) is_large: bool,
    /// Whether they belong to a heap of the program's, with which they end.
    pub(super) is_closed: bool,
}

/// A block: its run, and which one of the run it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Block {
    pub(super) run: u32,
    nth: u32,
}

/// All blocks.
pub(super) struct Table {
    runs: Vec<Run>,
    window: Range<u64>,
    slice_shift: u32,
    /// Of each slice the number of its run, plus 1; leaves where there are any.
    tops: Vec<Option<Box<[u32; LEAF]>>>,
    /// Runs of large blocks, by address, and the addresses that they are among.
    large: Vec<u32>,
    among: Range<u64>,
    pub(super) count: u64,
}

impl Table {
    /// The table of all blocks, and the bits of those that are live. `swapped` bytes of the target are not resident.
    pub(super) fn new(
        header: &Header,
        census: &Census,
        blocks: &Blocks,
        pages: &Pages,
        swapped: u64,
    ) -> Result<(Table, Bits), Error> {
        let own = census.large.len() + census.mappings.len();
        let count = census.spans.iter().map(|span| span.carved).sum::<u64>() + own as u64;
        let most = ABSENT_MAX + (pages.bytes(header.window()) + swapped) / 16;
        if count > most || census.spans.len() + own >= u32::MAX as usize {
            return Err(Error::Damaged("it has more blocks than its memory has room for"));
        }
        let mut live = Bits::new(count);
        let leaves = header.committed.div_ceil(LEAF as u64) as usize;
        let mut table = Table {
            runs: Vec::with_capacity(census.spans.len() + own),
            window: header.window(),
            slice_shift: header.slice_shift,
            tops: std::iter::repeat_with(|| None).take(leaves).collect(),
            large: Vec::with_capacity(own),
            among: 0..0,
            count: 0,
        };
        table.add_spans(header, census, blocks, &mut live);
        census.large.iter().chain(&census.mappings).for_each(|large| table.add(large, &mut live));
        table.order_large();
        Ok((table, live))
    }

    fn add_spans(&mut self, header: &Header, census: &Census, blocks: &Blocks, live: &mut Bits) {
        for (span, free) in census.spans.iter().zip(&blocks.free) {
            let class = header.classes[span.class];
            let first = self.count;
            let held = (0..span.carved).filter(|&nth| !free.has(nth));
            held.for_each(|nth| _ = live.set(first + nth));
            self.runs.push(Run {
                start: span.start,
                size: class.size,
                count: span.carved,
                first,
                is_large: false,
                is_closed: span.owner >= FIRST_HEAP && span.owner & CLOSED != 0,
            });
            self.count += span.carved;
            for slice in span.index..span.index + class.slices {
                let leaf = &mut self.tops[slice as usize / LEAF];
                let leaf = leaf.get_or_insert_with(|| Box::new([0; LEAF]));
                leaf[slice as usize % LEAF] = self.runs.len() as u32;
            }
        }
    }

    fn add(&mut self, large: &Large, live: &mut Bits) {
        let (start, size, first) = (large.start, large.room(), self.count);
        live.set(first);
        self.large.push(self.runs.len() as u32);
        let (is_large, is_closed) = (true, large.is_closed);
        self.runs.push(Run { start, size, count: 1, first, is_large, is_closed });
        self.count += 1;
    }

    fn order_large(&mut self) {
        let runs = &self.runs;
        self.large.sort_by_key(|&run| runs[run as usize].start);
        let ends = self.large.first().zip(self.large.last());
        self.among = ends.map_or(0..0, |(first, last)| {
            let last = &runs[*last as usize];
            runs[*first as usize].start..last.start + last.size
        });
    }

    /// The live block that an address is in, and whether it is the block's first.
    #[inline]
    pub(super) fn find(&self, at: u64, live: &Bits) -> Option<(Block, bool)> {
        if !self.window.contains(&at) && !self.among.contains(&at) {
            return None;
        }
        let number = self.run_of(at)?;
        let run = &self.runs[number as usize];
        let offset = at.checked_sub(run.start)?;
        let nth = offset / run.size;
        if nth >= run.count || !live.has(run.first + nth) {
            return None;
        }
        Some((Block { run: number, nth: nth as u32 }, offset == nth * run.size))
    }

    /// Leaves of the live blocks those that a later look at the target finds live, too.
    pub(super) fn retain(
        &self,
        header: &Header,
        census: &Census,
        blocks: &Blocks,
        live: &mut Bits,
    ) {
        let mut is_there = vec![false; self.runs.len()];
        let known = |at: u64, size: u64| {
            let run = self.run_of(at)? as usize;
            (self.runs[run].start == at && self.runs[run].size == size).then_some(run)
        };
        for (span, free) in census.spans.iter().zip(&blocks.free) {
            let Some(nth) = known(span.start, header.classes[span.class].size) else { continue };
            let run = &self.runs[nth];
            is_there[nth] = true;
            let gone = (0..run.count).filter(|&nth| free.has(nth));
            gone.for_each(|nth| live.clear(run.first + nth));
        }
        for large in census.large.iter().chain(&census.mappings) {
            if let Some(nth) = known(large.start, large.room()) {
                is_there[nth] = true;
            }
        }
        for (run, _) in self.runs.iter().zip(is_there).filter(|(_, is_there)| !is_there) {
            (0..run.count).for_each(|nth| live.clear(run.first + nth));
        }
    }

    fn run_of(&self, at: u64) -> Option<u32> {
        let slice = (at.wrapping_sub(self.window.start) >> self.slice_shift) as usize;
        let run =
            self.tops.get(slice / LEAF).and_then(Option::as_ref).map(|leaf| leaf[slice % LEAF]);
        if let Some(run @ 1..) = run {
            return Some(run - 1);
        }
        let behind = self.large.partition_point(|&run| self.runs[run as usize].start <= at);
        self.large.get(behind.checked_sub(1)?).copied()
    }

    pub(super) fn run(&self, block: Block) -> &Run {
        &self.runs[block.run as usize]
    }

    pub(super) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The number of a block's bit.
    pub(super) fn bit(&self, block: Block) -> u64 {
        self.run(block).first + u64::from(block.nth)
    }

    /// The bytes of a block.
    pub(super) fn range(&self, block: Block) -> Range<u64> {
        let run = self.run(block);
        let start = run.start + u64::from(block.nth) * run.size;
        start..start + run.size
    }

    /// The block of a bit that is in a run or behind it.
    fn block(&self, bit: u64, mut run: usize) -> Block {
        if bit >= self.runs[run].first + self.runs[run].count {
            run += self.runs[run..].partition_point(|run| run.first + run.count <= bit);
        }
        Block { run: run as u32, nth: (bit - self.runs[run].first) as u32 }
    }

    /// The first block whose bit is set, from a bit on.
    pub(super) fn first(&self, bits: &Bits, from: u64) -> Option<Block> {
        bits.next(from).filter(|&bit| bit < self.count).map(|bit| self.block(bit, 0))
    }

    /// The blocks whose bits are set, from a bit on.
    pub(super) fn each<'a>(
        &'a self,
        bits: &'a Bits,
        from: u64,
    ) -> impl Iterator<Item = Block> + 'a {
        let (mut at, mut run) = (from, 0);
        std::iter::from_fn(move || {
            let bit = bits.next(at).filter(|&bit| bit < self.count)?;
            let block = self.block(bit, run);
            (at, run) = (bit + 1, block.run as usize);
            Some(block)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Bits;

    #[test]
    fn bits_are_found_in_order() {
        let mut bits = Bits::new(200);
        for nth in [0, 1, 63, 64, 130, 199] {
            assert!(bits.set(nth));
        }
        assert!(!bits.set(63));
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(nth) = bits.next(at) {
            found.push(nth);
            at = nth + 1;
        }
        assert_eq!(found, [0, 1, 63, 64, 130, 199]);
        bits.clear(64);
        assert_eq!(bits.next(64), Some(130));
        let mut other = Bits::new(200);
        other.set(130);
        bits.retain_unless(&other, &Bits::new(200));
        assert_eq!(bits.next(64), Some(199));
    }
}
