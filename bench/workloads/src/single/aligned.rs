//! Aligned blocks of mixed sizes and alignments: a random one among the live is replaced,
//! and at the end all go in random order.
//!
//! Vector registers' and cache lines' alignment is common, a page's is not rare, and one in
//! a hundred wants 32 KiB (not more: some allocators refuse that). Every address is checked when the block comes.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::words::Words;
use std::time::Instant;

const LIVE: usize = 10_000;
/// Replacements at scale 1.
const REPLACED: usize = 1_000_000;

/// The case.
pub const WORKLOADS: &[Workload] = &[Case::new(
    "aligned-heavy",
    Group::Single,
    "posix_memalign and aligned_alloc with alignments of 16-4096 B, some of 32 KiB, sizes of \
     16 B-16 KiB, 10,000 live, replaced in random order: SIMD buffers and pages.",
    Row::NS_PEAK,
)
.quick(0.15)
.c(run)];

fn run(settings: &Settings) -> Results {
    let mut rng = fastrand::Rng::with_seed(11);
    let mut blocks: Vec<Words> = (0..LIVE).map(|at| fresh(&mut rng, at)).collect();
    let replaced = settings.scaled(REPLACED);
    let start = Instant::now();
    for _ in 0..replaced {
        let at = rng.usize(0..LIVE);
        check(&blocks[at], at);
        blocks[at] = fresh(&mut rng, at);
    }
    let ns = start.elapsed().as_nanos() as f64;
    let mut blocks: Vec<_> = blocks.into_iter().enumerate().collect();
    rng.shuffle(&mut blocks);
    for (at, block) in blocks {
        check(&block, at);
    }
    Results::of([("ns", ns / replaced as f64)])
}

/// A block with a tag at both ends, by one or the other function.
fn fresh(rng: &mut fastrand::Rng, at: usize) -> Words {
    let align = align(rng);
    let size = size(rng);
    let mut block =
        if rng.bool() { Words::aligned(align, size) } else { Words::aligned_c11(align, size) };
    block.set(block.len() - 1, tag(at));
    block.set(0, tag(at));
    block
}

fn check(block: &Words, at: usize) {
    block.expect(0, tag(at));
    block.expect(block.len() - 1, tag(at));
}

/// Powers of two from 16 on, each half as frequent as the one before; pages more often than
/// that, and one in a hundred 32 KiB.
fn align(rng: &mut fastrand::Rng) -> usize {
    match rng.u32(0..100) {
        0 => 32 << 10,
        1..6 => 4096,
        _ => 16 << rng.u8(..).trailing_ones(),
    }
}

/// Mostly small: 15 in 16 up to 1 KiB.
fn size(rng: &mut fastrand::Rng) -> usize {
    if rng.u8(0..16) == 0 { rng.usize(1 << 10..=16 << 10) } else { rng.usize(16..1 << 10) }
}

fn tag(at: usize) -> u64 {
    0xa119_0000_0000_0000 | at as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignments_are_mixed() {
        let mut rng = fastrand::Rng::with_seed(1);
        let sample: Vec<usize> = (0..10_000).map(|_| align(&mut rng)).collect();
        for power in 4..=12 {
            assert!(sample.contains(&(1 << power)), "no {}", 1 << power);
        }
        assert!(sample.contains(&(32 << 10)));
        assert!(sample.iter().all(|align| align.is_power_of_two()));
    }

    #[test]
    fn runs_at_small_scale() {
        let results = run(&Settings { threads: None, scale: 0.001, no_alloc: false });
        assert!(results.values["ns"] > 0.0);
    }
}
