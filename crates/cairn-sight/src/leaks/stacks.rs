//! Owns: names for the stacks of lost blocks that are samples of the heap profile.
//! Idea: names are looked up as `cairn profile` does it; sites of one stack are one row.
//! Never: tells of a block that is no sample.
//! Threads: one.
//! Checked: tests/leaks.rs of the command.
//! Story: docs/guide/profile.md

use super::{LostBlock, LostStack};
use crate::memory::{Area, Memory};
use crate::profile::{Frame, HeapProfile, Mapping, Names, Site, Table, is_own};
use std::collections::BTreeMap;
use std::ops::Range;

/// Stacks that are told.
const MOST: usize = 100;

/// Stacks of a target's samples.
pub(super) struct Stacks {
    sites: Vec<Site>,
    /// Of each sampled block its site.
    blocks: Vec<(u64, usize)>,
    names: Names,
    /// The mappings alone: names are looked up in them.
    profile: HeapProfile,
}

impl Stacks {
    pub(super) fn new(memory: &dyn Memory, table: Option<&Table<'_>>) -> Stacks {
        let both = table.and_then(|table| Some((table.sites().ok()?, table.blocks().ok()?)));
        let (sites, blocks) = both.unwrap_or_default();
        let code = memory.areas().iter().filter(|area| area.runs);
        let mappings = code.map(mapping).collect();
        let profile = HeapProfile { mappings, ..HeapProfile::default() };
        Stacks { sites, blocks, names: Names::new(), profile }
    }

    /// What each stack has allocated of blocks that are lost, those with the most bytes first.
    pub(super) fn of_lost(&mut self, is_lost: &dyn Fn(u64) -> bool) -> Vec<LostStack> {
        let mut sums: BTreeMap<&[u64], (f64, f64)> = BTreeMap::new();
        for (_, site) in self.blocks.iter().filter(|block| is_lost(block.0)) {
            let site = self.sites.get(*site).filter(|site| site.scale.is_finite());
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
            stack: self.lines(&calls),
        };
        all.into_iter().map(row).collect()
    }

    /// Adds the stacks of those blocks that are samples.
    pub(super) fn name(&mut self, blocks: &mut [LostBlock]) {
        for block in blocks {
            let sample = self.blocks.iter().find(|known| known.0 == block.address);
            if let Some(site) = sample.and_then(|sample| self.sites.get(sample.1)) {
                let calls = site.calls.clone();
                block.stack = self.lines(&calls);
            }
        }
    }

    /// The functions of a stack, without the allocator's own.
    fn lines(&mut self, calls: &[u64]) -> Vec<String> {
        let frames = calls.iter().flat_map(|&call| self.names.frames(&self.profile, call).to_vec());
        frames.skip_while(is_own).map(|frame| line(&frame)).collect()
    }
}

fn mapping(area: &Area) -> Mapping {
    let Range { start, end } = area.range;
    let path = area.path.clone().unwrap_or_default();
    Mapping { start, end, offset: area.offset, inode: 0, path }
}

/// A function, and where in the source it is.
fn line(frame: &Frame) -> String {
    match frame.source.rsplit('/').next().unwrap_or_default() {
        "" => frame.function.clone(),
        source => format!("{} ({source}:{})", frame.function, frame.line),
    }
}
