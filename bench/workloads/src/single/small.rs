//! Small blocks in steady loops: one at a time, in batches, and at random places.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::clock::per_op;
use crate::malloc::{Block, SMALL};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const PAIRS: usize = 500;
/// Blocks of a batch, and those that are replaced at random.
const BLOCKS: usize = 10_000;

/// Their memory is that of any small process, which `hello` reports once.
pub(crate) const WORKLOADS: &[Workload] = &[
    pair::<16>("pair-16"),
    pair::<64>("pair-64"),
    pair::<256>("pair-256"),
    pair::<1024>("pair-1k"),
    pair::<4096>("pair-4k"),
    pair::<{ 32 * KIB }>("pair-32k"),
    pair::<{ 64 * KIB }>("pair-64k"),
    pair::<{ 128 * KIB }>("pair-128k"),
    pair::<{ 256 * KIB }>("pair-256k"),
    pair::<MIB>("pair-1m"),
    pair::<{ 4 * MIB }>("pair-4m"),
    batch("batch-fifo", "10,000 x 64 B, freed in the order of allocation")
        .c(|s| run_batch(s, |_| 64, |_, _| {})),
    batch("batch-lifo", "10,000 x 64 B, freed in reverse")
        .c(|s| run_batch(s, |_| 64, |_, order| order.reverse())),
    batch("batch-random", "10,000 x 64 B, freed in random order")
        .c(|s| run_batch(s, |_| 64, |rng, order| rng.shuffle(order))),
    batch("batch-mixed", "10,000 x 16-1024 B, freed in random order")
        .c(|s| run_batch(s, |rng| rng.usize(SMALL), |rng, order| rng.shuffle(order))),
    Case::single(
        "random-small",
        "10,000 slots of 16-1024 B, a random one replaced at a time: a heap at steady state.",
    )
    .quick(0.5)
    .c(random),
    Case::single(
        "glibc-simple",
        "25 to 1600 blocks of one size, 8 B to 4 KiB, allocated and then freed in the same order: \
     runs that fit an allocator's innermost cache and runs that do not.",
    )
    .from("glibc benchtests, malloc-simple")
    .quick(0.15)
    .c(glibc_simple),
];

const fn pair<const SIZE: usize>(name: &'static str) -> Workload {
    const ABOUT: &str = "malloc, touch the first word, free: one size, over and over. The length \
                         of the fast path, and the sizes at which an allocator falls off it.";
    let case = Case::new(name, Group::Single, ABOUT, const { &[Row::time("ns")] });
    case.quick(0.1).c(|settings| {
        per_op(settings, PAIRS, || {
            for _ in 0..PAIRS {
                drop(Block::new(SIZE));
            }
        })
    })
}

const fn batch(name: &'static str, about: &'static str) -> Case {
    Case::new(name, Group::Single, about, Row::NS_PEAK).quick(0.3)
}

fn run_batch(
    settings: &Settings,
    mut size: impl FnMut(&mut fastrand::Rng) -> usize,
    rearrange: impl FnOnce(&mut fastrand::Rng, &mut Vec<u32>),
) -> Results {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut order: Vec<u32> = (0..BLOCKS as u32).collect();
    rearrange(&mut rng, &mut order);
    let sizes: Vec<u32> = (0..BLOCKS).map(|_| size(&mut rng) as u32).collect();
    let mut blocks: Vec<Option<Block>> = (0..BLOCKS).map(|_| None).collect();
    per_op(settings, BLOCKS, || {
        for (slot, &size) in blocks.iter_mut().zip(&sizes) {
            *slot = Some(Block::new(size as usize));
        }
        for &at in &order {
            blocks[at as usize] = None;
        }
    })
}

fn random(settings: &Settings) -> Results {
    let mut rng = fastrand::Rng::with_seed(2);
    let mut slots: Vec<Block> = (0..BLOCKS).map(|_| Block::with_ends(rng.usize(SMALL))).collect();
    per_op(settings, BLOCKS, || {
        for _ in 0..BLOCKS {
            let at = rng.usize(0..BLOCKS);
            slots[at] = Block::with_ends(rng.usize(SMALL));
        }
    })
}

fn glibc_simple(settings: &Settings) -> Results {
    /// Blocks at a time; each divides the last, as many blocks are allocated in all.
    const COUNTS: [usize; 4] = [25, 100, 400, MOST];
    const MOST: usize = 1600;
    const SIZES: [usize; 10] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, LARGEST];
    const LARGEST: usize = 4096;
    let mut blocks: Vec<Block> = (0..MOST).map(|_| Block::new(LARGEST)).collect();
    // Allocated while there are as many and as large blocks as there ever will be: the heap's
    // end stays in use, as in nearly any program, and giving it back to the system and taking
    // it again is not what is measured.
    let _end = Block::new(LARGEST);
    blocks.clear();
    per_op(settings, COUNTS.len() * SIZES.len() * MOST, || {
        for size in SIZES {
            for count in COUNTS {
                for _ in 0..MOST / count {
                    blocks.extend((0..count).map(|_| Block::new(size)));
                    blocks.clear();
                }
            }
        }
    })
}
