//! A heap that grows by turns to 100-200 MiB and is freed but for a fiftieth, eight times,
//! with 30 ms of light activity between the turns.
//!
//! Stands for programs that work in phases: a compiler's passes, batch jobs, a server's
//! load by the minute. Holding on to the memory makes the next tooth cheap in page faults,
//! giving it back makes the time between the teeth cheap in memory; the mean over time and
//! the faults show which was chosen, and whether one could have had both.

use super::steps::{Held, MIB, bytes_of, light_activity, mib, scaled_time, touched, watch};
use crate::case::{Case, Group, Plot, Results, Row, Settings, Table, Workload};
use crate::clock::ms_since;
use crate::malloc::SMALL;
use std::time::Instant;

const TEETH: usize = 8;
/// Bytes at the tip of a tooth.
const TIP: std::ops::RangeInclusive<usize> = 100 * MIB..=200 * MIB;
/// One block in so many is a buffer.
const BUFFERS: usize = 64;
const BUFFER: std::ops::RangeInclusive<usize> = 4 << 10..=64 << 10;
/// One block in so many stays until the end of the next tooth.
const SURVIVORS: usize = 50;

pub(crate) const WORKLOADS: &[Workload] = &[Case::new(
    "sawtooth",
    Group::Footprint,
    "Eight times the heap grows to 100-200 MiB and is freed nearly whole, with a pause \
     between. Programs that work in phases: faults and time against memory held in between.",
    const {
        &[
            Row::time("ms"),
            Row::new(" mean", Table::Memory, "mean_mib", "MiB").floor(1.0),
            Row::new("", Table::Counts, "minor_faults", "faults"),
        ]
    },
)
.plots(&[Plot::RSS])
.quick(0.1)
.c(run)];

fn run(settings: &Settings) -> Results {
    let mut rng = fastrand::Rng::with_seed(12);
    // Generous: the mean size is above 1 KiB.
    let room = settings.scaled(TIP.end() / 700) + 1000;
    let (mut held, mut kept): (Vec<Held>, Vec<Held>) = (touched(room), touched(room / 10));
    let sampler = watch();

    let (mut teeth, mut most_live) = ([0.0; TEETH], 0);
    for tooth in &mut teeth {
        let tip = settings.scaled(rng.usize(TIP));
        let start = Instant::now();
        let mut live = bytes_of(&kept);
        while live < tip {
            let size =
                if rng.usize(0..BUFFERS) == 0 { rng.usize(BUFFER) } else { rng.usize(SMALL) };
            live += size;
            held.push(Held::new(size));
        }
        most_live = most_live.max(live);
        kept.clear();
        for block in held.drain(..) {
            if rng.usize(0..SURVIVORS) == 0 {
                kept.push(block);
            }
        }
        *tooth = ms_since(start);
        light_activity(scaled_time(settings, 0.03));
    }
    sampler.report(Results::of([
        ("ms", teeth.iter().sum()),
        ("slowest_tooth_ms", teeth.into_iter().fold(0.0, f64::max)),
        ("live_mib", mib(most_live)),
    ]))
}
