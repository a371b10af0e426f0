//! Zeroed blocks of mixed sizes: a random one among the live is replaced, the new one is
//! looked at and then dirtied.
//!
//! Whether an allocator clears memory that is known to be clear, and whether it forgets to
//! clear what is not. Small blocks are checked whole, others at both ends and in strides.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::words::Words;
use std::time::Instant;

const LIVE: usize = 5000;
/// Replacements at scale 1.
const REPLACED: usize = 200_000;
/// Blocks of up to so many words are checked whole.
const WHOLE: usize = 128;
/// The stride in words beyond that: five in each page, at different places.
const STRIDE: usize = 97;

/// The case.
pub const WORKLOADS: &[Workload] = &[Case::new(
    "calloc-heavy",
    Group::Single,
    "calloc of 16 B-1 MiB, mostly small, 5,000 live, checked for zero, dirtied and freed in \
     random order: tables and structures that are born clear.",
    Row::NS_PEAK,
)
.quick(0.15)
.c(run)];

fn run(settings: &Settings) -> Results {
    let mut rng = fastrand::Rng::with_seed(10);
    let mut blocks: Vec<Words> = (0..LIVE).map(|at| dirty(&mut rng, at)).collect();
    let replaced = settings.scaled(REPLACED);
    let start = Instant::now();
    for _ in 0..replaced {
        let at = rng.usize(0..LIVE);
        blocks[at].expect(0, tag(at));
        blocks[at] = dirty(&mut rng, at);
    }
    let ns = start.elapsed().as_nanos() as f64;
    for (at, block) in blocks.into_iter().enumerate() {
        block.expect(0, tag(at));
    }
    Results::of([("ns", ns / replaced as f64)])
}

/// A block that was zero and no longer is.
fn dirty(rng: &mut fastrand::Rng, at: usize) -> Words {
    let mut block = Words::zeroed(size(rng));
    check_zero(&block);
    block.fill(0xd1);
    block.set(0, tag(at));
    block
}

fn check_zero(block: &Words) {
    let words = block.len();
    let stride = if words <= WHOLE { 1 } else { STRIDE };
    for at in (0..words).step_by(stride) {
        block.expect(at, 0);
    }
    block.expect(words - 1, 0);
}

/// Nine in ten up to 1 KiB, nearly all others up to 32 KiB, one in 200 up to 1 MiB.
fn size(rng: &mut fastrand::Rng) -> usize {
    match rng.u32(0..200) {
        0 => rng.usize(32 << 10..=1 << 20),
        1..20 => rng.usize(1 << 10..32 << 10),
        _ => rng.usize(16..1 << 10),
    }
}

fn tag(at: usize) -> u64 {
    !(at as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_blocks_are_dirty_throughout() {
        let block = dirty(&mut fastrand::Rng::with_seed(1), 5);
        block.expect(0, tag(5));
        assert!((1..block.len()).all(|at| block.get(at) == 0xd1d1_d1d1_d1d1_d1d1));
    }

    #[test]
    #[should_panic = "wrong word"]
    fn a_word_that_is_not_zero_is_found() {
        let mut block = Words::zeroed(8000);
        block.set(block.len() - 1, 1);
        check_zero(&block);
    }
}
