//! Owns: for each property a chunk can have, the set of chunks that have it.
//! Idea: three levels of words, the properties side by side, so that the first, the next and
//!   the last member are found in a few steps and a small heap touches two pages.
//! Never: looks at the chunks themselves.
//! Threads: the arena's lock holder.
//! Checked: the unit test below compares with a plain set.
//! Story: docs/giving-back.md

/// Properties.
pub(super) const LANES: usize = 5;
const BITS: usize = 1 << 14;
const WORDS: usize = BITS / 64;
const TOPS: usize = WORDS / 64;

/// Sets of chunk indices below 2^20. A bit in `words` says that a word of `bits` is not zero,
/// one in `tops` the same of `words`.
pub(super) struct Tree {
    tops: [[u64; LANES]; TOPS],
    words: [[u64; LANES]; WORDS],
    bits: [[u64; LANES]; BITS],
}

impl Tree {
    /// Whether `chunk` is a member.
    pub(super) fn has(&self, lane: usize, chunk: usize) -> bool {
        self.bits[(chunk >> 6) % BITS][lane % LANES] & bit(chunk) != 0
    }

    /// Adds or removes `chunk`.
    pub(super) fn set(&mut self, lane: usize, chunk: usize, member: bool) {
        let lane = lane % LANES;
        let bits = &mut self.bits[(chunk >> 6) % BITS][lane];
        let words = &mut self.words[(chunk >> 12) % WORDS][lane];
        let tops = &mut self.tops[(chunk >> 18) % TOPS][lane];
        if member {
            *bits |= bit(chunk);
            *words |= bit(chunk >> 6);
            *tops |= bit(chunk >> 12);
            return;
        }
        *bits &= !bit(chunk);
        if *bits == 0 {
            *words &= !bit(chunk >> 6);
            if *words == 0 {
                *tops &= !bit(chunk >> 12);
            }
        }
    }

    /// The smallest member from `from` on.
    pub(super) fn next(&self, lane: usize, from: usize) -> Option<usize> {
        let lane = lane % LANES;
        let mut index = from;
        let here = self.bits[(index >> 6) % BITS][lane] & not_below(index);
        if here != 0 {
            return Some(index & !63 | here.trailing_zeros() as usize);
        }
        index = (index >> 6) + 1;
        let mut word = match self.words.get(index >> 6) {
            Some(words) => words[lane] & not_below(index),
            None => return None,
        };
        if word == 0 {
            index = (index >> 6) + 1;
            let top = (index >> 6..TOPS).find_map(|t| {
                let from = if t == index >> 6 { not_below(index) } else { !0 };
                let tops = self.tops[t][lane] & from;
                (tops != 0).then(|| t << 6 | tops.trailing_zeros() as usize)
            })?;
            index = top << 6;
            word = self.words[top % WORDS][lane];
        }
        let at = index & !63 | word.trailing_zeros() as usize;
        Some(at << 6 | self.bits[at % BITS][lane].trailing_zeros() as usize)
    }

    /// The largest member below `end`.
    pub(super) fn last(&self, lane: usize, end: usize) -> Option<usize> {
        let lane = lane % LANES;
        // Each level: what is left of the index's own word, or else a lower one.
        let index = end.checked_sub(1)?;
        let here = self.bits[(index >> 6) % BITS][lane] & not_above(index);
        if here != 0 {
            return Some(index & !63 | highest(here));
        }
        let index = (index >> 6).checked_sub(1)?;
        let here = self.words[(index >> 6) % WORDS][lane] & not_above(index);
        let bits = if here != 0 {
            index & !63 | highest(here)
        } else {
            let index = (index >> 6).checked_sub(1)?;
            let top = (0..=(index >> 6).min(TOPS - 1)).rev().find_map(|t| {
                let upto = if t == index >> 6 { not_above(index) } else { !0 };
                let tops = self.tops[t][lane] & upto;
                (tops != 0).then(|| t << 6 | highest(tops))
            })?;
            top << 6 | highest(self.words[top % WORDS][lane])
        };
        Some(bits << 6 | highest(self.bits[bits % BITS][lane]))
    }
}

fn bit(index: usize) -> u64 {
    1 << (index & 63)
}

/// The bits at and above `index`'s.
fn not_below(index: usize) -> u64 {
    !0 << (index & 63)
}

/// The bits at and below `index`'s.
fn not_above(index: usize) -> u64 {
    !0 >> (63 - (index & 63))
}

fn highest(word: u64) -> usize {
    63 - (word | 1).leading_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::collections::BTreeSet;

    #[test]
    fn agrees_with_a_plain_set() {
        // SAFETY: words, all zero: no members.
        let mut tree: Box<Tree> = unsafe { Box::new_zeroed().assume_init() };
        let mut set = BTreeSet::new();
        let mut x = 88172645463325252u64;
        for round in 0..60_000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            // Clustered and spread members, up to the last index.
            let shift = (x >> 60) as u32 % 3 * 6;
            let chunk = ((x >> 8) as usize % (1 << 20)) >> shift << (shift / 2) & ((1 << 20) - 1);
            let member = round % 3 != 0 && round < 40_000;
            tree.set(1, chunk, member);
            if member {
                set.insert(chunk);
            } else {
                set.remove(&chunk);
            }
            assert_eq!(tree.has(1, chunk), member);
            assert_eq!(tree.next(1, chunk), set.range(chunk..).next().copied());
            let other = (x >> 30) as usize % (1 << 20);
            assert_eq!(tree.next(1, other), set.range(other..).next().copied());
            assert_eq!(tree.last(1, 1 << 20), set.last().copied());
            assert_eq!(tree.last(1, other), set.range(..other).next_back().copied());
            assert_eq!(tree.next(0, 0), None);
        }
    }
}
