//! Owns: the walk over a target's descriptors: which spans and large blocks there are, and what each span counts.
//! Idea: a descriptor that leads to its own slice's slot is the first one of a span or large block. Only metadata that is
//!   resident is read, so that the work is bounded by the target's memory, whatever its numbers say.
//! Never: keeps a figure that another one contradicts: it is read again, and then cut to what can be, and counted.
//! Threads: one.
//! Checked: tests/inspect.rs and tests/hostile.rs of the command.
//! Story: docs/design/outside-view.md

use crate::Error;
use crate::header::{Class, Header, TRIES};
use crate::memory::{Memory, Pages, fill_sparse, overlapping, read_sparse, u16_at, u32_at, u64_at};
use std::ops::Range;

// Owners in descriptors.
const NONE: u32 = 0;
const LARGE: u32 = 2;

/// Descriptors that are read together.
const AT_ONCE: u64 = 1 << 15;

/// A run of slices cut into blocks.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    /// Its first slice.
    pub(crate) index: u64,
    pub(crate) class: usize,
    pub(crate) owner: u32,
    /// The first block.
    pub(crate) start: u64,
    pub(crate) carved: u64,
    /// Blocks that count as used, those in caches and pending among them.
    pub(crate) used: u64,
    pub(crate) pending: u64,
    /// Free ones in no list.
    pub(crate) hidden: u64,
    /// Where its list begins, and the pending ones.
    pub(crate) free: u64,
    pub(crate) pending_first: Option<u64>,
    /// The bits of those in no list.
    pub(crate) aside: Vec<u64>,
}

/// A block with slices or a mapping of its own.
#[derive(Clone, Debug)]
pub(crate) struct Large {
    /// What it takes of the target's addresses.
    pub(crate) run: Range<u64>,
    /// The block, up to the run's end.
    pub(crate) start: u64,
    /// Whether it belongs to a heap of the program's, with which it ends.
    pub(crate) is_closed: bool,
}

impl Large {
    /// Bytes of the block.
    pub(crate) fn room(&self) -> u64 {
        self.run.end - self.start
    }
}

/// All that descriptors and the table of mappings lead to.
#[derive(Default)]
pub(crate) struct Census {
    pub(crate) spans: Vec<Span>,
    pub(crate) large: Vec<Large>,
    /// Slices of nurseries.
    pub(crate) nurseries: Vec<Range<u64>>,
    pub(crate) mappings: Vec<Large>,
    /// Spans whose numbers contradicted each other each time.
    pub(crate) unsteady: u64,
    /// Spans and large blocks in memory that the program supplies.
    pub(crate) supplied: u64,
}

/// Walks over all slices.
pub(crate) fn census(memory: &dyn Memory, header: &Header) -> Result<Census, Error> {
    let mut census = Census::default();
    let pages = Pages::of(memory, header.metadata())?;
    let mut section = Section { nth: u64::MAX, bytes: Vec::new() };
    let mut next = 0;
    each_descriptor(memory, header, &pages, 0..header.committed, &mut |index, descriptor| {
        if index >= next {
            section.load(memory, header, index, &pages);
            next = index + census.add(memory, header, index, descriptor, &section);
        }
    });
    // What is not committed has none, but for the places that regions of the program's have taken.
    let behind = header.committed..header.slices;
    each_descriptor(memory, header, &pages, behind, &mut |index, descriptor| {
        census.supplied += u64::from(u64_at(descriptor, 8) == header.slot(index).1);
    });
    census.mappings = mappings(memory, header);
    Ok(census)
}

/// Calls for each descriptor of some slices that has an owner.
fn each_descriptor(
    memory: &dyn Memory,
    header: &Header,
    pages: &Pages,
    slices: Range<u64>,
    call: &mut dyn FnMut(u64, &[u8]),
) {
    let (mut bytes, mut index) = (Vec::new(), slices.start);
    while index < slices.end {
        let (at, row) = header.descriptor(index);
        let count = row.min(AT_ONCE).min(slices.end - index);
        let length = (count * header.descriptor_bytes) as usize;
        if pages.bytes(at..at + length as u64) > 0 {
            bytes.resize(length, 0);
            fill_sparse(memory, at, &mut bytes, pages);
            let all = bytes.chunks_exact(header.descriptor_bytes as usize);
            for (nth, descriptor) in (index..).zip(all) {
                if u32_at(descriptor, 0) != NONE {
                    call(nth, descriptor);
                }
            }
        }
        index += count;
    }
}

