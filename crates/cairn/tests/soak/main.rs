//! A server's day in short: threads that come and go, a cache of long-lived blocks that all of
//! them replace, requests that allocate, grow, exchange and free, bursts, large blocks, quiet
//! times. Every block's contents are verified; at the end of each phase everything stands still
//! and the allocator's invariants are checked. All the while resident memory is compared with
//! the bytes that are live: their ratio must not grow from one cycle of phases to the next.
//!
//! `CAIRN_SOAK_SECONDS=1800` makes it run that long, `CAIRN_SOAK_THREADS` says how many threads,
//! and `CAIRN_SOAK_CSV` names a file for the curve. `cargo xtask soak` does all of that.

mod blocks;
mod curve;

use blocks::{Word, compare, step, verify, write};
use curve::{MIB, Sample, ratios, resident, rise, write_curve};
use std::io::Write;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

/// Places for long-lived blocks.
const CACHE: usize = 1 << 16;
/// Places through which threads hand blocks to each other.
const MAIL: usize = 1 << 10;
const THREADS_MAX: usize = 64;
/// Of a thread, in requests: then another takes its place.
const LIFE: std::ops::Range<u64> = 500..20_000;
/// At most; shorter runs have shorter phases.
const PHASE: Duration = Duration::from_millis(7500);
/// Of a long run, in cycles of all phases: fewer say nothing about a trend.
const CYCLES_JUDGED: usize = 6;
/// The ratio of resident to live bytes may rise by this much over the last half of the run.
const RISE_MAX: f64 = 0.05;

/// What the server does for a while.
struct Phase {
    name: &'static str,
    /// Of 1000 replaced places in the cache, how many get a block.
    fill: u64,
    /// Sizes of what goes into the cache, as for `Random::size`.
    cached: [u64; 4],
    /// Sizes of what a request needs for itself.
    working: [u64; 4],
    /// One request in so many allocates a burst; 0: none.
    burst: u64,
    /// Rest after each request.
    rest: Duration,
}

const NO_REST: Duration = Duration::ZERO;
#[rustfmt::skip]
const PHASES: [Phase; 8] = [
    Phase { name: "small", fill: 1000, cached: [990, 10, 0, 0], working: [950, 50, 0, 0], burst: 0, rest: NO_REST },
    Phase { name: "mixed", fill: 900, cached: [880, 110, 10, 0], working: [880, 110, 9, 1], burst: 0, rest: NO_REST },
    Phase { name: "bursts", fill: 900, cached: [880, 110, 10, 0], working: [880, 115, 5, 0], burst: 200, rest: NO_REST },
    Phase { name: "medium", fill: 300, cached: [200, 790, 10, 0], working: [700, 290, 10, 0], burst: 0, rest: NO_REST },
    Phase { name: "shrunk", fill: 250, cached: [900, 100, 0, 0], working: [950, 50, 0, 0], burst: 0, rest: NO_REST },
    Phase { name: "quiet", fill: 250, cached: [900, 100, 0, 0], working: [950, 50, 0, 0], burst: 0, rest: Duration::from_millis(2) },
    Phase { name: "large", fill: 400, cached: [960, 30, 10, 0], working: [900, 80, 15, 5], burst: 1000, rest: NO_REST },
    Phase { name: "grown", fill: 1000, cached: [930, 65, 5, 0], working: [900, 95, 5, 0], burst: 500, rest: NO_REST },
];

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }

    /// A size of one of four kinds, by their weights in a thousand: up to 1 KiB and mostly far
    /// below, up to 32 KiB, up to 1 MiB, up to 12 MiB.
    fn size(&mut self, weights: &[u64; 4]) -> usize {
        let mut at = self.below(1000);
        let kind = weights.iter().position(|&weight| {
            let here = at < weight;
            at = at.wrapping_sub(weight);
            here
        });
        let (least, doublings) = match kind {
            Some(1) => (1 << 10, 5),
            Some(2) => (32 << 10, 5),
            Some(3) => (1 << 20, 3),
            _ => (16, 6),
        };
        let power = least << self.below(doublings);
        power + self.below(power as u64 / 2 + 1) as usize
    }
}

/// What a thread has done. One line each: counting must not order what the threads do.
#[repr(align(128))]
#[derive(Default)]
struct Counters {
    live: AtomicI64,
    operations: AtomicU64,
    threads: AtomicU64,
}

