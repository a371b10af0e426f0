//! Large blocks, 1-64 MiB, come and go under a limit of 192 MiB; all are freed, and the
//! process goes on with next to nothing to do.
//!
//! Stands for image and array processing, and for buffers of a database: few blocks, each
//! worth a system call of its own. What is kept of them for next time is the question.

use super::steps::{AFTER, HEAP, Held, MIB, light_activity, mib, scaled_time, watch};
use crate::case::{Case, Group, Plot, Results, Row, Settings, Table, Workload};
use crate::clock::ms_since;
use std::time::Instant;

const LIMIT: usize = 192 * MIB;
/// Bytes allocated in all.
const TOTAL: usize = 640 * MIB;

pub(crate) const WORKLOADS: &[Workload] = &[Case::new(
    "large-return",
    Group::Footprint,
    "Blocks of 1-64 MiB come and go, 192 MiB at most; then all are freed and a second of light \
     activity follows. Images, arrays, big buffers: time and faults against memory kept.",
    const { &[Row::time("ms"), HEAP, AFTER, Row::new("", Table::Counts, "minor_faults", "faults")] },
)
.plots(&[Plot::RSS])
.quick(0.15)
.c(run)];

fn run(settings: &Settings) -> Results {
    let mut rng = fastrand::Rng::with_seed(15);
    let limit = settings.scaled(LIMIT).max(64 * MIB);
    let total = settings.scaled(TOTAL);
    let mut held: Vec<Held> = Vec::with_capacity(LIMIT / MIB);
    let sampler = watch();
    let start = Instant::now();
    let (mut live, mut most_live, mut allocated) = (0, 0, 0);
    while allocated < total {
        // From 1 to 64 MiB, as many in each octave as in the next.
        let size = (MIB as f64 * (rng.f64() * 6.0).exp2()) as usize;
        while live + size > limit {
            live -= held.swap_remove(rng.usize(0..held.len())).size();
        }
        live += size;
        most_live = most_live.max(live);
        held.push(Held::new(size));
        allocated += size;
    }
    held.clear();
    let ms = ms_since(start);
    light_activity(scaled_time(settings, 0.8));
    sampler.report(Results::of([("ms", ms), ("live_mib", mib(most_live))]))
}
