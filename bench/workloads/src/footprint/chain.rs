//! Blow-up across threads: each stays alive, idle, until the end. The live set never exceeds two
//! blocks more than 100 MiB; what the idle threads got back and keep to themselves is the blow-up.

use super::steps::{MIB, mib};
use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::clock::ms_since;
use crate::malloc::{Block, SMALL};
use std::sync::Barrier;
use std::time::Instant;

const THREADS: usize = 200;
const LIVE_BYTES: usize = 100 * MIB;

pub(crate) const WORKLOADS: &[Workload] = &[Case::new(
    "chain-200",
    Group::Footprint,
    "200 threads, each frees what the one before allocated; the live set is constant.",
    const { &[Row::time("ms"), Row::PEAK.per("live_mib", "x live")] },
)
.from("blow-up: Berger et al., Hoard, ASPLOS 2000; the chain: Vyukov")
.quick(0.05)
.c(run)];

fn run(settings: &Settings) -> Results {
    let threads = settings.threads.unwrap_or(THREADS);
    // The same sizes in the same places for every thread: the live set does not drift.
    let mut rng = fastrand::Rng::with_seed(3);
    let mut sizes: Vec<u16> = Vec::new();
    let mut live = 0;
    while live < settings.scaled(LIVE_BYTES) {
        let size = rng.usize(SMALL);
        sizes.push(size as u16);
        live += size;
    }
    let mut slots: Vec<Option<Block>> = sizes.iter().map(|_| None).collect();
    live += sizes.len() * (size_of::<u16>() + size_of::<Block>());

    let parked = Barrier::new(threads + 1);
    let start = Instant::now();
    let mut ms = 0.0;
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (done, finished) = std::sync::mpsc::channel();
            let mut taken = std::mem::take(&mut slots);
            let (sizes, parked) = (&sizes, &parked);
            scope.spawn(move || {
                for (slot, &size) in taken.iter_mut().zip(sizes) {
                    *slot = Some(Block::with_ends(size.into()));
                }
                done.send(taken).expect("the main thread waits");
                parked.wait();
            });
            slots = finished.recv().expect("the thread sends its blocks");
        }
        ms = ms_since(start);
        parked.wait();
    });
    Results::of([("ms", ms), ("live_mib", mib(live))])
}
