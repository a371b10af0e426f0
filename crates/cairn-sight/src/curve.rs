//! Owns: how a process changes while it is looked at: a curve, and what of it grows all the while.
//! Idea: what leaks never falls back: the low mark of each part of the time is above that of the part before. A cache that
//!   is full, what comes and goes, and what stands still have marks that are not.
//! Never: suspects what was watched for a short time, or what has grown little.
//! Threads: one.
//! Checked: tests here; tests/suspects.rs of the command.
//! Story: docs/guide/inspect.md

use crate::Error;
use crate::account::{Advice, AdviceSite, Moment};
use crate::glance::{LARGE, MAPPINGS};
use crate::suspects::{Grown, What};
use crate::watch::Watch;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

/// Looks at most, and the least time from one to the next.
const LOOKS: u32 = 400;
const APART_MIN: Duration = Duration::from_millis(50);
/// A look that takes long is followed by so many times that time without one.
const REST: u32 = 4;
/// Parts of the time, each with a low mark.
const PARTS: usize = 8;
/// Seconds, and looks in a part, below which nothing is suspected.
const SECONDS_MIN: f64 = 10.0;
const LOOKS_MIN: usize = 3;
/// Bytes that are worth a sentence.
const LEAST: u64 = 1 << 20;
/// Each step has this part of what an even one has, at least.
const EVEN: u64 = 4;
/// Suspects that are named.
const NAMED: usize = 3;

/// Part of a heap, as in `Part`.
type Name = (Option<u64>, Option<&'static str>);

/// What was seen.
#[derive(Default)]
pub(crate) struct Curve {
    pub(crate) moments: Vec<Moment>,
    /// Live bytes of each part at each moment.
    parts: BTreeMap<Name, Vec<u64>>,
}

impl Curve {
    /// Looks at a process for so long.
    pub(crate) fn of(pid: u32, time: Duration) -> Result<Curve, Error> {
        let (begin, mut watch, mut curve) = (Instant::now(), Watch::default(), Curve::default());
        let apart = (time / LOOKS).max(APART_MIN);
        loop {
            let look = Instant::now();
            curve.add(&watch.alone(pid)?, begin);
            let left = time.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(curve);
            }
            let took = look.elapsed();
            thread::sleep(apart.saturating_sub(took).max(took * REST).min(left));
        }
    }

    fn add(&mut self, glance: &crate::Glance, begin: Instant) {
        for part in &glance.parts {
            let values = self.parts.entry((part.size, part.name)).or_default();
            values.resize(self.moments.len(), 0);
            values.push(part.bytes.live);
        }
        let heap = glance.heap;
        self.moments.push(Moment {
            seconds: glance.at.saturating_duration_since(begin).as_secs_f64(),
            live: heap.live,
            cached: heap.cached,
            resident: heap.resident,
        });
    }

    fn seconds(&self) -> f64 {
        self.moments.last().map_or(0.0, |moment| moment.seconds)
    }

    /// What has grown all the while, the most first: the whole, if no part has. With the code that has grown meanwhile.
    pub(crate) fn suspects(&self, code: &mut Grown) -> Vec<Advice> {
        let grown = |values: &[u64]| self.grown(values).filter(|&bytes| bytes >= LEAST);
        let part = |(&name, values): (&Name, &Vec<u64>)| {
            // Slices in which samples of small blocks lie are no growth of large ones.
            let apart = if name.1 == Some(LARGE) { code.apart } else { 0 };
            let bytes = grown(values)?.saturating_sub(apart);
            (bytes >= LEAST).then_some((bytes, name))
        };
        let mut parts: Vec<_> = self.parts.iter().filter_map(part).collect();
        parts.sort_unstable_by(|one, other| other.cmp(one));
        parts.truncate(NAMED);
        if parts.is_empty() {
            let all: Vec<_> = self.moments.iter().map(|moment| moment.live).collect();
            parts.extend(grown(&all).map(|bytes| (bytes, (None, None))));
        }
        let suspect = |(bytes, name)| self.suspect(name, bytes, code.sites(what(name)));
        parts.into_iter().map(suspect).collect()
    }

    fn suspect(&self, name: Name, bytes: u64, sites: Vec<AdviceSite>) -> Advice {
        let code = match sites.is_empty() {
            true => "cairn profile says who allocates, cairn leaks what no pointer leads to.",
            false => "cairn leaks says what no pointer leads to. By samples this code holds more:",
        };
        let what = match name {
            (Some(size), _) => format!("blocks of {size} bytes"),
            (None, Some(name)) => name.to_owned(),
            (None, None) => "blocks of all sizes together".to_owned(),
        };
        let text = format!(
            "Leak suspected: {what} grew by {:.1} MiB in {:.0} s, in each eighth of that time, and never fell back. A \
             cache that is being filled looks the same: watch longer. {code}",
            bytes as f64 / LEAST as f64,
            self.seconds()
        );
        Advice { kind: "leak suspected".into(), text, bytes, sites }
    }

    /// Whether the time was long enough to suspect something, but the looks were too few: each took long.
    pub(crate) fn is_sparse(&self) -> bool {
        let mut looks = [0; PARTS];
        for moment in &self.moments {
            looks[part_of(moment.seconds, self.seconds())] += 1;
        }
        self.seconds() >= SECONDS_MIN && looks.iter().any(|&looks| looks < LOOKS_MIN)
    }

    /// By how much low marks have risen, if they have all the while.
    fn grown(&self, values: &[u64]) -> Option<u64> {
        let all = self.seconds();
        let is_watched = all >= SECONDS_MIN && !self.is_sparse();
        let mut marks = [u64::MAX; PARTS];
        for (moment, &value) in self.moments.iter().zip(values) {
            let least = &mut marks[part_of(moment.seconds, all)];
            *least = value.min(*least);
        }
        let grown = marks[PARTS - 1].checked_sub(marks[0]).filter(|_| is_watched)?;
        let least = (grown / (PARTS as u64 - 1) / EVEN).max(1);
        let rises = |pair: &[u64]| pair[1].saturating_sub(pair[0]) >= least;
        marks.windows(2).all(rises).then_some(grown)
    }
}