struct Server {
    cache: Box<[AtomicPtr<Word>]>,
    mail: Box<[AtomicPtr<Word>]>,
    counters: [Counters; THREADS_MAX],
    phase: AtomicUsize,
    /// All are to meet at the barrier, twice.
    pause: AtomicBool,
    stop: AtomicBool,
    barrier: OnceLock<Barrier>,
}

impl Server {
    fn new(threads: usize) -> Server {
        let places = |n| (0..n).map(|_| AtomicPtr::new(null_mut())).collect();
        let server = Server {
            cache: places(CACHE),
            mail: places(MAIL),
            counters: std::array::from_fn(|_| Counters::default()),
            phase: AtomicUsize::new(0),
            pause: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            barrier: OnceLock::new(),
        };
        server.barrier.get_or_init(|| Barrier::new(threads + 1));
        server
    }

    fn live(&self) -> u64 {
        self.counters.iter().map(|c| c.live.load(Ordering::Relaxed)).sum::<i64>().max(0) as u64
    }

    fn operations(&self) -> u64 {
        self.counters.iter().map(|c| c.operations.load(Ordering::Relaxed)).sum()
    }

    fn threads(&self) -> u64 {
        self.counters.iter().map(|c| c.threads.load(Ordering::Relaxed)).sum()
    }

    /// Waits while everything stands still, if that is asked for.
    fn stand_still(&self) {
        if self.pause.load(Ordering::Relaxed) {
            let barrier = self.barrier.get().expect("made with the server");
            barrier.wait();
            barrier.wait();
        }
    }
}

/// One thread, and what it has allocated and freed since it last said so.
struct Worker<'a> {
    server: &'a Server,
    counters: &'a Counters,
    random: Random,
    live: i64,
    operations: u64,
    hand: Vec<*mut Word>,
}

impl Worker<'_> {
    fn make(&mut self, size: usize) -> *mut Word {
        let align = if self.random.below(64) == 0 { 16 << self.random.below(10) } else { 16 };
        let zeroed = align == 16 && self.random.below(16) == 0;
        let block = match (zeroed, align > 16) {
            (true, _) => cairn::allocate_zeroed(size),
            (_, true) => cairn::allocate_aligned(size, align),
            _ => cairn::allocate(size),
        };
        assert!(!block.is_null() && block.addr().is_multiple_of(align), "{size} at {align}");
        let block: *mut Word = block.cast();
        if zeroed {
            // SAFETY: inside the block.
            let dirty =
                (0..size / 8).step_by(step(size)).find(|&i| unsafe { block.add(i).read() } != 0);
            assert_eq!(dirty, None, "{size} zeroed bytes at {block:p}: a word is not zero");
        }
        let tag = self.random.next() & !1;
        // SAFETY: a block of `size` >= 16 bytes, this thread's.
        unsafe { write(block, tag, 0, size) };
        self.live += size as i64;
        self.operations += 1;
        block
    }

    /// Verifies and frees a block that this thread has taken; null is fine.
    fn destroy(&mut self, block: *mut Word) {
        if block.is_null() {
            return;
        }
        // SAFETY: whoever took it out of its place owns it.
        unsafe {
            let size = verify(block);
            // Nobody may find the tag in a block that is free.
            block.write(!0);
            cairn::deallocate(block.cast());
            self.live -= size as i64;
        }
        self.operations += 1;
    }

    /// A buffer that grows as it is written to, and is cut to measure in the end.
    fn grow(&mut self) -> *mut Word {
        let mut size = 64;
        let mut block = self.make(size);
        for _ in 0..self.random.below(15) {
            size += size / 2 + 8;
            block = self.resize(block, size);
        }
        let parts = 1 + self.random.below(3) as usize;
        self.resize(block, (size / parts).max(16))
    }

    fn resize(&mut self, block: *mut Word, size: usize) -> *mut Word {
        self.operations += 1;
        // SAFETY: the block is this thread's.
        unsafe {
            let before = verify(block);
            let tag = block.read();
            let block: *mut Word = cairn::reallocate(block.cast(), size).cast();
            assert!(!block.is_null(), "{before} bytes do not become {size}");
            let kept = before.min(size);
            compare(block, tag, kept, step(before));
            write(block, tag, if step(size) == step(before) { kept } else { 0 }, size);
            self.live += size as i64 - before as i64;
            block
        }
    }

    fn request(&mut self, phase: &Phase) {
        let server = self.server;
        for _ in 0..4 + self.random.below(24) {
            let size = self.random.size(&phase.working);
            let block = self.make(size);
            self.hand.push(block);
        }
        if self.random.below(8) == 0 {
            let block = self.grow();
            self.hand.push(block);
        }
        if phase.burst > 0 && self.random.below(phase.burst) == 0 {
            for _ in 0..400 {
                let size = self.random.size(&[300, 700, 0, 0]);
                let block = self.make(size);
                self.hand.push(block);
            }
        }
        for _ in 0..3 {
            let fills = self.random.below(1000) < phase.fill;
            let size = self.random.size(&phase.cached);
            let block = if fills { self.make(size) } else { null_mut() };
            let place = self.random.below(CACHE as u64) as usize;
            // Release: the words of what goes in; acquire: of what comes out.
            let old = server.cache[place].swap(block, Ordering::AcqRel);
            self.destroy(old);
        }
        // A third goes to whoever comes by; the rest is freed here, in one of three orders.
        let mut hand = std::mem::take(&mut self.hand);
        match self.random.below(3) {
            0 => {}
            1 => hand.reverse(),
            _ => {
                let middle = self.random.below(hand.len() as u64) as usize;
                hand.rotate_left(middle);
            }
        }
        for block in hand.drain(..) {
            if self.random.below(3) == 0 {
                let place = self.random.below(MAIL as u64) as usize;
                let found = server.mail[place].swap(block, Ordering::AcqRel);
                self.destroy(found);
            } else {
                self.destroy(block);
            }
        }
        self.hand = hand;
        self.say();
    }

    fn say(&mut self) {
        self.counters.live.fetch_add(std::mem::take(&mut self.live), Ordering::Relaxed);
        self.counters.operations.fetch_add(std::mem::take(&mut self.operations), Ordering::Relaxed);
    }
}

