//! Which core holds which cache line: a directory in the manner of MESI.
//!
//! Each core has one private cache without bound. A line has any number of holders after
//! reads, and exactly one after a write; a sole holder writes for free. What was cached
//! before the first access seen here is not known, unless the caller knows who used the
//! line last. Until the first write that is seen, a read may have been a hit or not: it is
//! *cold*, and counted apart.

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;

/// Bytes of a cache line, as a power of two.
const LINE_BITS: u32 = 6;

/// A cache line: an address without its last bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line(pub u64);

impl Line {
    /// The line of an address.
    pub fn of(address: u64) -> Line {
        Line(address >> LINE_BITS)
    }

    /// The lines of `size` bytes at `address`; at least one.
    pub fn spanning(address: u64, size: u64) -> impl Iterator<Item = Line> {
        let last = address.saturating_add(size.saturating_sub(1));
        (Line::of(address).0..=Line::of(last).0).map(Line)
    }

    /// Its first address.
    pub fn address(self) -> u64 {
        self.0 << LINE_BITS
    }
}

/// What an access did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing: the core held the line, for a write alone.
    Hit,
    /// The line came into view by this access, so nobody knows whose cache it was in.
    Cold,
    /// The line was fetched for reading from another core's cache.
    Read,
    /// The line was fetched or upgraded for writing.
    Write {
        /// How many other cores lost their copies.
        invalidated: u64,
    },
}

struct State {
    holders: FixedBitSet,
    /// The holders are all there are.
    complete: bool,
}

impl State {
    fn sole(core: usize) -> State {
        State { holders: std::iter::once(core).collect(), complete: true }
    }
}

/// The directory.
#[derive(Default)]
pub struct Directory {
    lines: FxHashMap<Line, State>,
}

impl Directory {
    /// One access. `last_user` says who used the line before, if it is asked: at the first
    /// access of all.
    pub fn access(
        &mut self,
        core: usize,
        line: Line,
        write: bool,
        last_user: impl FnOnce(Line) -> Option<usize>,
    ) -> Outcome {
        let state = match self.lines.entry(line) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(free) => free.insert(match last_user(line) {
                Some(core) => State::sole(core),
                None => State { holders: FixedBitSet::new(), complete: false },
            }),
        };
        if write { state.write(core) } else { state.read(core) }
    }

    /// Whether `core` holds `line`.
    pub fn holds(&self, core: usize, line: Line) -> bool {
        self.lines.get(&line).is_some_and(|state| state.holders.contains(core))
    }
}

impl State {
    fn read(&mut self, core: usize) -> Outcome {
        if self.holders.contains(core) {
            return Outcome::Hit;
        }
        self.holders.grow_and_insert(core);
        if self.complete { Outcome::Read } else { Outcome::Cold }
    }

    fn write(&mut self, core: usize) -> Outcome {
        let held = self.holders.contains(core);
        let others = self.holders.count_ones(..) - usize::from(held);
        let complete = std::mem::replace(&mut self.complete, true);
        self.holders.clear();
        self.holders.grow_and_insert(core);
        match others {
            0 if complete => Outcome::Hit,
            0 => Outcome::Cold,
            others => Outcome::Write { invalidated: others as u64 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Outcome::{Cold, Hit, Read, Write};
    use super::*;

    const LINE: Line = Line(7);

    /// Plays `"core r|w"` accesses to one line that `last_user` used before.
    fn play(last_user: Option<usize>, trace: &str) -> Vec<Outcome> {
        let mut directory = Directory::default();
        let step = |access: &str| {
            let (core, kind) = access.split_at(access.len() - 1);
            directory.access(core.parse().unwrap(), LINE, kind == "w", |_| last_user)
        };
        trace.split(' ').map(step).collect()
    }

    #[test]
    fn a_line_of_one_core_never_moves() {
        assert_eq!(play(None, "0w 0r 0w 0r"), [Cold, Hit, Hit, Hit]);
        assert_eq!(play(None, "0r 0w 0w"), [Cold, Cold, Hit]);
        assert_eq!(play(Some(0), "0r 0w 0w"), [Hit, Hit, Hit]);
    }

    #[test]
    fn alternate_writers_move_it_each_time() {
        let one = Write { invalidated: 1 };
        assert_eq!(play(None, "0w 1w 0w 1w"), [Cold, one, one, one]);
        assert_eq!(play(Some(5), "0w 1w"), [one, one]);
        assert_eq!(play(Some(0), "1r 1w 0r 0w"), [Read, one, Read, one], "a fetch and an upgrade");
    }

    #[test]
    fn a_write_invalidates_all_readers() {
        assert_eq!(
            play(Some(0), "1r 2r 3r 3r 0w 2r"),
            [Read, Read, Read, Hit, Write { invalidated: 3 }, Read]
        );
    }

    #[test]
    fn what_was_there_before_is_cold_until_the_first_write() {
        assert_eq!(play(None, "0r 1r 1r 2w 0r"), [Cold, Cold, Hit, Write { invalidated: 2 }, Read]);
    }
}
