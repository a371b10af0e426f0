//! A server's mix in which every single malloc and free is timed.
//!
//! The mean hides what services with a promise about their slowest requests feel: refills, page
//! faults, locks held by another thread, memory given back to the system at a bad moment. A request
//! allocates a burst of small blocks and frees them at its end, replaces two of the thread's
//! long-lived objects, now and then uses a large buffer; some blocks are freed by the next thread.
//!
//! Reading the counter is contained in every latency: `overhead_ns`; latencies are multiples of its steps, some 10 ns
//! on some processors, which the means average out. `ns_plain` is the same mix without any measuring, `ns` with it. On
//! a machine with fewer free cores than threads the maximum is a turn of the scheduler.

use crate::case::{Results, Settings};
use crate::histogram::Latencies;
use crate::malloc::Block;
use crate::team::{self, Mail};
use std::time::Duration;

pub(crate) const REQUESTS: usize = 80_000;
const BURST: std::ops::RangeInclusive<usize> = 8..=56;
/// Long-lived objects of all threads.
const OBJECTS: usize = 40_000;
const OBJECT: std::ops::RangeInclusive<usize> = 64..=1024;
const BUFFER: std::ops::RangeInclusive<usize> = 4 << 10..=64 << 10;
const LARGE: usize = 1 << 20;
/// One request in so many uses a buffer, a large one; one small block in so many is freed by the next thread.
const BUFFER_ONE_IN: u32 = 4;
const LARGE_ONE_IN: u32 = 256;
const HANDED_OVER_ONE_IN: u32 = 16;
const QUEUE: usize = 1024;

pub(crate) fn run(settings: &Settings, threads: usize, requests: usize) -> Results {
    let requests = settings.scaled(requests).div_ceil(threads);
    let (plain, operations, _) = pass::<false>(threads, requests);
    let ns_plain = plain.as_nanos() as f64 / operations as f64;
    let (time, operations, latencies) = pass::<true>(threads, requests);
    assert_eq!(latencies.iter().map(Latencies::count).sum::<u64>(), operations as u64);
    let mut results = Results::ns(time, operations).and([("ns_plain", ns_plain)]);
    Latencies::report(&latencies, &mut results);
    results
}

/// All threads serve `requests` requests each, after a quarter as many to warm up: the
/// time, the number of operations, and their latencies.
fn pass<const TIMED: bool>(
    threads: usize,
    requests: usize,
) -> (Duration, usize, Vec<Latencies<TIMED>>) {
    let mail = Mail::ring(threads, 1, QUEUE).into_iter().enumerate();
    let (time, servers) = team::timed(
        mail.map(|(at, mail)| Server::new(at, threads, mail)),
        |mut server| {
            server.work(requests / 4);
            server.operations = 0;
            server.latencies.clear();
            server
        },
        |server| server.work(requests),
        |mut server| {
            server.mail.close(drop);
            (server.operations, server.latencies)
        },
    );
    let (operations, latencies): (Vec<usize>, Vec<_>) = servers.into_iter().unzip();
    (time, operations.iter().sum(), latencies)
}

struct Server<const TIMED: bool> {
    rng: fastrand::Rng,
    objects: Vec<Block>,
    /// The request's blocks; empty between requests.
    burst: Vec<Block>,
    mail: Mail<Block>,
    operations: usize,
    latencies: Latencies<TIMED>,
}

impl<const TIMED: bool> Server<TIMED> {
    fn new(at: usize, threads: usize, mail: Mail<Block>) -> Self {
        Server {
            rng: fastrand::Rng::with_seed(at as u64),
            objects: Vec::with_capacity(OBJECTS / threads),
            burst: Vec::with_capacity(BURST.end() + 2),
            mail,
            operations: 0,
            latencies: Latencies::new(),
        }
    }

    fn work(&mut self, requests: usize) {
        while self.objects.len() < self.objects.capacity() {
            let size = self.rng.usize(OBJECT);
            let object = self.make(size);
            self.objects.push(object);
        }
        for _ in 0..requests {
            self.request();
        }
    }

    fn request(&mut self) {
        for _ in 0..self.rng.usize(BURST) {
            // As many in each octave as in the next.
            let most = 32 << self.rng.u32(0..=5);
            let size = self.rng.usize(most / 2..=most);
            let block = self.make(size);
            self.burst.push(block);
        }
        let small = self.burst.len();
        if self.rng.u32(0..BUFFER_ONE_IN) == 0 {
            let size = self.rng.usize(BUFFER);
            let buffer = self.make(size);
            self.burst.push(buffer);
        }
        if self.rng.u32(0..LARGE_ONE_IN) == 0 {
            let large = self.make(LARGE);
            self.burst.push(large);
        }
        for _ in 0..2 {
            let (size, at) = (self.rng.usize(OBJECT), self.rng.usize(0..self.objects.len()));
            let fresh = self.make(size);
            let old = std::mem::replace(&mut self.objects[at], fresh);
            self.free(old);
        }
        while let Some(block) = self.burst.pop() {
            let hand_over = self.burst.len() < small && self.rng.u32(0..HANDED_OVER_ONE_IN) == 0;
            if !hand_over {
                self.free(block);
            } else if let Err(block) = self.mail.send(0, block) {
                self.free(block);
            }
        }
        self.mail.receive(|block| {
            self.latencies.free(block);
            self.operations += 1;
        });
    }

    #[inline(always)]
    fn make(&mut self, size: usize) -> Block {
        self.operations += 1;
        self.latencies.make(size)
    }

    #[inline(always)]
    fn free(&mut self, block: Block) {
        self.operations += 1;
        self.latencies.free(block);
    }
}
