//! Owns: which blocks of a target's spans are free: in lists, in caches, pending, set aside.
//! Idea: a bit for each block. What no list leads to and nothing says is free is in use.
//! Never: follows a link to what is no block of its list's class, or twice to the same one.
//! Threads: one.
//! Checked: tests/inspect.rs and tests/hostile.rs of the command.
//! Story: docs/design/outside-view.md

use crate::Error;
use crate::header::{Class, Header};
use crate::memory::{Memory, Pages, read_sparse, u32_at, u64_at};
use crate::walk::Span;

/// Bytes of spans with lists that an account reads at most: if there are more, every second, third, ... of a class is. A
/// class that has little is read whole.
pub(crate) const LOOK_MAX: u64 = 1 << 30;
const LITTLE: u64 = 1 << 24;
/// Bytes of heaps that are read together.
const HEAPS_AT_ONCE: u64 = 1 << 24;

/// How much is known of a span's blocks.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Look {
    /// It has no lists, or all of its class are looked at.
    #[default]
    Whole,
    /// Its lists have been followed, for others that are left out.
    Drawn,
    LeftOut,
}

/// Which blocks of a span are free.
#[derive(Default)]
pub(crate) struct Free {
    bits: Vec<u64>,
    /// Blocks of it in threads' caches.
    pub(crate) cached: u64,
    /// Whether all its free blocks are known.
    pub(crate) look: Look,
}

impl Free {
    /// Whether a block is free.
    pub(crate) fn has(&self, nth: u64) -> bool {
        self.bits.get((nth / 64) as usize).is_some_and(|word| word >> (nth % 64) & 1 != 0)
    }

    /// Says that a block is free; false if that is known.
    fn add(&mut self, nth: u64) -> bool {
        let word = (nth / 64) as usize;
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        let bit = 1 << (nth % 64);
        let is_new = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        is_new
    }
}

/// What is known of free blocks.
pub(crate) struct Blocks {
    /// Of each span.
    pub(crate) free: Vec<Free>,
    /// Of each heap that has been made, its address and its bytes in caches.
    pub(crate) heaps: Vec<(u64, u64)>,
    /// Spans are looked at one in so many.
    pub(crate) one_in: u64,
}

/// Finds out which blocks are free. `pages` is what is resident of the slices; of spans with lists at most `look_max` bytes
/// are read.
pub(crate) fn find(
    memory: &dyn Memory,
    header: &Header,
    spans: &[Span],
    pages: &Pages,
    look_max: u64,
) -> Result<Blocks, Error> {
    let mut blocks = Blocks::new(spans);
    if header.is_hardened() {
        blocks.read_bits(memory, header, spans)?;
        return Ok(blocks);
    }
    blocks.draw(header, spans, look_max);
    for (span, free) in spans.iter().zip(&mut blocks.free) {
        for (word, bits) in span.aside.iter().enumerate() {
            (0..64).filter(|bit| bits >> bit & 1 != 0).for_each(|bit| {
                free.add(word as u64 * 64 + bit);
            });
        }
        if free.look != Look::LeftOut && has_lists(span) {
            let first = header.address(span.index);
            let range = first..first + size(header, span);
            let bytes = read_sparse(memory, range, pages);
            follow(header, span, &bytes, span.free, free);
            if let Some(pending) = span.pending_first {
                follow(header, span, &bytes, pending, free);
            }
        }
    }
    blocks.follow_caches(memory, header, spans)?;
    Ok(blocks)
}

/// Finds out how many blocks of each span are in caches, and no more: spans' lists are not read.
pub(crate) fn find_cached(
    memory: &dyn Memory,
    header: &Header,
    spans: &[Span],
) -> Result<Blocks, Error> {
    let mut blocks = Blocks::new(spans);
    if header.is_hardened() {
        blocks.read_bits(memory, header, spans)?;
    } else {
        blocks.follow_caches(memory, header, spans)?;
    }
    Ok(blocks)
}

fn has_lists(span: &Span) -> bool {
    span.used + span.hidden < span.carved || span.pending > 0
}

fn size(header: &Header, span: &Span) -> u64 {
    header.classes[span.class].slices << header.slice_shift
}

/// The number of the carved block that starts there.
fn number(span: &Span, class: Class, at: u64) -> Option<u64> {
    let offset = at.checked_sub(span.start)?;
    let nth = offset / class.size;
    (offset.is_multiple_of(class.size) && nth < span.carved).then_some(nth)
}

/// Follows a list inside a span, whose memory is given.
fn follow(header: &Header, span: &Span, bytes: &[u8], first: u64, free: &mut Free) {
    let class = header.classes[span.class];
    let base = header.address(span.index);
    let mut at = first;
    while let Some(nth) = number(span, class, at)
        && free.add(nth)
    {
        at = u64_at(bytes, (at - base + 8) as usize) ^ header.key;
    }
}

