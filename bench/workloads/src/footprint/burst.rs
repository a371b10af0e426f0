//! A burst of which a few blocks survive, scattered over all of it; then nothing is called any more.
//!
//! What users of every allocator report: memory that does not come back after a peak, for a live block or two stand on each
//! span, and whoever could give back the pages around them sleeps. `floor_mib` is what pages with a live byte take.

use super::phases::occupied_pages;
use super::{Held, MIB, bytes_of, light_activity, mib, touched, watch};
use crate::case::{Results, Settings};
use rustix::param::page_size;
use std::ops::RangeInclusive;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

/// What each thread does.
pub(crate) struct Burst {
    pub(crate) threads: usize,
    /// MiB of each.
    pub(crate) fill: usize,
    pub(crate) sizes: RangeInclusive<usize>,
    /// One block in so many survives.
    pub(crate) kept: usize,
    pub(crate) freed_by: FreedBy,
    /// What the threads do then.
    pub(crate) then: Then,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FreedBy {
    /// The thread that has filled.
    Filler,
    /// A thread that has allocated nothing, while that one waits.
    Another,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// They wait.
    Wait,
    /// They go on with other sizes, a few blocks a second.
    GoOn,
}

const PAUSE: Duration = Duration::from_secs(2);

pub(crate) fn run(settings: &Settings, burst: &Burst) -> Results {
    let Burst { threads, fill, ref sizes, kept, freed_by, then } = *burst;
    let blocks = settings.scaled(fill * MIB) / (sizes.start() + sizes.end()).div_ceil(2);
    let parts: Vec<Mutex<Vec<Held>>> = (0..threads).map(|_| Mutex::new(touched(blocks))).collect();
    let pause = PAUSE.mul_f64(settings.scale.max(0.25));
    // All have filled, all have freed, and what is left has been measured.
    let meeting = Barrier::new(threads + 1);
    let sampler = watch();
    let mut results = Results::default();
    std::thread::scope(|scope| {
        for (seed, part) in (17..).zip(&parts) {
            let meeting = &meeting;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                let mut held = part.lock().expect("no panic");
                meeting.wait();
                held.extend((0..blocks).map(|_| Held::new(rng.usize(sizes.clone()))));
                rng.shuffle(&mut held);
                let free = |held: &mut Vec<Held>| held.truncate(blocks / kept);
                match freed_by {
                    FreedBy::Filler => free(&mut held),
                    FreedBy::Another => {
                        let all = &mut *held;
                        std::thread::scope(|other| _ = other.spawn(move || free(all)));
                    }
                }
                drop(held);
                meeting.wait();
                match then {
                    Then::Wait => (),
                    Then::GoOn => light_activity(pause),
                }
                meeting.wait();
            });
        }
        let start = Instant::now();
        meeting.wait();
        meeting.wait();
        let ms = crate::clock::ms_since(start);
        std::thread::sleep(pause);
        let of_all = |f: fn(&[Held]) -> usize| -> usize {
            parts.iter().map(|part| f(&part.lock().expect("no panic"))).sum()
        };
        let floor = of_all(occupied_pages) * page_size();
        let live = of_all(bytes_of);
        results = sampler.report(Results::of([
            ("ms", ms),
            ("live_mib", mib(live)),
            ("floor_mib", mib(floor)),
        ]));
        meeting.wait();
    });
    results
}
