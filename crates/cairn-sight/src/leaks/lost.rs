//! Owns: what lost blocks are: directly, nobody points to them; indirectly, another lost block leads to them.
//! Idea: blocks to which no other lost one points come first, each with what it leads to. What remains are rings, and what
//!   they lead to: the first block of a ring stands for it.
//! Never: counts a block twice; takes a free block that waits somewhere for a lost one.
//! Threads: one.
//! Checked: tests/leaks.rs of the command.
//! Story: docs/guide/leaks.md

use super::search::Search;
use super::table::{Bits, Block, Table};
use super::words::words;
use super::{LostBlock, LostRow, Sum};
use std::collections::{BTreeMap, HashMap};

/// Blocks that are told one by one.
const BIGGEST: usize = 10;
/// Bytes that a block is known by.
const BEGINNING: usize = 64;
/// As many are kept until only those are.
const KEPT: usize = 1024;
/// What a free block has in the upper bits of its second word, as the key of links has it.
const MARK_SHIFT: u32 = 48;

/// The lost blocks of a look, for a later one, by the start of their run.
pub(super) type Before = HashMap<u64, LostRun>;

/// Those of a run: which ones, and a number for what each begins with, which nobody can change who has lost it.
pub(super) struct LostRun {
    size: u64,
    bits: Vec<u64>,
    begins: Vec<u32>,
}

impl LostRun {
    /// What a block began with, if it was lost.
    fn begins(&self, nth: u64) -> Option<u32> {
        let (word, bit) = ((nth / 64) as usize, nth % 64);
        let those = self.bits.get(word)?;
        let before = self.bits.iter().take(word).map(|word| word.count_ones()).sum::<u32>()
            + (those & !(u64::MAX << bit)).count_ones();
        (those >> bit & 1 != 0).then(|| self.begins.get(before as usize).copied()).flatten()
    }
}

/// A number for what a block begins with.
fn number(bytes: &[u8]) -> u32 {
    let first = &bytes[..bytes.len().min(BEGINNING)];
    let mixed = words(first)
        .fold(0_u64, |sum, word| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
    (mixed >> 32) as u32
}

/// The blocks that are lost, and what has been found of them.
#[derive(Default)]
pub(super) struct Lost {
    pub(super) rows: BTreeMap<u64, LostRow>,
    pub(super) direct: Sum,
    pub(super) indirect: Sum,
    pub(super) biggest: Vec<LostBlock>,
}

impl Search<'_> {
    /// Leaves of the live blocks those that are lost. `key` is that of links.
    pub(super) fn leave_lost(&mut self, key: u64, before: Option<&Before>) {
        let (reached, perhaps) = (&self.marks.reached, &self.marks.perhaps);
        self.marks.live.retain_unless(reached, perhaps);
        let (table, mut ended) = (self.table, Vec::new());
        let lost = table.each(&self.marks.live, 0);
        self.reader.blocks(table, lost, &mut |block, bytes| {
            let is_first = ended.last() != Some(&block);
            let link = words(bytes).nth(1).unwrap_or(0);
            if is_first && !table.run(block).is_large && (link ^ key) >> MARK_SHIFT == 0 && key != 0
            {
                ended.push(block);
            }
        });
        ended.into_iter().for_each(|block| self.marks.live.clear(table.bit(block)));
        if let Some(before) = before {
            self.leave_those_of(before);
        }
        self.marks.reached.clear_all();
        self.marks.perhaps.clear_all();
    }

    /// Leaves those that were lost before, too, and begin as they did.
    fn leave_those_of(&mut self, before: &Before) {
        let (table, mut same) = (self.table, Bits::new(self.table.count));
        self.each_beginning(&mut |block, begins| {
            let run = table.run(block);
            let (bit, known) = (table.bit(block), before.get(&run.start));
            let known = known.filter(|known| known.size == run.size);
            if known.and_then(|known| known.begins(bit - run.first)) == Some(begins) {
                same.set(bit);
            }
        });
        self.marks.live = same;
    }

    /// What is lost, for a later look.
    pub(super) fn before(&self) -> Before {
        let (table, mut before) = (self.table, Before::new());
        self.each_beginning(&mut |block, begins| {
            let run = table.run(block);
            let nth = table.bit(block) - run.first;
            let words = run.count.div_ceil(64) as usize;
            let empty = || LostRun { size: run.size, bits: vec![0; words], begins: Vec::new() };
            let known = before.entry(run.start).or_insert_with(empty);
            known.bits[(nth / 64) as usize] |= 1 << (nth % 64);
            known.begins.push(begins);
        });
        before
    }

    /// The lost blocks in order, of which anything is resident, and what they begin with.
    fn each_beginning(&self, each: &mut dyn FnMut(Block, u32)) {
        let (table, mut last) = (self.table, None);
        self.reader.blocks(table, table.each(&self.marks.live, 0), &mut |block, bytes| {
            if last != Some(block) {
                last = Some(block);
                each(block, number(bytes));
            }
        });
    }

    /// Counts all lost blocks.
    pub(super) fn count_lost(&mut self) -> Lost {
        self.find_links();
        let all = self.marks.live.clone();
        let mut lost = Lost::default();
        let table = self.table;
        // First those to which no other one points; then rings.
        for is_ring in [false, true] {
            let mut next = 0;
            while let Some(block) = table.first(&self.marks.live, next) {
                let bit = table.bit(block);
                next = bit + 1;
                if is_ring || !self.marks.reached.has(bit) {
                    self.marks.reached.clear(bit);
                    self.count_from(block, &all, &mut lost);
                }
            }
        }
        lost.cut();
        lost
    }

    /// Finds out which lost blocks point to others, and which are pointed to.
    fn find_links(&mut self) {
        let (table, marks) = (self.table, &mut self.marks);
        let live = std::mem::replace(&mut marks.live, Bits::new(0));
        self.reader.blocks(table, table.each(&live, 0), &mut |from, bytes| {
            for word in words(bytes) {
                if let Some((to, _)) = table.find(word, &live).filter(|(to, _)| *to != from) {
                    marks.reached.set(table.bit(to));
                    marks.perhaps.set(table.bit(from));
                }
            }
        });
        marks.live = live;
    }

    /// Counts a block, and all that it leads to and that is not counted. `all` are those that are lost.
    fn count_from(&mut self, first: Block, all: &Bits, lost: &mut Lost) {
        let table = self.table;
        let mut leads_to = Sum::default();
        self.marks.live.clear(table.bit(first));
        if self.marks.perhaps.has(table.bit(first)) {
            self.waiting.add(table, first);
            self.each_waiting(|search, word| {
                let Some((block, _)) = table.find(word, all) else { return };
                let (bit, marks) = (table.bit(block), &mut search.marks);
                if marks.live.has(bit) {
                    marks.live.clear(bit);
                    marks.reached.set(bit);
                    leads_to.add(table, block);
                    lost.add_indirect(table, block);
                    if marks.perhaps.has(bit) {
                        search.waiting.add(table, block);
                    }
                } else if block != first && marks.reached.set(bit) {
                    // It came first in the order of addresses, but it is no ring's, or the same one's.
                    leads_to.add(table, block);
                    lost.move_to_indirect(table, block, &mut leads_to);
                }
            });
        }
        lost.add(table, first, leads_to);
    }
}

