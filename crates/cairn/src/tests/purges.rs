//! When free slices are given back: by time, after bursts, and where huge pages go.

use super::alone::{alone, panics};
use super::arena::Slice::{Clean, Dirty, Used};
use super::arena::{BURST, BURST_KEPT, BURST_MAX, BURST_SURE, HUGE_MIN, MIB, Model, UNIT};
use crate::base::SLICE_SIZE;
use crate::map::{CHUNK_SLICES, address_map};
use crate::os::{self, fault};
use crate::slices::{Memory, Use, arena, reservation};
use crate::{check, thread};
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::vec::Vec;

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
        // Without a delay, too, the clock strikes now and then, and not at each visit.
        arena::set_purge_delay_ms(0);
        let strokes = (20_000..21_000).filter(|&ms| arena::tick(ms)).count();
        assert!((20..40).contains(&strokes), "{strokes}");
    });
}

/// What has gone from spans is not in use: a 16th of the rest stays.
#[test]
fn time_leaves_less_around_survivors() {
    alone(|| {
        let mut model = Model::new();
        model.take_run(4000, false);
        let index = model.take_run(200, false);
        model.give(index, 200, true);
        arena::count_holes(3900 * SLICE_SIZE);
        let later = os::now_ms() + 1_000_000;
        assert!(arena::tick(later) && arena::tick(later + 100_000));
        let mut left = 0;
        arena::for_each_dirty(|_, slices| left += slices);
        // As much as has been freed since the last but one: it may be needed again.
        assert!(left <= 2 * MIB, "{left}");
    });
}

/// A program that ticks while it is told to has given back all that is idle, and is told then.
#[test]
fn a_tick_says_whether_there_is_more() {
    alone(|| {
        let mut model = Model::new();
        model.take_run(4000, false);
        let index = model.take_run(1000, false);
        model.give(index, 1000, true);
        // In the future: no tick by the clock is due meanwhile.
        let later = os::now_ms() + 1_000_000;
        assert!(arena::tick(later) && arena::tick(later + 100_000));
        assert!(arena::in_debt());
        let ticks = (0..).take_while(|_| crate::tick()).count();
        assert!(ticks > 0 && !arena::in_debt(), "{ticks}");
        check();
    });
}

