//! Owns: for each property that a chunk can have, the set of chunks that have it; and for each chunk
//!   how long a free run begins in it.
//! Idea: three levels of nodes with 64 children each. A node says which of its children have a
//!   member, and which have how long a run: the first, the next and the last chunk of a kind are found
//!   in a few steps, and a small heap touches two pages.
//! Never: looks at the chunks themselves.
//! Threads: the arena's lock holder.
//! Checked: the unit tests below compare with plain lists.
//! Story: docs/giving-back.md

use crate::os;

/// Properties.
pub(super) const LANES: usize = 6;
const SHIFT: u32 = 6;
const FAN: usize = 1 << SHIFT;
/// Nodes whose children are chunks. The levels above have a 64th of it each.
const LEAVES: usize = 1 << 14;
/// Chunks that there is place for.
pub(super) const CHUNKS: usize = LEAVES * FAN;

/// What is said of 64 children.
struct Node {
    /// For each property, the children with a member, a bit each.
    members: [u64; LANES],
    /// The longest run of each child.
    longest: [u16; FAN],
}

/// All zeros: no members, no runs.
pub(super) struct Tree {
    tops: [Node; LEAVES / FAN / FAN],
    middle: [Node; LEAVES / FAN],
    leaves: [Node; LEAVES],
}

/// What a search asks of a node: the children that may lead to an answer.
trait Wanted {
    fn children(&self, node: &Node) -> u64;
}

/// A member of a lane.
struct Member(usize);

impl Wanted for Member {
    fn children(&self, node: &Node) -> u64 {
        node.members.get(self.0).copied().unwrap_or(0)
    }
}

/// A run of at least this length.
struct Length(u16);

impl Wanted for Length {
    fn children(&self, node: &Node) -> u64 {
        let bit = |(child, &longest): (usize, &u16)| u64::from(longest >= self.0) << child;
        node.longest.iter().enumerate().map(bit).sum()
    }
}

impl Tree {
    /// The nodes of a level, from the leaves up.
    fn level(&self, level: u32) -> &[Node] {
        match level {
            0 => &self.leaves,
            1 => &self.middle,
            _ => &self.tops,
        }
    }

    /// The node of a level that `index`, that of a child, belongs to.
    fn node(&self, level: u32, index: usize) -> Option<&Node> {
        self.level(level).get(index >> SHIFT)
    }

    fn node_mut(&mut self, level: u32, index: usize) -> &mut Node {
        let nodes: &mut [Node] = match level {
            0 => &mut self.leaves,
            1 => &mut self.middle,
            _ => &mut self.tops,
        };
        // `address_map` makes no window with more chunks than there is place for.
        nodes.get_mut(index >> SHIFT).unwrap_or_else(|| os::broken("a chunk beyond the window"))
    }

    /// Forgets all that is said of the first `chunks`, and whatever is said of more than one.
    pub(super) fn clear(&mut self, chunks: usize) {
        for level in [&mut self.leaves[..], &mut self.middle[..], &mut self.tops[..]] {
            for node in level.iter_mut().take(chunks.div_ceil(FAN)) {
                *node = Node { members: [0; LANES], longest: [0; FAN] };
            }
        }
    }

    /// Whether `chunk` is a member.
    pub(super) fn has(&self, lane: usize, chunk: usize) -> bool {
        self.node(0, chunk).is_some_and(|node| Member(lane).children(node) & bit(chunk) != 0)
    }

    /// Adds or removes `chunk`.
    pub(super) fn set(&mut self, lane: usize, chunk: usize, member: bool) {
        let (mut index, mut member) = (chunk, member);
        for level in 0..3 {
            let Some(children) = self.node_mut(level, index).members.get_mut(lane) else { return };
            let was = *children;
            *children = if member { was | bit(index) } else { was & !bit(index) };
            if (was != 0) == (*children != 0) {
                return;
            }
            member = *children != 0;
            index >>= SHIFT;
        }
    }

    /// The longest run that begins in `chunk`.
    pub(super) fn longest(&self, chunk: usize) -> u16 {
        self.node(0, chunk).map_or(0, |node| node.longest[chunk % FAN])
    }

    /// Says how long the longest run is that begins in `chunk`; false if that is known.
    pub(super) fn set_longest(&mut self, chunk: usize, length: u16) -> bool {
        let (mut index, mut length) = (chunk, length);
        for level in 0..3 {
            let node = self.node_mut(level, index);
            let was = core::mem::replace(&mut node.longest[index % FAN], length);
            if was == length {
                return level > 0;
            }
            length = node.longest.iter().copied().fold(0, u16::max);
            index >>= SHIFT;
        }
        true
    }

    /// The smallest member from `from` on.
    pub(super) fn next(&self, lane: usize, from: usize) -> Option<usize> {
        self.first(Member(lane), from)
    }

