//! The heap profile of a process that runs, or of a core file, read from its table.
//!
//! Owns: the table's form, as the header tells it, and which pages a live sample keeps from going back.
//! Idea: the process has counted; this copies the counts. A sample lies apart, so what it keeps is what the block would that it
//!   stands in for: its share of a page of that block's span.
//! Never: believes a number: sizes and places are bounded before anything is read by them.
//! Threads: one.
//! Checked: tests/profile_outside.rs and tests/hostile.rs of the command.
//! Story: docs/guide/profile.md, docs/design/outside-view.md

use super::{Amounts, Builds, HeapProfile, LIFETIMES, PerfMap, Site, scale};
use crate::header::Header;
use crate::memory::{Memory, u32_at, u64_at};
use crate::{Error, Source, core_file::Core, largest, process::Process, symbol};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::{Range, RangeInclusive};
use std::path::Path;

/// The form of the table that is understood, and where in the header the profile's control stands.
const FORM: u32 = 1;
const CONTROL: Range<u64> = 144..152;
/// Bytes of a control: four words and twelve numbers.
const CONTROL_BYTES: usize = 80;
/// What a table has at most of sites, calls and samples: four times of what it has.
const MOST: [u64; 3] = [1 << 18, 1 << 22, 1 << 20];
/// Bytes of a site and of a sample, at least and at most.
const SITE_BYTES: Range<u64> = 120..257;
const SAMPLE_BYTES: Range<u64> = 36..129;

/// Reads the profile of a target; one that has never been switched on has no sites.
///
/// # Errors
/// The target cannot be read, has no cairn, or one without a profile.
pub fn sampled(source: &Source) -> Result<HeapProfile, Error> {
    match source {
        Source::Process(pid) => {
            let process = Process::open(*pid)?;
            let place = |path: &Path, area: &Range<u64>| process.file(path, area);
            let found = symbol::find(&mut symbol::Files::default(), process.areas(), place);
            let mut profile = read(&process, found)?;
            let maps = fs::read(format!("/proc/{}/maps", process.task)).unwrap_or_default();
            let lines = maps.split(|&byte| byte == b'\n');
            // A line that makes no sense names no code.
            lines.for_each(|line| _ = profile.add_mapping(line));
            profile.builds = Builds::of(&process);
            profile.perf_map = PerfMap::of(*pid);
            profile.pid = Some(*pid);
            Ok(profile.sorted())
        }
        Source::Core(path) => {
            let core = Core::open(path)?;
            let place = |path: &Path, _: &Range<u64>| path.to_owned();
            let found = symbol::find(&mut symbol::Files::default(), core.areas(), place);
            let mut profile = read(&core, found).map_err(|error| core.reason(error))?;
            for area in core.areas().iter().filter(|area| area.runs) {
                let path = area.path.clone().unwrap_or_default();
                let Range { start, end } = area.range;
                let offset = area.offset;
                profile.mappings.push(super::Mapping { start, end, offset, inode: 0, path });
            }
            profile.builds = Builds::of(&core);
            Ok(profile.sorted())
        }
    }
}

fn read(memory: &dyn Memory, mut found: symbol::Found) -> Result<HeapProfile, Error> {
    found.confirm(memory);
    let (header, copy) = largest(memory, found)?;
    let mut length = [0; 4];
    let has_control = memory.read(copy.at.wrapping_add(12), &mut length)
        && u64::from(u32::from_ne_bytes(length)) >= CONTROL.end;
    if !has_control {
        return Err(Error::Older(u32::from_ne_bytes(length)));
    }
    let mut bytes = [0; CONTROL_BYTES];
    let control = memory.number(copy.at.wrapping_add(CONTROL.start)).unwrap_or(0);
    if !memory.read(control, &mut bytes) {
        return Err(Error::Damaged("its header does not lead to the heap profile"));
    }
    let mut profile = HeapProfile {
        rate: u64_at(&bytes, 8),
        dropped: u64_at(&bytes, 16),
        ..HeapProfile::default()
    };
    if u64_at(&bytes, 24) != 0 {
        let table = Table::new(memory, &bytes)?;
        profile.sites = table.sites()?;
        table.add_pinned(&header, &mut profile.sites)?;
        // Whoever reads the profile multiplies by the scale; a site that makes no sense has none.
        profile.sites.retain(|site| site.scale.is_finite());
    }
    Ok(profile)
}

