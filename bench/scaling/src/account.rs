//! What is counted, by cause, by code address and by line.

use crate::coherence::{Line, Outcome};
use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// Who moved a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// The allocator, a line that never held a block.
    Metadata,
    /// The allocator, a line of a block: links and headers.
    Block,
    /// The program: its own queues, and what it writes into its blocks.
    Program,
}

/// Moves of cache lines between cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic<T = u64> {
    /// Lines fetched for reading.
    pub read: T,
    /// Lines fetched or upgraded for writing.
    pub write: T,
    /// Copies that writes took from other cores.
    pub invalidated: T,
}

impl Traffic {
    fn add(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Hit | Outcome::Cold => {}
            Outcome::Read => self.read += 1,
            Outcome::Write { invalidated } => {
                self.write += 1;
                self.invalidated += invalidated;
            }
        }
    }

    /// Moves of either kind.
    pub fn transfers(&self) -> u64 {
        self.read + self.write
    }

    fn per(&self, operations: f64) -> Traffic<f64> {
        let per = |count: u64| count as f64 / operations;
        Traffic { read: per(self.read), write: per(self.write), invalidated: per(self.invalidated) }
    }
}

impl Traffic<f64> {
    /// Moves of either kind.
    pub fn transfers(&self) -> f64 {
        self.read + self.write
    }
}

/// A line of the allocator's own, and who moved it.
#[derive(Default)]
pub struct Shared {
    /// How often it moved.
    pub transfers: u64,
    /// Which cores moved it.
    pub cores: FixedBitSet,
    /// Which of its eight words they wanted then.
    pub words: FixedBitSet,
}

/// An access to one line.
#[derive(Clone, Copy)]
pub struct Access {
    /// By which core.
    pub core: usize,
    /// By the instruction at this address.
    pub code: u64,
    /// To which line.
    pub line: Line,
    /// From which of its words.
    pub word: usize,
}

/// Everything counted in one run.
#[derive(Default)]
pub struct Account {
    /// Calls of malloc that returned.
    pub mallocs: u64,
    /// Calls of free that returned.
    pub frees: u64,
    /// Instructions inside malloc and free.
    pub instructions: u64,
    /// Those with a lock.
    pub locked: u64,
    /// Those that enter the kernel.
    pub system_calls: u64,
    /// System calls that put the thread to sleep.
    pub blocked: u64,
    /// Turns of spinning loops.
    pub pauses: u64,
    /// Accesses of the allocator that may have moved a line or not.
    pub cold: u64,
    /// Moves by cause.
    pub traffic: FxHashMap<Cause, Traffic>,
    /// The allocator's moves by code address.
    pub sites: FxHashMap<(u64, Cause), Traffic>,
    /// The allocator's moves of lines of its own.
    pub lines: FxHashMap<Line, Shared>,
}

impl Account {
    /// Pairs of a malloc and a free.
    pub fn operations(&self) -> u64 {
        (self.mallocs + self.frees) / 2
    }

    /// Notes what an access to a line did.
    pub fn access(&mut self, access: Access, cause: Cause, outcome: Outcome) {
        let Access { core, code, line, word } = access;
        match outcome {
            Outcome::Hit => return,
            Outcome::Cold => {
                self.cold += u64::from(cause != Cause::Program);
                return;
            }
            Outcome::Read | Outcome::Write { .. } => {}
        }
        self.traffic.entry(cause).or_default().add(outcome);
        if cause != Cause::Program {
            self.sites.entry((code, cause)).or_default().add(outcome);
        }
        if cause == Cause::Metadata {
            let shared = self.lines.entry(line).or_default();
            shared.transfers += 1;
            shared.cores.grow_and_insert(core);
            shared.words.grow_and_insert(word);
        }
    }

    /// The account per operation.
    pub fn figures(&self) -> Figures {
        let operations = self.operations().max(1) as f64;
        let per = |count: u64| count as f64 / operations;
        let traffic = |cause| self.traffic.get(&cause).copied().unwrap_or_default().per(operations);
        let hottest = self.lines.values().map(|line| line.transfers).max();
        Figures {
            instructions: per(self.instructions),
            locked: per(self.locked),
            system_calls: per(self.system_calls),
            blocked: per(self.blocked),
            pauses: per(self.pauses),
            cold: per(self.cold),
            metadata: traffic(Cause::Metadata),
            block: traffic(Cause::Block),
            program: traffic(Cause::Program),
            hottest_line: per(hottest.unwrap_or(0)),
        }
    }
}

/// Counts per operation: one malloc and one free.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Instructions inside malloc and free.
    pub instructions: f64,
    /// Those with a lock.
    pub locked: f64,
    /// Those that enter the kernel.
    pub system_calls: f64,
    /// System calls that put the thread to sleep.
    pub blocked: f64,
    /// Turns of spinning loops.
    pub pauses: f64,
    /// Accesses that may have moved a line or not: an upper bound of what is missing.
    pub cold: f64,
    /// Lines of the allocator's own that its code moved.
    pub metadata: Traffic<f64>,
    /// Lines of blocks that the allocator's code moved.
    pub block: Traffic<f64>,
    /// Lines that the program's code moved.
    pub program: Traffic<f64>,
    /// Moves of the one line of the allocator's own that moved most: what all threads
    /// have to take turns at.
    pub hottest_line: f64,
}

impl Figures {
    /// Lines that the allocator's code moved.
    pub fn transfers(&self) -> f64 {
        self.metadata.transfers() + self.block.transfers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_per_pair_of_calls() {
        let mut account = Account { mallocs: 5, frees: 3, locked: 2, ..Account::default() };
        let write = Outcome::Write { invalidated: 3 };
        let mut access = |core, line, cause, outcome| {
            let access = Access { core, code: line * 0x10, line: Line(line), word: core };
            account.access(access, cause, outcome);
        };
        access(0, 1, Cause::Metadata, Outcome::Read);
        access(1, 1, Cause::Metadata, write);
        access(1, 2, Cause::Block, Outcome::Cold);
        access(1, 3, Cause::Program, write);
        access(1, 3, Cause::Program, Outcome::Cold);
        let figures = account.figures();
        assert_eq!((figures.locked, figures.cold, figures.hottest_line), (0.5, 0.25, 0.5));
        assert_eq!(figures.metadata, Traffic { read: 0.25, write: 0.25, invalidated: 0.75 });
        assert_eq!(figures.program.transfers(), 0.25);
        assert_eq!(figures.transfers(), 0.5);
        assert_eq!((account.sites.len(), account.lines.len()), (1, 1));
        let line = &account.lines[&Line(1)];
        assert_eq!((line.cores.count_ones(..), line.words.count_ones(..)), (2, 2));
    }
}
