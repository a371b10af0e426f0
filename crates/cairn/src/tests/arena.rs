//! The arena against a plain list of slices: which run it hands out, what it knows to be zero,
//! what it gives back and when.

use super::alone::{Random, alone, panics};
use crate::address_map::{self, CHUNK_SLICES};
use crate::arena::{self, Run, Use};
use crate::os::{self, fault};
use crate::reservation;
use crate::size_class::SLICE_SIZE;
use crate::sync::Ordering;
use crate::thread;
use core::ops::Range;
use std::vec::Vec;

const MIB: usize = (1 << 20) / SLICE_SIZE;
/// As in the arena: dirty slices that make a release purge; what may stay after purges that were
/// regretted.
const BURST: usize = 4 * MIB;
const BURST_KEPT: usize = 32 * MIB;
const BURST_STEP: usize = 16 * MIB;
const BURST_MAX: usize = 512 * MIB;
/// The room of a huge page, and the slices in use from which on a dense heap gets some.
const UNIT: usize = 2 * MIB;
const HUGE_MIN: usize = 16 * MIB;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slice {
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
struct Model {
    slices: Vec<Slice>,
    held: Vec<(usize, usize)>,
    purged: usize,
    /// How many dirty slices more than usual are no burst.
    allowed: usize,
    /// A burst has been purged, and nothing clean been taken since.
    regrets: bool,
    /// Slices of small spans, less four times those of large blocks that may stay empty.
    dense: usize,
}

impl Model {
    fn new() -> Model {
        assert!(thread::start());
        // However slow they are here, huge pages are wanted.
        os::SLOW_NS.store(u64::MAX, Ordering::Relaxed);
        let slices = std::vec![Used; address_map::first_slice()];
        Model { slices, held: Vec::new(), purged: 0, allowed: 0, regrets: false, dense: 0 }
    }

    fn first(&self) -> usize {
        address_map::first_slice()
    }

    fn is_free(&self, index: usize, len: usize) -> bool {
        index + len <= self.slices.len()
            && self.slices[index..index + len].iter().all(|slice| *slice != Used)
    }

    fn count(&self, what: Slice) -> usize {
        self.slices[self.first()..].iter().filter(|slice| **slice == what).count()
    }

    /// Free ones that are resident.
    fn resident(&self) -> usize {
        self.count(Zero) + self.count(Dirty)
    }

    /// Behind what is to have huge pages.
    fn sparse_from(&self) -> usize {
        let front = (self.count(Used) + 1).next_multiple_of(64 * MIB);
        self.first() + if front > 64 * MIB { front } else { 0 }
    }

    /// The lowest place for `len` free slices at a multiple of `align`, from `low` on.
    fn lowest(&self, len: usize, align: usize, low: usize) -> Option<usize> {
        let mut index = low.max(self.first()).next_multiple_of(align);
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
    fn take_span(&mut self, len: usize) -> usize {
        self.take_span_among(len, 1)
    }

    /// The same where so many take spans.
    fn take_span_among(&mut self, len: usize, users: usize) -> usize {
        let least = if len < 32 { HUGE_MIN } else { 4 * HUGE_MIN }.max(users * UNIT);
        self.dense = (self.dense + len % 32).min(8 * UNIT);
        let end = if self.dense >= UNIT { usize::MAX } else { self.sparse_from() };
        let place = self.first() + least..end;
        let run = arena::take_span(len, users).expect("there is memory");
        self.take(run, len, len, 0, place)
    }

    /// The same for a large block, which is `filled` soon, or not.
    fn take_run(&mut self, len: usize, filled: bool) -> usize {
        self.dense = self.dense.saturating_sub(if filled { 0 } else { 4 * len });
        let used = if filled { Use::Backed } else { Use::Sparse };
        let run = arena::take_run(len, used).expect("there is memory");
        let low = if filled { 0 } else { self.sparse_from() / CHUNK_SLICES * CHUNK_SLICES };
        self.take(run, len, 1, low, 0..if filled { usize::MAX } else { 0 })
    }

    /// Checks that `run` is the lowest from `low` on, with a huge page if it begins in `place`.
    fn take(
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
            self.regret();
        };
        assert_eq!(run.index, expected, "{len} slices at a multiple of {align}, {before} before");
        self.take_there(&run, len);
        assert_eq!(self.slices.len(), address_map::committed());
        expected
    }

    /// The first unit under a run that is clean throughout.
    fn clean_unit(&self, index: usize, len: usize) -> Option<usize> {
        let mut units = (index / UNIT * UNIT..index + len).step_by(UNIT);
        let end = self.slices.len();
        units.find(|&at| {
            at + UNIT <= end && self.slices[at..at + UNIT].iter().all(|slice| *slice == Clean)
        })
    }

    fn take_there(&mut self, run: &Run, len: usize) {
        let taken = &mut self.slices[run.index..run.index + len];
        let dirty = taken.iter().filter(|slice| slice.is_resident()).count();
        assert_eq!((run.zero, run.dirty), (!taken.contains(&Dirty), dirty));
        taken.fill(Used);
        self.held.push((run.index, len));
        if dirty <= len / 2 {
            self.regret();
        }
    }

    /// Mostly clean slices have been taken: if that is needed soon after a burst, the next may be larger.
    fn regret(&mut self) {
        if std::mem::take(&mut self.regrets) {
            self.allowed = (BURST_STEP + 2 * self.allowed).min(BURST_MAX);
        }
    }

    /// The reservation has grown because `len` slices did not fit: by what it held, from 4 MiB to
    /// 64 MiB, or by what was needed, up to the end of a unit.
    fn grow(&mut self, len: usize, align: usize) {
        let from = self.slices.len();
        let tail = self.slices.iter().rev().take_while(|slice| **slice != Used).count();
        let need = ((from - tail).next_multiple_of(align) + len).saturating_sub(from);
        let step = (from - self.first()).clamp(4 * MIB, 64 * MIB).max(need);
        // Up to the end of a unit; if that is too little, as much as is needed.
        let end = (from - from % UNIT) + step.next_multiple_of(UNIT);
        let end = if end - from < need { from + need } else { end };
        assert!(address_map::committed() >= end, "grown from {from} for {len} slices");
        self.slices.resize(end, Clean);
    }

    fn give(&mut self, index: usize, len: usize, dirty: bool) {
        arena::release(index, len, dirty);
        self.slices[index..index + len].fill(if dirty { Dirty } else { Clean });
        let used = self.count(Used);
        let bound = BURST.max(used / 4).max(self.allowed.min(used.max(BURST_KEPT)));
        let dirty = self.resident();
        if dirty > bound {
            let parts = dirty > 2 * bound;
            self.purge_some(2 * len.max(32), parts);
            self.regrets = true;
        }
    }

    fn purge(&mut self, limit: usize) -> usize {
        self.purge_some(limit, true)
    }

    /// Purges from the top until `limit` dirty slices have gone: units that are free as a whole,
    /// then, if `parts` of others may go, run by run within chunks.
    fn purge_some(&mut self, limit: usize, parts: bool) -> usize {
        let mut done = 0;
        while done < limit {
            let mut starts = (self.first()..self.slices.len() / UNIT * UNIT).step_by(UNIT).rev();
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
        self.purged += done;
        done
    }

    fn compare(&self) {
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
fn some_length(random: &mut Random) -> usize {
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
        let all = model.slices.len() - model.first();
        model.take_run(all, false);
        model.compare();
    });
}

/// Behind a run that is held, or anywhere.
fn take_exactly_somewhere(model: &mut Model, random: &mut Random) {
    let len = some_length(random);
    let index = match random.below(3) {
        0 => model.first() + random.below(model.slices.len() - model.first() + 1),
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
            assert!(arena::take_span(len, 1).is_none());
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
            arena::mark_head(index, heads[index]);
            let from = first + random.below(end - first);
            assert_eq!(arena::head_below(from), heads[..=from].iter().rposition(|head| *head));
        }
        (first..end).for_each(|index| arena::mark_head(index, false));
        assert_eq!(arena::head_below(end - 1), None);
    });
}

