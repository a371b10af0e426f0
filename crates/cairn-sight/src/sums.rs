//! Owns: how the account is drawn up of what the walk has found.
//! Idea: each resident page of the slices is a span's, a large block's, a nursery's, or dirty; the rest of the target is
//!   told by its areas.
//! Never: reads the target but through the walk's figures and its areas.
//! Threads: one.
//! Checked: tests/inspect.rs of the command, against the kernel's account.
//! Story: docs/guide/inspect.md

use crate::account::{BlockRow, ClassRow, Floor, HeapRow, Held, Resident, Step};
use crate::asked::Asked;
use crate::blocks::{Blocks, Free, Look};
use crate::header::{Class, Header};
use crate::memory::{Area, Kind, Memory, Pages, overlapping};
use crate::profile::Table;
use crate::walk::{Census, Large, Span};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::Path;

/// Blocks that are named.
const BIGGEST: usize = 10;
/// The owner of spans that nobody owns, and the bit of closed heaps.
const ABANDONED: u32 = 1;
const CLOSED: u32 = 1 << 3;

/// What the sums are made of.
pub(crate) struct Found<'a> {
    pub(crate) memory: &'a dyn Memory,
    pub(crate) header: &'a Header,
    pub(crate) census: &'a Census,
    pub(crate) blocks: &'a Blocks,
    /// What the program has asked for, by class.
    pub(crate) asked: Option<&'a Asked>,
    /// Resident pages of the slices.
    pub(crate) pages: &'a Pages,
    /// The file that cairn is in.
    pub(crate) library: &'a Path,
}

/// The figures of an account.
pub(crate) struct Sums {
    pub(crate) held: Held,
    pub(crate) steps: Vec<Step>,
    pub(crate) resident: Resident,
    pub(crate) floor: Floor,
    pub(crate) classes: Vec<ClassRow>,
    pub(crate) heaps: Vec<HeapRow>,
    pub(crate) biggest: Vec<BlockRow>,
}

/// Spans of a class of which some were looked at, in resident bytes.
#[derive(Clone, Copy, Default)]
struct Sample {
    drawn: u64,
    floor_of_drawn: u64,
    left_out: u64,
}

impl Sample {
    fn add(&mut self, resident: u64, floor: u64) {
        self.drawn += resident;
        self.floor_of_drawn += floor;
    }

    /// What that says of all of them.
    fn floor(self) -> u64 {
        let all = u128::from(self.floor_of_drawn) * u128::from(self.drawn + self.left_out);
        (all / u128::from(self.drawn.max(1))) as u64
    }
}

/// Address space in some use, and what of it is resident.
#[derive(Clone, Copy, Default)]
struct Amount {
    bytes: u64,
    resident: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64, resident: u64) {
        self.bytes += bytes;
        self.resident += resident;
    }
}

