//! A server's mix in which every single malloc and free is timed.
//!
//! Stands for services with a promise about their slowest requests. The mean hides what
//! they feel: refills, page faults, locks held by another thread, memory given back to the
//! system at a bad moment. A request allocates a burst of small blocks and frees them at its
//! end, replaces two of the thread's long-lived objects, now and then uses a buffer of
//! 4-64 KiB and rarely one of 1 MiB; some blocks are freed by the next thread.
//!
//! A malloc is timed with the write of the first word, so that a page fault counts the same
//! wherever it falls; a free with the block's first word in the cache, as after its last
//! use. Reading the counter is contained in every latency: `overhead_ns`; latencies are
//! multiples of its steps: `resolution_ns`, some 10 ns on some processors, which the means
//! average out. `ns_plain` is the same mix without any measuring, `ns` with it. On a machine with fewer free cores than
//! threads the maximum is a turn of the scheduler.

use crate::case::{Case, Group, Plot, Results, Row, Settings, Table, Workload};
use crate::histogram::{
    Latencies, ns_per_tick, overhead_ticks, resolution_ticks, ticks, ticks_since,
};
use crate::malloc::Block;
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Requests of all threads at scale 1.
const REQUESTS: usize = 80_000;
/// Blocks of a request's burst.
const BURST: std::ops::RangeInclusive<usize> = 8..=56;
/// Long-lived objects of all threads.
const OBJECTS: usize = 40_000;
const OBJECT: std::ops::RangeInclusive<usize> = 64..=1024;
const BUFFER: std::ops::RangeInclusive<usize> = 4 << 10..=64 << 10;
const LARGE: usize = 1 << 20;
/// One request in so many uses a buffer, a large one; one small block in so many is freed by
/// the next thread.
const BUFFER_ONE_IN: u32 = 4;
const LARGE_ONE_IN: u32 = 256;
const HANDED_OVER_ONE_IN: u32 = 16;
const QUEUE: usize = 1024;

const ROWS: &[Row] = &[
    Row::new("", Table::Time, "ns_plain", "ns"),
    latency(" malloc p50", "malloc_p50"),
    latency(" malloc p99", "malloc_p99"),
    latency(" malloc p99.9", "malloc_p99.9"),
    latency(" malloc p99.99", "malloc_p99.99"),
    latency(" malloc max", "malloc_max"),
    latency(" free p50", "free_p50"),
    latency(" free p99", "free_p99"),
    latency(" free p99.9", "free_p99.9"),
    latency(" free p99.99", "free_p99.99"),
    latency(" free max", "free_max"),
];

const fn latency(suffix: &'static str, key: &'static str) -> Row {
    Row::new(suffix, Table::Latency, key, "ns")
}

/// The cases.
pub const WORKLOADS: &[Workload] = &[
    case(
        "latency-server",
        "A server's mix with every malloc and free timed: bursts of small blocks, long-lived \
         objects, buffers, blocks freed by another thread. One thread per core.",
        |settings| run(settings, settings.threads(), REQUESTS),
    ),
    case("latency-1", "The same on one thread: the latencies without contention.", |settings| {
        run(settings, settings.threads.unwrap_or(1), REQUESTS / 2)
    }),
    case(
        "latency-16",
        "The same with 16 threads, more than most machines have free cores: what happens when \
         the holder of a lock is not running.",
        |settings| run(settings, settings.threads.unwrap_or(16), REQUESTS),
    ),
];

const fn case(name: &'static str, about: &'static str, run: fn(&Settings) -> Results) -> Workload {
    Case::new(name, Group::Latency, about, ROWS)
        .plots(&[Plot::MALLOC_LATENCY, Plot::FREE_LATENCY])
        .quick(0.15)
        .c(run)
}