/// The metadata of a section, but for its descriptors.
struct Section {
    nth: u64,
    bytes: Vec<u8>,
}

impl Section {
    fn load(&mut self, memory: &dyn Memory, header: &Header, index: u64, pages: &Pages) {
        let nth = index / header.section_slices;
        if self.nth != nth {
            (self.nth, self.bytes) = (nth, read_sparse(memory, header.section(nth), pages));
        }
    }
}

impl Census {
    /// Adds what a descriptor says that starts there: how many slices the search goes on behind.
    fn add(
        &mut self,
        memory: &dyn Memory,
        header: &Header,
        index: u64,
        descriptor: &[u8],
        section: &Section,
    ) -> u64 {
        let (owner, class) = (u32_at(descriptor, 0), u32_at(descriptor, 4) as usize);
        let (offset, place) = header.slot(index);
        if u64_at(descriptor, 8) != place {
            return 1;
        }
        let slot = &section.bytes[offset..];
        if owner == LARGE {
            return self.add_large(memory, header, index, slot);
        }
        let Some(&class_of) = header.classes.get(class) else { return 1 };
        if !index.is_multiple_of(class_of.slices) || index + class_of.slices > header.committed {
            return 1;
        }
        let counts = Counts::of(header, slot, u64_at(&section.bytes, header.word(index)));
        let first = header.address(index);
        let lead = counts.start.wrapping_sub(first + class_of.slack);
        if lead >= class_of.size {
            self.add_other(memory, header, counts.start);
            return 1;
        }
        let steady = steady(memory, header, index, counts, class_of);
        self.unsteady += u64::from(steady.is_none());
        let counts = steady.unwrap_or_else(|| counts.cut(class_of));
        let words = if counts.hidden > 0 { counts.carved.div_ceil(64) } else { 0 };
        let aside = (0..words).map_while(|nth| header.aside(index, class_of.slices, nth));
        self.spans.push(Span {
            index,
            class,
            owner,
            start: counts.start,
            carved: counts.carved,
            used: counts.used,
            pending: counts.pending,
            hidden: counts.hidden,
            free: counts.free,
            pending_first: counts.pending_first(first),
            aside: aside.map(|at| u64_at(&section.bytes, at)).collect(),
        });
        class_of.slices
    }

    /// Counts what starts elsewhere: in memory that the program supplies, or it has changed since its descriptor was read.
    fn add_other(&mut self, memory: &dyn Memory, header: &Header, start: u64) {
        // A slot that is the other kind's by now has there the end of a list, or numbers that are no address.
        let is_there = || overlapping(memory.areas(), &(start..start.saturating_add(1))).next();
        let is_own = start == header.end || header.reservation().contains(&start);
        match is_own || is_there().is_none() {
            true => self.unsteady += 1,
            false => self.supplied += 1,
        }
    }

    fn add_large(&mut self, memory: &dyn Memory, header: &Header, index: u64, slot: &[u8]) -> u64 {
        let (start, slices) = (u64_at(slot, 0), u64_at(slot, 8));
        let first = header.address(index);
        if start == 0 {
            self.nurseries.push(first..first + header.slice());
        } else if start.wrapping_sub(first) >= header.slice() {
            self.add_other(memory, header, start);
        } else if slices == 0 || slices > header.slices - index {
            // The slot is a span's since the descriptor was read: this is what it counts.
            self.unsteady += 1;
        } else {
            // The heap may have grown since its header was read.
            let slices = slices.min(header.committed - index);
            let run = first..header.address(index + slices);
            self.large.push(Large { run, start, is_closed: is_owned(slot, header.large_owner) });
            return slices;
        }
        1
    }
}

/// What a span's slot and word say.
#[derive(Clone, Copy)]
struct Counts {
    start: u64,
    carved: u64,
    used: u64,
    pending: u64,
    hidden: u64,
    free: u64,
    word: u64,
}