impl Found<'_> {
    /// Adds everything up.
    pub(crate) fn sums(&self) -> Sums {
        let classes = self.classes();
        let (mut spans, mut large, mut nurseries) = Default::default();
        for span in &self.census.spans {
            self.add(&mut spans, &self.run(span));
        }
        self.census.large.iter().for_each(|block| self.add(&mut large, &block.run));
        self.census.nurseries.iter().for_each(|slice| self.add(&mut nurseries, slice));
        let mappings = self.mappings();
        let slices: u64 = self.pages.bytes(self.header.window());
        let known = spans.resident + large.resident + nurseries.resident;
        let dirty = slices.saturating_sub(known);
        let metadata = self.resident_in(&self.header.metadata());
        let held = self.held(&classes, nurseries.bytes);
        let reserved: u64 = [spans, large, nurseries, mappings].iter().map(|part| part.bytes).sum();
        let resident = known + mappings.resident;
        let mut steps = between(&classes, held, [spans.bytes, large.bytes, mappings.bytes]);
        step(&mut steps, "pages of all that without memory", resident as i64 - reserved as i64);
        step(&mut steps, "free slices not yet given back (dirty)", dirty as i64);
        step(&mut steps, "metadata", metadata as i64);
        let through_cairn = resident + dirty + metadata;
        let elsewhere = self.elsewhere(mappings.resident);
        let sum = through_cairn + elsewhere.values().sum::<u64>();
        elsewhere.into_iter().for_each(|(name, bytes)| step(&mut steps, name, bytes as i64));
        let floor_of_spans: u64 = classes.iter().map(|row| row.floor).sum();
        Sums {
            held,
            steps,
            resident: Resident {
                through_cairn,
                sum,
                kernel: None,
                huge: self.areas().map(|area| area.huge).sum(),
                swapped: self.areas().map(|area| area.swapped).sum(),
            },
            floor: Floor {
                bytes: floor_of_spans + large.resident + nurseries.resident + mappings.resident,
                free_in_spans: spans.resident.saturating_sub(floor_of_spans),
                dirty,
                metadata,
                one_in: self.blocks.one_in,
            },
            classes: classes.into_iter().filter(|row| row.spans > 0).collect(),
            heaps: self.heaps(),
            biggest: self.biggest(),
        }
    }

    fn class(&self, span: &Span) -> Class {
        self.header.classes[span.class]
    }

    pub(crate) fn run(&self, span: &Span) -> Range<u64> {
        let index = span.index;
        self.header.address(index)..self.header.address(index + self.class(span).slices)
    }

    fn add(&self, amount: &mut Amount, run: &Range<u64>) {
        amount.add(run.end - run.start, self.pages.bytes(run.clone()));
    }

    /// Bytes of the large block that starts there, if one does.
    pub(crate) fn room_of(&self, block: u64) -> Option<u64> {
        let all = &self.census.large;
        let nth = all.binary_search_by_key(&block, |large| large.start).ok()?;
        Some(all[nth].room())
    }

    fn mappings(&self) -> Amount {
        let mut all = Amount::default();
        for block in &self.census.mappings {
            all.add(block.run.end - block.run.start, self.resident_of(block));
        }
        all
    }

    /// Resident bytes of a block's run or mapping.
    fn resident_of(&self, block: &Large) -> u64 {
        if self.header.window().contains(&block.run.start) {
            return self.pages.bytes(block.run.clone());
        }
        Pages::of(self.memory, block.run.clone()).map_or(0, |pages| pages.bytes(block.run.clone()))
    }

    /// Resident bytes of the areas in a range.
    fn resident_in(&self, range: &Range<u64>) -> u64 {
        overlapping(self.memory.areas(), range).map(|area| area.resident).sum()
    }

    /// The areas of the slices.
    fn areas(&self) -> impl Iterator<Item = &Area> {
        overlapping(self.memory.areas(), &self.header.window())
    }

    fn classes(&self) -> Vec<ClassRow> {
        let empty = |class: &Class| ClassRow { size: class.size, ..ClassRow::default() };
        let mut rows: Vec<_> = self.header.classes.iter().map(empty).collect();
        let mut samples = vec![Sample::default(); rows.len()];
        for (span, free) in self.census.spans.iter().zip(&self.blocks.free) {
            let (row, resident) = (&mut rows[span.class], self.pages.bytes(self.run(span)));
            let cached = free.cached.min(span.used - span.pending);
            row.spans += 1;
            row.in_use += span.used - span.pending - cached;
            row.cached += cached;
            row.free += span.carved - span.used + span.pending;
            row.pending += span.pending;
            row.untouched += self.class(span).blocks - span.carved;
            row.resident += resident;
            match free.look {
                Look::Whole => row.floor += self.floor(span, free),
                Look::Drawn => samples[span.class].add(resident, self.floor(span, free)),
                Look::LeftOut => samples[span.class].left_out += resident,
            }
        }
        for (row, sample) in rows.iter_mut().zip(samples) {
            row.floor += sample.floor();
        }
        for (row, &(read, bytes)) in
            rows.iter_mut().zip(self.asked.iter().flat_map(|asked| &asked.classes))
        {
            // Of those that have been read it is known; the others are like them.
            let all = u128::from(bytes) * u128::from(row.in_use);
            row.asked = all.checked_div(read.into()).map(|all| all as u64);
        }
        rows
    }

    /// Bytes of the resident pages of a span on which a block is in use, without what the pages have beside the span.
    fn floor(&self, span: &Span, free: &Free) -> u64 {
        let (class, page, run) = (self.class(span), self.memory.page(), self.run(span));
        let (mut bytes, mut next) = (0, run.start);
        for nth in (0..span.carved).filter(|&nth| !free.has(nth)) {
            let start = span.start + nth * class.size;
            let end = (start + class.size).next_multiple_of(page).min(run.end);
            let from = (start / page * page).max(next);
            if from < end {
                bytes += self.pages.bytes(from..end);
                next = end;
            }
        }
        bytes
    }

    fn held(&self, classes: &[ClassRow], nurseries: u64) -> Held {
        let room = Large::room;
        let small: u64 = classes.iter().map(|row| row.in_use * row.size).sum();
        let large: u64 = self.census.large.iter().map(room).sum();
        let mappings: u64 = self.census.mappings.iter().map(room).sum();
        let own = self.census.large.len() + self.census.mappings.len();
        Held {
            bytes: small + large + nurseries + mappings,
            asked: self.asked.map(|_| {
                classes.iter().map(|row| row.asked.unwrap_or(row.in_use * row.size)).sum()
            }),
            blocks: classes.iter().map(|row| row.in_use).sum::<u64>() + own as u64,
            small,
            large,
            nurseries,
            mappings,
        }
    }

    /// What is resident of areas that are not cairn's, by what they are.
    fn elsewhere(&self, mapped: u64) -> BTreeMap<&'static str, u64> {
        let (metadata, slices) = (self.header.metadata(), self.header.reservation());
        let is_ours = |area: &Area| {
            let at = area.range.start;
            metadata.contains(&at) || slices.contains(&at)
        };
        let mut all = BTreeMap::new();
        for area in self.memory.areas().iter().filter(|area| !is_ours(area)) {
            let name = match area.kind {
                Kind::File if area.path.as_deref() == Some(self.library) => "file that cairn is in",
                Kind::File => "other files: programs, libraries, data",
                Kind::Brk => "memory from brk",
                Kind::Stack => "stack of the first thread",
                Kind::Anonymous => OTHER,
            };
            *all.entry(name).or_insert(0) += area.resident;
        }
        // Blocks with a mapping each are in such areas.
        if let Some(anonymous) = all.get_mut(OTHER) {
            *anonymous = anonymous.saturating_sub(mapped);
        }
        all.retain(|_, bytes| *bytes > 0);
        all
    }

    fn heaps(&self) -> Vec<HeapRow> {
        let mut rows = BTreeMap::new();
        for &(at, cached) in self.blocks.heaps.iter().filter(|heap| heap.1 > 0) {
            let row = HeapRow { cached, ..self.heap_row(at as u32) };
            rows.insert(at as u32, row);
        }
        for (span, free) in self.census.spans.iter().zip(&self.blocks.free) {
            let row = rows.entry(span.owner & !CLOSED).or_insert_with(|| self.heap_row(span.owner));
            let used = span.used - span.pending - free.cached.min(span.used - span.pending);
            row.spans += 1;
            row.closed |= span.owner & CLOSED != 0;
            row.in_use += used * self.class(span).size;
            row.resident += self.pages.bytes(self.run(span));
        }
        let mut rows: Vec<_> = rows.into_values().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.resident));
        rows
    }

    /// A heap with nothing, by its owner.
    fn heap_row(&self, owner: u32) -> HeapRow {
        HeapRow {
            heap: self.number_of(owner),
            thread: None,
            thread_name: None,
            closed: false,
            spans: 0,
            in_use: 0,
            cached: 0,
            resident: 0,
        }
    }

    /// The number of an owner's heap; None: nobody's.
    pub(crate) fn number_of(&self, owner: u32) -> Option<u64> {
        let heap = self.heap_of(owner).filter(|_| owner != ABANDONED);
        heap.map(|at| (at - self.header.heaps) / self.header.heap_bytes)
    }

    /// The heap of an owner: its address has these low 32 bits.
    fn heap_of(&self, owner: u32) -> Option<u64> {
        let tag = owner & !CLOSED;
        let offset = u64::from(tag.wrapping_sub(self.header.heaps as u32));
        let all = self.header.heap_limit * self.header.heap_bytes;
        (offset < all).then(|| self.header.heaps + offset)
    }

    /// Without those in which the heap profile has put small blocks: they are large for its sake.
    fn biggest(&self) -> Vec<BlockRow> {
        let table = Table::find(self.memory, self.header.profile);
        let samples = table.and_then(|table| table.samples().ok()).unwrap_or_default();
        let small = samples.iter().filter(|sample| sample.near > 0);
        let small: HashSet<_> = small.map(|sample| sample.block).collect();
        let row = |block: &Large, mapping| BlockRow {
            address: block.start,
            bytes: block.room(),
            resident: self.resident_of(block),
            mapping,
        };
        let runs = self.census.large.iter().map(|block| (block, false));
        let all = runs.chain(self.census.mappings.iter().map(|block| (block, true)));
        let mut all: Vec<_> = all.filter(|(block, _)| !small.contains(&block.start)).collect();
        all.sort_by_key(|(block, _)| std::cmp::Reverse(block.room()));
        all.into_iter().take(BIGGEST).map(|(block, mapping)| row(block, mapping)).collect()
    }
}

