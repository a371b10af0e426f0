//! Owns: how many bytes the program has asked for, where that is known: in the hardened build, or by samples.
//! Idea: hardened, the last word of each block says how much of it is left, combined with a number of the block's place and
//!   two secrets, which stand side by side in the library's data. Two words are them if they explain the blocks. Else
//!   live samples of the heap profile know it: each block of a class is as likely to be one.
//! Never: tells the secrets; takes words for them that explain a block by chance, or reads a page that is not resident.
//! Threads: one.
//! Checked: tests here; tests/inspect.rs and tests/page_samples.rs of the command.
//! Story: docs/design/policy.md

use crate::blocks::Blocks;
use crate::header::Header;
use crate::memory::{Kind, Memory, Pages, read_sparse, u64_at};
use crate::profile::Table;
use crate::walk::Span;
use std::path::Path;

/// Blocks that two words have to explain, most of them.
const TRIED: usize = 16;
/// Bytes of the library's data that are searched.
const SEARCH_MAX: u64 = 1 << 20;
/// Blocks that are read at most: every second, third, ... if there are more.
const READ_MAX: u64 = 1 << 18;
/// With fewer samples nothing is said: the mean of so many is off by a few percent of a class's step.
const SAMPLES_MIN: u64 = 64;
/// Words that are read together.
const AT_ONCE: usize = 1 << 16;
/// What is left stands in the word twice, and its lowest byte has nothing of it.
const TWICE: u64 = 1 << 8 | 1 << 36;
const WORD: u64 = 8;

/// What a target has, as far as it is known.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) memory: &'a dyn Memory,
    pub(crate) header: &'a Header,
    pub(crate) spans: &'a [Span],
    pub(crate) blocks: &'a Blocks,
    pub(crate) pages: &'a Pages,
    /// The file that cairn is in.
    pub(crate) library: &'a Path,
}

/// What has been found.
pub(crate) struct Asked {
    /// Of each class how many blocks are known, and the bytes that they were asked for.
    pub(crate) classes: Vec<(u64, u64)>,
    pub(crate) by: By,
}

/// Which blocks are known.
#[derive(Clone, Copy)]
pub(crate) enum By {
    /// One in so many.
    Reading(u64),
    /// So many samples.
    Samples(u64),
}

/// A block of the program's.
#[derive(Clone, Copy)]
struct Block {
    at: u64,
    class: usize,
    size: u64,
}

/// The two numbers that others are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Secrets {
    sum: u64,
    factor: u64,
}

impl Secrets {
    /// The number of a block's place, as the library's `store/canary.rs` makes it.
    fn number(self, place: u64) -> u64 {
        let product = (place ^ self.sum).wrapping_mul(self.factor);
        product.swap_bytes() & !(1 << 63 | 1 << 7) | 1
    }

    /// Bytes that were asked for of a block whose last word this is; None if the word is no canary of that block's.
    fn asked(self, block: Block, word: u64) -> Option<u64> {
        let twice = u64::from_le(word) ^ self.number(block.at / 16);
        let left = twice >> TWICE.ilog2();
        let is_left = left.checked_mul(TWICE) == Some(twice) && (WORD..=block.size).contains(&left);
        is_left.then(|| block.size - left)
    }
}

/// Finds out; None if it cannot be known.
pub(crate) fn find(target: Target) -> Option<Asked> {
    if !target.header.is_hardened() {
        return by_samples(target.memory, target.header);
    }
    let count = target.blocks().count() as u64;
    let tried = target.every(count / TRIED as u64 + 1);
    let secrets = target.secrets(&tried)?;
    let one_in = count / READ_MAX + 1;
    let mut classes = vec![(0, 0); target.header.classes.len()];
    for blocks in target.every(one_in).chunks(AT_ONCE) {
        for (block, word) in blocks.iter().zip(target.words(blocks)) {
            if let Some(bytes) = secrets.asked(*block, word) {
                let (read, sum) = &mut classes[block.class];
                (*read, *sum) = (*read + 1, *sum + bytes);
            }
        }
    }
    Some(Asked { classes, by: By::Reading(one_in) })
}

/// What live samples of the heap profile know, if there are enough of them.
fn by_samples(memory: &dyn Memory, header: &Header) -> Option<Asked> {
    let table = Table::find(memory, header.profile)?;
    // In this order: the site of a sample that is seen is there.
    let (samples, sites) = (table.samples().ok()?, table.sites().ok()?);
    let mut classes = vec![(0, 0); header.classes.len()];
    let mut known = 0;
    for sample in &samples {
        let Some(size) = sites.get(sample.site).map(|site| site.weighed) else { continue };
        let class = header.classes.iter().position(|class| class.size == size);
        if let Some((read, sum)) = class.map(|class| &mut classes[class])
            && sample.asked <= size
        {
            (*read, *sum, known) = (*read + 1, *sum + sample.asked, known + 1);
        }
    }
    (known >= SAMPLES_MIN).then_some(Asked { classes, by: By::Samples(known) })
}

