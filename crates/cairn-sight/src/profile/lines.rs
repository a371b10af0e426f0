//! Stacks as lines of text.
//!
//! Owns: how a call of a target is written: the function, and where in the source it is.
//! Idea: names are looked up in the files of the target's own code, and in what it says of code that it has made.
//! Never: shows the allocator's own functions.
//! Threads: one.
//! Checked: tests here; tests/leaks.rs and tests/page_samples.rs of the command.
//! Story: docs/guide/profile.md

use super::{Builds, Frame, HeapProfile, Mapping, Names, PerfMap, is_own, short};
use crate::memory::{Area, Memory};
use std::ops::Range;

/// Functions of a stack in one line.
const FUNCTIONS: usize = 3;

/// What calls of a target are written with.
pub(crate) struct Lines {
    names: Names,
    /// Its mappings and the like alone: names are looked up in them.
    profile: HeapProfile,
}

impl Lines {
    pub(crate) fn new(memory: &dyn Memory) -> Lines {
        let code = memory.areas().iter().filter(|area| area.runs);
        let mappings = code.map(mapping).collect();
        let builds = Builds::of(memory);
        let pid = memory.pid();
        let perf_map = pid.map(PerfMap::of).unwrap_or_default();
        let profile = HeapProfile { mappings, builds, perf_map, pid, ..HeapProfile::default() };
        Lines { names: Names::new(), profile }
    }

    /// The functions of a stack, the innermost first, without the allocator's own.
    pub(crate) fn of(&mut self, calls: &[u64]) -> Vec<String> {
        self.frames(calls).iter().map(line).collect()
    }

    /// The innermost functions of a stack in one line. Those of languages' libraries are left out if others are there: who has
    /// called them says more. So is what has called `main`.
    pub(crate) fn one(&mut self, calls: &[u64]) -> String {
        let mut frames = self.frames(calls);
        if let Some(main) = frames.iter().position(|frame| frame.function == "main") {
            frames.truncate(main + 1);
        }
        let own = frames.iter().filter(|frame| !is_of_language(&frame.function));
        let mut some: Vec<_> = own.take(FUNCTIONS).map(brief).collect();
        if some.is_empty() {
            some.extend(frames.iter().take(FUNCTIONS).map(brief));
        }
        if some.is_empty() { "an unknown stack".to_owned() } else { some.join(" < ") }
    }

    fn frames(&mut self, calls: &[u64]) -> Vec<Frame> {
        let frames = calls.iter().flat_map(|&call| self.names.frames(&self.profile, call).to_vec());
        frames.skip_while(is_own).collect()
    }
}

/// Whether a function is of a library that a language brings along, as in the pages (`stacks.js`).
fn is_of_language(function: &str) -> bool {
    const LIBRARIES: [&str; 5] = ["std::", "__gnu_cxx::", "core::", "alloc::", "hashbrown::"];
    let name = function.trim_start_matches('<');
    // A template of C++ has its type in front.
    let behind = name.split_once(' ').map_or(name, |(_, behind)| behind);
    let is_in = |name: &str| LIBRARIES.iter().any(|library| name.starts_with(library));
    name.starts_with("operator new") || is_in(name) || is_in(behind)
}

fn mapping(area: &Area) -> Mapping {
    let Range { start, end } = area.range;
    let path = area.path.clone().unwrap_or_default();
    Mapping { start, end, offset: area.offset, inode: 0, path }
}

/// A function, and where in the source it is.
fn line(frame: &Frame) -> String {
    placed(&frame.function, frame)
}

/// The same with a short name.
fn brief(frame: &Frame) -> String {
    placed(&short(&frame.function), frame)
}

fn placed(function: &str, frame: &Frame) -> String {
    match frame.source.rsplit('/').next().unwrap_or_default() {
        "" => function.to_owned(),
        source => format!("{function} ({source}:{})", frame.line),
    }
}

#[cfg(test)]
mod tests {
    use super::is_of_language;

    #[test]
    fn libraries_of_languages_are_known() {
        for name in [
            "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
            "std::vector<int>::push_back(int)",
            "char* std::string::_S_construct<char*>(char*)",
            "operator new[](unsigned long)",
        ] {
            assert!(is_of_language(name), "{name}");
        }
        for name in ["main", "standard::run", "<app::Cache as core::ops::Drop>::drop", ""] {
            assert!(!is_of_language(name), "{name}");
        }
    }
}
