//! The arena against a plain list of slices: which run it hands out, what it knows to be zero,
//! what it gives back and when.

use super::alone::{Random, alone};
use crate::base::{Ordering, SLICE_SIZE};
use crate::map::{Bit, CHUNK_SLICES, address_map};
use crate::slices::{Memory, Run, Use, arena};
use crate::{os, thread};
use core::ops::Range;
use std::vec::Vec;

pub(super) const MIB: usize = (1 << 20) / SLICE_SIZE;
/// As in the arena: dirty slices that make a release purge; what may stay after purges that were
/// regretted.
pub(super) const BURST: usize = 4 * MIB;
pub(super) const BURST_KEPT: usize = 32 * MIB;
pub(super) const BURST_SURE: u32 = 4;
pub(super) const BURST_MAX: usize = 512 * MIB;
/// The room of a huge page, and the slices in use from which on a dense heap gets some.
pub(super) const UNIT: usize = 2 * MIB;
pub(super) const HUGE_MIN: usize = 16 * MIB;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slice {
    Used,
    Clean,
    /// Resident, and zero.
    Zero,
    Dirty,
}
use Slice::{Clean, Dirty, Used, Zero};

impl Slice {
    fn is_resident(self) -> bool {
        self == Zero || self == Dirty
    }
}

/// All slices of the reservation so far; those of the metadata count as used.
pub(super) struct Model {
    pub(super) slices: Vec<Slice>,
    pub(super) held: Vec<(usize, usize)>,
    pub(super) purged: usize,
    /// How many dirty slices more than usual are no burst.
    pub(super) allowed: usize,
    /// Slices that have gone, from the first burst on, and that nobody has needed again.
    pub(super) given: Option<usize>,
    /// Bursts of which some was needed again, and whether the last one is among them.
    pub(super) regrets: u32,
    pub(super) is_regretted: bool,
    /// Slices of small spans, less four times those of large blocks that may stay empty.
    pub(super) dense: usize,
}

impl Model {
    pub(super) fn new() -> Model {
        assert!(thread::start());
        // However slow they are here, huge pages are wanted.
        os::SLOW_NS.store(u64::MAX, Ordering::Relaxed);
        let slices = Vec::new();
        let (held, dense, purged, allowed) = (Vec::new(), 0, 0, 0);
        let (given, regrets, is_regretted) = (None, 0, false);
        Model { slices, held, purged, allowed, given, regrets, is_regretted, dense }
    }

    pub(super) fn is_free(&self, index: usize, len: usize) -> bool {
        index + len <= self.slices.len()
            && self.slices[index..index + len].iter().all(|slice| *slice != Used)
    }

    pub(super) fn count(&self, what: Slice) -> usize {
        self.slices.iter().filter(|slice| **slice == what).count()
    }

    /// Free ones that are resident.
    pub(super) fn resident(&self) -> usize {
        self.count(Zero) + self.count(Dirty)
    }

    /// Behind what is to have huge pages.
    pub(super) fn sparse_from(&self) -> usize {
        let front = (self.count(Used) + 1).next_multiple_of(64 * MIB);
        if front > 64 * MIB { front } else { 0 }
    }

    /// The lowest place for `len` free slices at a multiple of `align`, from `low` on.
    pub(super) fn lowest(&self, len: usize, align: usize, low: usize) -> Option<usize> {
        let mut index = low.next_multiple_of(align);
        while let Some(run) = self.slices.get(index..index + len) {
            // No run that a used slice stands in.
            let Some(used) = run.iter().rposition(|slice| *slice == Used) else {
                return Some(index);
            };
            index = (index + used + 1).next_multiple_of(align);
        }
        None
    }