/// What has lain idle for two ticks is given back, from the top, a batch at each visit; half a
/// mebibyte stays, or a 16th of what is in use.
#[test]
fn idle_memory_goes_by_time() {
    alone(|| {
        let mut model = Model::new();
        assert_eq!(arena::purge_delay_ms(), 250);
        arena::set_purge_delay_ms(100);
        assert_eq!(arena::purge_delay_ms(), 100);
        model.take_run(4000, false);
        let index = model.take_run(1000, false);
        assert!(arena::tick(10_000));
        assert!(!arena::tick(10_099));
        model.give(index, 1000, true);
        // Only what was dirty at the last tick can be idle at this one.
        assert!(arena::tick(10_100));
        assert!(!arena::in_debt());
        assert!(arena::tick(10_200));
        let mut left = 1000 - 4000 / 16;
        loop {
            // 4 MiB at a time, run by run.
            left -= model.purge(left.min(4 * MIB)).min(left);
            model.compare();
            assert_eq!(arena::in_debt(), left > 0);
            if left == 0 {
                break;
            }
            assert!(!arena::tick(10_201));
        }
        assert!(model.count(Dirty) <= 4000 / 16);
        assert!(!arena::tick(10_202));
        model.compare();
    });
}

#[test]
fn what_is_used_between_two_ticks_is_not_idle() {
    alone(|| {
        let mut model = Model::new();
        let index = model.take_run(200, false);
        model.give(index, 200, true);
        assert!(arena::tick(0) && !arena::in_debt());
        for now in 1..5 {
            // All but 40 slices are taken, for a moment.
            model.take_run(160, false);
            model.held.clear();
            model.give(index, 160, true);
            assert!(arena::tick(now * 1000));
            if now == 1 {
                model.purge(40 - MIB / 2);
            }
            assert!(!arena::in_debt());
            model.compare();
        }
    });
}

