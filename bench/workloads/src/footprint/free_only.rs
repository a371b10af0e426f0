//! One thread only allocates, another only frees: 128 MiB filled and freed three times.
//!
//! Stands for pipelines whose last stage drops what the first one made. The thread that
//! frees never allocates, so what it gets back must find its way to the one that does, or
//! to the system, by itself; at the end the one that allocated waits and calls nothing.

use super::steps::{Held, MIB, light_activity, mib, scaled_time, touched, watch};
use crate::case::{Case, Group, Plot, Results, Row, Settings, Table, Workload};
use crate::random::SMALL;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};
use std::time::Instant;

const ROUNDS: usize = 3;
const FILL: usize = 128 * MIB;
const MEAN_SIZE: usize = 520;

/// The case.
pub const WORKLOADS: &[Workload] = &[Case::new(
    "free-only",
    Group::Footprint,
    "One thread allocates 128 MiB, another, which never allocates, frees it; three times, \
     then both wait while a third is lightly active. A pipeline with dedicated stages.",
    const {
        &[
            Row::time("ms"),
            Row::new("", Table::Memory, "heap_mib", "MiB").per("live_mib", "x live"),
            Row::new(" after", Table::Memory, "after_mib", "MiB").floor(1.0),
        ]
    },
)
.plots(&[Plot::RSS])
.quick(0.1)
.c(run)];

fn run(settings: &Settings) -> Results {
    let blocks = settings.scaled(FILL / MEAN_SIZE);
    let held: Mutex<Vec<Held>> = Mutex::new(touched(blocks));
    // The three threads meet before the first round, and after each fill and each free.
    let meeting = Barrier::new(3);
    let end = Barrier::new(3);
    let most_live = AtomicUsize::new(0);
    let sampler = watch();
    let mut fill_and_free = [0.0; 2];
    let mut results = Results::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = fastrand::Rng::with_seed(14);
            meeting.wait();
            for _ in 0..ROUNDS {
                let mut live = 0;
                let fresh = (0..blocks).map(|id| {
                    let size = rng.usize(SMALL);
                    live += size;
                    Held::new(size, id as u32)
                });
                held.lock().expect("no panic").extend(fresh);
                most_live.fetch_max(live, Relaxed);
                meeting.wait();
                meeting.wait();
            }
            end.wait();
        });
        scope.spawn(|| {
            meeting.wait();
            for _ in 0..ROUNDS {
                meeting.wait();
                held.lock().expect("no panic").drain(..).for_each(Held::free);
                meeting.wait();
            }
            end.wait();
        });
        let mut last = Instant::now();
        meeting.wait();
        for _ in 0..ROUNDS {
            for phase_ms in &mut fill_and_free {
                meeting.wait();
                let now = Instant::now();
                *phase_ms += (now - std::mem::replace(&mut last, now)).as_secs_f64() * 1e3;
            }
        }
        light_activity(scaled_time(settings, 0.7));
        let [fill_ms, free_ms] = fill_and_free;
        results = sampler.report(Results::of([
            ("ms", fill_ms + free_ms),
            ("free_ms", free_ms),
            ("live_mib", mib(most_live.load(Relaxed))),
        ]));
        end.wait();
    });
    assert!(held.lock().expect("no panic").is_empty());
    results
}

#[cfg(test)]
mod tests {
    use super::super::steps::TINY;
    use super::*;

    #[test]
    fn freeing_is_a_part_of_the_time() {
        let values = run(&TINY).values;
        assert!(values["free_ms"] > 0.0 && values["free_ms"] < values["ms"]);
        assert!((1.2..1.4).contains(&values["live_mib"]), "{}", values["live_mib"]);
    }
}
