//! A working set of 10,000 blocks; a random one is replaced by a block of random size.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::clock::per_op;
use crate::malloc::Block;
use crate::random::SMALL;

const SLOTS: usize = 10_000;
const REPLACEMENTS: u64 = 10_000;

/// The case.
pub const WORKLOADS: &[Workload] = &[Case::new(
    "random-small",
    Group::Single,
    "10,000 slots of 16-1024 B, a random one replaced at a time: a heap at steady state.",
    Row::NS_PEAK,
)
.quick(0.5)
.c(run)];

fn run(settings: &Settings) -> Results {
    let mut rng = fastrand::Rng::with_seed(2);
    let mut slots: Vec<Block> =
        (0..SLOTS).map(|at| Block::with_ends(rng.usize(SMALL), at as u64)).collect();
    let time = per_op(settings, REPLACEMENTS, || {
        for _ in 0..REPLACEMENTS {
            let at = rng.usize(0..SLOTS);
            let fresh = Block::with_ends(rng.usize(SMALL), at as u64);
            std::mem::replace(&mut slots[at], fresh).free(at as u64);
        }
    });
    for (at, block) in slots.into_iter().enumerate() {
        block.free(at as u64);
    }
    Results::of([("ns", time.ns), ("cpu_ns", time.cpu_ns)])
}