/// The more is in use, the more may stay dirty.
#[test]
fn a_share_of_what_is_used_may_stay_dirty() {
    alone(|| {
        let mut model = Model::new();
        model.take_run(1600, false);
        let index = model.take_run(101, false);
        model.give(index, 100, true);
        assert!(arena::tick(0) && arena::tick(1000));
        assert!(!arena::in_debt(), "1601 / 16 slices may stay");
        model.compare();
        model.give(index + 100, 1, true);
        assert!(arena::tick(2000) && arena::tick(3000));
        model.purge(1);
        assert!(!arena::in_debt());
        model.compare();
    });
}

#[test]
fn a_burst_of_frees_is_purged_at_once() {
    alone(|| {
        let mut model = Model::new();
        for _ in 0..19 {
            model.take_run(CHUNK_SLICES, false);
        }
        let starts: Vec<usize> = model.held.drain(..).map(|(index, _)| index).collect();
        // Four chunks are no burst.
        let (below, rest) = starts.split_at(BURST / CHUNK_SLICES);
        below.iter().for_each(|&index| model.give(index, CHUNK_SLICES, true));
        assert_eq!(model.purged, 0);
        model.compare();
        // One slice more is: it takes with it the topmost unit that is free.
        model.give(rest[0], 1, true);
        assert_eq!(model.purged, UNIT);
        model.compare();
        // Twice of what is freed goes, if that is more.
        model.give(rest[0] + 1, CHUNK_SLICES - 1, true);
        model.give(rest[1], CHUNK_SLICES, true);
        assert_eq!(model.purged, UNIT);
        model.give(rest[2], CHUNK_SLICES, true);
        assert_eq!(model.purged, 2 * UNIT);
        assert!(model.is_free(rest[0], UNIT) && model.slices[rest[0]] == Clean);
        model.compare();
        // What has gone is needed again soon: the next burst may be larger.
        let purged = model.purged;
        let run = arena::take_exactly(rest[0], 1).expect("it is free");
        assert!(run.zero);
        model.take_there(&run, 1);
        rest[3..15].iter().for_each(|&index| model.give(index, CHUNK_SLICES, true));
        assert!(model.count(Dirty) > BURST && model.purged == purged);
        model.compare();
    });
}

/// A large program may free more at once: a quarter of what it uses.
#[test]
fn a_burst_is_measured_by_what_is_in_use() {
    alone(|| {
        let mut model = Model::new();
        model.take_run(8 * BURST, false);
        let index = model.take_run(2 * BURST + 1, false);
        model.give(index, 2 * BURST, true);
        assert_eq!(model.purged, 0);
        model.give(index + 2 * BURST, 1, true);
        assert!(model.purged > 0);
        model.compare();
    });
}

