//! Owns: which code is behind what grows, as far as samples of the heap profile tell.
//! Idea: what leaks stays. Of a time that is cut into parts, some of what was allocated in each part is live at the end, and
//!   nearly as much of the first as of the others; of what comes and goes, or came at the start, it is not so.
//! Never: names what has few samples, or little beside others.
//! Threads: one.
//! Checked: tests here; tests/suspects.rs of the command.
//! Story: docs/guide/inspect.md

use crate::account::{Advice, AdviceSite};
use crate::header::Header;
use crate::memory::Memory;
use crate::process::Process;
use crate::profile::{Lines, Sample, Site, Table};
use crate::sums::Found;
use crate::{clock, largest, symbol};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

/// Sites that are named, and what the others have of the first one's bytes, at least: one in so many.
const NAMED: usize = 3;
const BESIDE: f64 = 10.0;
/// Parts of the time.
const PARTS: usize = 8;
/// Each part has one in so many of the bytes that an even one has, at least.
const EVEN: f64 = 4.0;
/// Seconds, samples and bytes below which one look says nothing, and the part of all that is live: one in so many.
const LIFE_MIN: Duration = Duration::from_secs(10);
const SAMPLES_MIN: u64 = 64;
const LEAST: f64 = (1 << 20) as f64;
const SHARE: f64 = 20.0;

/// What was allocated in each part of a time, and is live, in bytes.
type Parts = [f64; PARTS];

/// Whether it was allocated all along. What there is at the start may be any more: it is not what grows.
fn is_even(parts: &Parts) -> bool {
    let least = parts[1..].iter().sum::<f64>() / (PARTS - 1) as f64 / EVEN;
    least > 0.0 && parts.iter().all(|&bytes| bytes >= least)
}

/// The part of a time in which a moment is; what is before it counts as its start.
fn part_of(moment: u64, time: std::ops::Range<u64>) -> usize {
    let (since, all) = (moment.saturating_sub(time.start), time.end.saturating_sub(time.start));
    let part = u128::from(since) * PARTS as u128 / u128::from(all.max(1));
    (part as usize).min(PARTS - 1)
}

/// The live samples of a target, each with its site.
fn samples(memory: &dyn Memory, header: &Header) -> Option<(Vec<Sample>, Vec<Site>)> {
    let table = Table::find(memory, header.profile)?;
    // In this order: the site of a sample that is seen is there.
    let samples = table.samples().ok()?;
    let mut sites = table.sites().ok()?;
    sites.iter_mut().filter(|site| !site.scale.is_finite()).for_each(|site| site.scale = 0.0);
    Some((samples, sites))
}

/// What is live of each site, by the size of its blocks and its stack.
type Live = HashMap<(u64, Vec<u64>), f64>;

/// A moment, and what is live then.
pub(crate) struct Before {
    at: u64,
    live: Live,
}

impl Before {
    /// What is live of a process now; none: there is no heap profile.
    pub(crate) fn of(pid: u32) -> Option<Before> {
        let process = Process::open(pid).ok()?;
        let place = |path: &Path, area: &_| process.file(path, area);
        let mut found = symbol::find(&mut symbol::Files::default(), process.areas(), place);
        found.confirm(&process);
        let (header, _) = largest(&process, found).ok()?;
        let at = clock::now_ns(pid);
        let (samples, sites) = samples(&process, &header)?;
        let mut live = Live::new();
        for sample in &samples {
            if let Some(site) = sites.get(sample.site) {
                let key = (site.weighed, site.calls.clone());
                *live.entry(key).or_default() += sample.asked as f64 * site.scale;
            }
        }
        Some(Before { at, live })
    }
}

/// What has grown from a moment on, by site.
#[derive(Default)]
pub(crate) struct Grown {
    rows: Vec<Row>,
    /// The largest size class.
    class_max: u64,
    /// Bytes of slices in which samples of smaller blocks lie apart.
    pub(crate) apart: u64,
    lines: Option<Lines>,
}

/// A site that has grown.
struct Row {
    weighed: u64,
    calls: Vec<u64>,
    bytes: f64,
}

/// What of a heap has grown.
#[derive(Clone, Copy)]
pub(crate) enum What {
    Class(u64),
    Large,
    /// What is in no sample.
    Other,
    All,
}