/// Bytes that a target has allocated ever, by the sizes as which blocks were drawn.
pub(crate) struct Allocated(BTreeMap<u64, f64>);

impl Allocated {
    /// Of blocks of such sizes. Each size counts in whole bytes: a part is never more than all.
    pub(crate) fn of(&self, sizes: RangeInclusive<u64>) -> u64 {
        let bytes = self.0.range(sizes).map(|(_, bytes)| *bytes as u64);
        bytes.fold(0, u64::saturating_add)
    }
}

/// What a target has allocated ever, by the samples; none: no samples are taken.
pub(crate) fn allocated(memory: &dyn Memory, control: u64) -> Option<Allocated> {
    let mut bytes = [0; CONTROL_BYTES];
    let is_on = control != 0 && memory.read(control, &mut bytes) && u64_at(&bytes, 8) != 0;
    let table = Table::find(memory, control).filter(|_| is_on)?;
    table.allocated().ok()
}

/// A live sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) block: u64,
    /// What the program has asked for.
    pub(crate) asked: u64,
    /// When it was allocated, in nanoseconds on the process's clock.
    pub(crate) born: u64,
    /// The number of its site.
    pub(crate) site: usize,
    /// The number plus 1 of the slice of the block that it stands in for, or 0.
    pub(crate) near: u32,
}

/// A table of the target's.
pub(crate) struct Table<'a> {
    memory: &'a dyn Memory,
    at: u64,
    /// As in the core's `LAYOUT`.
    layout: [u64; 12],
}

const DAMAGED: Error = Error::Damaged("its heap profile makes no sense");

