//! A server with sizes over a wide range, after SuperMalloc's SuperServer: a size class
//! of twice the size is half as frequent, so that all classes allocate equally many bytes;
//! the expected lifetime of an object is proportional to its size; at its end it goes to a
//! random other thread, which frees it. The slowest single operations are recorded.
//!
//! Each thread has the same number of places in every class, and a fresh object takes the
//! place of a random one of its class. That gives the lifetimes without a calendar.

use super::post::Post;
use super::team;
use crate::case::{Case, Group, Plot, Results, Row, Settings, Table, Workload};
use crate::histogram::{Latencies, ns_per_tick, ticks};
use crate::malloc::Block;

/// Classes: 16-31 B up to 128-256 KiB.
const CLASSES: usize = 14;
/// The smallest size, as a power of two.
const SMALLEST: u32 = 4;
/// Objects of a class that are alive in a thread: about 19 MiB in all classes.
const PLACES: usize = 48;
/// Objects that a thread collects for another before it sends them.
const LETTER: usize = 32;
/// Objects on the way to a thread at most.
const INBOX: usize = 1024;
/// Objects of all threads at scale 1.
const TOTAL: usize = 2_000_000;

/// The case.
pub const WORKLOADS: &[Workload] = &[Case::new(
    "superserver",
    Group::Threads,
    "Sizes of 16 B to 256 KiB with equal bytes in each power of two, lifetimes proportional to \
     size, freed by a random other thread; the slowest operations are recorded.",
    const {
        &[
            Row::time("ns"),
            Row::PEAK,
            Row::new(" slowest malloc", Table::Latency, "malloc_max", "ns"),
            Row::new(" slowest free", Table::Latency, "free_max", "ns"),
        ]
    },
)
.from("SuperServer: Kuszmaul, SuperMalloc, ISMM 2015")
.plots(&[Plot::MALLOC_LATENCY, Plot::FREE_LATENCY])
.quick(0.15)
.c(run)];

type Tagged = (Block, u64);

fn run(settings: &Settings) -> Results {
    let threads = settings.threads();
    let each = settings.scaled(TOTAL).div_ceil(threads);
    serve(threads, each)
}

struct Server {
    me: usize,
    rng: fastrand::Rng,
    /// [`CLASSES`] times [`PLACES`] objects.
    places: Vec<Tagged>,
    next_tag: u64,
    /// By receiver.
    outgoing: Vec<Vec<Tagged>>,
    arrived: Vec<Tagged>,
    freed: usize,
    mallocs: Latencies,
    frees: Latencies,
}

/// Every thread allocates `each` objects.
fn serve(threads: usize, each: usize) -> Results {
    let post = Post::new(threads, INBOX);
    let ns_per_tick = ns_per_tick();
    let (time, servers) = team::timed(
        threads,
        |me| Server::new(me, threads, ns_per_tick),
        |_, server| {
            for _ in 0..each {
                server.step(&post);
            }
            for to in 0..threads {
                server.send(to, &post);
            }
            post.close(|| server.receive(&post));
        },
        |_, mut server| {
            for (block, tag) in server.places.drain(..) {
                block.free(tag);
            }
            server
        },
    );
    let freed: usize = servers.iter().map(|server| server.freed).sum();
    assert_eq!(freed, threads * each, "objects were lost");
    let mut results = Results::of([("ns", time.as_nanos() as f64 / (threads * each) as f64)]);
    let (mut mallocs, mut frees) = (Latencies::new(ns_per_tick), Latencies::new(ns_per_tick));
    for server in &servers {
        mallocs.add(&server.mallocs);
        frees.add(&server.frees);
    }
    mallocs.report("malloc", &mut results);
    frees.report("free", &mut results);
    results
}

impl Server {
    fn new(me: usize, threads: usize, ns_per_tick: f64) -> Server {
        let mut server = Server {
            me,
            rng: fastrand::Rng::with_seed(me as u64),
            places: Vec::with_capacity(CLASSES * PLACES),
            next_tag: (me as u64) << 48,
            outgoing: (0..threads).map(|_| Vec::with_capacity(LETTER)).collect(),
            arrived: Vec::with_capacity(INBOX),
            freed: 0,
            mallocs: Latencies::new(ns_per_tick),
            frees: Latencies::new(ns_per_tick),
        };
        for place in 0..CLASSES * PLACES {
            let object = server.allocate(place / PLACES);
            server.places.push(object);
        }
        // Filling the places is not part of the measurement.
        server.mallocs = Latencies::new(ns_per_tick);
        server
    }

    fn step(&mut self, post: &Post<Tagged>) {
        // As many coins as fall on the same side in a row; the last class takes the rest.
        let class = (self.rng.u32(..) | 1 << (CLASSES - 1)).trailing_zeros() as usize;
        let fresh = self.allocate(class);
        let place = class * PLACES + self.rng.usize(0..PLACES);
        let old = std::mem::replace(&mut self.places[place], fresh);
        let threads = self.outgoing.len();
        let to = match threads {
            1 => 0,
            _ => (self.me + self.rng.usize(1..threads)) % threads,
        };
        self.outgoing[to].push(old);
        if self.outgoing[to].len() == LETTER {
            self.send(to, post);
            self.receive(post);
        }
    }

    fn allocate(&mut self, class: usize) -> Tagged {
        let power = 1 << (class as u32 + SMALLEST);
        let size = power + self.rng.usize(0..power);
        let tag = self.next_tag;
        self.next_tag += 1;
        let start = ticks();
        let mut block = Block::new(size, tag);
        self.mallocs.record(ticks() - start);
        // SAFETY: it was allocated with this size.
        unsafe { block.touch_pages(size) };
        (block, tag)
    }

    fn send(&mut self, to: usize, post: &Post<Tagged>) {
        let mut letter = std::mem::take(&mut self.outgoing[to]);
        post.send(to, &mut letter, || self.receive(post));
        self.outgoing[to] = letter;
    }

    /// Frees what others sent.
    fn receive(&mut self, post: &Post<Tagged>) {
        post.receive(self.me, &mut self.arrived);
        self.freed += self.arrived.len();
        for (block, tag) in self.arrived.drain(..) {
            let start = ticks();
            block.free(tag);
            self.frees.record(ticks() - start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::serve;

    #[test]
    fn everything_is_freed_and_the_slowest_is_known() {
        for threads in [1, 3] {
            let results = serve(threads, 5000);
            assert!(results.values["malloc_max"] >= results.values["malloc_p50"]);
            assert!(results.values["free_max"] > 0.0);
        }
    }
}
