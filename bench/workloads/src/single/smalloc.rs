//! The operation mixes and the worst cases of smalloc's own benchmark.
//!
//! Sizes are those of Rust programs as that project sees them: most are tiny, a few are some
//! KiB, very few are large. A block is freed or resized at random or, as often, the newest.

use crate::case::{Results, Settings};
use crate::malloc::wrong_contents;
use crate::team;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

#[derive(Clone, Copy)]
pub(crate) enum Mix {
    Alloc,
    AllocFree,
    AllocFreeResize,
    Grow,
}

impl Mix {
    /// Operations of one thread at scale 1, blocks that are there before, and how many times
    /// the whole is done, each time from the start.
    fn size(self) -> (usize, usize, u64) {
        match self {
            Mix::Alloc => (600_000, 0, 2),
            Mix::AllocFree => (6_000_000, 20_000, 1),
            Mix::AllocFreeResize => (4_000_000, 20_000, 1),
            Mix::Grow => (1_500_000, 500, 1),
        }
    }
}

pub(crate) fn alone(settings: &Settings, mix: Mix) -> Results {
    let (steps, start, rounds) = mix.size();
    let steps = settings.scaled(steps);
    let mut time = Duration::ZERO;
    for seed in 0..rounds {
        let mut holder = Holder::new(mix, seed, start, steps);
        let start = Instant::now();
        holder.work(steps);
        time += start.elapsed();
    }
    Results::ns(time, steps * rounds as usize)
}

pub(crate) fn together(settings: &Settings, mix: Mix) -> Results {
    let threads = settings.threads();
    let (steps, start, rounds) = mix.size();
    // Half as many as the form with one thread has.
    let steps = settings.scaled(steps / 2);
    let mut time = Duration::ZERO;
    for round in 0..rounds {
        let prepare = |seed| Holder::new(mix, seed, start, steps);
        let seeds = (0..threads as u64).map(|thread| round << 32 | thread);
        time += team::timed(seeds, prepare, |holder| holder.work(steps), drop).0;
    }
    Results::ns(time, threads * steps * rounds as usize)
}

const GROWN: usize = 64 << 10;

struct Holder {
    mix: Mix,
    rng: fastrand::Rng,
    sizes: Vec<u32>,
    blocks: Vec<RustBlock>,
}

impl Holder {
    /// With `start` blocks, and room for the pointers to all others: the coin's walk stays far below twice the start.
    fn new(mix: Mix, seed: u64, start: usize, steps: usize) -> Holder {
        let mut rng = fastrand::Rng::with_seed(seed);
        let sizes = (0..4096).map(|_| size(&mut rng) as u32).collect();
        let room = if start == 0 { steps } else { 2 * start };
        let mut holder = Holder { mix, rng, sizes, blocks: Vec::with_capacity(room) };
        (0..start).for_each(|_| holder.allocate());
        holder
    }

    fn work(&mut self, steps: usize) {
        for _ in 0..steps {
            match self.mix {
                Mix::Alloc => self.allocate(),
                Mix::AllocFree if self.rng.bool() => self.allocate(),
                Mix::AllocFree => self.free(),
                Mix::AllocFreeResize => match self.rng.u32(0..3) {
                    0 => self.allocate(),
                    1 => self.free(),
                    _ => self.resize(),
                },
                Mix::Grow => self.grow(),
            }
        }
    }

    #[inline]
    fn allocate(&mut self) {
        let size = self.size();
        self.blocks.push(RustBlock::new(size));
    }

    #[inline]
    fn free(&mut self) {
        if let Some(at) = self.pick() {
            self.blocks.swap_remove(at);
        }
    }

    #[inline]
    fn resize(&mut self) {
        let size = self.size();
        if let Some(at) = self.pick() {
            self.blocks[at].resize(size);
        }
    }

    /// Doubles a block at random, or puts a new one in the place of one that is large or, once in a while, of any.
    #[inline]
    fn grow(&mut self) {
        let at = self.rng.usize(0..self.blocks.len());
        let size = self.blocks[at].size();
        if size >= GROWN || self.rng.u8(0..8) == 0 {
            self.blocks[at] = RustBlock::new(self.size());
        } else {
            self.blocks[at].resize((2 * size).min(GROWN));
        }
    }

    #[inline]
    fn size(&mut self) -> usize {
        match self.mix {
            Mix::Grow => self.rng.usize(4..64),
            _ => self.sizes[self.rng.usize(0..self.sizes.len())] as usize,
        }
    }

