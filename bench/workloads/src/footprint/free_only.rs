//! The thread that frees never allocates, so what it gets back must find its way to the one that
//! does, or to the system, by itself; at the end the one that allocated waits and calls nothing.

use super::{Held, MIB, bytes_of, light_activity, mib, touched, watch};
use crate::case::{Results, Settings};
use crate::clock::ms_since;
use crate::malloc::{Block, SMALL};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

const ROUNDS: usize = 3;
const FILL: usize = 128 * MIB;
const MEAN_SIZE: usize = 520;

pub(crate) fn run(settings: &Settings) -> Results {
    let blocks = settings.scaled(FILL / MEAN_SIZE);
    let list: Mutex<Vec<Held>> = Mutex::new(touched(blocks));
    let held = || list.lock().expect("no panic");
    let most_live = AtomicUsize::new(0);
    // The three threads meet before the first round, after each fill and each free, and at the end.
    let meeting = Barrier::new(3);
    let sampler = watch();
    let (mut fill_ms, mut free_ms) = (0.0, 0.0);
    let mut results = Results::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = fastrand::Rng::with_seed(14);
            for _ in 0..ROUNDS {
                meeting.wait();
                held().extend((0..blocks).map(|_| Held::new(rng.usize(SMALL))));
                most_live.fetch_max(bytes_of(&held()), Relaxed);
                meeting.wait();
            }
            meeting.wait();
            meeting.wait();
        });
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                meeting.wait();
                meeting.wait();
                held().clear();
            }
            meeting.wait();
            meeting.wait();
        });
        meeting.wait();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            meeting.wait();
            let full = Instant::now();
            meeting.wait();
            fill_ms += (full - start).as_secs_f64() * 1e3;
            free_ms += full.elapsed().as_secs_f64() * 1e3;
        }
        light_activity(Duration::from_secs_f64(0.7 * settings.scale));
        results = sampler.report(Results::of([
            ("ms", fill_ms + free_ms),
            ("free_ms", free_ms),
            ("live_mib", mib(most_live.load(Relaxed))),
        ]));
        meeting.wait();
    });
    assert!(held().is_empty());
    results
}

/// Blow-up across threads: each stays alive, idle, until the end. The live set never exceeds two
/// blocks more than 100 MiB; what the idle threads got back and keep to themselves is the blow-up.
pub(crate) fn chain(settings: &Settings) -> Results {
    let threads = settings.threads.unwrap_or(200);
    // The same sizes in the same places for every thread: the live set does not drift.
    let mut rng = fastrand::Rng::with_seed(3);
    let mut sizes: Vec<u16> = Vec::new();
    let mut live = 0;
    while live < settings.scaled(100 * MIB) {
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
