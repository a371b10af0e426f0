//! Owns: for each property that a chunk can have, the set of chunks that have it; and for each chunk
//!   how long a free run begins in it.
//! Idea: leaves of 16 chunks, which stand with the chunks' metadata, and two levels of nodes with 64
//!   children each. A node says which of its children have a member, and which have how long a run: the
//!   first, the next and the last chunk of a kind are found in a few steps.
//! Never: looks at the chunks themselves.
//! Threads: the arena's lock owner.
//! Checked: the unit tests below compare with plain lists.
//! Story: docs/design/purging.md

use crate::base::{in_loom, point};
use crate::os;
use core::ptr::null_mut;

/// Properties.
pub(crate) const LANES: usize = 6;
/// log2 of the children that a node of each level has.
const SHIFTS: [u32; LEVELS] = [4, 6, 6];
const LEVELS: usize = 3;
/// Chunks in a leaf.
pub(crate) const LEAF_CHUNKS: usize = 1 << SHIFTS[0];
const FAN: usize = 1 << SHIFTS[1];
/// Leaves that there is place for.
const LEAVES: usize = in_loom(1 << 16, 1 << 12);
/// Chunks that there is place for.
pub(super) const CHUNKS: usize = LEAVES * LEAF_CHUNKS;

/// What is said of the chunks of a section.
#[repr(C)]
pub(crate) struct Leaf {
    /// For each property, the chunks that have it, a bit each.
    members: [u16; LANES],
    /// The longest run that begins in each chunk.
    longest: [u16; LEAF_CHUNKS],
}

/// What is said of 64 children.
struct Node {
    /// For each property, the children with a member, a bit each.
    members: [u64; LANES],
    /// The longest run of each child.
    longest: [u16; FAN],
}

/// All zeros: no leaves.
pub(super) struct Tree {
    /// The first leaf.
    leaves: *mut Leaf,
    /// From one to the next, in bytes.
    distance: usize,
    count: usize,
    tops: [Node; LEAVES / FAN / FAN],
    middle: [Node; LEAVES / FAN],
}

// SAFETY: the leaves are the tree's alone.
unsafe impl Send for Tree {}

/// What a search asks of a node: the children that may lead to an answer.
trait Wanted: Copy {
    fn in_leaf(self, leaf: &Leaf) -> u64;
    fn in_node(self, node: &Node) -> u64;
}

/// A member of a lane.
#[derive(Clone, Copy)]
struct Member(usize);

impl Wanted for Member {
    fn in_leaf(self, leaf: &Leaf) -> u64 {
        leaf.members.get(self.0).map_or(0, |&members| members.into())
    }

    fn in_node(self, node: &Node) -> u64 {
        node.members.get(self.0).copied().unwrap_or(0)
    }
}

/// A run of at least this length.
#[derive(Clone, Copy)]
struct Length(u16);

impl Length {
    fn among(self, longest: &[u16]) -> u64 {
        let bit = |(child, &length): (usize, &u16)| u64::from(length >= self.0) << child;
        longest.iter().enumerate().map(bit).sum()
    }
}

impl Wanted for Length {
    fn in_leaf(self, leaf: &Leaf) -> u64 {
        self.among(&leaf.longest)
    }

    fn in_node(self, node: &Node) -> u64 {
        self.among(&node.longest)
    }
}

impl Tree {
    /// From now on there are `count` leaves, `distance` bytes from each other, zero at first.
    ///
    /// # Safety
    /// They are that, nobody else uses them, and they stay.
    pub(super) unsafe fn extend(&mut self, leaves: *mut Leaf, distance: usize, count: usize) {
        (self.leaves, self.distance, self.count) = (leaves, distance, count);
    }

    fn leaf(&self, index: usize) -> *mut Leaf {
        if index < self.count {
            self.leaves.wrapping_byte_add(index * self.distance)
        } else {
            null_mut()
        }
    }

    /// The children of a node that may lead to what is wanted; None beyond the last node.
    fn children(&self, level: usize, node: usize, wanted: impl Wanted) -> Option<u64> {
        match level {
            // SAFETY: a leaf is the tree's alone, or null.
            0 => match unsafe { self.leaf(node).as_ref() } {
                Some(leaf) => Some(wanted.in_leaf(leaf)),
                None => (node < LEAVES).then_some(0),
            },
            1 => self.middle.get(node).map(|node| wanted.in_node(node)),
            _ => self.tops.get(node).map(|node| wanted.in_node(node)),
        }
    }

    fn node_mut(&mut self, level: usize, node: usize) -> &mut Node {
        let nodes: &mut [Node] = if level == 1 { &mut self.middle } else { &mut self.tops };
        // `address_map` makes no reservation with more chunks than there is place for.
        nodes.get_mut(node).unwrap_or_else(|| os::broken("a chunk beyond the reservation"))
    }