/// A burst that may be larger becomes so by a 16th less with each tick.
#[test]
fn a_larger_burst_is_forgotten_with_time() {
    alone(|| {
        let mut model = Model::new();
        let len = BURST + CHUNK_SLICES;
        let index = model.take_run(len, false);
        model.give(index, len, true);
        assert!(model.purged == len && model.regrets);
        model.take_run(len, false);
        assert_eq!(model.allowed, BURST_STEP);
        let purged = model.purged;
        model.give(index, len, true);
        assert_eq!(model.purged, purged);
        model.take_run(len, false);
        for now in 0..100 {
            assert!(arena::tick(now * 1000));
            model.allowed -= model.allowed / 16;
        }
        model.compare();
        model.give(index, len, true);
        assert!(model.purged > purged);
        model.compare();
    });
}

/// Behind what is in use there is no more memory: what may stay empty is put in front then, even
/// where the free end of the reservation would do.
#[test]
fn what_may_stay_empty_is_put_where_there_is_room() {
    alone(|| {
        let mut model = Model::new();
        let mut end = usize::MAX;
        while model.sparse_from() < end || !model.is_free(end - 1, 1) {
            model.take_span(32);
            end = address_map::committed();
        }
        fault::arm(0, true);
        let run = arena::take_run(1, Use::Sparse).expect("there is room in front");
        assert!(fault::disarm());
        assert_eq!(Some(run.index), model.lowest(1, 1, 0));
        assert_eq!(address_map::committed(), end);
    });
}

/// Memory that is locked cannot be given back: it stays dirty, what is below it goes.
#[test]
fn refused_purges_leave_slices_dirty() {
    alone(|| {
        let mut model = Model::new();
        let index = model.take_run(6 * CHUNK_SLICES, false).next_multiple_of(CHUNK_SLICES);
        for chunk in 0..5 {
            model.give(index + chunk * CHUNK_SLICES, 8, true);
        }
        // One is refused: it goes when it is its turn again, after all others.
        fault::arm(0, false);
        assert_eq!(arena::purge_all(), 5 * 8 * SLICE_SIZE);
        assert!(fault::disarm());
        model.purge(usize::MAX);
        model.compare();
        // All are refused: nothing changes, and it comes to an end.
        model.give(index + 8, 8, true);
        fault::arm(0, true);
        assert_eq!(arena::purge_all(), 0);
        fault::disarm();
        model.compare();
    });
}

/// The check itself: a bit that says something else than the counters is noticed.
#[test]
fn the_check_notices_wrong_bits() {
    alone(|| {
        let mut model = Model::new();
        let chunk = model.take_run(100, false) / CHUNK_SLICES;
        arena::check();
        let bits = address_map::chunk_bits(chunk);
        // SAFETY: this is the only thread.
        unsafe {
            let (free, dirty) = ((*bits).free, (*bits).dirty);
            (*bits).free ^= 1 << 63;
            assert!(panics(arena::check), "a slice too many is free");
            (*bits).free = free;
            (*bits).dirty ^= 1 << 63;
            assert!(panics(arena::check), "a slice in use is dirty");
            (*bits).dirty = dirty;
        }
        arena::check();
    });
}

/// After a growth by no more than what was needed the reservation ends inside a chunk.
#[test]
fn a_reservation_may_end_inside_a_chunk() {
    alone(|| {
        let mut model = Model::new();
        // These are nobody's.
        assert!(reservation::commit(100));
        model.slices.resize(model.first() + 100, Used);
        let index = model.take_run(320, false);
        assert_eq!(address_map::committed(), model.first() + 420);
        // 34 slices at the end, and no aligned 32 among them.
        model.give(index + 320 - 34, 34, true);
        model.take_span(32);
        model.compare();
    });
}

/// What is needed again only after a second was a burst.
#[test]
fn a_burst_is_not_regretted_late() {
    alone(|| {
        let mut model = Model::new();
        let len = BURST + CHUNK_SLICES;
        let index = model.take_run(len, false);
        model.give(index, len, true);
        assert_eq!(model.purged, len);
        std::thread::sleep(std::time::Duration::from_millis(1100));
        model.regrets = false;
        model.take_run(len, false);
        model.give(index, len, true);
        assert_eq!(model.purged, 2 * len);
        model.compare();
    });
}