/// Which samples are of a part.
fn what(name: Name) -> What {
    match name {
        (Some(size), _) => What::Class(size),
        (None, Some(LARGE | MAPPINGS)) => What::Large,
        (None, Some(_)) => What::Other,
        (None, None) => What::All,
    }
}

/// The part of all the time in which a moment is.
fn part_of(seconds: f64, all: f64) -> usize {
    ((seconds / all * PARTS as f64) as usize).min(PARTS - 1)
}

#[cfg(test)]
mod tests {
    use super::{Curve, Grown, Moment};

    const MIB: u64 = 1 << 20;

    /// Of a part that has so many bytes at a second, of so many, with so many looks in each.
    fn curve(seconds: u64, looks: u64, bytes: impl Fn(f64) -> f64) -> Curve {
        let mut curve = Curve::default();
        for nth in 0..=seconds * looks {
            let seconds = nth as f64 / looks as f64;
            let live = bytes(seconds) as u64;
            curve.moments.push(Moment { seconds, live, cached: 0, resident: live });
            curve.parts.entry((Some(112), None)).or_default().push(live);
        }
        curve
    }

    /// What is suspected of it.
    fn suspected(seconds: u64, bytes: impl Fn(f64) -> f64) -> Vec<u64> {
        told(&curve(seconds, 20, bytes))
    }

    fn told(curve: &Curve) -> Vec<u64> {
        curve.suspects(&mut Grown::default()).iter().map(|advice| advice.bytes / MIB).collect()
    }

    const M: f64 = MIB as f64;

    #[test]
    fn what_only_grows_is_suspected() {
        assert_eq!(suspected(10, |at| at * 2.0 * M), [17]);
        // What comes and goes beside it does not hide it.
        assert_eq!(suspected(80, |at| at * M + (at * 4.0).sin().abs() * M), [70]);
    }

    /// Two looks in an eighth are too few.
    #[test]
    fn few_looks_suspect_nothing() {
        let grows = |at: f64| at * 2.0 * M;
        for (seconds, looks, is_sparse) in
            [(16, 1, true), (16, 20, false), (30, 1, false), (8, 1, false)]
        {
            let curve = curve(seconds, looks, grows);
            let is_told = seconds > 8 && !is_sparse;
            assert_eq!((curve.is_sparse(), told(&curve).len()), (is_sparse, usize::from(is_told)));
        }
    }

    #[test]
    fn what_is_steady_is_not() {
        let none: [u64; 0] = [];
        assert_eq!(suspected(10, |_| 100.0 * M), none, "idle");
        assert_eq!(suspected(10, |at| at.min(4.0) * 10.0 * M), none, "a cache that is full");
        assert_eq!(suspected(60, |at| (1.0 - (-at / 5.0).exp()) * 90.0 * M), none, "nearly full");
        for period in [3.0, 1.25, 1.3, 7.0, 20.0] {
            let said = suspected(30, |at| at % period * 9.0 * M);
            assert_eq!(said, none, "{period}");
        }
        assert_eq!(suspected(8, |at| at * 9.0 * M), none, "a short time");
        assert_eq!(suspected(10, |at| at * 0.05 * M), none, "little");
    }
}