const OTHER: &str = "other anonymous memory: threads' stacks, mappings of the program";

fn step(steps: &mut Vec<Step>, name: &'static str, bytes: i64) {
    if bytes != 0 {
        steps.push(Step { name: name.into(), bytes });
    }
}

/// From what the program holds to all that spans, large blocks and mappings take.
fn between(classes: &[ClassRow], held: Held, [spans, large, mappings]: [u64; 3]) -> Vec<Step> {
    let sum = |blocks: fn(&ClassRow) -> u64| -> u64 {
        classes.iter().map(|row| blocks(row) * row.size).sum()
    };
    let (cached, pending) = (sum(|row| row.cached), sum(|row| row.pending));
    let (free, untouched) = (sum(|row| row.free - row.pending), sum(|row| row.untouched));
    let blocks = held.small + cached + pending + free + untouched;
    let mut steps = Vec::new();
    step(&mut steps, "blocks that the program holds", held.bytes as i64);
    step(&mut steps, "free blocks in threads' caches", cached as i64);
    step(&mut steps, "free blocks on their way from other threads (pending)", pending as i64);
    step(&mut steps, "free blocks in spans", free as i64);
    step(&mut steps, "blocks never handed out (untouched)", untouched as i64);
    let rests = (spans + large + mappings) as i64 - (blocks + held.large + held.mappings) as i64;
    step(&mut steps, "rests of spans and large blocks", rests);
    steps
}