    /// Takes a span, and checks that it is the right run; its index.
    pub(super) fn take_span(&mut self, len: usize) -> usize {
        let least = if len < 32 { HUGE_MIN } else { 4 * HUGE_MIN };
        self.dense = (self.dense + len % 32).min(8 * UNIT);
        let end = if self.dense >= UNIT { usize::MAX } else { self.sparse_from() };
        let place = if arena::THIN.0.load(Ordering::Relaxed) <= self.count(Used) / 4 {
            least..end
        } else {
            0..0
        };
        let run = arena::take_span(len).expect("there is memory");
        self.take(run, len, len, 0, place)
    }

    /// The same for a large block, which is `filled` soon, or not.
    pub(super) fn take_run(&mut self, len: usize, filled: bool) -> usize {
        self.dense = self.dense.saturating_sub(if filled { 0 } else { 4 * len });
        let used = if filled { Use::Backed } else { Use::Sparse };
        let run = arena::take_run(len, used).expect("there is memory");
        let low = if filled { 0 } else { self.sparse_from() / CHUNK_SLICES * CHUNK_SLICES };
        self.take(run, len, 1, low, 0..if filled { usize::MAX } else { 0 })
    }

    /// Checks that `run` is the lowest from `low` on, with a huge page if it begins in `place`.
    pub(super) fn take(
        &mut self,
        run: Run,
        len: usize,
        align: usize,
        low: usize,
        place: Range<usize>,
    ) -> usize {
        let before = self.slices.len();
        let expected = loop {
            let Some(index) = self.lowest(len, align, low) else {
                self.grow(len, align);
                continue;
            };
            let huge = place.contains(&index) && self.count(Used) >= HUGE_MIN;
            let Some(unit) = self.clean_unit(index, len).filter(|_| huge) else { break index };
            // It is resident throughout now.
            self.slices[unit..unit + UNIT].fill(Zero);
            self.regret(UNIT);
        };
        assert_eq!(run.index, expected, "{len} slices at a multiple of {align}, {before} before");
        self.take_there(&run, len);
        assert_eq!(self.slices.len(), address_map::committed());
        expected
    }

    /// The first unit under a run that is clean throughout.
    pub(super) fn clean_unit(&self, index: usize, len: usize) -> Option<usize> {
        let mut units = (index / UNIT * UNIT..index + len).step_by(UNIT);
        let end = self.slices.len();
        units.find(|&at| {
            at + UNIT <= end && self.slices[at..at + UNIT].iter().all(|slice| *slice == Clean)
        })
    }

    pub(super) fn take_there(&mut self, run: &Run, len: usize) {
        let taken = &mut self.slices[run.index..run.index + len];
        let dirty = taken.iter().filter(|slice| slice.is_resident()).count();
        assert_eq!((run.zero, run.dirty), (!taken.contains(&Dirty), dirty));
        taken.fill(Used);
        self.held.push((run.index, len));
        self.regret(len - dirty);
    }

    /// So many clean slices have been taken: twice as many may be dirty as bursts gave back just before.
    pub(super) fn regret(&mut self, clean: usize) {
        let needed = clean.min(self.given.unwrap_or(0));
        if needed > 0 {
            self.given = self.given.map(|given| given - needed);
            self.allowed = (self.allowed + 2 * needed).min(BURST_MAX);
            self.regrets += u32::from(!self.is_regretted);
            self.is_regretted = true;
        }
    }

    /// The reservation has grown because `len` slices did not fit: by what it held, from 4 MiB to
    /// 64 MiB, or by what was needed, up to the end of a unit.
    pub(super) fn grow(&mut self, len: usize, align: usize) {
        let from = self.slices.len();
        let tail = self.slices.iter().rev().take_while(|slice| **slice != Used).count();
        let need = ((from - tail).next_multiple_of(align) + len).saturating_sub(from);
        let step = (from).clamp(4 * MIB, 64 * MIB).max(need);
        // Up to the end of a unit; if that is too little, as much as is needed.
        let end = (from - from % UNIT) + step.next_multiple_of(UNIT);
        let end = if end - from < need { from + need } else { end };
        assert!(address_map::committed() >= end, "grown from {from} for {len} slices");
        self.slices.resize(end, Clean);
    }