impl Grown {
    /// What has grown to what has been found.
    pub(crate) fn of(found: &Found<'_>, before: &Before) -> Option<Grown> {
        let now = clock::now_ns(found.memory.pid()?);
        let (samples, sites) = samples(found.memory, found.header)?;
        let mut live: HashMap<(u64, &[u64]), (f64, Parts)> = HashMap::new();
        let mut apart = 0;
        for sample in &samples {
            let Some(site) = sites.get(sample.site) else { continue };
            let bytes = sample.asked as f64 * site.scale;
            let (all, parts) = live.entry((site.weighed, &site.calls)).or_default();
            *all += bytes;
            if sample.born >= before.at {
                parts[part_of(sample.born, before.at..now)] += bytes;
                apart += found.room_of(sample.block).filter(|_| sample.near != 0).unwrap_or(0);
            }
        }
        let row = |((weighed, calls), (all, parts)): ((u64, &[u64]), (f64, Parts))| {
            let old = before.live.get(&(weighed, calls.to_vec())).copied().unwrap_or(0.0);
            let stays =
                parts[..PARTS / 2].iter().sum::<f64>() * 2.0 * EVEN >= parts.iter().sum::<f64>();
            let bytes = (all - old).max(0.0);
            (bytes > 0.0 && stays).then(|| Row { weighed, calls: calls.to_vec(), bytes })
        };
        let class_max = found.header.classes.iter().map(|class| class.size).max().unwrap_or(0);
        let (rows, lines) = (live.into_iter().filter_map(row).collect(), Lines::new(found.memory));
        Some(Grown { rows, class_max, apart, lines: Some(lines) })
    }

    /// The code that has grown most.
    pub(crate) fn sites(&mut self, what: What) -> Vec<AdviceSite> {
        let is_it = |row: &&Row| match what {
            What::Class(size) => row.weighed == size,
            What::Large => row.weighed > self.class_max,
            What::Other => false,
            What::All => true,
        };
        let mut sums: BTreeMap<&[u64], f64> = BTreeMap::new();
        for row in self.rows.iter().filter(is_it) {
            *sums.entry(&row.calls).or_default() += row.bytes;
        }
        named(sums, self.lines.as_mut())
    }
}

/// The first few, with names.
fn named(sums: BTreeMap<&[u64], f64>, lines: Option<&mut Lines>) -> Vec<AdviceSite> {
    let mut all: Vec<_> = sums.into_iter().collect();
    all.sort_by(|one, other| other.1.total_cmp(&one.1));
    let most = all.first().map_or(0.0, |(_, bytes)| *bytes);
    all.retain(|(_, bytes)| *bytes * BESIDE >= most);
    all.truncate(NAMED);
    let Some(lines) = lines else { return Vec::new() };
    let site = |(calls, bytes): (&[u64], f64)| AdviceSite {
        bytes: bytes as u64,
        line: lines.one(calls),
        stack: lines.of(calls),
    };
    all.into_iter().map(site).collect()
}

/// What one look knows of a stack.
#[derive(Clone, Copy, Default)]
struct Held {
    samples: u64,
    parts: Parts,
    allocated: f64,
}

impl Held {
    fn bytes(&self) -> f64 {
        self.parts.iter().sum()
    }

    /// Whether it may be a leak, beside so many bytes that are live.
    fn may_leak(&self, all: f64) -> bool {
        let bytes = self.bytes();
        let is_much = self.samples >= SAMPLES_MIN && bytes >= LEAST && bytes * SHARE >= all;
        is_much && bytes * 2.0 >= self.allocated && is_even(&self.parts)
    }
}

