//! One size class, then another, then both: 96 MiB of 48 B blocks, all freed, 96 MiB of
//! 400 B blocks, all freed, then 96 MiB of either kind at random.
//!
//! Stands for programs whose phases build different structures. Memory that served one
//! size and cannot serve another, or only after a delay, shows as a peak of more than the
//! live set.

use super::steps::{MIB, mib, touched, watch};
use crate::case::{Case, Group, Plot, Results, Row, Settings, Table, Workload};
use crate::clock::ms_since;
use crate::malloc::Block;
use std::time::Instant;

const LIVE: usize = 96 * MIB;
const SMALLER: usize = 48;
const LARGER: usize = 400;

/// The case.
pub const WORKLOADS: &[Workload] = &[Case::new(
    "phase-change",
    Group::Footprint,
    "96 MiB of 48 B blocks, all freed, then of 400 B blocks, all freed, then of both. Can \
     memory that served one size serve another?",
    const {
        &[Row::time("ms"), Row::new("", Table::Memory, "heap_mib", "MiB").per("live_mib", "x live")]
    },
)
.plots(&[Plot::RSS])
.quick(0.15)
.c(run)];

fn run(settings: &Settings) -> Results {
    let live = settings.scaled(LIVE);
    let mut blocks: Vec<Block> = touched(live / SMALLER + 1);
    let mut rng = fastrand::Rng::with_seed(13);
    let sampler = watch();
    let start = Instant::now();
    let most = [
        phase(&mut blocks, live, || SMALLER),
        phase(&mut blocks, live, || LARGER),
        // As many bytes of one as of the other.
        phase(&mut blocks, live, || {
            if rng.usize(0..SMALLER + LARGER) < LARGER { SMALLER } else { LARGER }
        }),
    ];
    let ms = ms_since(start);
    let most = most.into_iter().max().unwrap_or(0);
    sampler.report(Results::of([("ms", ms), ("live_mib", mib(most))]))
}

/// Fills up to `live` bytes and frees all; the bytes that were live.
fn phase(blocks: &mut Vec<Block>, live: usize, mut size: impl FnMut() -> usize) -> usize {
    let mut bytes = 0;
    while bytes < live {
        let size = size();
        bytes += size;
        blocks.push(Block::with_ends(size, blocks.len() as u64));
    }
    for (tag, block) in blocks.drain(..).enumerate() {
        block.free(tag as u64);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::steps::TINY;
    use super::*;

    #[test]
    fn no_phase_is_larger_than_another() {
        let live = run(&TINY).values["live_mib"];
        assert!((live - 0.96).abs() < 0.001, "{live}");
    }

    #[test]
    fn the_mixed_phase_has_as_many_bytes_of_either() {
        let mut blocks = Vec::new();
        let mut rng = fastrand::Rng::with_seed(1);
        let mut bytes = [0; 2];
        phase(&mut blocks, MIB, || {
            let larger = rng.usize(0..SMALLER + LARGER) >= LARGER;
            let size = if larger { LARGER } else { SMALLER };
            bytes[usize::from(larger)] += size;
            size
        });
        assert!(blocks.is_empty());
        let share = bytes[0] as f64 / MIB as f64;
        assert!((share - 0.5).abs() < 0.05, "{share}");
    }
}