fn run(settings: &Settings, threads: usize, requests: usize) -> Results {
    let requests = settings.scaled(requests).div_ceil(threads);
    let ns_per_tick = ns_per_tick();
    let timed =
        || Timed { mallocs: Latencies::new(ns_per_tick), frees: Latencies::new(ns_per_tick) };
    let mut meters: Vec<Timed> = (0..threads).map(|_| timed()).collect();
    let servers = Server::ring(threads);

    let start_together = Barrier::new(threads);
    let mut totals = Totals::default();
    std::thread::scope(|scope| {
        let work = |(server, meter)| {
            let start_together = &start_together;
            scope.spawn(move || life(server, meter, requests, start_together))
        };
        let running: Vec<_> = servers.into_iter().zip(&mut meters).map(work).collect();
        for thread in running {
            totals.add(thread.join().expect("the server does not panic"));
        }
    });
    assert_eq!(totals.made, totals.freed, "blocks made and freed");

    let mut all = timed();
    for meter in &meters {
        all.mallocs.add(&meter.mallocs);
        all.frees.add(&meter.frees);
    }
    let mut results = Results::of([
        ("ns_plain", totals.plain.ns_per_operation()),
        ("ns", totals.measured.ns_per_operation()),
        ("overhead_ns", overhead_ticks() as f64 * ns_per_tick),
        ("resolution_ns", resolution_ticks() as f64 * ns_per_tick),
    ]);
    all.mallocs.report("malloc", &mut results);
    all.frees.report("free", &mut results);
    results
}

/// What the threads did from their start to their end.
#[derive(Default)]
struct Totals {
    made: u64,
    freed: u64,
    plain: Pass,
    measured: Pass,
}

impl Totals {
    fn add(&mut self, other: Totals) {
        self.made += other.made;
        self.freed += other.freed;
        self.plain.add(other.plain);
        self.measured.add(other.measured);
    }
}

/// From the first thread's start to the last one's end.
#[derive(Default)]
struct Pass {
    operations: u64,
    span: Option<(Instant, Instant)>,
}

impl Pass {
    /// Takes the time of some requests.
    fn of(server: &mut Server, meter: &mut impl Meter, requests: usize) -> Pass {
        let (before, start) = (server.operations(), Instant::now());
        server.work(meter, requests);
        let span = Some((start, Instant::now()));
        Pass { operations: server.operations() - before, span }
    }

    fn add(&mut self, other: Pass) {
        self.operations += other.operations;
        self.span = match (self.span, other.span) {
            (Some((start, end)), Some((from, to))) => Some((start.min(from), end.max(to))),
            (mine, theirs) => mine.or(theirs),
        };
    }

    fn ns_per_operation(&self) -> f64 {
        let ns = self.span.map_or(0, |(start, end)| (end - start).as_nanos());
        ns as f64 / self.operations.max(1) as f64
    }
}

/// One thread: warms up, works unmeasured, works measured, frees what it has.
fn life(
    mut server: Server,
    meter: &mut Timed,
    requests: usize,
    start_together: &Barrier,
) -> Totals {
    server.work(&mut Untimed, requests / 4);
    start_together.wait();
    let plain = Pass::of(&mut server, &mut Untimed, requests);
    start_together.wait();
    let measured = Pass::of(&mut server, meter, requests);
    assert_eq!(measured.operations, meter.mallocs.count() + meter.frees.count());
    start_together.wait();
    server.end(plain, measured)
}

/// How a block is made and freed.
trait Meter {
    fn make(&mut self, size: usize, tag: u64) -> Block;
    fn free(&mut self, block: Block, tag: u64);
}

struct Untimed;

impl Meter for Untimed {
    #[inline(always)]
    fn make(&mut self, size: usize, tag: u64) -> Block {
        Block::new(size, tag)
    }

    #[inline(always)]
    fn free(&mut self, block: Block, tag: u64) {
        block.check(tag);
        block.free(tag);
    }
}

struct Timed {
    mallocs: Latencies,
    frees: Latencies,
}

impl Meter for Timed {
    #[inline(always)]
    fn make(&mut self, size: usize, tag: u64) -> Block {
        let start = ticks();
        let block = Block::new(size, tag);
        self.mallocs.record(ticks_since(start));
        block
    }

    #[inline(always)]
    fn free(&mut self, block: Block, tag: u64) {
        block.check(tag);
        let start = ticks();
        block.free(tag);
        self.frees.record(ticks_since(start));
    }
}

/// A block and its tag.
type Tagged = (Block, u64);

/// One thread's blocks.
struct Server {
    rng: fastrand::Rng,
    objects: Vec<Tagged>,
    /// The request's blocks; empty between requests.
    burst: Vec<Tagged>,
    next: Producer<Tagged>,
    handed: Consumer<Tagged>,
    made: u64,
    freed: u64,
}