    /// The newest block or any, as often.
    #[inline]
    fn pick(&mut self) -> Option<usize> {
        let newest = self.blocks.len().checked_sub(1)?;
        Some(if self.rng.bool() { newest } else { self.rng.usize(0..=newest) })
    }
}

/// Of 1000 blocks 900 have up to 70 bytes, 90 up to 1 KiB, 9 are of 8-16 KiB, and one is of
/// 64 KiB-1 MiB, of which only the ends are touched.
fn size(rng: &mut fastrand::Rng) -> usize {
    match rng.u32(0..1000) {
        0 => rng.usize(64 << 10..=1 << 20),
        1..10 => rng.usize(8 << 10..16 << 10),
        10..100 => rng.usize(70..1 << 10),
        100..400 => rng.usize(1..8),
        _ => rng.usize(8..70),
    }
}

const SIZE: usize = 32;

pub(crate) fn hotspot(settings: &Settings) -> Results {
    const HELD: usize = 64;
    let threads = settings.threads();
    let batches = settings.scaled(15_000_000 / HELD).div_ceil(threads);
    let work = |held: &mut Vec<RustBlock>, batches| {
        for _ in 0..batches {
            held.extend((0..HELD).map(|_| RustBlock::new(SIZE)));
            held.clear();
        }
    };
    let prepare = |_| {
        let mut held = Vec::with_capacity(HELD);
        work(&mut held, 1000);
        held
    };
    let (time, _) = team::timed(0..threads, prepare, |held| work(held, batches), drop);
    Results::ns(time, threads * batches * HELD)
}

pub(crate) fn free_hotspot(settings: &Settings) -> Results {
    /// Blocks that one thread hands out at a time.
    const HANDED: usize = 100_000;
    let threads = settings.threads();
    let rounds = settings.scaled(50);
    let mut all = Duration::ZERO;
    for round in 0..=rounds {
        let room = HANDED.div_ceil(threads);
        let mut shares: Vec<_> = (0..threads).map(|_| Vec::with_capacity(room)).collect();
        let start = Instant::now();
        (0..HANDED).for_each(|at| shares[at % threads].push(RustBlock::new(SIZE)));
        let filling = start.elapsed();
        let (time, _) = team::timed(shares, |share| share, Vec::clear, drop);
        // The first round warms up.
        if round > 0 {
            all += filling + time;
        }
    }
    Results::ns(all, rounds * HANDED)
}

/// A block of at least one byte that carries a tag, made of its address, in its first and
/// last byte and checks it when it goes.
///
/// Invariant 1: the first and the last byte are written.
struct RustBlock(Box<[MaybeUninit<u8>]>);

impl RustBlock {
    /// Allocates; touches the first byte and the last.
    #[inline]
    fn new(size: usize) -> RustBlock {
        let mut block = RustBlock(black_box(Box::new_uninit_slice(size.max(1))));
        block.tag_ends();
        block
    }

    /// Changes the size by `realloc`; what is kept is checked at both ends.
    #[inline]
    fn resize(&mut self, size: usize) {
        let (old, tag) = (self.size(), self.tag());
        let mut bytes = std::mem::take(&mut self.0).into_vec();
        bytes.reserve_exact(size.saturating_sub(old));
        bytes.resize(size.max(1), MaybeUninit::uninit());
        self.0 = black_box(bytes.into_boxed_slice());
        self.expect(0, tag);
        if size >= old {
            self.expect(old - 1, tag);
        }
        self.tag_ends();
    }

    fn size(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn tag(&self) -> u8 {
        // Blocks of a byte may lie next to each other.
        self.0.as_ptr().addr() as u8
    }

    #[inline]
    fn tag_ends(&mut self) {
        let (tag, last) = (self.tag(), self.size() - 1);
        self.0[0].write(tag);
        self.0[last].write(tag);
        black_box(self.0.as_mut_ptr());
    }

    /// The byte at `at`, which is written, has to be `tag`.
    #[inline]
    fn expect(&self, at: usize, tag: u8) {
        // SAFETY: invariant 1; callers look where the tag was written.
        let found = unsafe { self.0[at].assume_init() };
        if found != tag {
            wrong_contents(tag.into(), found.into());
        }
    }
}

impl Drop for RustBlock {
    #[inline]
    fn drop(&mut self) {
        let tag = self.tag();
        self.expect(0, tag);
        self.expect(self.size() - 1, tag);
        // If the block has another owner, it finds this.
        self.0[0].write(!tag);
        black_box(self.0.as_mut_ptr());
    }
}
