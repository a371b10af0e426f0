//! Services whose traffic changes over days. Memory in use is constant; what grows is what the
//! allocator cannot reuse: pages held by a few long-lived blocks, lists of sizes that are no longer
//! asked for, blocks freed by a thread that did not allocate them.
//!
//! A block is temporary (freed 256 steps later), cached (replaced at random) or long-lived (replaced first in, first
//! out, a third of the run later); one cached block in eight is freed by the next thread.

use super::{Held, MIB, mib, touched, watch};
use crate::case::{Results, Settings};
use crate::team::{self, Mail};
use std::collections::VecDeque;

/// Cached and long-lived bytes of all threads.
const CACHED: usize = 64 * MIB;
const LONG_LIVED: usize = 8 * MIB;
/// Bytes of one run for the cache, in multiples of its size.
const TURNS: f64 = 12.0;
/// Mean size at the start and at the end, and in the middle.
const SMALLEST_MEAN: f64 = 32.0;
const LARGEST_MEAN: f64 = 2048.0;
/// Temporary blocks of a thread.
const TEMPORARY: usize = 256;
/// Of the blocks that stay.
const LONG_LIVED_ONE_IN: u32 = 32;
/// Of the cached blocks.
const HANDED_OVER_ONE_IN: u32 = 8;
/// Blocks that wait for the thread that is to free them, at most.
const QUEUE: usize = 256;

pub(crate) fn run(settings: &Settings) -> Results {
    let threads = settings.threads();
    let share = settings.scale / threads as f64;
    let mail = Mail::ring(threads, 1, QUEUE).into_iter().enumerate();
    let servers: Vec<Server> =
        mail.map(|(thread, mail)| Server::new(thread as u64, share, mail)).collect();
    let sampler = watch();
    let (time, servers) = team::timed(servers, |server| server, Server::work, |server| server);
    let made: usize = servers.iter().map(|server| server.made).sum();
    let live: usize = servers.iter().map(|server| server.most_live).sum();
    // The temporary blocks are not scaled: up to a MiB of a thread's.
    let least = (CACHED + LONG_LIVED) as f64 * settings.scale * 0.98;
    assert!(live as f64 > least, "{live} bytes live, not {least}");
    sampler.report(Results::ns(time, made).and([("live_mib", mib(live))]))
}

struct Store {
    blocks: VecDeque<Held>,
    bytes: usize,
    limit: usize,
}

impl Store {
    /// With room for blocks of the smallest mean, and some to spare.
    fn new(limit: usize) -> Store {
        Store { blocks: touched(limit / 28 + 1000).into(), bytes: 0, limit }
    }

    fn put(&mut self, block: Held) {
        self.bytes += block.size();
        self.blocks.push_back(block);
    }

    /// The block at `at`, whose place the oldest takes.
    fn take(&mut self, at: usize) -> Held {
        let block = self.blocks.swap_remove_front(at).expect("a place in use");
        self.bytes -= block.size();
        block
    }
}

struct Server {
    rng: fastrand::Rng,
    temporary: Store,
    cached: Store,
    long_lived: Store,
    mail: Mail<Held>,
    most_live: usize,
    made: usize,
}

impl Server {
    fn new(seed: u64, share: f64, mail: Mail<Held>) -> Server {
        let store = |limit: usize| Store::new((limit as f64 * share) as usize);
        Server {
            rng: fastrand::Rng::with_seed(seed),
            temporary: Store::new(0),
            cached: store(CACHED),
            long_lived: store(LONG_LIVED),
            mail,
            most_live: 0,
            made: 0,
        }
    }

    /// From 32 B up to 2 KiB and back.
    fn work(&mut self) {
        let total = TURNS * self.cached.limit as f64;
        let mut allocated = 0;
        while (allocated as f64) < total {
            let mean = mean_size(allocated as f64 / total);
            for _ in 0..64 {
                allocated += self.step(mean);
            }
            self.mail.receive(drop);
            let live = self.temporary.bytes + self.cached.bytes + self.long_lived.bytes;
            self.most_live = self.most_live.max(live);
        }
        self.mail.close(drop);
    }

    /// A temporary block, and a cached or long-lived one, in place of others; the latter's size.
    fn step(&mut self, mean: usize) -> usize {
        let block = self.make(mean);
        self.temporary.put(block);
        if self.temporary.blocks.len() > TEMPORARY {
            self.temporary.take(0);
        }
        let block = self.make(mean);
        let size = block.size();
        if self.rng.u32(0..LONG_LIVED_ONE_IN) == 0 {
            self.long_lived.put(block);
            while self.long_lived.bytes > self.long_lived.limit {
                self.long_lived.take(0);
            }
            return size;
        }
        self.cached.put(block);
        while self.cached.bytes > self.cached.limit {
            let old = self.cached.take(self.rng.usize(0..self.cached.blocks.len()));
            if self.rng.u32(0..HANDED_OVER_ONE_IN) == 0 {
                // Freed here after all if there is no room.
                drop(self.mail.send(0, old));
            }
        }
        size
    }

    fn make(&mut self, mean: usize) -> Held {
        self.made += 1;
        Held::new(self.rng.usize(mean / 2..=mean + mean / 2))
    }
}

/// The mean size at a point of the run, 0 to 1: geometrically up, then down.
fn mean_size(at: f64) -> usize {
    let height = 1.0 - (2.0 * at - 1.0).abs();
    (SMALLEST_MEAN * (LARGEST_MEAN / SMALLEST_MEAN).powf(height)) as usize
}