impl Sum {
    fn add(&mut self, table: &Table, block: Block) {
        self.blocks += 1;
        self.bytes += table.run(block).size;
    }

    fn subtract(&mut self, table: &Table, block: Block) {
        self.blocks -= 1;
        self.bytes -= table.run(block).size;
    }
}

impl Lost {
    /// The row of a block's size; large blocks have one together.
    fn row(&mut self, table: &Table, block: Block) -> &mut LostRow {
        let run = table.run(block);
        let size = (!run.is_large).then_some(run.size);
        let row = || LostRow { size, direct: Sum::default(), indirect: Sum::default() };
        self.rows.entry(size.unwrap_or(u64::MAX)).or_insert_with(row)
    }

    fn add(&mut self, table: &Table, block: Block, leads_to: Sum) {
        self.row(table, block).direct.add(table, block);
        self.direct.add(table, block);
        let range = table.range(block);
        self.biggest.push(LostBlock {
            address: range.start,
            bytes: range.end - range.start,
            leads_to,
            begins: Vec::new(),
            stack: Vec::new(),
        });
        if self.biggest.len() >= KEPT {
            self.cut();
        }
    }

    fn add_indirect(&mut self, table: &Table, block: Block) {
        self.row(table, block).indirect.add(table, block);
        self.indirect.add(table, block);
    }

    /// Counts a block as lost indirectly that was counted as lost directly, and what it leads to as led to.
    fn move_to_indirect(&mut self, table: &Table, block: Block, leads_to: &mut Sum) {
        self.row(table, block).direct.subtract(table, block);
        self.direct.subtract(table, block);
        self.add_indirect(table, block);
        let at = table.range(block).start;
        if let Some(nth) = self.biggest.iter().position(|known| known.address == at) {
            let known = self.biggest.swap_remove(nth).leads_to;
            leads_to.blocks += known.blocks;
            leads_to.bytes += known.bytes;
        }
    }

    /// Leaves the biggest blocks.
    fn cut(&mut self) {
        self.biggest.sort_by_key(LostBlock::order);
        self.biggest.truncate(BIGGEST);
    }
}
