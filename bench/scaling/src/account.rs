//! What is counted, by cause, by code address and by line.

use crate::coherence::{Line, Outcome};
use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Who moved a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The allocator, a line that never held a block.
    Metadata,
    /// The allocator, a line of a block: links and headers.
    Block,
    /// The program: its own queues, and what it writes into its blocks.
    Program,
}

/// Moves of cache lines between cores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Lines fetched for reading.
    pub read: u64,
    /// Lines fetched or upgraded for writing.
    pub write: u64,
    /// Copies that writes took from other cores.
    pub invalidated: u64,
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
}

/// A line of the allocator's own, and who moved it.
#[derive(Default)]
pub struct Shared {
    transfers: u64,
    cores: FixedBitSet,
    /// Which of its eight words they wanted then.
    words: FixedBitSet,
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
    /// Accesses of the allocator that may have moved a line or not.
    pub cold: u64,
    /// Moves by cause.
    pub traffic: FxHashMap<Cause, Traffic>,
    /// The allocator's moves by code address.
    sites: FxHashMap<(u64, Cause), Traffic>,
    /// The allocator's moves of lines of its own.
    lines: FxHashMap<Line, Shared>,
}

impl Account {
    /// The names of the figures; docs/results/scaling.md says what they are.
    pub const COLUMNS: [&str; 13] = [
        "instr",
        "locked",
        "transfers",
        "meta r",
        "meta w",
        "block r",
        "block w",
        "inval",
        "hottest",
        "program",
        "cold",
        "syscalls",
        "blocked",
    ];

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

    fn per(&self, count: u64) -> f64 {
        count as f64 / self.operations().max(1) as f64
    }

    /// The figures per operation, one malloc and one free, in the order of [`Self::COLUMNS`].
    pub fn figures(&self) -> [f64; 13] {
        let of = |cause| self.traffic.get(&cause).copied().unwrap_or_default();
        let (own, block, program) = (of(Cause::Metadata), of(Cause::Block), of(Cause::Program));
        let hottest = self.lines.values().map(|line| line.transfers).max().unwrap_or(0);
        [
            self.instructions,
            self.locked,
            own.transfers() + block.transfers(),
            own.read,
            own.write,
            block.read,
            block.write,
            own.invalidated + block.invalidated,
            hottest,
            program.transfers(),
            self.cold,
            self.system_calls,
            self.blocked,
        ]
        .map(|count| self.per(count))
    }

    /// One of the figures.
    pub fn figure(&self, name: &str) -> f64 {
        let at = Self::COLUMNS.iter().position(|column| *column == name);
        self.figures()[at.expect("the name of a column")]
    }

    /// The code that moves lines, the lines' kind, and how many per operation, most first.
    pub fn sites(&self) -> Vec<(u64, Cause, f64)> {
        let mut all: Vec<_> = self.sites.iter().collect();
        all.sort_by_key(|&(site, traffic)| (Reverse(traffic.transfers()), *site));
        let told = |(&(code, cause), traffic): (&(u64, Cause), &Traffic)| {
            (code, cause, self.per(traffic.transfers()))
        };
        all.into_iter().map(told).collect()
    }

    /// The allocator's own lines that move, how often per operation, by how many cores, and how
    /// many words they want: one word is shared, several may only be neighbours.
    pub fn hot_lines(&self) -> Vec<(Line, f64, usize, usize)> {
        let mut all: Vec<_> = self.lines.iter().collect();
        all.sort_by_key(|&(line, shared)| (Reverse(shared.transfers), *line));
        let told = |(&line, shared): (&Line, &Shared)| {
            let cores = shared.cores.count_ones(..);
            (line, self.per(shared.transfers), cores, shared.words.count_ones(..))
        };
        all.into_iter().map(told).collect()
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
        let figures = ["locked", "cold", "hottest", "meta r", "inval", "program", "transfers"];
        let figures = figures.map(|name| account.figure(name));
        assert_eq!(figures, [0.5, 0.25, 0.5, 0.25, 0.75, 0.25, 0.5]);
        assert_eq!(account.sites(), [(0x10, Cause::Metadata, 0.5)]);
        assert_eq!(account.hot_lines(), [(Line(1), 0.5, 2, 2)]);
    }
}