impl<'a> Table<'a> {
    fn new(memory: &'a dyn Memory, control: &[u8]) -> Result<Table<'a>, Error> {
        let number = |nth: usize| u64::from(u32_at(control, 32 + 4 * nth));
        let layout: [u64; 12] = std::array::from_fn(number);
        let [form, _, _, site_bytes, sites, _, _, calls, _, sample_bytes, samples, _] = layout;
        if form != u64::from(FORM) {
            return Err(Error::Damaged("its heap profile has another form"));
        }
        let sound = SITE_BYTES.contains(&site_bytes)
            && SAMPLE_BYTES.contains(&sample_bytes)
            && [sites, calls, samples].iter().zip(MOST).all(|(&count, most)| count <= most);
        if sound { Ok(Table { memory, at: u64_at(control, 24), layout }) } else { Err(DAMAGED) }
    }

    /// `count` records of so many bytes each.
    fn records(&self, offset: u64, count: u64, each: u64) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; (count * each) as usize];
        let read = self.memory.read(self.at.wrapping_add(offset), &mut bytes);
        if read { Ok(bytes) } else { Err(DAMAGED) }
    }

    /// The number at a place of the table, of so many bytes, if there are not more of what it counts.
    fn count(&self, offset: u64, most: u64, bytes: usize) -> Result<u64, Error> {
        let mut word = [0; 8];
        let there = self.memory.read(self.at.wrapping_add(offset), &mut word[..bytes]);
        let count = if bytes == 4 { u32_at(&word, 0).into() } else { u64_at(&word, 0) };
        if there && count <= most { Ok(count) } else { Err(DAMAGED) }
    }

    /// The table that a control leads to; none: the profile has never been switched on, or makes no sense.
    pub(crate) fn find(memory: &'a dyn Memory, control: u64) -> Option<Table<'a>> {
        let mut bytes = [0; CONTROL_BYTES];
        let is_there = control != 0 && memory.read(control, &mut bytes) && u64_at(&bytes, 24) != 0;
        is_there.then(|| Table::new(memory, &bytes).ok()).flatten()
    }

    /// What it takes of the target's addresses.
    pub(crate) fn range(&self) -> Range<u64> {
        let [_, _, places, place, most_places, _, calls, most_calls, samples, sample, most, _] =
            self.layout;
        let ends = [places + place * most_places, calls + 8 * most_calls, samples + sample * most];
        self.at..self.at.saturating_add(ends.into_iter().max().unwrap_or(0))
    }

    /// The samples that are live.
    pub(crate) fn samples(&self) -> Result<Vec<Sample>, Error> {
        let [.., at, each, most, _] = self.layout;
        let samples = self.records(at, self.count(0, most, 4)?, each)?;
        let sample = |bytes: &[u8]| Sample {
            block: u64_at(bytes, 0),
            asked: u64_at(bytes, 8),
            born: u64_at(bytes, 16),
            site: u32_at(bytes, 24) as usize,
            near: u32_at(bytes, 28),
        };
        let samples = samples.chunks_exact(each as usize).map(sample);
        Ok(samples.filter(|sample| sample.block != 0).collect())
    }

    fn allocated(&self) -> Result<Allocated, Error> {
        let mut sums = BTreeMap::new();
        for site in self.places()?.chunks_exact(self.layout[3] as usize) {
            let (weighed, rate) = (u64_at(site, 16), u64_at(site, 24));
            let scale = scale(weighed, rate).filter(|scale| scale.is_finite()).unwrap_or(0.0);
            *sums.entry(weighed).or_insert(0.0) += scale * u64_at(site, 40) as f64;
        }
        Ok(Allocated(sums))
    }

    /// The bytes of all sites.
    fn places(&self) -> Result<Vec<u8>, Error> {
        let [_, count, at, each, most, ..] = self.layout;
        self.records(at, self.count(count, most, 4)?, each)
    }

    pub(crate) fn sites(&self) -> Result<Vec<Site>, Error> {
        let [_, _, _, each, _, calls, all_calls, most_calls, .., peak] = self.layout;
        let peak = self.count(peak, u64::MAX, 8)?;
        // In this order: the calls of a site that is seen are there.
        let sites = self.places()?;
        let calls = self.records(all_calls, self.count(calls, most_calls, 8)?, 8)?;
        // Sites have no calls in common.
        let mut left = calls.len() / 8;
        let site = |site| {
            let site = site_of(site, &calls, peak);
            left = left.checked_sub(site.calls.len())?;
            Some(site)
        };
        let all: Option<Vec<_>> = sites.chunks_exact(each as usize).map(site).collect();
        all.ok_or(DAMAGED)
    }

    /// Adds what live samples keep.
    fn add_pinned(&self, header: &Header, sites: &mut [Site]) -> Result<(), Error> {
        let mut spans = Spans { memory: self.memory, header, known: HashMap::new() };
        for sample in self.samples()? {
            if let Some(site) = sites.get_mut(sample.site) {
                site.pinned += spans.kept(sample.asked, site.weighed, sample.near);
            }
        }
        Ok(())
    }
}

/// A site, of the table's bytes.
fn site_of(bytes: &[u8], calls: &[u8], last_peak: u64) -> Site {
    let word = |nth: usize| u64_at(bytes, 8 * nth);
    let amounts = |nth: usize| Amounts { objects: word(nth) as f64, bytes: word(nth + 1) as f64 };
    let (weighed, rate) = (word(2), word(3));
    // In this order in the process, too: what has been freed has been allocated.
    let (allocated, freed) = (amounts(4), amounts(6));
    let live = allocated.less(freed);
    let from = (word(1) as usize).saturating_mul(8).min(calls.len());
    let depth = (u32_at(bytes, 4) as usize).min(super::CALLS_MAX);
    let calls = calls[from..].chunks_exact(8).take(depth);
    Site {
        weighed,
        rate,
        scale: scale(weighed, rate).unwrap_or(f64::INFINITY),
        allocated,
        live,
        peak: if word(10) == last_peak { amounts(8) } else { live },
        lived: std::array::from_fn::<_, LIFETIMES, _>(|nth| u32_at(bytes, 88 + 4 * nth).into()),
        pinned: 0.0,
        calls: calls.map(|call| u64_at(call, 0)).collect(),
    }
}

