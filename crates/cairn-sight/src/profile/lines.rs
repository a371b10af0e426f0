//! Stacks as lines of text.
//!
//! Owns: how a call of a target is written: the function, and where in the source it is.
//! Idea: names are looked up in the files of the target's own code.
//! Never: shows the allocator's own functions.

use super::{Builds, Frame, HeapProfile, Mapping, Names, is_own};
use crate::memory::{Area, Memory};
use std::ops::Range;

/// What calls of a target are written with.
pub(crate) struct Lines {
    names: Names,
    /// The mappings alone: names are looked up in them.
    profile: HeapProfile,
}

impl Lines {
    pub(crate) fn new(memory: &dyn Memory) -> Lines {
        let code = memory.areas().iter().filter(|area| area.runs);
        let mappings = code.map(mapping).collect();
        let builds = Builds::of(memory);
        let profile = HeapProfile { mappings, builds, ..HeapProfile::default() };
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