    fn leaf_mut(&mut self, chunk: usize) -> &mut Leaf {
        let leaf = self.leaf(chunk >> SHIFTS[0]);
        // SAFETY: a leaf is the tree's alone, or null.
        unsafe { leaf.as_mut() }.unwrap_or_else(|| os::broken("a chunk that is not committed"))
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        for index in 0..self.count {
            // SAFETY: a leaf is the tree's alone.
            unsafe {
                self.leaf(index).write(Leaf { members: [0; LANES], longest: [0; LEAF_CHUNKS] })
            };
        }
        for node in self.tops.iter_mut().chain(&mut self.middle) {
            *node = Node { members: [0; LANES], longest: [0; FAN] };
        }
    }

    /// Whether `chunk` is a member.
    pub(super) fn has(&self, lane: usize, chunk: usize) -> bool {
        let children = self.children(0, chunk >> SHIFTS[0], Member(lane));
        children.is_some_and(|children| children & bit(0, chunk) != 0)
    }

    /// Adds `chunk` to the first lanes, or removes it, as these say.
    pub(super) fn refresh(&mut self, chunk: usize, members: [bool; 4]) {
        let own = bit(0, chunk) as u16;
        let before = self.leaf_mut(chunk).members;
        for (lane, (before, now)) in before.into_iter().zip(members).enumerate() {
            if (before & own != 0) != now {
                self.set(lane, chunk, now);
            }
        }
    }

    /// Adds or removes `chunk`, if it is not so already.
    pub(super) fn update(&mut self, lane: usize, chunk: usize, member: bool) {
        let members = self.leaf_mut(chunk).members.get(lane).copied().unwrap_or(0);
        if (u64::from(members) & bit(0, chunk) != 0) != member {
            self.set(lane, chunk, member);
        }
    }

    /// Adds or removes `chunk`.
    pub(super) fn set(&mut self, lane: usize, chunk: usize, member: bool) {
        let Some(bits) = self.leaf_mut(chunk).members.get_mut(lane) else { return };
        let was = *bits;
        let own = bit(0, chunk) as u16;
        *bits = if member { was | own } else { was & !own };
        point();
        let (before, mut now) = (was != 0, *bits != 0);
        let (mut index, mut changed) = (chunk >> SHIFTS[0], before != now);
        for level in [1, 2] {
            if !changed {
                return;
            }
            let node = self.node_mut(level, index >> SHIFTS[level]);
            let Some(bits) = node.members.get_mut(lane) else { return };
            let was = *bits;
            *bits = if now { was | bit(level, index) } else { was & !bit(level, index) };
            changed = (was != 0) != (*bits != 0);
            now = *bits != 0;
            index >>= SHIFTS[level];
        }
    }

    /// The longest run that begins in `chunk`.
    pub(super) fn longest(&self, chunk: usize) -> u16 {
        // SAFETY: a leaf is the tree's alone, or null.
        let leaf = unsafe { self.leaf(chunk >> SHIFTS[0]).as_ref() };
        leaf.map_or(0, |leaf| leaf.longest[chunk % LEAF_CHUNKS])
    }

    /// Says how long the longest run is that begins in `chunk`; false if that is known.
    pub(super) fn set_longest(&mut self, chunk: usize, length: u16) -> bool {
        let leaf = self.leaf_mut(chunk);
        if core::mem::replace(&mut leaf.longest[chunk % LEAF_CHUNKS], length) == length {
            return false;
        }
        let mut longest = leaf.longest.iter().copied().fold(0, u16::max);
        let mut index = chunk >> SHIFTS[0];
        for level in [1, 2] {
            let node = self.node_mut(level, index >> SHIFTS[level]);
            if core::mem::replace(&mut node.longest[index % FAN], longest) == longest {
                break;
            }
            longest = node.longest.iter().copied().fold(0, u16::max);
            index >>= SHIFTS[level];
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
            let (node, shift) = (index >> SHIFTS[level], SHIFTS[level]);
            let here = self.children(level, node, wanted)? & not_below(level, index);
            if here != 0 {
                break node << shift | here.trailing_zeros() as usize;
            }
            // The next node, or the last level's, which stand side by side.
            index = if level + 1 < LEVELS { node + 1 } else { (node + 1) << shift };
            level = (level + 1).min(LEVELS - 1);
        };
        // ... and down to it.
        while level > 0 {
            level -= 1;
            let here = self.children(level, at, wanted)?;
            at = (at << SHIFTS[level]) + here.trailing_zeros() as usize % FAN;
        }
        Some(at)
    }

