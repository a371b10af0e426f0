//! Stacks as lines of text.
//!
//! Owns: how a call of a target is written: the function, and where in the source it is.
//! Idea: names are looked up in the files of the target's own code, and in what it says of code that it has made.
//! Never: shows the allocator's own functions.

use super::{Builds, Frame, HeapProfile, Mapping, Names, PerfMap, is_own};
use crate::memory::{Area, Memory};
use std::ops::Range;

/// What calls of a target are written with.
pub(crate) struct Lines {
    names: Names,
    /// Its mappings and the like alone: names are looked up in them.
    profile: HeapProfile,
}

impl Lines {
    /// Of a process with its number.
    pub(crate) fn new(memory: &dyn Memory, pid: Option<u32>) -> Lines {
        let code = memory.areas().iter().filter(|area| area.runs);
        let mappings = code.map(mapping).collect();
        let builds = Builds::of(memory);
        let perf_map = pid.map_or_else(PerfMap::default, PerfMap::of);
        let profile = HeapProfile { mappings, builds, perf_map, ..HeapProfile::default() };
        Lines { names: Names::new(), profile }
    }

    /// The functions of a stack, the innermost first, without the allocator's own.
    pub(crate) fn of(&mut self, calls: &[u64]) -> Vec<String> {
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
