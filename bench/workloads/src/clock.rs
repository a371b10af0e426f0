//! Timing inside the workloads. `Instant` is CLOCK_MONOTONIC here.

use crate::case::{Results, Settings};
use std::time::{Duration, Instant};

/// Length of one slice: shorter than a turn of the scheduler, so that on a busy machine
/// most slices are not interrupted, and long against reading the clock.
const SLICE: Duration = Duration::from_micros(500);
/// Slices of one measurement at scale 1.
const SLICES: usize = 600;
const WARM_UP: Duration = Duration::from_millis(20);

/// Nanoseconds per operation of `batch`, which performs `ops` operations per call. `ns` is the median of the slices:
/// what an operation costs as a rule, without work that is done once in a while, and without the interruptions.
///
/// Repeats it until the time budget is used; nothing is allocated or printed meanwhile.
pub(crate) fn per_op(settings: &Settings, ops: usize, mut batch: impl FnMut()) -> Results {
    let start = Instant::now();
    let mut once = Duration::MAX;
    while start.elapsed() < WARM_UP || once == Duration::MAX {
        let start = Instant::now();
        batch();
        once = once.min(start.elapsed());
    }
    let repeats = (SLICE.as_nanos() / once.as_nanos().max(1)).max(1) as usize;
    // A batch longer than a slice makes slices longer, not the measurement.
    let stretch = (once.as_secs_f64() / SLICE.as_secs_f64()).max(1.0);
    let count = (settings.scale.min(1.0) * SLICES as f64 / stretch).max(5.0) as usize;

    let mut slices = [0.0f64; SLICES];
    let slices = &mut slices[..count];
    for slice in &mut *slices {
        let start = Instant::now();
        for _ in 0..repeats {
            batch();
        }
        *slice = start.elapsed().as_nanos() as f64 / (repeats * ops) as f64;
    }
    slices.sort_by(f64::total_cmp);
    Results::of([("ns", slices[count / 2])])
}

pub(crate) fn ms_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}