/// What may leak, by the ages of what is live in a process.
pub(crate) fn by_age(memory: &dyn Memory, header: &Header) -> Option<Advice> {
    let pid = memory.pid()?;
    let life = clock::life(pid).filter(|&life| life >= LIFE_MIN)?;
    let (samples, sites) = samples(memory, header)?;
    let now = clock::now_ns(pid);
    let time = now.saturating_sub(life.as_nanos() as u64)..now;
    let mut held: BTreeMap<&[u64], Held> = BTreeMap::new();
    for sample in &samples {
        let Some(site) = sites.get(sample.site) else { continue };
        let held = held.entry(&site.calls).or_default();
        held.samples += 1;
        held.parts[part_of(sample.born, time.clone())] += sample.asked as f64 * site.scale;
    }
    for site in &sites {
        if let Some(held) = held.get_mut(site.calls.as_slice()) {
            held.allocated += site.allocated.bytes * site.scale;
        }
    }
    let all: f64 = held.values().map(Held::bytes).sum();
    held.retain(|_, held| held.may_leak(all));
    let sums: BTreeMap<_, _> = held.iter().map(|(calls, held)| (*calls, held.bytes())).collect();
    let bytes = sums.values().sum::<f64>() as u64;
    let sites = named(sums, (!held.is_empty()).then(|| Lines::new(memory)).as_mut());
    let text = format!(
        "A leak is possible: what is live of this code was allocated in each eighth of the {} s that the process has run, \
         and most of what it allocates stays. A cache that is being filled looks the same: cairn inspect --seconds 60 \
         tells whether it grows.",
        life.as_secs()
    );
    (!sites.is_empty()).then(|| Advice { kind: "leak possible".into(), text, bytes, sites })
}

#[cfg(test)]
mod tests {
    use super::{Held, PARTS, Parts, part_of};

    const MIB: f64 = (1 << 20) as f64;

    /// Whether a leak is possible of what allocates so many bytes at a moment, from 0 to 1, of which that part is live at 1.
    fn may_leak(allocated: impl Fn(f64) -> f64, live: impl Fn(f64) -> f64) -> bool {
        let (mut held, steps) = (Held { samples: 1000, ..Held::default() }, 800);
        for nth in 0..steps {
            let at = f64::from(nth) / f64::from(steps);
            held.allocated += allocated(at);
            held.parts[(at * PARTS as f64) as usize] += allocated(at) * live(at);
        }
        held.may_leak(held.bytes())
    }

    #[test]
    fn what_was_allocated_all_along_may_leak() {
        assert!(may_leak(|_| MIB, |_| 1.0), "a leak");
        assert!(may_leak(|at| if at < 0.05 { 50.0 * MIB } else { MIB }, |_| 1.0), "and a start");
        assert!(may_leak(|at| (1.0 + (at * 100.0).sin()) * MIB, |_| 0.9), "in waves");
    }

    #[test]
    fn what_comes_and_goes_does_not() {
        assert!(!may_leak(|at| if at < 0.1 { MIB } else { 0.0 }, |_| 1.0), "a cache of the start");
        for period in [0.9, 0.5, 0.17, 0.01] {
            let live = |at| if at >= 1.0 - 1.0 % period { 1.0 } else { 0.0 };
            assert!(!may_leak(|_| MIB, live), "a sawtooth: {period}");
        }
        assert!(!may_leak(|_| 0.0, |_| 0.0), "nothing");
        let live = |at: f64| if at > 0.3 { 1.0 } else { 0.0 };
        assert!(!may_leak(|_| MIB, live), "a queue of a fixed length");
        assert!(!may_leak(|_| MIB, |at| (-(1.0 - at) / 0.4).exp()), "blocks that live for a while");
        assert!(!may_leak(|_| MIB, |_| 0.1), "most is freed");
    }

    #[test]
    fn little_is_not_told() {
        let parts: Parts = [MIB; PARTS];
        let held = Held { samples: 1000, parts, allocated: 8.0 * MIB };
        assert!(held.may_leak(8.0 * MIB));
        assert!(!held.may_leak(200.0 * MIB), "beside much");
        assert!(!Held { samples: 30, ..held }.may_leak(8.0 * MIB), "few samples");
        let parts = [MIB / 10.0; PARTS];
        assert!(!Held { samples: 1000, parts, allocated: 0.0 }.may_leak(MIB), "few bytes");
    }

    #[test]
    fn moments_have_parts() {
        assert_eq!(
            [0, 100, 149, 150, 499, 500, 900].map(|at| part_of(at, 100..500)),
            [0, 0, 0, 1, 7, 7, 7]
        );
        assert_eq!(part_of(9, 9..9), 0);
    }
}