    pub(super) fn give(&mut self, index: usize, len: usize, dirty: bool) {
        arena::release(index, len, if dirty { Memory::Written } else { Memory::Clean });
        self.slices[index..index + len].fill(if dirty { Dirty } else { Clean });
        let bound = self.burst_bound();
        let dirty = self.resident();
        if dirty > bound {
            let parts = dirty > 2 * bound;
            self.given.get_or_insert(0);
            self.is_regretted = false;
            self.allowed = self.allowed.saturating_sub(len);
            self.purge_some(2 * len.max(32), parts);
        }
    }

    /// How many slices may be dirty: what was regretted four times in a row stays as a whole.
    pub(super) fn burst_bound(&self) -> usize {
        let used = self.count(Used);
        let most = if self.regrets >= BURST_SURE { BURST_MAX } else { used.max(BURST_KEPT) };
        BURST.max(used / 4) + self.allowed.min(most)
    }

    /// So many have gone.
    fn count_purged(&mut self, slices: usize) {
        self.purged += slices;
        self.given = self.given.map(|given| given + slices);
    }

    pub(super) fn purge(&mut self, limit: usize) -> usize {
        self.purge_some(limit, true)
    }

    /// Purges so many dirty slices from the top, as in a small heap by time: not one more.
    pub(super) fn purge_top(&mut self, count: usize) {
        for _ in 0..count {
            let top = self.slices.iter().rposition(|slice| slice.is_resident()).expect("dirty");
            self.slices[top] = Clean;
        }
        self.count_purged(count);
    }

    /// Purges from the top until `limit` dirty slices have gone: units that are free as a whole,
    /// then, if `parts` of others may go, run by run within chunks.
    pub(super) fn purge_some(&mut self, limit: usize, parts: bool) -> usize {
        let mut done = 0;
        while done < limit {
            let mut starts = (0..self.slices.len() / UNIT * UNIT).step_by(UNIT).rev();
            let whole = starts.find(|&at| {
                let unit = &self.slices[at..at + UNIT];
                unit.iter().any(|slice| slice.is_resident()) && !unit.contains(&Used)
            });
            let top = || self.slices.iter().rposition(|slice| slice.is_resident());
            let run = match (whole, parts) {
                (Some(at), _) => at..at + UNIT,
                (None, true) => {
                    let Some(top) = top() else { break };
                    let mut at = top;
                    while at > top - top % CHUNK_SLICES && self.slices[at - 1].is_resident() {
                        at -= 1;
                    }
                    at..top + 1
                }
                _ => break,
            };
            done += self.slices[run.clone()].iter().filter(|slice| slice.is_resident()).count();
            self.slices[run].fill(Clean);
        }
        self.count_purged(done);
        done
    }

    pub(super) fn compare(&self) {
        arena::check();
        let counts = arena::counts();
        assert_eq!((counts.clean, counts.dirty), (self.count(Clean), self.resident()));
        assert_eq!(counts.purged as usize, self.purged);
        let mut dirty = Vec::new();
        arena::for_each_dirty(|index, len| dirty.push((index, len)));
        let mut expected: Vec<(usize, usize)> = Vec::new();
        for (index, _) in self.slices.iter().enumerate().filter(|(_, slice)| slice.is_resident()) {
            match expected.last_mut() {
                Some((at, len)) if *at + *len == index && index % CHUNK_SLICES != 0 => *len += 1,
                _ => expected.push((index, 1)),
            }
        }
        assert_eq!(dirty, expected);
    }
}

/// Mostly small, up to three chunks.
pub(super) fn some_length(random: &mut Random) -> usize {
    match random.below(10) {
        0..6 => 1 + random.below(8),
        6..9 => 1 + random.below(64),
        _ => 1 + random.below(3 * CHUNK_SLICES),
    }
}