    /// The largest member below `end`.
    pub(super) fn last(&self, lane: usize, end: usize) -> Option<usize> {
        let (wanted, mut level, mut index) = (Member(lane), 0, end.checked_sub(1)?);
        let mut at = loop {
            let (node, shift) = (index >> SHIFTS[level], SHIFTS[level]);
            // Beyond the last node there is nothing.
            let children = self.children(level, node, wanted).unwrap_or(0);
            let here = children & not_above(level, index);
            if here != 0 {
                break node << shift | highest(here);
            }
            index = node.checked_sub(1)?;
            if level + 1 == LEVELS {
                index = index << shift | (FAN - 1);
            }
            level = (level + 1).min(LEVELS - 1);
        };
        while level > 0 {
            level -= 1;
            at = at << SHIFTS[level] | highest(self.children(level, at, wanted)?);
        }
        Some(at)
    }
}

/// The place of a child among its node's.
fn place(level: usize, index: usize) -> u32 {
    index as u32 & ((1 << SHIFTS[level]) - 1)
}

fn bit(level: usize, index: usize) -> u64 {
    1 << place(level, index)
}

/// The bits at and above `index`'s.
fn not_below(level: usize, index: usize) -> u64 {
    !0 << place(level, index)
}

/// The bits at and below `index`'s.
fn not_above(level: usize, index: usize) -> u64 {
    !0 >> (63 - place(level, index))
}

fn highest(word: u64) -> usize {
    FAN - 1 - (word | 1).leading_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::next;
    use std::boxed::Box;
    use std::collections::{BTreeMap, BTreeSet};
    use std::vec::Vec;

    /// Miri is slow.
    const SLOWER: usize = if cfg!(miri) { 100 } else { 1 };

    /// A tree, and its leaves.
    fn empty() -> (Box<Tree>, Vec<Leaf>) {
        // SAFETY: numbers, all zero, and a null pointer: no leaves.
        let mut tree: Box<Tree> = unsafe { Box::new_zeroed().assume_init() };
        // SAFETY: as above.
        let mut leaves =
            unsafe { Box::<[Leaf]>::new_zeroed_slice(LEAVES).assume_init() }.into_vec();
        // SAFETY: that many; they stay with the tree.
        unsafe { tree.extend(leaves.as_mut_ptr(), size_of::<Leaf>(), LEAVES) };
        (tree, leaves)
    }

    /// Clustered and spread indices, up to the last one.
    fn index(x: u64) -> usize {
        let shift = (x >> 60) as u32 % 3 * 6;
        ((x >> 8) as usize % CHUNKS) >> shift << (shift / 2) & (CHUNKS - 1)
    }

    #[test]
    fn agrees_with_a_plain_set() {
        let (mut tree, _leaves) = empty();
        let mut set = BTreeSet::new();
        let mut x = 88172645463325252u64;
        for round in 0..60_000 / SLOWER {
            let number = next(&mut x);
            let chunk = index(number);
            let member = round % 3 != 0 && round < 40_000 / SLOWER;
            tree.set(1, chunk, member);
            if member {
                set.insert(chunk);
            } else {
                set.remove(&chunk);
            }
            assert_eq!(tree.has(1, chunk), member);
            assert_eq!(tree.next(1, chunk), set.range(chunk..).next().copied());
            let other = (number >> 30) as usize % CHUNKS;
            assert_eq!(tree.next(1, other), set.range(other..).next().copied());
            assert_eq!(tree.last(1, CHUNKS), set.last().copied());
            assert_eq!(tree.last(1, other), set.range(..other).next_back().copied());
            assert_eq!(tree.next(0, 0), None);
        }
    }

    #[test]
    fn agrees_with_a_plain_list_of_runs() {
        let (mut tree, _leaves) = empty();
        let mut runs = BTreeMap::new();
        let mut x = 88172645463325252u64;
        for round in 0..20_000 / SLOWER {
            let number = next(&mut x);
            let chunk = index(number);
            let is_none = round % 3 == 0 || round > 15_000 / SLOWER;
            let length = if is_none { 0 } else { (number >> 50) as u16 % 99 };
            let known = runs.insert(chunk, length).unwrap_or(0) == length;
            assert_eq!(tree.set_longest(chunk, length), !known);
            assert_eq!(tree.longest(chunk), length);
            let (other, least) = ((number >> 30) as usize % CHUNKS, 1 + (number >> 40) as u16 % 99);
            let found = runs.range(other..).find(|(_, length)| **length >= least);
            assert_eq!(tree.next_run(least, other), found.map(|(&chunk, _)| chunk));
        }
        assert_eq!(tree.next_run(1, CHUNKS), None);
    }
}