#[test]
fn what_is_used_between_two_ticks_is_not_idle() {
    alone(|| {
        let mut model = Model::new();
        let index = model.take_run(250, false);
        model.give(index, 250, true);
        assert!(arena::tick(0) && !arena::in_debt());
        for now in 1..5 {
            // All but 140 slices are taken, for a moment.
            model.take_run(110, false);
            model.held.clear();
            model.give(index, 110, true);
            assert!(arena::tick(now * 1000));
            if now == 1 {
                model.purge_top(140 - 2 * MIB);
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
        model.take_run(3200, false);
        let index = model.take_run(201, false);
        model.give(index, 200, true);
        assert!(arena::tick(0) && arena::tick(1000));
        assert!(!arena::in_debt(), "3201 / 16 slices may stay");
        model.compare();
        model.give(index + 200, 1, true);
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
        // What has gone is needed again soon: twice as much may stay.
        let purged = model.purged;
        let is_clean = |index: &usize| model.slices[*index] == Clean;
        let gone: Vec<usize> = starts.iter().copied().filter(is_clean).collect();
        for index in gone {
            let run = arena::take_exactly(index, CHUNK_SLICES).expect("it is free");
            assert!(run.zero);
            model.take_there(&run, CHUNK_SLICES);
        }
        rest[3..8].iter().for_each(|&index| model.give(index, CHUNK_SLICES, true));
        assert!(model.count(Dirty) == 2 * BURST && model.purged == purged);
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
        assert_eq!(model.purged, len);
        model.take_run(len, false);
        assert_eq!(model.allowed, 2 * len);
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
        model.slices.resize(100, Used);
        let index = model.take_run(320, false);
        assert_eq!(address_map::committed(), 420);
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
        model.given = None;
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
        // What was needed lately stays, too.
        assert!(arena::tick(3000) && arena::tick(4000));
        model.compare();
        assert!(arena::tick(14_000) && arena::tick(25_000));
        model.purge_top(1);
        model.compare();
    });
}

/// A server that is seldom asked has what its next request needs, for ten seconds at least and twenty at most; up to 2 MiB.
#[test]
fn what_is_needed_now_and_then_stays() {
    alone(|| {
        let mut model = Model::new();
        let request = |model: &mut Model, slices, now| {
            let index = model.take_run(slices, false);
            model.give(index, slices, true);
            assert!(arena::tick(now));
            model.purge_top(arena::counts().purged as usize - model.purged);
            model.compare();
            model.count(Dirty)
        };
        for now in (0..20_000).step_by(500) {
            // Seldom as much as can be.
            let slices = if now % 4000 == 0 { MIB } else { 1 };
            assert_eq!(request(&mut model, slices, now), MIB);
        }
        // No more requests: the last one was at 16 s.
        let left: Vec<_> = (20..60).map(|second| request(&mut model, 1, second * 1000)).collect();
        // One slice is in use in between.
        assert_eq!((left[6], left[16]), (MIB, MIB / 2 + 1));
    });
}

/// Where an eighth of what is in use has gone from between survivors, a MiB may be dirty, or a 64th of the rest, and single
/// runs go.
#[test]
fn less_stays_dirty_where_holes_are() {
    alone(|| {
        let mut model = Model::new();
        let index = model.take_run(4000, false);
        arena::count_holes(400 * SLICE_SIZE);
        arena::release(index, 200, Memory::Written);
        assert_eq!(arena::counts().purged, 0, "no eighth");
        arena::count_holes(100 * SLICE_SIZE);
        // Every other slice: no two of them are a run.
        for slice in (1000..1200).step_by(2) {
            arena::release(index + slice, 1, Memory::Written);
            assert!(arena::counts().dirty <= (4000 - 500) / 32);
        }
        arena::count_holes(3000 * SLICE_SIZE);
        arena::release(index + 2000, 1, Memory::Written);
        assert!(arena::counts().dirty <= MIB);
        arena::check();
    });
}

/// What is needed again is no burst, up to as much as is in use, or 32 MiB; after the fourth time in a row whatever is in use, up to
/// 512 MiB.
#[test]
fn bursts_grow_with_regret() {
    alone(|| {
        let mut model = Model::new();
        for len in [BURST_KEPT + 8 * MIB, 600 * MIB] {
            for round in 0..=BURST_SURE {
                let index = model.take_run(len, false);
                let purged = model.purged;
                model.give(index, len, true);
                model.held.pop();
                model.compare();
                let stays = round == BURST_SURE && len <= BURST_MAX;
                assert_eq!(model.purged == purged, stays, "in round {round} with {len} slices");
            }
        }
        while let Some((index, len)) = model.held.pop() {
            model.give(index, len, false);
        }
        // So large a reservation grows by 64 MiB.
        let all = model.slices.len();
        model.take_run(all, false);
        model.take_span(1);
        assert_eq!(model.slices.len(), all + 64 * MIB);
    });
}

/// What is released beyond the bound, and not needed again, is unlearned: little stays of a process that shrinks.
#[test]
fn regret_is_unlearned_where_nothing_grows() {
    alone(|| {
        let mut model = Model::new();
        let index = model.take_run(60 * MIB, false);
        model.give(index, 20 * MIB, true);
        model.take_run(8 * MIB, false);
        assert_eq!(model.allowed, 16 * MIB);
        for part in 20..60 {
            model.give(index + part * MIB, MIB, true);
        }
        assert_eq!(model.allowed, 0);
        assert!(model.count(Dirty) <= BURST);
        model.compare();
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
        // Who has many classes, and few blocks, touches little of each span.
        arena::THIN.0.store(model.count(Used), Ordering::Relaxed);
        (0..UNIT / 2).for_each(|_| _ = model.take_span(4));
        assert_eq!(model.resident(), 0);
        arena::THIN.0.store(0, Ordering::Relaxed);
        // At the next room of one.
        let mut huge = model.take_span(4);
        while model.resident() == 0 {
            huge = model.take_span(4);
        }
        assert!(huge.is_multiple_of(UNIT));
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
        assert!(sparse >= 8 * HUGE_MIN - CHUNK_SLICES);
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

/// Locks the page at an address; false if that is not allowed. Under sanitizers the C library's call does nothing.
pub(super) fn locks(at: *mut u8) -> bool {
    // SAFETY: it changes nothing that anybody reads.
    unsafe { libc::syscall(libc::SYS_mlock, at, 1_usize) == 0 }
}

/// Of memory of which a page is locked at the top all but that page's slice goes, and what is below it.
#[test]
fn what_is_below_locked_memory_goes() {
    alone(|| {
        let mut model = Model::new();
        let index = model.take_run(8 * CHUNK_SLICES, false).next_multiple_of(CHUNK_SLICES);
        let chunks: Vec<_> = (0..7).map(|chunk| index + chunk * CHUNK_SLICES).collect();
        chunks.iter().for_each(|&chunk| model.give(chunk, 8, true));
        for &chunk in &chunks[2..] {
            let at = address_map::slice_address(chunk);
            if !locks(at) {
                return;
            }
        }
        assert_eq!(arena::purge_all(), (2 * 8 + 5 * 7) * SLICE_SIZE);
        assert_eq!(arena::purge_all(), 0);
    });
}

/// In the same chunk, too.
#[test]
fn what_is_beside_locked_memory_goes() {
    alone(|| {
        let mut model = Model::new();
        let index = model.take_run(2 * CHUNK_SLICES, false).next_multiple_of(CHUNK_SLICES);
        [0, 16, 32].iter().for_each(|at| model.give(index + at, 8, true));
        let at = address_map::slice_address(index + 16);
        if locks(at) {
            assert_eq!(arena::purge_all(), (2 * 8 + 7) * SLICE_SIZE);
            assert_eq!(arena::purge_all(), 0);
        }
    });
}

/// A whole frame below that is locked keeps nothing above it that lies scattered.
#[test]
fn what_is_above_a_locked_frame_goes() {
    alone(|| {
        let mut model = Model::new();
        let index = model.take_run(12 * CHUNK_SLICES, false).next_multiple_of(2 * CHUNK_SLICES);
        model.give(index, 2 * CHUNK_SLICES, true);
        model.give(index + 6 * CHUNK_SLICES, 8, true);
        let at = address_map::slice_address(index + 7);
        if !locks(at) {
            return;
        }
        assert_eq!(arena::purge_all(), (2 * CHUNK_SLICES - 1 + 8) * SLICE_SIZE);
        assert_eq!(arena::purge_all(), 0);
    });
}

/// Each frame with a locked page is tried a few times, however many there are: one for each half that it lies in.
#[test]
fn locked_frames_are_tried_a_few_times() {
    alone(|| {
        let mut model = Model::new();
        let index = model.take_run(44 * CHUNK_SLICES, false).next_multiple_of(2 * CHUNK_SLICES);
        for frame in 0..20 {
            let first = index + frame * 2 * CHUNK_SLICES;
            model.give(first, 2 * CHUNK_SLICES, true);
            if !locks(address_map::slice_address(first + 7)) {
                return;
            }
        }
        // Counted by failing the one behind so many.
        fault::arm(20 * 20, false);
        arena::purge_all();
        assert!(!fault::disarm(), "it has taken more calls than that");
    });
}

/// Where all is locked that may go, frees do not try each time: the next stroke of the clock does.
#[test]
fn locked_memory_is_not_tried_at_each_free() {
    alone(|| {
        let mut model = Model::new();
        let index = model.take_run(8 * CHUNK_SLICES, false).next_multiple_of(2 * CHUNK_SLICES);
        let bytes = 6 * CHUNK_SLICES * SLICE_SIZE;
        let lock = |slice| {
            let at = address_map::slice_address(slice);
            // SAFETY: it changes nothing that anybody reads.
            unsafe { libc::syscall(libc::SYS_mlock, at, bytes) == 0 }
        };
        // So much may be locked without rights, and more than a free leaves of it.
        if !lock(index) {
            return;
        }
        (0..3)
            .for_each(|frame| model.give(index + frame * 2 * CHUNK_SLICES, 2 * CHUNK_SLICES, true));
        fault::arm(100, false);
        for _ in 0..1000 {
            let run = arena::take_run(1, Use::Filled).expect("there is memory").index;
            arena::release(run, 1, Memory::Written);
        }
        assert!(!fault::disarm(), "it has taken more calls than that");
    });
}

/// What others free meanwhile is not what the caller has asked for.
#[test]
fn a_purge_ends_while_others_free() {
    const RUN: usize = 64;
    alone(|| {
        assert!(thread::start());
        let churn = || {
            for _ in 0..100_000 {
                let index = arena::take_run(RUN, Use::Filled).expect("there is memory").index;
                arena::release(index, RUN, Memory::Written);
            }
        };
        let others = [(); 2].map(|()| std::thread::spawn(churn));
        while !others.iter().any(JoinHandle::is_finished) {
            let most = (arena::counts().dirty + 4 * RUN) * SLICE_SIZE;
            let gone = arena::purge_all();
            assert!(gone <= most, "{gone}, {most}");
        }
        others.into_iter().for_each(|other| other.join().expect("no panic"));
        check();
    });
}
