//! Steps that the workloads of this group share.

use crate::case::Settings;
use crate::curve::Sampler;
use crate::malloc::Block;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// Bytes of a MiB.
pub const MIB: usize = 1 << 20;

/// Seconds scaled.
pub fn scaled_time(settings: &Settings, seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds * settings.scale)
}

/// `bytes` in MiB.
pub fn mib(bytes: usize) -> f64 {
    bytes as f64 / MIB as f64
}

/// A sampler at the pace of this group.
pub fn watch() -> Sampler {
    Sampler::start(Duration::from_millis(4))
}

/// An empty list whose whole room is resident: filling it adds nothing to the resident set.
pub fn touched<T>(room: usize) -> Vec<T> {
    let mut list = Vec::with_capacity(room);
    list.spare_capacity_mut().fill_with(MaybeUninit::zeroed);
    std::hint::black_box(&mut list);
    list
}

/// A server with nearly nothing to do: one small block is allocated and freed every 2 ms.
pub fn light_activity(length: Duration) {
    let (start, mut tag) = (Instant::now(), 0);
    while start.elapsed() < length {
        Block::with_ends(16 + tag as usize % 61 * 16, tag).free(tag);
        tag += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A block with what has to be known to check it and to account for it.
pub struct Held {
    block: Block,
    /// Requested bytes.
    pub size: u32,
    id: u32,
}

impl Held {
    /// Allocates `size` bytes and touches all their pages.
    #[inline]
    pub fn new(size: usize, id: u32) -> Held {
        Held { block: Block::paged(size, id.into()), size: size as u32, id }
    }

    /// Checks the contents and frees.
    #[inline]
    pub fn free(self) {
        self.block.free(self.id.into());
    }

    /// The first byte's address and the one after the last byte's.
    pub fn span(&self) -> std::ops::Range<usize> {
        self.block.address()..self.block.address() + self.size as usize
    }
}

#[cfg(test)]
pub(crate) const TINY: Settings = Settings { threads: Some(2), scale: 0.01, no_alloc: false };
