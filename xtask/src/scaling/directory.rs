//! Which core holds which cache line, in the manner of MESI.
//!
//! Each core has one private cache without bound. A line has any number of holders after reads, and exactly one after a
//! write; a sole holder writes for free. What was cached before the first write seen here is not known: until then a
//! fetch may have been a hit or not, and does not count.

use std::collections::{HashMap, HashSet};

/// Bytes of a cache line, as a power of two.
const LINE_BITS: u32 = 6;

/// A cache line: an address without its last bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Line(u64);

impl Line {
    /// The lines of `size` bytes at `address`; at least one.
    pub(super) fn spanning(address: u64, size: u64) -> impl Iterator<Item = Line> {
        let last = address.saturating_add(size.saturating_sub(1));
        (address >> LINE_BITS..=last >> LINE_BITS).map(Line)
    }
}

#[derive(Default)]
struct State {
    holders: HashSet<usize>,
    /// The holders are all there are.
    is_complete: bool,
}

/// All lines that were accessed.
#[derive(Default)]
pub(super) struct Directory {
    lines: HashMap<Line, State>,
}

impl Directory {
    /// One access; whether the line moved: was fetched from another core's cache, or others lost their copies.
    pub(super) fn access(&mut self, core: usize, line: Line, write: bool) -> bool {
        let state = self.lines.entry(line).or_default();
        let held = state.holders.contains(&core);
        if !write {
            state.holders.insert(core);
            return !held && state.is_complete;
        }
        let others = state.holders.len() > usize::from(held);
        state.is_complete = true;
        state.holders.clear();
        state.holders.insert(core);
        others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accesses of cores to one line, as "core r|w", those that moved it with an exclamation mark.
    #[test]
    fn lines_move_between_cores_that_write() {
        for trace in [
            // A line of one core never moves.
            "0w 0r 0w 0r",
            // Alternate writers move it each time; who has read it before writes, moves it twice.
            "0w 1w! 0w! 1w! 1r 0r! 0w!",
            // A write takes the copies of all readers.
            "0w 1r! 2r! 3r! 3r 0w! 2r!",
            // What was there before is not known until the first write.
            "0r 1r 1r 2w! 0r!",
        ] {
            let mut directory = Directory::default();
            for access in trace.split(' ') {
                let (core, rest) = access.split_at(1);
                let core = core.parse().unwrap();
                let moved = directory.access(core, Line(7), rest.starts_with('w'));
                assert_eq!(moved, rest.ends_with('!'), "{access} of {trace}");
            }
        }
    }

    #[test]
    fn blocks_span_lines() {
        assert_eq!(Line::spanning(0x103f, 2).collect::<Vec<_>>(), [Line(0x40), Line(0x41)]);
        assert_eq!(Line::spanning(0x1040, 0).count(), 1);
    }
}
