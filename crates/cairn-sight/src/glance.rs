//! Owns: what can be told of a process many times: figures of its heap by size class, without a look at its blocks.
//! Idea: descriptors, counters and the lists of caches say enough; no span is read, and no map of all areas with their
//!   pages is asked of the kernel.
//! Never: stops anybody, or works longer than the target's metadata is large.
//! Threads: one.
//! Checked: tests/top.rs of the command.
//! Story: docs/guide/inspect.md

use crate::Error;
use crate::blocks::{self, Blocks};
use crate::header::Header;
use crate::memory::{Memory, Pages};
use crate::profile::Allocated;
use crate::walk::{self, Census, Large, Span};
use serde::Serialize;
use std::ops::Range;
use std::time::Instant;

// Names of parts.
pub(crate) const LARGE: &str = "large blocks";
pub(crate) const MAPPINGS: &str = "mappings";

/// A process at a moment.
#[derive(Clone, Debug, Serialize)]
pub struct Glance {
    /// The moment.
    #[serde(skip)]
    pub at: Instant,
    /// The process.
    pub pid: u32,
    /// When it was started, in the kernel's ticks: with `pid`, which process it is.
    pub started: u64,
    /// The program's name.
    pub program: String,
    /// The file that cairn is in.
    pub library: String,
    /// Whether it is the hardened build.
    pub hardened: bool,
    /// Its threads.
    pub threads: u64,
    /// What the kernel calls resident, in all.
    pub rss: u64,
    /// Bytes that it has allocated ever, by the samples of the heap profile; none: it takes none.
    pub allocated: Option<u64>,
    /// The whole heap.
    pub heap: Use,
    /// By size class; then other blocks, free slices, and metadata. Not in its JSON text: whoever writes that has rates of
    /// them, too.
    #[serde(skip)]
    pub parts: Vec<Part>,
}

/// Some part of a heap.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    /// Bytes in a block, if it is a size class.
    pub size: Option<u64>,
    /// What it is, if it is none.
    pub name: Option<&'static str>,
    /// Spans, or runs, or mappings.
    pub spans: u64,
    /// Blocks that the program has.
    pub blocks: u64,
    /// Bytes that have been allocated of it ever, by the samples of the heap profile; none: it takes none, or does not tell.
    /// Mappings are among large blocks.
    pub allocated: Option<u64>,
    /// Its figures.
    #[serde(flatten)]
    pub bytes: Use,
}

/// How memory is used, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Use {
    /// In blocks that the program holds.
    pub live: u64,
    /// In free blocks in threads' caches.
    pub cached: u64,
    /// In free blocks in spans, those on their way from other threads among them.
    pub free: u64,
    /// Pages that have been handed out in blocks and have no memory behind them.
    pub holes: u64,
    /// Free slices without memory behind them: given back, or not used yet.
    pub returned: u64,
    /// Pages with memory behind them.
    pub resident: u64,
    /// Resident, and in no block that the program holds.
    pub waste: u64,
}

impl Use {
    fn add(&mut self, other: &Use) {
        self.live += other.live;
        self.cached += other.cached;
        self.free += other.free;
        self.holes += other.holes;
        self.returned += other.returned;
        self.resident += other.resident;
        self.waste += other.waste;
    }
}

/// The figures of a heap.
pub(crate) fn parts(memory: &dyn Memory, header: &Header) -> Result<(Use, Vec<Part>), Error> {
    let pages = Pages::of(memory, header.window())?;
    let census = walk::census(memory, header)?;
    let blocks = blocks::find_cached(memory, header, &census.spans)?;
    let look = Look { memory, header, census: &census, blocks: &blocks, pages: &pages };
    let parts = look.parts()?;
    let mut heap = Use::default();
    parts.iter().for_each(|part| heap.add(&part.bytes));
    Ok((heap, parts))
}

/// Says what has been allocated of each part, by the sizes as which blocks were drawn. Of parts that are there no more nobody is
/// told.
pub(crate) fn tell_allocated(parts: &mut [Part], header: &Header, allocated: &Allocated) {
    let class_max = header.classes.iter().map(|class| class.size).max().unwrap_or(0);
    for part in parts {
        part.allocated = match part.size {
            Some(size) => Some(allocated.of(size..=size)),
            None if part.name == Some(LARGE) => Some(allocated.of(class_max + 1..=u64::MAX)),
            None => None,
        };
    }
}

struct Look<'a> {
    memory: &'a dyn Memory,
    header: &'a Header,
    census: &'a Census,
    blocks: &'a Blocks,
    /// Resident pages of the slices.
    pages: &'a Pages,
}

