//! Owns: the search: which blocks pointers lead to from outside the heap, and how those that none leads to hang together.
//! Idea: a block that is found is read once, and what its words point to is found by it. Blocks that wait to be read stand
//!   in a short list, or have a bit each, and are then read in the order of addresses.
//! Never: reads a block twice, but to see how lost ones hang together; follows a pointer to what is no live block.
//! Threads: one.
//! Checked: tests here; tests/leaks.rs of the command.
//! Story: docs/guide/leaks.md

use super::Sum;
use super::table::{Bits, Block, Table};
use super::words::{Reader, words};

/// Blocks that wait in the list.
const WAITING: usize = 1 << 20;

/// What is known of each block.
pub(super) struct Marks {
    /// The program has it. Later: it is lost, and not counted yet.
    pub(super) live: Bits,
    /// A pointer to its start leads to it from outside. Later: another lost block points to it.
    pub(super) reached: Bits,
    /// A pointer into it does. Later: it points to another lost block.
    pub(super) perhaps: Bits,
}

/// Blocks that have been found and not been read.
pub(super) struct Waiting {
    list: Vec<Block>,
    more: Bits,
    is_more: bool,
    /// Where in `more` the next ones are taken from.
    next: u64,
}

impl Waiting {
    fn new(count: u64) -> Waiting {
        Waiting { list: Vec::new(), more: Bits::new(count), is_more: false, next: 0 }
    }

    pub(super) fn add(&mut self, table: &Table, block: Block) {
        if self.list.len() < WAITING {
            self.list.push(block);
        } else {
            self.more.set(table.bit(block));
            self.is_more = true;
        }
    }

    /// Some of them, in order; none: nobody waits.
    fn take(&mut self, table: &Table) -> Vec<Block> {
        let mut list = std::mem::take(&mut self.list);
        if self.is_more {
            let room = WAITING - list.len().min(WAITING / 2);
            let more: Vec<_> = table.each(&self.more, self.next).take(room).collect();
            more.iter().for_each(|&block| self.more.clear(table.bit(block)));
            self.is_more = self.next > 0 || more.len() == room;
            // At the end it begins again: others may have come behind.
            self.next = if more.len() == room { table.bit(more[room - 1]) } else { 0 };
            list.extend(more);
        }
        list.sort_unstable();
        list
    }
}

/// A search of a target.
pub(super) struct Search<'a> {
    pub(super) reader: &'a Reader<'a>,
    pub(super) table: &'a Table,
    pub(super) marks: Marks,
    pub(super) waiting: Waiting,
}

impl<'a> Search<'a> {
    pub(super) fn new(reader: &'a Reader<'a>, table: &'a Table, live: Bits) -> Search<'a> {
        let bits = || Bits::new(table.count);
        let marks = Marks { live, reached: bits(), perhaps: bits() };
        Search { reader, table, marks, waiting: Waiting::new(table.count) }
    }

    /// Takes a word from outside the heap for a pointer, if it is one.
    #[inline]
    pub(super) fn word(&mut self, word: u64) {
        reach(self.table, &mut self.marks, &mut self.waiting, word);
    }

    /// Takes the blocks of the program's heaps for found: they end with their heaps.
    pub(super) fn take_closed(&mut self) {
        let table = self.table;
        for run in table.runs().iter().filter(|run| run.is_closed) {
            (0..run.count).for_each(|nth| self.word(run.start + nth * run.size));
        }
    }

    /// Blocks that pointers to their starts lead to, and those that only others do.
    pub(super) fn sums(&self) -> (Sum, Sum) {
        let Marks { reached, perhaps, .. } = &self.marks;
        let (mut sure, mut possibly) = (Sum::default(), Sum::default());
        for run in self.table.runs() {
            let (found, both) = reached.count(perhaps, run.first..run.first + run.count);
            for (sum, blocks) in [(&mut sure, found), (&mut possibly, both - found)] {
                sum.blocks += blocks;
                sum.bytes += blocks * run.size;
            }
        }
        (sure, possibly)
    }

    /// Whether an address is that of a block of which it is known that it is lost.
    pub(super) fn is_lost(&self, at: u64) -> bool {
        self.table.find(at, &self.marks.live).is_some_and(|(_, is_start)| is_start)
    }

    /// Follows pointers from all that has been found: first those to the starts of blocks, then those into them.
    pub(super) fn follow(&mut self) {
        self.each_waiting(|search, word| search.word(word));
        let (table, perhaps) =
            (self.table, std::mem::replace(&mut self.marks.perhaps, Bits::new(0)));
        for block in table.each(&perhaps, 0) {
            if !self.marks.reached.has(table.bit(block)) {
                self.waiting.add(table, block);
            }
        }
        self.marks.perhaps = perhaps;
        self.each_waiting(|search, word| {
            let Some((block, _)) = table.find(word, &search.marks.live) else { return };
            let bit = table.bit(block);
            if !search.marks.reached.has(bit) && search.marks.perhaps.set(bit) {
                search.waiting.add(table, block);
            }
        });
    }

    /// Hands out the words of all blocks that wait, and of those that come to wait meanwhile.
    pub(super) fn each_waiting(&mut self, mut each: impl FnMut(&mut Self, u64)) {
        loop {
            let blocks = self.waiting.take(self.table);
            if blocks.is_empty() && !self.waiting.is_more {
                return;
            }
            let (reader, table) = (self.reader, self.table);
            reader.blocks(table, blocks.into_iter(), &mut |_, bytes| {
                words(bytes).for_each(|word| each(self, word));
            });
        }
    }
}

#[inline]
fn reach(table: &Table, marks: &mut Marks, waiting: &mut Waiting, word: u64) {
    let Some((block, is_start)) = table.find(word, &marks.live) else { return };
    let bit = table.bit(block);
    if !is_start {
        marks.perhaps.set(bit);
    } else if marks.reached.set(bit) {
        waiting.add(table, block);
    }
}