/// One thread's life.
fn live(server: &Server, counters: &Counters, seed: u64) {
    let mut worker = Worker {
        server,
        counters,
        random: Random(seed | 1),
        live: 0,
        operations: 0,
        hand: Vec::with_capacity(512),
    };
    let life = LIFE.start + worker.random.below(LIFE.end - LIFE.start);
    for _ in 0..life {
        server.stand_still();
        if server.stop.load(Ordering::Relaxed) {
            return;
        }
        let phase = &PHASES[server.phase.load(Ordering::Relaxed)];
        worker.request(phase);
        if !phase.rest.is_zero() {
            std::thread::sleep(phase.rest);
        }
    }
}

/// One thread after the other, until all is over.
fn lives(server: &Server, number: usize) {
    let counters = &server.counters[number];
    let mut seed = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(number as u64 + 1);
    loop {
        server.stand_still();
        if server.stop.load(Ordering::Relaxed) {
            return;
        }
        seed = seed.wrapping_add(0x6a09_e667_f3bc_c909);
        counters.threads.fetch_add(1, Ordering::Relaxed);
        let life = || live(server, counters, seed);
        std::thread::scope(|scope| scope.spawn(life).join()).expect("a panic ends the process");
    }
}

/// Everything stands still: walks the allocator's invariants and all of the cache.
fn inspect(server: &Server) {
    cairn::check();
    let live = server.live();
    let stats = cairn::Stats::take();
    let told = stats.allocated() as u64;
    assert!(told >= live, "the statistics know of {told} bytes allocated, {live} are live");
    for place in server.cache.iter().chain(&server.mail) {
        let block = place.load(Ordering::Acquire);
        if !block.is_null() {
            // SAFETY: nobody takes it out while everything stands still.
            unsafe { verify(block) };
        }
    }
}

/// Frees what is left. The counters of the first thread take the blame.
fn drain(server: &Server) {
    let mut worker = Worker {
        server,
        counters: &server.counters[0],
        random: Random(1),
        live: 0,
        operations: 0,
        hand: Vec::new(),
    };
    for place in server.cache.iter().chain(&server.mail) {
        worker.destroy(place.swap(null_mut(), Ordering::AcqRel));
    }
    worker.say();
    assert_eq!(server.live(), 0);
    cairn::purge();
    cairn::check();
    let left = cairn::Stats::take();
    let blocks: usize = left.classes.iter().map(|class| class.in_use + class.cached).sum();
    assert_eq!((blocks, left.large_blocks, left.mapping_blocks), (0, 0, 0), "blocks are lost");
    assert_eq!(left.spans.bytes, 0, "spans without blocks in use are kept");
    assert_eq!(left.dirty.bytes, 0, "not everything was given back");
}