impl Server {
    /// As many as threads; each hands over to the one after it.
    fn ring(threads: usize) -> Vec<Server> {
        let (senders, mut receivers): (Vec<_>, Vec<_>) =
            (0..threads).map(|_| RingBuffer::new(QUEUE)).unzip();
        receivers.rotate_right(1);
        let servers = senders.into_iter().zip(receivers).enumerate();
        let server = |(at, (next, handed))| Server {
            rng: fastrand::Rng::with_seed(at as u64),
            objects: Vec::with_capacity(OBJECTS / threads),
            burst: Vec::with_capacity(BURST.end() + 2),
            next,
            handed,
            made: 0,
            freed: 0,
        };
        servers.map(server).collect()
    }

    fn operations(&self) -> u64 {
        self.made + self.freed
    }

    fn work(&mut self, meter: &mut impl Meter, requests: usize) {
        while self.objects.len() < self.objects.capacity() {
            let size = self.rng.usize(OBJECT);
            let object = self.make(meter, size);
            self.objects.push(object);
        }
        for _ in 0..requests {
            self.request(meter);
        }
    }

    fn request(&mut self, meter: &mut impl Meter) {
        for _ in 0..self.rng.usize(BURST) {
            // As many in each octave as in the next.
            let most = 32 << self.rng.u32(0..=5);
            let size = self.rng.usize(most / 2..=most);
            let block = self.make(meter, size);
            self.burst.push(block);
        }
        let small = self.burst.len();
        if self.rng.u32(0..BUFFER_ONE_IN) == 0 {
            let size = self.rng.usize(BUFFER);
            let buffer = self.make(meter, size);
            self.burst.push(buffer);
        }
        if self.rng.u32(0..LARGE_ONE_IN) == 0 {
            let large = self.make(meter, LARGE);
            self.burst.push(large);
        }
        for _ in 0..2 {
            let (size, at) = (self.rng.usize(OBJECT), self.rng.usize(0..self.objects.len()));
            let fresh = self.make(meter, size);
            let old = std::mem::replace(&mut self.objects[at], fresh);
            self.free(meter, old);
        }
        while let Some(block) = self.burst.pop() {
            let hand_over = self.burst.len() < small && self.rng.u32(0..HANDED_OVER_ONE_IN) == 0;
            if !hand_over {
                self.free(meter, block);
            } else if let Err(PushError::Full(block)) = self.next.push(block) {
                self.free(meter, block);
            }
        }
        while let Ok(block) = self.handed.pop() {
            self.free(meter, block);
        }
    }

    #[inline(always)]
    fn make(&mut self, meter: &mut impl Meter, size: usize) -> Tagged {
        self.made += 1;
        (meter.make(size, self.made), self.made)
    }

    #[inline(always)]
    fn free(&mut self, meter: &mut impl Meter, (block, tag): Tagged) {
        meter.free(block, tag);
        self.freed += 1;
    }

    /// Frees the rest, and what the thread before still hands over.
    fn end(mut self, plain: Pass, measured: Pass) -> Totals {
        let Server { objects, next, mut handed, made, .. } = self;
        drop(next);
        let mut free = |(block, tag): Tagged| {
            block.free(tag);
            self.freed += 1;
        };
        objects.into_iter().for_each(&mut free);
        loop {
            let last = handed.is_abandoned();
            while let Ok(block) = handed.pop() {
                free(block);
            }
            if last {
                return Totals { made, freed: self.freed, plain, measured };
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_in_the_percentiles() {
        let settings = Settings { threads: None, scale: 0.01, no_alloc: false };
        for threads in [1, 3] {
            let results = run(&settings, threads, 40_000);
            for name in ["malloc", "free"] {
                let percentiles = ["p50", "p99", "p99.9", "p99.99", "max"]
                    .map(|percentile| results.values[&format!("{name}_{percentile}")]);
                assert!(percentiles.is_sorted(), "{percentiles:?}");
                assert!(percentiles[0] >= results.values["overhead_ns"] * 0.5);
            }
            // Some 34 operations of either kind per request; x counts them.
            let count = results.curves["malloc"].last().expect("points")[0];
            let expected = 34.0 * 400.0;
            assert!((count / expected - 1.0).abs() < 0.1, "{count} instead of {expected}");
        }
    }
}
