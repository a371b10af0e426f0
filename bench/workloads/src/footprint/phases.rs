//! One thread whose heap goes through phases: it fills, empties, changes its sizes, rests.
//!
//! Stands for compilers' passes, batch jobs, image processing, a server after a peak. Memory that is held on to makes
//! the next phase cheap in page faults; memory given back makes the time between cheap in memory. The mean over time
//! and the faults show which was chosen, and whether one could have had both.

use super::{Held, MIB, bytes_of, light_activity, mib, touched, watch};
use crate::case::{Results, Settings};
use crate::curve::Sampler;
use crate::malloc::SMALL;
use rustix::param::page_size;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// The blocks in use, while a sampler watches.
struct Heap {
    rng: fastrand::Rng,
    held: Vec<Held>,
    live: usize,
    most_live: usize,
    scale: f64,
    sampler: Sampler,
}

impl Heap {
    fn new(settings: &Settings, seed: u64, room: usize) -> Heap {
        let (rng, held) = (fastrand::Rng::with_seed(seed), touched(room));
        let scale = settings.scale;
        Heap { rng, held, live: 0, most_live: 0, scale, sampler: watch() }
    }

    fn put(&mut self, size: usize) {
        self.live += size;
        self.most_live = self.most_live.max(self.live);
        self.held.push(Held::new(size));
    }

    fn put_any(&mut self, sizes: RangeInclusive<usize>) {
        let size = self.rng.usize(sizes);
        self.put(size);
    }

    fn keep(&mut self, left: usize) {
        self.held.truncate(left);
        self.live = bytes_of(&self.held);
    }

    fn timed(&mut self, work: impl FnOnce(&mut Heap)) -> f64 {
        let start = Instant::now();
        work(self);
        crate::clock::ms_since(start)
    }

    fn pause(&self, way: fn(Duration), seconds: f64) {
        way(Duration::from_secs_f64(seconds * self.scale));
    }

    fn report(self, ms: f64) -> Results {
        self.sampler.report(Results::of([("ms", ms), ("live_mib", mib(self.most_live))]))
    }
}

/// How much goes back to the system after most of a heap was freed, and when. Where every page
/// keeps a live block or two, only the pages without one can be given back: `floor_mib`.
pub(crate) fn survive(
    settings: &Settings,
    survivors_percent: usize,
    pause: fn(Duration),
) -> Results {
    const FILL: usize = 256 * MIB;
    /// Between the sizes of [`SMALL`].
    const MEAN_SIZE: usize = 520;
    let blocks = settings.scaled(FILL / MEAN_SIZE);
    let mut heap = Heap::new(settings, 11, blocks);
    let fill_ms = heap.timed(|heap| (0..blocks).for_each(|_| heap.put_any(SMALL)));
    heap.rng.shuffle(&mut heap.held);
    let free_ms = heap.timed(|heap| heap.keep(blocks * survivors_percent / 100));
    heap.pause(pause, 1.0);
    let (kept, floor) = (heap.live, occupied_pages(&heap.held) * page_size());
    // A survivor is on a page or two of its own at worst.
    assert!((kept..=kept + 2 * heap.held.len() * page_size()).contains(&floor), "{floor} {kept}");
    let share = 100.0 * kept as f64 / heap.most_live as f64;
    assert!((share - survivors_percent as f64).abs() < 2.0, "{share}% survived");
    let parts = [("fill_ms", fill_ms), ("free_ms", free_ms), ("floor_mib", mib(floor))];
    heap.report(fill_ms + free_ms).and(parts)
}

/// Pages of the system's that hold at least one byte of these blocks. It depends on where
/// the allocator put them, so it is told beside the row and does not divide it.
pub(super) fn occupied_pages(held: &[Held]) -> usize {
    let page = page_size();
    let pages = |held: &Held| held.span().start / page..held.span().end.div_ceil(page);
    let mut pages: Vec<usize> = held.iter().flat_map(pages).collect();
    pages.sort_unstable();
    pages.dedup();
    pages.len()
}

pub(crate) fn sawtooth(settings: &Settings) -> Results {
    const TEETH: usize = 8;
    /// Bytes at the tip of a tooth.
    const TIP: RangeInclusive<usize> = 100 * MIB..=200 * MIB;
    /// One block in so many is a buffer.
    const BUFFERS: usize = 64;
    const BUFFER: RangeInclusive<usize> = 4 << 10..=64 << 10;
    /// One block in so many stays until the end of the next tooth.
    const SURVIVORS: usize = 50;
    // Generous: the mean size is above 1 KiB.
    let room = settings.scaled(TIP.end() / 700) + 1000;
    let mut kept: Vec<Held> = touched(room / 10);
    let mut heap = Heap::new(settings, 12, room);
    let mut ms = 0.0;
    for _ in 0..TEETH {
        let tip = settings.scaled(heap.rng.usize(TIP));
        ms += heap.timed(|heap| {
            while heap.live < tip {
                let buffer = heap.rng.usize(0..BUFFERS) == 0;
                heap.put_any(if buffer { BUFFER } else { SMALL });
            }
            kept.clear();
            let mut stays = || heap.rng.usize(0..SURVIVORS) == 0;
            kept.extend(heap.held.drain(..).filter(|_| stays()));
            heap.live = bytes_of(&kept);
        });
        heap.pause(light_activity, 0.03);
    }
    heap.report(ms)
}

/// Memory that served one size and cannot serve another, or only after a delay, shows as a peak
/// of more than the live set.
pub(crate) fn phase_change(settings: &Settings) -> Results {
    const SMALLER: usize = 48;
    const LARGER: usize = 400;
    let live = settings.scaled(96 * MIB);
    let mut heap = Heap::new(settings, 13, live / SMALLER + 1);
    let smaller = |_: &mut fastrand::Rng| SMALLER;
    let larger = |_: &mut fastrand::Rng| LARGER;
    // As many bytes of one as of the other.
    let either = |rng: &mut fastrand::Rng| {
        if rng.usize(0..SMALLER + LARGER) < LARGER { SMALLER } else { LARGER }
    };
    let ms = heap.timed(|heap| {
        for size in [smaller, larger, either] {
            while heap.live < live {
                let size = size(&mut heap.rng);
                heap.put(size);
            }
            heap.keep(0);
        }
    });
    heap.report(ms)
}

/// Few blocks, each worth a system call of its own.
pub(crate) fn large_return(settings: &Settings) -> Results {
    const LIMIT: usize = 192 * MIB;
    let limit = settings.scaled(LIMIT).max(64 * MIB);
    // Bytes allocated in all.
    let total = settings.scaled(640 * MIB);
    let mut heap = Heap::new(settings, 15, LIMIT / MIB);
    let ms = heap.timed(|heap| {
        let mut allocated = 0;
        while allocated < total {
            // From 1 to 64 MiB, as many in each octave as in the next.
            let size = (MIB as f64 * (heap.rng.f64() * 6.0).exp2()) as usize;
            while heap.live + size > limit {
                let at = heap.rng.usize(0..heap.held.len());
                heap.live -= heap.held.swap_remove(at).size();
            }
            heap.put(size);
            allocated += size;
        }
        heap.keep(0);
    });
    heap.pause(light_activity, 0.8);
    heap.report(ms)
}