impl Counts {
    fn of(header: &Header, slot: &[u8], word: u64) -> Counts {
        let until = u32_at(slot, header.until_event as usize);
        let after = u16_at(slot, header.used_after_event as usize).cast_signed();
        Counts {
            start: u64_at(slot, header.start as usize),
            carved: u16_at(slot, header.carved as usize).into(),
            used: until.wrapping_add_signed(after.into()).into(),
            pending: word >> 16 & 0x7ff,
            hidden: u16_at(slot, header.hidden as usize).into(),
            free: u64_at(slot, header.free as usize),
            word,
        }
    }

    fn is_sound(&self, class: Class) -> bool {
        self.carved <= class.blocks
            && self.used + self.hidden <= self.carved
            && self.pending <= self.used
    }

    /// As much of each as there can be.
    fn cut(self, class: Class) -> Counts {
        let carved = self.carved.min(class.blocks);
        let used = self.used.min(carved);
        let (pending, hidden) = (self.pending.min(used), self.hidden.min(carved - used));
        Counts { carved, used, pending, hidden, ..self }
    }

    /// The first pending block of a span that begins there.
    fn pending_first(&self, base: u64) -> Option<u64> {
        let head = self.word & 0xffff;
        (self.pending > 0 && head > 0).then(|| base + (head - 1) * 16)
    }
}

/// The counts, read again while they contradict each other; None if they do each time.
fn steady(
    memory: &dyn Memory,
    header: &Header,
    index: u64,
    mut counts: Counts,
    class: Class,
) -> Option<Counts> {
    for _ in 0..TRIES {
        if counts.is_sound(class) {
            return Some(counts);
        }
        let (offset, place) = header.slot(index);
        let mut slot = [0; 256];
        let word = place - offset as u64 + header.word(index) as u64;
        let bytes = header.slot_bytes() as usize;
        if !memory.read(place, &mut slot[..bytes]) {
            return None;
        }
        let start = counts.start;
        counts = Counts { start, ..Counts::of(header, &slot, memory.number(word)?) };
    }
    None
}

/// Blocks with a mapping each. A table that changes meanwhile is read again.
fn mappings(memory: &dyn Memory, header: &Header) -> Vec<Large> {
    for _ in 0..TRIES {
        let mut place = [0; 32];
        if header.mappings == 0 || !memory.read(header.mappings, &mut place) {
            break;
        }
        let (room, state) = (u64_at(&place, 16), u64_at(&place, 24));
        let (table, count) = (u64_at(&place, 8 * (state & 1) as usize), state / 2);
        if count == 0 {
            break;
        }
        let is_known =
            count.checked_mul(header.mapping_bytes).and_then(|bytes| table.checked_add(bytes));
        let Some(end) = is_known.filter(|_| count <= room) else { continue };
        // What is not resident has no entries: so the table is no longer than the target's memory.
        let Ok(pages) = Pages::of(memory, table..end) else { break };
        if pages.bytes(table..end) < end - table {
            continue;
        }
        let bytes = read_sparse(memory, table..end, &pages);
        let mut again = [0; 32];
        if memory.read(header.mappings, &mut again) && again == place {
            return entries(memory, header, &bytes);
        }
    }
    Vec::new()
}

/// Whether a word of what is known of a block says that it belongs to a heap; an older library does not say where.
fn is_owned(known: &[u8], owner: Option<u64>) -> bool {
    owner.is_some_and(|offset| u64_at(known, offset as usize) != 0)
}

fn entries(memory: &dyn Memory, header: &Header, table: &[u8]) -> Vec<Large> {
    let mut behind = 0;
    let mut found = Vec::new();
    for entry in table.chunks_exact(header.mapping_bytes as usize) {
        let (address, bytes, start) = (u64_at(entry, 0), u64_at(entry, 8), u64_at(entry, 16));
        let Some(end) = address.checked_add(bytes) else { continue };
        let run = address..end;
        let is_mapped = || overlapping(memory.areas(), &run).next().is_some();
        if address >= behind && run.contains(&start) && is_mapped() {
            behind = end;
            found.push(Large { run, start, is_closed: is_owned(entry, header.mapping_owner) });
        }
    }
    found
}
