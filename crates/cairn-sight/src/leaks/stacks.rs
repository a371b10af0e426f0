//! Owns: names for the stacks of lost blocks that are samples of the heap profile.
//! Idea: names are looked up as `cairn profile` does it; sites of one stack are one row.
//! Never: tells of a block that is no sample.
//! Threads: one.
//! Checked: tests/leaks.rs of the command.
//! Story: docs/guide/profile.md

use super::{LostBlock, LostStack};
use crate::memory::Memory;
use crate::profile::{Lines, Sample, Site, Table};
use std::collections::BTreeMap;

/// Stacks that are told.
const MOST: usize = 100;

/// Stacks of a target's samples.
pub(super) struct Stacks {
    sites: Vec<Site>,
    samples: Vec<Sample>,
    lines: Lines,
}

impl Stacks {
    pub(super) fn new(memory: &dyn Memory, table: Option<&Table<'_>>, pid: Option<u32>) -> Stacks {
        let both = table.and_then(|table| Some((table.sites().ok()?, table.samples().ok()?)));
        let (sites, samples) = both.unwrap_or_default();
        Stacks { sites, samples, lines: Lines::new(memory, pid) }
    }

    /// What each stack has allocated of blocks that are lost, those with the most bytes first.
    pub(super) fn of_lost(&mut self, is_lost: &dyn Fn(u64) -> bool) -> Vec<LostStack> {
        let mut sums: BTreeMap<&[u64], (f64, f64)> = BTreeMap::new();
        for sample in self.samples.iter().filter(|sample| is_lost(sample.block)) {
            let site = self.sites.get(sample.site).filter(|site| site.scale.is_finite());
            if let Some(site) = site {
                let sum = sums.entry(&site.calls).or_default();
                *sum = (sum.0 + site.scale, sum.1 + site.scale * site.weighed as f64);
            }
        }
        let mut all: Vec<_> = sums.into_iter().collect();
        all.sort_by(|one, other| other.1.1.total_cmp(&one.1.1));
        all.truncate(MOST);
        let all: Vec<_> = all.into_iter().map(|(calls, sum)| (calls.to_vec(), sum)).collect();
        let row = |(calls, (blocks, bytes)): (Vec<u64>, _)| LostStack {
            blocks,
            bytes,
            stack: self.lines.of(&calls),
        };
        all.into_iter().map(row).collect()
    }

    /// Adds the stacks of those blocks that are samples.
    pub(super) fn name(&mut self, blocks: &mut [LostBlock]) {
        for block in blocks {
            let sample = self.samples.iter().find(|sample| sample.block == block.address);
            if let Some(site) = sample.and_then(|sample| self.sites.get(sample.site)) {
                block.stack = self.lines.of(&site.calls);
            }
        }
    }
}