#[test]
fn every_run_is_the_lowest_that_fits() {
    alone(|| {
        let mut model = Model::new();
        let mut random = Random(1);
        for round in 0..5000 {
            let crowded = model.held.len() > 150;
            match random.below(if crowded { 30 } else { 100 }) {
                0..25 if !model.held.is_empty() => {
                    let at = random.below(model.held.len());
                    let (index, len) = model.held.swap_remove(at);
                    model.give(index, len, random.below(3) > 0);
                }
                // A part of a run, as a block that shrinks gives it.
                25..30 if !model.held.is_empty() => {
                    let at = random.below(model.held.len());
                    let (index, len) = model.held[at];
                    let keep = 1 + random.below(len);
                    if keep < len {
                        model.held[at].1 = keep;
                        model.give(index + keep, len - keep, true);
                    }
                }
                30..55 => {
                    let len = [1, 4, 32][random.below(3)];
                    model.take_span(len);
                }
                55..85 => {
                    let len = some_length(&mut random);
                    model.take_run(len, random.below(2) == 0);
                }
                _ => take_exactly_somewhere(&mut model, &mut random),
            }
            if round % 97 == 0 {
                model.compare();
            }
            if round % 700 == 0 {
                assert_eq!(arena::purge_all(), model.purge(usize::MAX) * SLICE_SIZE);
                model.compare();
            }
        }
        // All in one piece again.
        while let Some((index, len)) = model.held.pop() {
            model.give(index, len, false);
        }
        let all = model.slices.len();
        model.take_run(all, false);
        model.compare();
    });
}

/// Behind a run that is held, or anywhere.
fn take_exactly_somewhere(model: &mut Model, random: &mut Random) {
    let len = some_length(random);
    let index = match random.below(3) {
        0 => random.below(model.slices.len() + 1),
        _ if model.held.is_empty() => return,
        _ => {
            let (index, len) = model.held[random.below(model.held.len())];
            index + len
        }
    };
    let run = arena::take_exactly(index, len);
    assert_eq!(run.is_some(), model.is_free(index, len), "{len} slices at {index}");
    if let Some(run) = run {
        assert_eq!(run.index, index);
        model.take_there(&run, len);
    }
}

#[test]
fn spans_have_three_lengths() {
    alone(|| {
        assert!(thread::start());
        for len in [0, 2, 3, 5, 31, 33, 64] {
            assert!(arena::take_span(len).is_none());
        }
        assert!(!arena::in_debt());
        assert_eq!(arena::purge_all(), 0);
    });
}

#[test]
fn heads_of_large_blocks_are_found_from_inside() {
    alone(|| {
        let mut model = Model::new();
        let first = model.take_run(5 * CHUNK_SLICES, false);
        let end = first + 5 * CHUNK_SLICES;
        let mut random = Random(2);
        let mut heads = std::vec![false; end];
        for _ in 0..1500 {
            let index = first + random.below(end - first);
            heads[index] = random.below(8) == 0;
            arena::mark_head(index, if heads[index] { Bit::One } else { Bit::Zero });
            let from = first + random.below(end - first);
            assert_eq!(arena::head_below(from), heads[..=from].iter().rposition(|head| *head));
        }
        (first..end).for_each(|index| arena::mark_head(index, Bit::Zero));
        assert_eq!(arena::head_below(end - 1), None);
    });
}

/// Long runs, over many chunks, and their neighbours: the lowest is found, however long.
#[test]
fn the_longest_runs_are_found() {
    alone(|| {
        let mut model = Model::new();
        let mut random = Random(3);
        for round in 0..300 {
            if random.below(2) == 0 && !model.held.is_empty() {
                let at = random.below(model.held.len());
                let (index, len) = model.held.swap_remove(at);
                model.give(index, len, random.below(4) == 0);
            } else {
                // Up to beyond what is told apart, 64 MiB.
                let doublings = random.below(8);
                let len = CHUNK_SLICES * random.below(1 << doublings) + 1 + random.below(70);
                model.take_run(len, true);
            }
            if round % 20 == 0 {
                model.compare();
            }
        }
        model.compare();
    });
}