/// Half a mebibyte stays dirty for ever, one slice more does not.
#[test]
fn a_little_may_stay_dirty() {
    alone(|| {
        let mut model = Model::new();
        let index = model.take_run(MIB / 2 + 1, false);
        model.give(index + 1, MIB / 2, true);
        assert!(arena::tick(0) && arena::tick(1000) && arena::tick(2000));
        assert!(!arena::in_debt());
        model.compare();
        model.give(index, 1, true);
        assert!(arena::tick(3000) && arena::tick(4000));
        model.purge(1);
        model.compare();
    });
}

/// What is needed again and again is no burst, up to as much as is in use, or 32 MiB, and up to
/// 512 MiB.
#[test]
fn bursts_grow_with_regret() {
    alone(|| {
        let mut model = Model::new();
        for used in [0, 200 * MIB, 600 * MIB] {
            if used > 0 {
                let more = used - model.count(Used);
                model.take_run(more, false);
            }
            for round in 0..7 {
                // As it will be when the run has been taken.
                let more = BURST_STEP + 2 * model.allowed;
                let allowed = if round > 0 { more.min(BURST_MAX) } else { model.allowed };
                let bound = BURST.max(used / 4).max(allowed.min(used.max(BURST_KEPT)));
                let index = model.take_run(bound + CHUNK_SLICES, false);
                let purged = model.purged;
                model.give(index, CHUNK_SLICES, true);
                model.give(index + CHUNK_SLICES, bound, true);
                assert!(model.purged > purged, "in round {round} with {used} slices");
                model.held.pop();
                model.purge(usize::MAX);
                arena::purge_all();
                model.compare();
            }
        }
        assert_eq!(model.allowed, BURST_MAX);
        while let Some((index, len)) = model.held.pop() {
            model.give(index, len, false);
        }
        // So large a reservation grows by 64 MiB.
        let all = model.slices.len() - model.first();
        model.take_run(all, false);
        model.take_span(1);
        assert_eq!(model.slices.len(), model.first() + all + 64 * MIB);
    });
}

/// A heap that is large and dense gets a huge page for each room of one that it comes to; what
/// nobody takes of it is given back.
#[test]
fn a_dense_heap_gets_huge_pages() {
    alone(|| {
        let mut model = Model::new();
        while model.count(Used) < HUGE_MIN {
            model.take_span(4);
            assert_eq!(model.resident(), 0);
        }
        // Many that take spans leave much untouched.
        let many = HUGE_MIN / UNIT + 1;
        (0..UNIT / 4).for_each(|_| _ = model.take_span_among(4, many + 1));
        assert_eq!(model.resident(), 0);
        let huge = model.take_span_among(4, many);
        assert_eq!(model.resident(), UNIT - 4);
        // The longest spans go there, but ask for none of their own in so small a heap.
        (0..3).for_each(|_| _ = model.take_span(32));
        assert_eq!(model.take_span(32), huge + UNIT);
        assert_eq!(model.resident(), 32 - 4);
        // Large blocks that may stay untouched in part outweigh small spans ...
        model.take_run(8 * UNIT, false);
        (0..40).for_each(|_| _ = model.take_span(1));
        assert_eq!(model.resident(), 0);
        // ... until the heap is four times as large; then such blocks stand behind all that gets huge
        // pages.
        while model.count(Used) < 4 * HUGE_MIN {
            model.take_span(32);
        }
        let sparse = model.take_run(8 * UNIT, false);
        assert!(sparse >= model.first() + 8 * HUGE_MIN - CHUNK_SLICES);
        assert_eq!(model.dense, 0);
        while model.resident() == 0 {
            assert!(model.take_span(4) < sparse);
        }
        let dirty = model.resident();
        // Those that are filled get them wherever they are.
        model.take_run(8 * UNIT + 1, true);
        assert!(![0, dirty].contains(&model.resident()));
        // What a huge page has brought is known to be zero.
        assert_eq!(model.count(Dirty), 0);
        model.compare();
        assert!(arena::tick(0) && arena::tick(1000));
        assert_eq!(arena::purge_all(), model.purge(usize::MAX) * SLICE_SIZE);
        model.compare();
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
