//! Owns: what the map tells of the heap profile's samples: in which slice each is, how old it is, which code has allocated it.
//! Idea: a sample of a small block lies in slices of its own, and stands for blocks of the span in which it would be else. So it
//!   is told of in both: itself where it lies, the others there.
//! Never: names more stacks than `NAMED_MAX`; tells of a span that is another one meanwhile.
//! Threads: one.
//! Checked: tests here; tests/page_samples.rs of the command.
//! Story: docs/guide/inspect.md

use super::compressed;
use crate::clock;
use crate::profile::{Lines, Sample, Site, Table};
use crate::sums::Found;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::ops::Range;

/// Stacks with names: those with the most bytes.
const NAMED_MAX: usize = 4096;
const OTHERS: &str = "code that has allocated less than others";

/// Samples of a map, by slice.
#[derive(Debug, Default, Serialize)]
pub(super) struct Samples {
    count: usize,
    /// Whether the ages are those of the moment; else the youngest is 0.
    dated: bool,
    /// The innermost functions of each stack.
    stacks: Vec<String>,
    /// The columns, one behind the other, compressed (zlib), as base64.
    #[serde(serialize_with = "packed")]
    rows: Vec<Row>,
}

/// What is told of a sample in a slice.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    /// The slice's number: those of mappings follow behind all others.
    slice: u32,
    /// A place in `stacks`.
    stack: u32,
    /// Seconds.
    age: f32,
    /// What it stands for there.
    bytes: f32,
}

fn packed<S: Serializer>(rows: &[Row], to: S) -> Result<S::Ok, S::Error> {
    let columns: [fn(&Row) -> [u8; 4]; 4] = [
        |row| row.slice.to_le_bytes(),
        |row| row.stack.to_le_bytes(),
        |row| row.age.to_le_bytes(),
        |row| row.bytes.to_le_bytes(),
    ];
    let bytes: Vec<_> = columns.iter().flat_map(|column| rows.iter().flat_map(column)).collect();
    compressed(&bytes, to)
}

impl Samples {
    /// Those of what has been found; none: there is no heap profile. Of mappings it is told which slice is the first.
    pub(super) fn of(found: &Found<'_>, mapped: &[(Range<u64>, u64)]) -> Option<Samples> {
        let table = Table::find(found.memory, found.header.profile)?;
        // In this order: the site of a sample that is seen is there.
        let (samples, sites) = (table.samples().ok()?, table.sites().ok()?);
        let now = found.memory.pid().map(clock::now_ns);
        let latest = samples.iter().map(|sample| sample.born).max().unwrap_or(0);
        let look = Look { found, mapped, now: now.unwrap_or(latest), sites: &sites };
        let (numbers, stacks) = look.stacks(&samples);
        let mut rows = Vec::new();
        for sample in &samples {
            if let Some(site) = look.site(sample) {
                let stack = numbers.get(site.calls.as_slice()).copied().unwrap_or(0);
                rows.extend(look.rows(sample, site, stack));
            }
        }
        rows.sort_by_key(|row| row.slice);
        Some(Samples { count: rows.len(), dated: now.is_some(), stacks, rows })
    }
}

struct Look<'a> {
    found: &'a Found<'a>,
    mapped: &'a [(Range<u64>, u64)],
    /// What time it is.
    now: u64,
    sites: &'a [Site],
}

impl<'a> Look<'a> {
    fn site(&self, sample: &Sample) -> Option<&'a Site> {
        self.sites.get(sample.site).filter(|site| site.scale.is_finite())
    }

    /// The stacks of samples: the number of each, and the text of each number.
    fn stacks(&self, samples: &[Sample]) -> (BTreeMap<&'a [u64], u32>, Vec<String>) {
        let mut sums: BTreeMap<&[u64], f64> = BTreeMap::new();
        for sample in samples {
            if let Some(site) = self.site(sample) {
                *sums.entry(&site.calls).or_default() += stands_for(sample, site);
            }
        }
        let mut all: Vec<_> = sums.into_iter().collect();
        all.sort_by(|one, other| other.1.total_cmp(&one.1));
        let mut lines = Lines::new(self.found.memory);
        let named = all.iter().take(NAMED_MAX);
        let mut texts: Vec<_> = named.map(|(calls, _)| lines.one(calls)).collect();
        if all.len() > NAMED_MAX {
            texts.push(OTHERS.to_owned());
        }
        let number = |nth: usize| nth.min(NAMED_MAX) as u32;
        let numbers = all.iter().enumerate().map(|(nth, (calls, _))| (*calls, number(nth)));
        (numbers.collect(), texts)
    }

    /// A sample where it lies, and in the span in which it would be.
    fn rows(&self, sample: &Sample, site: &Site, stack: u32) -> impl Iterator<Item = Row> {
        let age = self.now.saturating_sub(sample.born) as f64 / 1e9;
        let row = |slice: u64, bytes: f64| {
            let slice = u32::try_from(slice).ok()?;
            Some(Row { slice, stack, age: age as f32, bytes: bytes as f32 })
        };
        let all = stands_for(sample, site);
        let (span, own) = (self.span(sample, site), sample.asked as f64);
        let there = span.and_then(|slice| row(slice, (all - own).max(0.0)));
        let bytes = if span.is_some() { own } else { all };
        let here = self.slice(sample.block).and_then(|slice| row(slice, bytes));
        [there, here].into_iter().flatten()
    }

    /// The slice of the block that a sample stands in for, while it is one of a span of such blocks.
    fn span(&self, sample: &Sample, site: &Site) -> Option<u64> {
        let index = u64::from(sample.near.checked_sub(1)?);
        let spans = &self.found.census.spans;
        let span = spans.partition_point(|span| span.index <= index).checked_sub(1)?;
        let (span, class) = (&spans[span], self.found.header.classes[spans[span].class]);
        let is_in = index - span.index < class.slices && class.size == site.weighed;
        is_in.then_some(index)
    }

    fn slice(&self, at: u64) -> Option<u64> {
        let header = self.found.header;
        let in_mapping = || {
            let nth = self.mapped.partition_point(|(run, _)| run.start <= at).checked_sub(1)?;
            let (run, first) = &self.mapped[nth];
            run.contains(&at).then(|| first + (at - run.start) / header.slice())
        };
        header.slice_of(at).or_else(in_mapping)
    }
}

/// Bytes that a sample stands for, itself among them.
fn stands_for(sample: &Sample, site: &Site) -> f64 {
    sample.asked as f64 * site.scale
}
