//! Resident memory, at the peak and over time.

pub(crate) mod burst;
pub(crate) mod drift;
pub(crate) mod free_only;
pub(crate) mod idle;
pub(crate) mod phases;

use crate::curve::Sampler;
use crate::malloc::Block;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

pub(super) const MIB: usize = 1 << 20;

pub(super) fn mib(bytes: usize) -> f64 {
    bytes as f64 / MIB as f64
}

/// A sampler at the pace of this group.
pub(super) fn watch() -> Sampler {
    Sampler::start(Duration::from_millis(4))
}

/// An empty list whose whole room is resident: filling it adds nothing to the resident set.
pub(super) fn touched<T>(room: usize) -> Vec<T> {
    let mut list = Vec::with_capacity(room);
    list.spare_capacity_mut().fill_with(MaybeUninit::zeroed);
    std::hint::black_box(&mut list);
    list
}

/// A server with nearly nothing to do: one small block is allocated and freed every 2 ms.
pub(super) fn light_activity(length: Duration) {
    let start = Instant::now();
    for turn in 0.. {
        if start.elapsed() >= length {
            return;
        }
        drop(Block::with_ends(16 + turn % 61 * 16));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A block whose pages are all touched, with its size.
pub(super) struct Held {
    block: Block,
    size: u32,
}

impl Held {
    #[inline]
    pub(super) fn new(size: usize) -> Held {
        Held { block: Block::paged(size), size: size as u32 }
    }

    pub(super) fn size(&self) -> usize {
        self.size as usize
    }

    /// The first byte's address and the one after the last byte's.
    pub(super) fn span(&self) -> std::ops::Range<usize> {
        self.block.address()..self.block.address() + self.size()
    }
}

pub(super) fn bytes_of(held: &[Held]) -> usize {
    held.iter().map(Held::size).sum()
}
