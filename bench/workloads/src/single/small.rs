//! Small blocks in steady loops: one at a time, in batches, and at random places.

use crate::case::{Results, Settings};
use crate::clock::per_op;
use crate::malloc::{Block, SMALL};

const PAIRS: usize = 500;
/// Blocks of a batch, and those that are replaced at random.
const BLOCKS: usize = 10_000;

pub(crate) fn pair<const SIZE: usize>(settings: &Settings) -> Results {
    per_op(settings, PAIRS, || {
        for _ in 0..PAIRS {
            drop(Block::new(SIZE));
        }
    })
}

pub(crate) fn batch(
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

pub(crate) fn random(settings: &Settings) -> Results {
    let mut rng = fastrand::Rng::with_seed(2);
    let mut slots: Vec<Block> = (0..BLOCKS).map(|_| Block::with_ends(rng.usize(SMALL))).collect();
    per_op(settings, BLOCKS, || {
        for _ in 0..BLOCKS {
            let at = rng.usize(0..BLOCKS);
            slots[at] = Block::with_ends(rng.usize(SMALL));
        }
    })
}

pub(crate) fn glibc_simple(settings: &Settings) -> Results {
    /// Blocks at a time; each divides the last, as many blocks are allocated in all.
    const COUNTS: [usize; 4] = [25, 100, 400, MOST];
    const MOST: usize = 1600;
    const SIZES: [usize; 10] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, LARGEST];
    const LARGEST: usize = 4096;
    let mut blocks: Vec<Block> = (0..MOST).map(|_| Block::new(LARGEST)).collect();
    // Allocated while there are as many and as large blocks as there ever will be: the heap's end stays in use, as in
    // nearly any program, and giving it back to the system and taking it again is not what is measured.
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
