//! Several blocks of one size are allocated, then freed in the same order: few and many, of
//! sizes up to a page.
//!
//! Few blocks stay inside an allocator's innermost cache, many run through it.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::clock::per_op;
use crate::malloc::Block;

/// Blocks at a time; each divides [`MOST`].
const COUNTS: [usize; 4] = [25, 100, 400, MOST];
const MOST: usize = 1600;
const SIZES: [usize; 10] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

/// The case.
pub const WORKLOADS: &[Workload] = &[Case::new(
    "glibc-simple",
    Group::Single,
    "25 to 1600 blocks of one size, 8 B to 4 KiB, allocated and then freed in the same order: \
     runs that fit an allocator's innermost cache and runs that do not.",
    Row::NS_PEAK,
)
.from("glibc benchtests, malloc-simple")
.quick(0.15)
.c(run)];

fn run(settings: &Settings) -> Results {
    let mut blocks = Vec::with_capacity(MOST);
    let end = beyond(&mut blocks);
    let pairs = (COUNTS.len() * SIZES.len() * MOST) as u64;
    let time = per_op(settings, pairs, || {
        for size in SIZES {
            for count in COUNTS {
                for _ in 0..MOST / count {
                    once(&mut blocks, size, count);
                }
            }
        }
    });
    end.free(0);
    Results::of([("ns", time.ns), ("cpu_ns", time.cpu_ns)])
}

/// A block allocated while there are as many and as large blocks as there ever will be: the
/// heap's end stays in use, as in nearly any program, and giving it back to the system and
/// taking it again is not what is measured.
fn beyond(blocks: &mut Vec<Block>) -> Block {
    blocks.extend((0..MOST).map(|tag| Block::new(SIZES[SIZES.len() - 1], tag as u64)));
    let end = Block::new(SIZES[SIZES.len() - 1], 0);
    free_all(blocks);
    end
}

fn once(blocks: &mut Vec<Block>, size: usize, count: usize) {
    for tag in 0..count as u64 {
        blocks.push(Block::new(size, tag));
    }
    free_all(blocks);
}

fn free_all(blocks: &mut Vec<Block>) {
    for (tag, block) in blocks.drain(..).enumerate() {
        block.free(tag as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_divide_evenly() {
        assert!(COUNTS.iter().all(|count| MOST.is_multiple_of(*count)));
        let results = run(&Settings { threads: None, scale: 0.001, no_alloc: false });
        assert!(results.values["ns"] > 0.0);
    }
}
