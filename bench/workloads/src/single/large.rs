//! A small working set of large blocks; a random one is replaced at a time, and every page of
//! the new one is touched.
//!
//! Buffers of pictures, columns and packets of files: whether an allocator goes to the system
//! for each, and what it keeps. The marks on all pages are checked before a block goes.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::clock::ms_since;
use crate::words::Words;
use std::time::Instant;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The cases.
pub const WORKLOADS: &[Workload] = &[
    case("malloc-large", "10 live blocks of 5-25 MiB, a random one replaced, each page touched.")
        .from("mimalloc-bench, malloc-large")
        .quick(0.15)
        .c(|s| run(s, Kind { live: 10, sizes: (5 * MIB, 25 * MIB), replaced: 60 })),
    case(
        "large-churn",
        "32 live blocks of 128 KiB-4 MiB, a random one replaced, each page touched.",
    )
    .quick(0.2)
    .c(|s| run(s, Kind { live: 32, sizes: (128 * KIB, 4 * MIB), replaced: 1500 })),
];

const fn case(name: &'static str, about: &'static str) -> Case {
    Case::new(name, Group::Single, about, Row::MS_PEAK)
}

struct Kind {
    live: usize,
    /// From and to.
    sizes: (usize, usize),
    /// Replacements at scale 1.
    replaced: usize,
}

fn run(settings: &Settings, kind: Kind) -> Results {
    let mut rng = fastrand::Rng::with_seed(7);
    // The live set follows the scale only down to a quarter: it is what this is about.
    let live = ((kind.live as f64 * settings.scale.clamp(0.25, 1.0)) as usize).max(1);
    let mut tags = 0..;
    let mut fresh = |rng: &mut fastrand::Rng| {
        let mut block = Words::malloc(rng.usize(kind.sizes.0..=kind.sizes.1));
        let tag = tags.next().expect("endless");
        block.mark_pages(tag);
        (block, tag)
    };
    let mut blocks: Vec<_> = (0..live).map(|_| fresh(&mut rng)).collect();
    let start = Instant::now();
    for _ in 0..settings.scaled(kind.replaced) {
        let slot = &mut blocks[rng.usize(0..live)];
        slot.0.check_pages(slot.1);
        // Allocated before the old one goes, as an assignment does.
        *slot = fresh(&mut rng);
    }
    let ms = ms_since(start);
    for (block, tag) in blocks {
        block.check_pages(tag);
    }
    Results::of([("ms", ms)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_their_pages() {
        let settings = Settings { threads: None, scale: 0.01, no_alloc: false };
        let kind = Kind { live: 32, sizes: (10 * KIB, 200 * KIB), replaced: 10_000 };
        assert!(run(&settings, kind).values["ms"] > 0.0);
    }
}