/// Runs the phases in turn, everything standing still between two, and samples; the samples.
fn run(server: &Server, baseline: u64, seconds: u64) -> Vec<Sample> {
    let total = Duration::from_secs(seconds);
    let length = PHASE.min(total / PHASES.len() as u32);
    let barrier = server.barrier.get().expect("made with the server");
    let start = Instant::now();
    let mut samples = Vec::new();
    for cycle in 0.. {
        for (number, phase) in PHASES.iter().enumerate() {
            server.phase.store(number, Ordering::Relaxed);
            let end = Instant::now() + length;
            while Instant::now() < end {
                std::thread::sleep(Duration::from_secs(1).min(end - Instant::now().min(end)));
                samples.push(Sample {
                    at: start.elapsed().as_secs_f64(),
                    cycle,
                    phase: phase.name,
                    resident: resident().saturating_sub(baseline),
                    live: server.live(),
                });
            }
            server.pause.store(true, Ordering::Relaxed);
            barrier.wait();
            inspect(server);
            server.pause.store(false, Ordering::Relaxed);
            let over = start.elapsed() + length / 2 >= total && number == PHASES.len() - 1;
            server.stop.store(over, Ordering::Relaxed);
            barrier.wait();
            if over {
                return samples;
            }
        }
    }
    samples
}

#[test]
fn memory_stays_flat_while_threads_come_and_go() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("CAIRN_SOAK_SECONDS").unwrap_or(2);
    let threads = number("CAIRN_SOAK_THREADS").map_or(16, |n| n as usize).clamp(1, THREADS_MAX);
    // The others would wait for a thread that panics at the barrier, for ever.
    std::panic::set_hook(Box::new(|panic| {
        let _ = writeln!(std::io::stderr(), "{panic}");
        std::process::exit(101);
    }));
    let server = Server::new(threads);
    // The harness's own memory is touched by now; the rest of it is small and stays the same.
    let baseline = resident();
    let start = Instant::now();
    let samples = std::thread::scope(|scope| {
        for number in 0..threads {
            let server = &server;
            scope.spawn(move || lives(server, number));
        }
        run(&server, baseline, seconds)
    });
    let lived = start.elapsed().as_secs();
    let (operations, made) = (server.operations(), server.threads());
    drain(&server);
    let last = resident().saturating_sub(baseline) as f64 / MIB;
    if let Ok(path) = std::env::var("CAIRN_SOAK_CSV") {
        write_curve(&path, &samples);
    }

    let peak = samples.iter().max_by_key(|s| s.resident).expect("a sample each second");
    let live = samples.iter().map(|s| s.live).sum::<u64>() as f64 / samples.len() as f64;
    let ratios = ratios(&samples);
    let half = &ratios[ratios.len() / 2..];
    let judged = ratios.len() >= CYCLES_JUDGED;
    let rise = if judged { rise(half) } else { 0.0 };
    let verdict = match (judged, rise <= RISE_MAX) {
        (false, _) => "TOO SHORT TO SAY",
        (true, true) => "FLAT",
        (true, false) => "NOT FLAT",
    };
    println!(
        "soak: {verdict}: {lived} s, {} cycles, {threads} threads at once, {made} in all, \
         {operations} operations; live {:.1} MiB on average; resident/live {:.3} on average, \
         {:+.2} % over the last {} cycles (at most {:+.0} %); peak {:.1} MiB at {:.0} s ({}); \
         {last:.1} MiB when all is freed",
        ratios.len(),
        live / MIB,
        ratios.iter().sum::<f64>() / ratios.len() as f64,
        rise * 100.0,
        half.len(),
        RISE_MAX * 100.0,
        peak.resident as f64 / MIB,
        peak.at,
        peak.phase,
    );
    assert!(
        rise <= RISE_MAX,
        "resident memory grows against live memory, cycle by cycle: {half:.3?}"
    );
}
