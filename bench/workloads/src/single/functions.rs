//! The functions beside malloc and free. What each promises is checked: contents that move with the
//! block, zeros, and the alignment of every address.

use crate::case::{Results, Settings};
use crate::words::{PAGE, Words};
use std::ops::RangeInclusive;
use std::time::Instant;

pub(crate) const MIB: usize = 1 << 20;

pub(crate) fn double(settings: &Settings) -> Results {
    let limit = settings.scaled(256 * MIB);
    let start = Instant::now();
    let mut block = Words::malloc(16);
    block.mark_pages(0, 0);
    let mut size = 16;
    while 2 * size <= limit {
        block.grow(2 * size);
        block.mark_pages(0, size);
        size *= 2;
    }
    let time = start.elapsed();
    block.check_pages(0);
    Results::ms(time)
}

pub(crate) fn step(settings: &Settings, limit: usize) -> Results {
    let steps = settings.scaled(limit / PAGE);
    let start = Instant::now();
    let mut block = Words::malloc(PAGE);
    for step in 1..=steps {
        block.grow(step * PAGE);
        block.set(block.last(), step as u64);
    }
    let time = start.elapsed();
    (1..=steps).for_each(|step| block.expect(step * (PAGE / 8) - 1, step as u64));
    Results::ms(time)
}

/// Replaces a random one of the `live` blocks at a time. `fresh` makes one whose first and
/// last word are the tag it is given.
pub(crate) fn replace(
    settings: &Settings,
    live: usize,
    times: usize,
    fresh: fn(&mut fastrand::Rng, u64) -> Words,
) -> Results {
    let check = |block: &Words, at: usize| {
        block.expect(0, at as u64);
        block.expect(block.last(), at as u64);
    };
    let mut rng = fastrand::Rng::with_seed(11);
    let mut blocks: Vec<Words> = (0..live).map(|at| fresh(&mut rng, at as u64)).collect();
    let times = settings.scaled(times);
    let start = Instant::now();
    for _ in 0..times {
        let at = rng.usize(0..live);
        check(&blocks[at], at);
        blocks[at] = fresh(&mut rng, at as u64);
    }
    let time = start.elapsed();
    let mut blocks: Vec<_> = blocks.into_iter().enumerate().collect();
    rng.shuffle(&mut blocks);
    blocks.into_iter().for_each(|(at, block)| check(&block, at));
    Results::ns(time, times)
}

/// A block that was zero and no longer is: whether an allocator clears memory that is known to
/// be clear, and whether it forgets to clear what is not.
pub(crate) fn dirtied(rng: &mut fastrand::Rng, tag: u64) -> Words {
    // Nine in ten up to 1 KiB, nearly all others up to 32 KiB, one in 200 up to 1 MiB.
    let size = match rng.u32(0..200) {
        0 => rng.usize(32 << 10..=1 << 20),
        1..20 => rng.usize(1 << 10..32 << 10),
        _ => rng.usize(16..1 << 10),
    };
    let mut block = Words::zeroed(size);
    check_zero(&block);
    block.fill(0xd1);
    block.set(block.last(), tag);
    block.set(0, tag);
    block
}

/// Small blocks are checked whole, others at both ends and in strides: five words in each page, at different places.
fn check_zero(block: &Words) {
    let stride = if block.last() < 128 { 1 } else { 97 };
    (0..=block.last()).step_by(stride).for_each(|at| block.expect(at, 0));
    block.expect(block.last(), 0);
}

/// A block by one or the other function. The alignment of vector registers and cache lines is common, a page's is not
/// rare, and one in a hundred wants 32 KiB (not more: some allocators refuse that).
pub(crate) fn aligned(rng: &mut fastrand::Rng, tag: u64) -> Words {
    let align = match rng.u32(0..100) {
        0 => 32 << 10,
        1..6 => 4096,
        _ => 16 << rng.u8(..).trailing_ones(),
    };
    // Mostly small: 15 in 16 up to 1 KiB.
    let size =
        if rng.u8(0..16) == 0 { rng.usize(1 << 10..=16 << 10) } else { rng.usize(16..1 << 10) };
    let mut block =
        if rng.bool() { Words::aligned(align, size) } else { Words::aligned_c11(align, size) };
    block.set(block.last(), tag);
    block.set(0, tag);
    block
}

/// Replaces a random one of a small working set of large blocks: whether an allocator goes to the
/// system for each, and what it keeps. The marks on all pages are checked before a block goes.
pub(crate) fn large(
    settings: &Settings,
    live: usize,
    sizes: RangeInclusive<usize>,
    replaced: usize,
) -> Results {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic = "wrong contents"]
    fn a_word_that_is_not_zero_is_found() {
        let mut block = Words::zeroed(8000);
        block.set(block.last(), 1);
        check_zero(&block);
    }
}