impl Look<'_> {
    fn parts(&self) -> Result<Vec<Part>, Error> {
        let mut parts = self.classes();
        let spans: u64 = self.census.spans.iter().map(|span| self.size(span)).sum();
        let large: u64 =
            self.census.large.iter().map(|block| block.run.end - block.run.start).sum();
        parts.push(self.own(LARGE, &self.census.large, self.pages));
        parts.push(self.nurseries());
        parts.push(self.mappings()?);
        let used = spans + large + self.census.nurseries.len() as u64 * self.header.slice();
        let window = self.header.window();
        let resident: u64 = parts[..parts.len() - 1].iter().map(|part| part.bytes.resident).sum();
        let dirty = self.pages.bytes(window.clone()).saturating_sub(resident);
        let free = (window.end - window.start).saturating_sub(used);
        let bytes = Use { returned: free.saturating_sub(dirty), ..kept(dirty) };
        parts.push(other("free slices", bytes));
        let metadata = self.header.metadata();
        let metadata = Pages::of(self.memory, metadata.clone())?.bytes(metadata);
        parts.push(other("metadata", kept(metadata)));
        parts.retain(|part| part.spans > 0 || part.bytes != Use::default());
        Ok(parts)
    }

    fn classes(&self) -> Vec<Part> {
        let empty = |size| Part {
            size: Some(size),
            name: None,
            spans: 0,
            blocks: 0,
            allocated: None,
            bytes: Use::default(),
        };
        let mut parts: Vec<_> = self.header.classes.iter().map(|class| empty(class.size)).collect();
        for (span, free) in self.census.spans.iter().zip(&self.blocks.free) {
            let (part, class) = (&mut parts[span.class], self.header.classes[span.class]);
            let cached = free.cached.min(span.used - span.pending);
            let live = span.used - span.pending - cached;
            let start = self.header.address(span.index);
            part.spans += 1;
            part.blocks += live;
            part.bytes.add(&Use {
                live: live * class.size,
                cached: cached * class.size,
                free: (span.carved - span.used + span.pending) * class.size,
                holes: self.without_memory(&(span.start..span.start + span.carved * class.size)),
                resident: self.pages.bytes(start..start + self.size(span)),
                ..Use::default()
            });
        }
        for part in &mut parts {
            part.bytes.waste = part.bytes.resident.saturating_sub(part.bytes.live);
        }
        parts
    }

    fn size(&self, span: &Span) -> u64 {
        self.header.classes[span.class].slices << self.header.slice_shift
    }

    /// Bytes of the whole pages of a range that have no memory behind them.
    fn without_memory(&self, range: &Range<u64>) -> u64 {
        let page = self.memory.page();
        let (start, end) = (range.start.next_multiple_of(page), range.end / page * page);
        if start < end { end - start - self.pages.bytes(start..end) } else { 0 }
    }

    /// Blocks with slices or a mapping each, of which these pages are resident.
    fn own(&self, name: &'static str, blocks: &[Large], pages: &Pages) -> Part {
        let mut part = other(name, Use::default());
        for block in blocks {
            add(&mut part, block, pages.bytes(block.run.clone()));
        }
        part
    }

    fn nurseries(&self) -> Part {
        let mut part = other("nurseries", Use::default());
        for slice in &self.census.nurseries {
            let block = Large { run: slice.clone(), start: slice.start, is_closed: false };
            add(&mut part, &block, self.pages.bytes(slice.clone()));
        }
        part
    }

    fn mappings(&self) -> Result<Part, Error> {
        let mut part = other(MAPPINGS, Use::default());
        for block in &self.census.mappings {
            let resident = Pages::of(self.memory, block.run.clone())?.bytes(block.run.clone());
            add(&mut part, block, resident);
        }
        Ok(part)
    }
}

fn add(part: &mut Part, block: &Large, resident: u64) {
    part.spans += 1;
    part.blocks += 1;
    let holes = (block.run.end - block.run.start).saturating_sub(resident);
    let (live, waste) = (block.room(), resident.saturating_sub(block.room()));
    part.bytes.add(&Use { live, holes, resident, waste, ..Use::default() });
}

fn other(name: &'static str, bytes: Use) -> Part {
    Part { size: None, name: Some(name), spans: 0, blocks: 0, allocated: None, bytes }
}

/// Resident memory without blocks.
fn kept(resident: u64) -> Use {
    Use { resident, waste: resident, ..Use::default() }
}