/// A place in a list of a heap's.
struct Walk {
    heap: usize,
    class: usize,
    at: u64,
}

impl Blocks {
    fn new(spans: &[Span]) -> Blocks {
        let mut free = Vec::new();
        free.resize_with(spans.len(), Free::default);
        Blocks { free, heaps: Vec::new(), one_in: 1 }
    }

    /// Decides which spans are looked at.
    fn draw(&mut self, header: &Header, spans: &[Span], look_max: u64) {
        let mut of_class = vec![0; header.classes.len()];
        for span in spans.iter().filter(|span| has_lists(span)) {
            of_class[span.class] += size(header, span);
        }
        let one_in = of_class.iter().sum::<u64>().div_ceil(look_max).max(1);
        let mut turns = vec![0_u64; of_class.len()];
        for (span, free) in spans.iter().zip(&mut self.free).filter(|(span, _)| has_lists(span)) {
            if one_in > 1 && of_class[span.class] > LITTLE {
                self.one_in = one_in;
                let is_drawn = turns[span.class].is_multiple_of(one_in);
                free.look = if is_drawn { Look::Drawn } else { Look::LeftOut };
                turns[span.class] += 1;
            }
        }
    }

    /// Follows the lists of all heaps, a step of each at a time: the kernel reads many words in one call.
    fn follow_caches(
        &mut self,
        memory: &dyn Memory,
        header: &Header,
        spans: &[Span],
    ) -> Result<(), Error> {
        let mut walks = self.first_cached(memory, header)?;
        while !walks.is_empty() {
            walks.retain(|walk| self.take(header, spans, walk));
            let places: Vec<_> = walks.iter().map(|walk| walk.at + 8).collect();
            for (walk, link) in walks.iter_mut().zip(memory.words(&places)) {
                walk.at = link ^ header.key;
            }
        }
        Ok(())
    }

    /// Counts the block that a list has come to; false if the list ends there.
    fn take(&mut self, header: &Header, spans: &[Span], walk: &Walk) -> bool {
        let slice = header.slice_of(walk.at);
        let Some(slice) = slice.filter(|_| walk.at != header.end) else { return false };
        let behind = spans.partition_point(|span| span.index <= slice);
        let Some(nth) = behind.checked_sub(1) else { return false };
        let (span, class) = (&spans[nth], header.classes[walk.class]);
        let block = number(span, class, walk.at).filter(|_| span.class == walk.class);
        let is_new = block.is_some_and(|block| self.free[nth].add(block));
        if is_new {
            self.free[nth].cached += 1;
            self.heaps[walk.heap].1 += class.size;
        }
        is_new
    }

    /// Where the lists of all heaps begin. The heaps that have been made stand in a row.
    fn first_cached(&mut self, memory: &dyn Memory, header: &Header) -> Result<Vec<Walk>, Error> {
        let all = header.heaps..header.heaps + header.heap_limit * header.heap_bytes;
        let pages = Pages::of(memory, all.clone())?;
        let (mut walks, mut at) = (Vec::new(), all.start);
        while at < all.end && pages.has(at) {
            let count = (HEAPS_AT_ONCE / header.heap_bytes).min((all.end - at) / header.heap_bytes);
            let bytes = read_sparse(memory, at..at + count * header.heap_bytes, &pages);
            for heap in bytes.chunks_exact(header.heap_bytes as usize) {
                if u64_at(heap, 0) == 0 {
                    return Ok(walks);
                }
                let nth = self.heaps.len();
                self.heaps.push((at, 0));
                let lists = (0..header.classes.len()).map(|class| Walk {
                    heap: nth,
                    class,
                    at: u64_at(heap, 8 * class),
                });
                walks.extend(lists.filter(|list| header.slice_of(list.at).is_some()));
                at += header.heap_bytes;
            }
        }
        Ok(walks)
    }

    /// The hardened build has a table of what the program has: a bit for each 16 bytes, 0 where a block of its starts.
    fn read_bits(
        &mut self,
        memory: &dyn Memory,
        header: &Header,
        spans: &[Span],
    ) -> Result<(), Error> {
        let pages = Pages::of(memory, header.live(0..header.committed))?;
        for (span, free) in spans.iter().zip(&mut self.free) {
            let class = header.classes[span.class];
            let range = header.live(span.index..span.index + class.slices);
            let bytes = read_sparse(memory, range, &pages);
            let base = header.address(span.index);
            for nth in 0..span.carved {
                let place = (span.start + nth * class.size - base) / 16;
                let word = u32_at(&bytes, (place / 32 * 4) as usize);
                if word >> (place % 32) & 1 != 0 {
                    free.add(nth);
                }
            }
            // What counts as used and is not the program's waits in a cache. Pending blocks are the program's still.
            let ended: u64 = free.bits.iter().map(|word| u64::from(word.count_ones())).sum();
            free.cached = ended.saturating_sub(span.carved - span.used);
        }
        Ok(())
    }
}
