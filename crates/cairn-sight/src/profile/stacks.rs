//! Stacks with names: rows of a table, and lines for flame graphs.
//!
//! Owns: which functions of a stack are the allocator's own, and left out.
//! Idea: sites of one stack are one row.

use super::{Amounts, Frame, HeapProfile, LIFETIMES, Names, Site};
use std::collections::BTreeMap;

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// What was live when the profile was written.
    Live,
    /// All that has been allocated since the start.
    Allocated,
    /// What was live when most bytes were.
    Peak,
    /// What is live, with the bytes of the pages that it keeps from going back to the system.
    Pinned,
}

impl View {
    /// All of them.
    pub const ALL: [View; 4] = [View::Live, View::Allocated, View::Peak, View::Pinned];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            View::Live => "live",
            View::Allocated => "allocated",
            View::Peak => "peak",
            View::Pinned => "pinned",
        }
    }
}

/// A stack, and what it has allocated.
#[derive(Clone, Debug)]
pub struct Row {
    /// The innermost function first.
    pub frames: Vec<Frame>,
    /// What is looked at.
    pub amounts: Amounts,
    /// How many of its blocks have been freed, by their lifetimes.
    pub lived: [f64; LIFETIMES],
}

/// What a program calls to allocate, as symbols of a program that has cairn inside name it.
const CALLS: [&str; 13] = [
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "memalign",
    "posix_memalign",
    "aligned_alloc",
    "valloc",
    "pvalloc",
    "__rust_alloc",
    "__rust_alloc_zeroed",
    "__rust_realloc",
    "alloc::alloc::alloc",
];

/// Whether a function is the allocator's, or one by which programs call it.
pub(crate) fn is_own(frame: &Frame) -> bool {
    let name = frame.function.trim_start_matches('<').trim_start_matches("__rustc::");
    name.starts_with("cairn::") || name.starts_with("cairn_archive::") || CALLS.contains(&name)
}

/// Calls of a stack of a program that has cairn inside among which cairn's own are looked for: as many as the library lists
/// without knowing whose they are, and two for what stands in between.
const OWN_CALLS_MAX: usize = 14;

impl Site {
    /// Its calls without those inside the allocator.
    pub(super) fn outside<'a>(&'a self, profile: &HeapProfile, names: &mut Names) -> &'a [u64] {
        let first = self.calls.get(..OWN_CALLS_MAX).unwrap_or(&self.calls);
        let own = first.iter().rposition(|&call| names.frames(profile, call).iter().all(is_own));
        own.and_then(|last| self.calls.get(last + 1..)).unwrap_or(&self.calls)
    }

    /// Their functions, the innermost first.
    pub(super) fn frames(&self, profile: &HeapProfile, names: &mut Names) -> Vec<Frame> {
        let calls = self.outside(profile, names);
        calls.iter().flat_map(|&call| names.frames(profile, call).to_vec()).collect()
    }
}

/// A row for each stack, those with the most bytes first.
#[must_use]
pub fn rows(profile: &HeapProfile, names: &mut Names, view: View) -> Vec<Row> {
    let mut sums: BTreeMap<&[u64], (Amounts, [f64; LIFETIMES], &Site)> = BTreeMap::new();
    for site in &profile.sites {
        let none = (Amounts::default(), [0.0; LIFETIMES], site);
        let sum = sums.entry(&site.calls).or_insert(none);
        sum.0 = sum.0.plus(site.estimate(view));
        for (sum, samples) in sum.1.iter_mut().zip(site.lived) {
            *sum += samples * site.scale;
        }
    }
    let row = |(amounts, lived, site): (_, _, &Site)| Row {
        frames: site.frames(profile, names),
        amounts,
        lived,
    };
    let seen = sums.into_values().filter(|(amounts, ..)| amounts.bytes > 0.0);
    let mut rows: Vec<_> = seen.map(row).collect();
    rows.sort_by(|one, other| other.amounts.bytes.total_cmp(&one.amounts.bytes));
    rows
}

/// A line for each stack: its functions, the outermost first, with semicolons between, and its bytes.
#[must_use]
pub fn collapsed(profile: &HeapProfile, names: &mut Names, view: View) -> String {
    let mut lines: BTreeMap<String, f64> = BTreeMap::new();
    for row in rows(profile, names, view) {
        let words: Vec<_> = row.frames.iter().rev().map(|frame| word(&frame.function)).collect();
        let stack = if words.is_empty() { "[unknown]".to_owned() } else { words.join(";") };
        *lines.entry(stack).or_default() += row.amounts.bytes;
    }
    lines.into_iter().map(|(stack, bytes)| format!("{stack} {bytes:.0}\n")).collect()
}

/// A name without what separates names and lines.
fn word(name: &str) -> String {
    name.chars().map(|c| if c == ';' || c.is_control() { '_' } else { c }).collect()
}