impl<'a> Target<'a> {
    /// The program's blocks whose last words are there.
    fn blocks(self) -> impl Iterator<Item = Block> + use<'a> {
        let spans = self.spans.iter().zip(&self.blocks.free);
        spans.flat_map(move |(span, free)| {
            let (class, size) = (span.class, self.header.classes[span.class].size);
            let held = (0..span.carved).filter(|&nth| !free.has(nth));
            let blocks = held.map(move |nth| Block { at: span.start + nth * size, class, size });
            blocks.filter(move |block| self.pages.has(block.at + size - WORD))
        })
    }

    /// One of them in so many.
    fn every(self, one_in: u64) -> Vec<Block> {
        self.blocks().step_by(one_in as usize).collect()
    }

    fn words(self, blocks: &[Block]) -> Vec<u64> {
        let places: Vec<_> = blocks.iter().map(|block| block.at + block.size - WORD).collect();
        self.memory.words(&places)
    }

    /// Searches the library's data, and the area behind it.
    fn secrets(self, tried: &[Block]) -> Option<Secrets> {
        let words = self.words(tried);
        let (mut end, mut left) = (0, SEARCH_MAX);
        for area in self.memory.areas() {
            let range = area.range.clone();
            let is_own = area.path.as_deref() == Some(self.library);
            let is_behind = range.start == end && matches!(area.kind, Kind::Anonymous | Kind::Brk);
            if !is_own && !is_behind {
                continue;
            }
            end = range.end;
            if !area.writes {
                continue;
            }
            let range = range.start..range.end.min(range.start + left);
            left -= range.end - range.start;
            let Ok(pages) = Pages::of(self.memory, range.clone()) else { continue };
            let bytes = read_sparse(self.memory, range, &pages);
            if let Some(secrets) = search(&bytes, tried, &words) {
                return Some(secrets);
            }
        }
        None
    }
}

/// Two words side by side that explain most of these blocks.
fn search(bytes: &[u8], tried: &[Block], words: &[u64]) -> Option<Secrets> {
    let explained = |secrets: &Secrets| {
        let blocks = tried.iter().zip(words);
        blocks.filter(|&(block, word)| secrets.asked(*block, *word).is_some()).count()
    };
    (0..bytes.len().saturating_sub(8)).step_by(8).find_map(|at| {
        let (one, other) = (u64_at(bytes, at), u64_at(bytes, at + 8));
        let both = [(one, other), (other, one)].map(|(sum, factor)| Secrets { sum, factor });
        let odd = both.into_iter().filter(|secrets| secrets.factor % 2 == 1);
        odd.into_iter().find(|secrets| explained(secrets) * 2 > tried.len())
    })
}

#[cfg(test)]
mod tests {
    use super::{Block, Secrets, TWICE, search};

    const SECRETS: Secrets = Secrets { sum: 0x0123_4567_89ab_cdef, factor: 0xfedc_ba98_7654_3211 };

    /// The word of a block that was asked for so many bytes.
    fn word(block: Block, asked: u64) -> u64 {
        SECRETS.number(block.at / 16) ^ ((block.size - asked) * TWICE)
    }

    fn blocks() -> Vec<Block> {
        (0..10).map(|nth| Block { at: 0x7000_0000_0000 + nth * 112, class: 6, size: 112 }).collect()
    }

    /// The core's tests of canaries have the same figures.
    #[test]
    fn a_number_is_the_librarys() {
        let numbers = [0x0700_0000_0006, 0x0700_0000_004f].map(|place| SECRETS.number(place));
        assert_eq!(numbers, [0x792e_14a9_648b_972d, 0x20e7_11eb_ea55_a601]);
    }

    #[test]
    fn secrets_are_found_by_what_they_explain() {
        let blocks = blocks();
        let mut words: Vec<_> = blocks.iter().map(|&block| word(block, 100)).collect();
        let mut bytes: Vec<u8> = (0..4096_u32).flat_map(|nth| (nth * nth).to_ne_bytes()).collect();
        assert_eq!(search(&bytes, &blocks, &words), None);
        for (at, number) in [(800, SECRETS.factor), (808, SECRETS.sum)] {
            bytes[at..at + 8].copy_from_slice(&number.to_ne_bytes());
        }
        // Some blocks may have been overwritten.
        words[3] = 0;
        assert_eq!(search(&bytes, &blocks, &words), Some(SECRETS));
        assert_eq!(SECRETS.asked(blocks[5], words[5]), Some(100));
        assert_eq!(SECRETS.asked(blocks[5], words[6]), None);
        words[..5].fill(0);
        assert_eq!(search(&bytes, &blocks, &words), None, "half of them is not most");
        assert_eq!(search(&bytes, &[], &[]), None);
    }
}
