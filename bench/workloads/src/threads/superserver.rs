//! A size class of twice the size is half as frequent, so that all classes allocate equally many
//! bytes. Each thread has the same number of places in every class, and a fresh object takes the
//! place of a random one of its class: that gives the lifetimes without a calendar.

use crate::case::{Results, Settings};
use crate::histogram::Latencies;
use crate::malloc::Block;
use crate::team::{self, Mail};
use std::time::Duration;

/// Classes: 16-31 B up to 128-256 KiB.
const CLASSES: usize = 14;
/// The smallest size, as a power of two.
const SMALLEST: u32 = 4;
/// Objects of a class that are alive in a thread: about 19 MiB in all classes.
const PLACES: usize = 48;
/// A thread frees what others sent after so many allocations.
const TURN: usize = 32;
/// Objects on the way to a thread at most.
const INBOX: usize = 1024;
const TOTAL: usize = 2_000_000;

struct Server {
    rng: fastrand::Rng,
    /// [`CLASSES`] times [`PLACES`] objects.
    places: Vec<Block>,
    mail: Mail<Block>,
    freed: usize,
    latencies: Latencies,
}

pub(crate) fn run(settings: &Settings) -> Results {
    let threads = settings.threads();
    let each = settings.scaled(TOTAL).div_ceil(threads);
    let others = (threads - 1).max(1);
    let (time, servers) = team::timed(
        Mail::ring(threads, others, INBOX / others).into_iter().enumerate(),
        |(me, mail)| Server::new(me, mail),
        |server| server.work(each, others),
        |server| (server.freed, server.latencies),
    );
    let (freed, latencies): (Vec<_>, Vec<_>) = servers.into_iter().unzip();
    assert_eq!(freed.iter().sum::<usize>(), threads * each, "objects were lost");
    let mut results = Results::ns(time, threads * each);
    Latencies::report(&latencies, &mut results);
    results
}

impl Server {
    fn new(me: usize, mail: Mail<Block>) -> Server {
        let mut server = Server {
            rng: fastrand::Rng::with_seed(me as u64),
            places: Vec::with_capacity(CLASSES * PLACES),
            mail,
            freed: 0,
            latencies: Latencies::new(),
        };
        for place in 0..CLASSES * PLACES {
            let object = server.allocate(place / PLACES);
            server.places.push(object);
        }
        // Filling the places is not part of the measurement.
        server.latencies.clear();
        server
    }

    fn work(&mut self, objects: usize, others: usize) {
        for nth in 0..objects {
            // As many coins as fall on the same side in a row; the last class takes the rest.
            let class = (self.rng.u32(..) | 1 << (CLASSES - 1)).trailing_zeros() as usize;
            let fresh = self.allocate(class);
            let place = class * PLACES + self.rng.usize(0..PLACES);
            let old = std::mem::replace(&mut self.places[place], fresh);
            let mut free = |object| {
                self.latencies.free(object);
                self.freed += 1;
            };
            self.mail.deliver(self.rng.usize(0..others), old, &mut free);
            if nth % TURN == 0 {
                self.mail.receive(free);
            }
        }
        self.mail.close(|object| {
            self.latencies.free(object);
            self.freed += 1;
        });
    }

    fn allocate(&mut self, class: usize) -> Block {
        let power = 1 << (class as u32 + SMALLEST);
        let size = power + self.rng.usize(0..power);
        let mut block = self.latencies.make(size);
        // SAFETY: it was allocated with this size.
        unsafe { block.touch_pages(size) };
        block
    }
}

const SIZES: std::ops::RangeInclusive<usize> = 16..=16_000;
const PARTS: usize = 3000;
/// Blocks freed in a loop, and then allocated; they lie [`STRIDE`] places apart.
const PER_LOOP: usize = 100;
/// Coprime to [`PARTS`]: in time every place comes up.
const STRIDE: usize = 1009;
/// Blocks handed over in every second loop.
const HANDED: usize = 50;
/// Blocks on the way to a thread at most.
const WAITING: usize = 800;
const LOOPS: usize = 30_000;

pub(crate) fn rptest(settings: &Settings) -> Results {
    let threads = settings.threads();
    let loops = settings.scaled(LOOPS).div_ceil(threads);
    Results::ns(time(threads, loops), threads * (loops * PER_LOOP + loops.div_ceil(2) * HANDED))
}

struct Member {
    rng: fastrand::Rng,
    places: Vec<Option<Block>>,
    mail: Mail<Block>,
    received: usize,
}

/// The time of `loops` loops in every thread.
fn time(threads: usize, loops: usize) -> Duration {
    let mail = Mail::ring(threads, 1, WAITING).into_iter().enumerate();
    let (time, received) =
        team::timed(mail, Member::new, |member| member.work(loops), |member| member.received);
    let handed = threads * loops.div_ceil(2) * HANDED;
    assert_eq!(received.iter().sum::<usize>(), handed, "blocks were lost");
    time
}

impl Member {
    fn new((me, mail): (usize, Mail<Block>)) -> Member {
        let mut rng = fastrand::Rng::with_seed(me as u64);
        let places = (0..PARTS).map(|_| Some(block(&mut rng))).collect();
        Member { rng, places, mail, received: 0 }
    }

    fn work(&mut self, loops: usize) {
        let Member { rng, places, mail, received } = self;
        for turn in 0..loops {
            mail.receive(|_| *received += 1);
            let first = rng.usize(0..PARTS);
            for nth in 0..PER_LOOP {
                places[(first + nth * STRIDE) % PARTS] = None;
            }
            let first = rng.usize(0..PARTS);
            for nth in 0..PER_LOOP {
                places[(first + nth * STRIDE) % PARTS] = Some(block(rng));
            }
            for _ in 0..if turn % 2 == 0 { HANDED } else { 0 } {
                mail.deliver(0, block(rng), |_| *received += 1);
            }
        }
        mail.close(|_| *received += 1);
    }
}

/// The smaller of two sizes: the density falls linearly to nothing at the largest size.
fn block(rng: &mut fastrand::Rng) -> Block {
    Block::paged(rng.usize(SIZES).min(rng.usize(SIZES)))
}