    /// The first chunk from `from` on in which a run of at least `length` begins.
    pub(super) fn next_run(&self, length: u16, from: usize) -> Option<usize> {
        self.first(Length(length), from)
    }

    fn first(&self, wanted: impl Wanted, from: usize) -> Option<usize> {
        // Up, until a node has an answer behind where we come from, ...
        let (mut level, mut index) = (0, from);
        let mut at = loop {
            let node = self.node(level, index)?;
            let here = wanted.children(node) & not_below(index);
            if here != 0 {
                break index & !(FAN - 1) | here.trailing_zeros() as usize;
            }
            // The last level's nodes stand side by side.
            index = if level < 2 { (index >> SHIFT) + 1 } else { (index | (FAN - 1)) + 1 };
            level = (level + 1).min(2);
        };
        // ... and down to it.
        while level > 0 {
            level -= 1;
            let here = wanted.children(self.level(level).get(at)?);
            at = at << SHIFT | here.trailing_zeros() as usize % FAN;
        }
        Some(at)
    }

    /// The largest member below `end`.
    pub(super) fn last(&self, lane: usize, end: usize) -> Option<usize> {
        let (wanted, mut level, mut index) = (Member(lane), 0, end.checked_sub(1)?);
        let mut at = loop {
            let node = self.node(level, index);
            // Beyond the last node there is nothing.
            let here = node.map_or(0, |node| wanted.children(node) & not_above(index));
            if here != 0 {
                break index & !(FAN - 1) | highest(here);
            }
            index = match level {
                0 | 1 => (index >> SHIFT).checked_sub(1)?,
                _ => (index & !(FAN - 1)).checked_sub(1)?,
            };
            level = (level + 1).min(2);
        };
        while level > 0 {
            level -= 1;
            let here = wanted.children(self.level(level).get(at)?);
            at = at << SHIFT | highest(here);
        }
        Some(at)
    }
}

fn bit(index: usize) -> u64 {
    1 << (index % FAN)
}

/// The bits at and above `index`'s.
fn not_below(index: usize) -> u64 {
    !0 << (index % FAN)
}

/// The bits at and below `index`'s.
fn not_above(index: usize) -> u64 {
    !0 >> (FAN - 1 - index % FAN)
}

fn highest(word: u64) -> usize {
    FAN - 1 - (word | 1).leading_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::collections::{BTreeMap, BTreeSet};

    fn empty() -> Box<Tree> {
        // SAFETY: numbers, all zero: no members, no runs.
        unsafe { Box::new_zeroed().assume_init() }
    }

    /// xorshift.
    fn next(x: &mut u64) -> u64 {
        *x ^= *x << 13;
        *x ^= *x >> 7;
        *x ^= *x << 17;
        *x
    }

    /// Clustered and spread indices, up to the last one.
    fn index(x: u64) -> usize {
        let shift = (x >> 60) as u32 % 3 * 6;
        ((x >> 8) as usize % CHUNKS) >> shift << (shift / 2) & (CHUNKS - 1)
    }

    #[test]
    fn agrees_with_a_plain_set() {
        let mut tree = empty();
        let mut set = BTreeSet::new();
        let mut x = 88172645463325252u64;
        for round in 0..60_000 {
            let chunk = index(next(&mut x));
            let member = round % 3 != 0 && round < 40_000;
            tree.set(1, chunk, member);
            if member {
                set.insert(chunk);
            } else {
                set.remove(&chunk);
            }
            assert_eq!(tree.has(1, chunk), member);
            assert_eq!(tree.next(1, chunk), set.range(chunk..).next().copied());
            let other = (x >> 30) as usize % CHUNKS;
            assert_eq!(tree.next(1, other), set.range(other..).next().copied());
            assert_eq!(tree.last(1, CHUNKS), set.last().copied());
            assert_eq!(tree.last(1, other), set.range(..other).next_back().copied());
            assert_eq!(tree.next(0, 0), None);
        }
    }

    #[test]
    fn agrees_with_a_plain_list_of_runs() {
        let mut tree = empty();
        let mut runs = BTreeMap::new();
        let mut x = 88172645463325252u64;
        for round in 0..20_000 {
            let chunk = index(next(&mut x));
            let length = if round % 3 == 0 || round > 15_000 { 0 } else { (x >> 50) as u16 % 99 };
            let known = runs.insert(chunk, length).unwrap_or(0) == length;
            assert_eq!(tree.set_longest(chunk, length), !known);
            assert_eq!(tree.longest(chunk), length);
            let (other, least) = ((x >> 30) as usize % CHUNKS, 1 + (x >> 40) as u16 % 99);
            let found = runs.range(other..).find(|(_, length)| **length >= least);
            assert_eq!(tree.next_run(least, other), found.map(|(&chunk, _)| chunk));
        }
        assert_eq!(tree.next_run(1, CHUNKS), None);
    }
}