/// Spans in which sampled blocks would be: of each, its blocks' size, how many there are, and how many are in use.
struct Spans<'a> {
    memory: &'a dyn Memory,
    header: &'a Header,
    known: HashMap<u32, Option<[u64; 3]>>,
}

impl Spans<'_> {
    /// Bytes of the pages that a sample keeps which stands in for a block in the slice of number `near` less 1: as the core
    /// counts them (`report/profile.rs`).
    fn kept(&mut self, asked: u64, weighed: u64, near: u32) -> f64 {
        let page = self.memory.page();
        let whole = (asked.max(1).div_ceil(page).saturating_mul(page)) as f64;
        if near == 0 {
            return whole;
        }
        let (memory, header) = (self.memory, self.header);
        let span = self.known.entry(near).or_insert_with(|| span(memory, header, near - 1));
        match *span {
            Some([size, ..]) if size != weighed => whole,
            Some([size, blocks, used]) => shared(page, size, blocks, used) as f64,
            None => whole,
        }
    }
}

/// Bytes of the pages that a block touches, on average over the blocks of a span, divided by how much is in use on them.
fn shared(page: u64, size: u64, blocks: u64, used: u64) -> u64 {
    let beside = page - page.min(size & size.wrapping_neg());
    let used_beside = beside * used.min(blocks) / blocks;
    let touched = size + beside;
    touched - touched * used_beside / (size + used_beside)
}

/// The span of a slice.
fn span(memory: &dyn Memory, header: &Header, index: u32) -> Option<[u64; 3]> {
    let index = u64::from(index);
    if index >= header.committed {
        return None;
    }
    let mut descriptor = [0; 16];
    let mut slot = vec![0; header.slot_bytes() as usize];
    // Owner 0: nothing; 2: a large block.
    let is_span = memory.read(header.descriptor(index).0, &mut descriptor)
        && !matches!(u32_at(&descriptor, 0), 0 | 2)
        && memory.read(u64_at(&descriptor, 8), &mut slot);
    let class = header.classes.get(u32_at(&descriptor, 4) as usize).filter(|_| is_span)?;
    let until = u32_at(&slot, header.until_event as usize);
    let after = crate::memory::u16_at(&slot, header.used_after_event as usize) as i16;
    let used = until.wrapping_add_signed(after.into());
    Some([class.size, class.blocks, used.into()])
}

#[cfg(test)]
mod tests {
    use super::{Allocated, shared};

    /// All blocks of a span keep it; one alone the pages that it touches, and none less than its own.
    #[test]
    fn pages_are_shared_by_what_is_in_use() {
        const PAGE: u64 = 4096;
        for size in (16..20_000).step_by(16).chain([1 << 16, u64::from(u32::MAX)]) {
            let alone = shared(PAGE, size, 500, 0);
            assert_eq!(shared(PAGE, size, 500, 500), size);
            assert!((size.max(PAGE)..size + PAGE).contains(&alone), "{size}: {alone}");
            let all: Vec<_> = (0..=500).map(|used| shared(PAGE, size, 500, used)).collect();
            assert!(all.is_sorted_by(|more, less| more >= less), "{size}: {all:?}");
        }
        // A block of 3,072 bytes is on one page or two.
        assert_eq!(
            [1024, 3072, 4096, 8192].map(|size| shared(PAGE, size, 9, 0)),
            [4096, 6144, 4096, 8192]
        );
    }

    /// 16.3 bytes and 16.7 in all are as many whole bytes, of one size one more.
    #[test]
    fn a_size_grows_by_no_more_than_all() {
        let before = Allocated([(1024, 10.7), (2048, 5.6)].into());
        let now = Allocated([(1024, 11.1), (2048, 5.6)].into());
        let grown = |from, to| now.of(from..=to) - before.of(from..=to);
        assert_eq!((grown(1024, 1024), grown(0, u64::MAX)), (1, 1));
    }
}
