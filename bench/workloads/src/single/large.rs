//! A small working set of large blocks: whether an allocator goes to the system for each, and what
//! it keeps. The marks on all pages are checked before a block goes.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::words::Words;
use std::ops::RangeInclusive;
use std::time::Instant;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

pub(crate) const WORKLOADS: &[Workload] = &[
    case("malloc-large", "10 live blocks of 5-25 MiB, a random one replaced, each page touched.")
        .from("mimalloc-bench, malloc-large")
        .quick(0.15)
        .c(|s| run(s, 10, 5 * MIB..=25 * MIB, 60)),
    case(
        "large-churn",
        "32 live blocks of 128 KiB-4 MiB, a random one replaced, each page touched.",
    )
    .quick(0.2)
    .c(|s| run(s, 32, 128 * KIB..=4 * MIB, 1500)),
];

const fn case(name: &'static str, about: &'static str) -> Case {
    Case::new(name, Group::Single, about, Row::MS_PEAK)
}

fn run(settings: &Settings, live: usize, sizes: RangeInclusive<usize>, replaced: usize) -> Results {
    let mut rng = fastrand::Rng::with_seed(7);
    // The live set follows the scale only down to a quarter: it is what this is about.
    let live = ((live as f64 * settings.scale.clamp(0.25, 1.0)) as usize).max(1);
    let fresh = |rng: &mut fastrand::Rng| {
        let mut block = Words::malloc(rng.usize(sizes.clone()));
        block.mark_pages(block.last(), 0);
        block
    };
    let check = |block: &Words| block.check_pages(block.last());
    let mut blocks: Vec<_> = (0..live).map(|_| fresh(&mut rng)).collect();
    let start = Instant::now();
    for _ in 0..settings.scaled(replaced) {
        let slot = &mut blocks[rng.usize(0..live)];
        check(slot);
        // Allocated before the old one goes, as an assignment does.
        *slot = fresh(&mut rng);
    }
    let time = start.elapsed();
    blocks.iter().for_each(check);
    Results::ms(time)
}
