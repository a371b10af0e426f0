//! One size class, then another, then both: 96 MiB of 48 B blocks, all freed, 96 MiB of
//! 400 B blocks, all freed, then 96 MiB of either kind at random.
//!
//! Stands for programs whose phases build different structures. Memory that served one
//! size and cannot serve another, or only after a delay, shows as a peak of more than the
//! live set.

use super::steps::{HEAP, MIB, mib, touched, watch};
use crate::case::{Case, Group, Plot, Results, Row, Settings, Workload};
use crate::clock::ms_since;
use crate::malloc::Block;
use std::time::Instant;

const LIVE: usize = 96 * MIB;
const SMALLER: usize = 48;
const LARGER: usize = 400;

pub(crate) const WORKLOADS: &[Workload] = &[Case::new(
    "phase-change",
    Group::Footprint,
    "96 MiB of 48 B blocks, all freed, then of 400 B blocks, all freed, then of both. Can \
     memory that served one size serve another?",
    const { &[Row::time("ms"), HEAP] },
)
.plots(&[Plot::RSS])
.quick(0.15)
.c(run)];

fn run(settings: &Settings) -> Results {
    let live = settings.scaled(LIVE);
    let mut blocks: Vec<Block> = touched(live / SMALLER + 1);
    let mut rng = fastrand::Rng::with_seed(13);
    // As many bytes of one as of the other.
    let mut either = || if rng.usize(0..SMALLER + LARGER) < LARGER { SMALLER } else { LARGER };
    let phases: [&mut dyn FnMut() -> usize; 3] = [&mut || SMALLER, &mut || LARGER, &mut either];
    let sampler = watch();
    let (start, mut most) = (Instant::now(), 0);
    for size in phases {
        let mut bytes = 0;
        while bytes < live {
            let size = size();
            bytes += size;
            blocks.push(Block::with_ends(size));
        }
        blocks.clear();
        most = most.max(bytes);
    }
    let ms = ms_since(start);
    sampler.report(Results::of([("ms", ms), ("live_mib", mib(most))]))
}
