//! Latency of single operations, by the processor's time-stamp counter.

use crate::case::{Curve, Results};
use crate::malloc::Block;
use hdrhistogram::Histogram;

/// What is told apart from longer latencies: 100 s, in ticks of up to 10 GHz.
const LONGEST: u64 = 1_000_000_000_000;

/// The latencies of one thread's operations, in ticks, to three digits.
///
/// Memory is reserved up front: recording allocates nothing. With `TIMED` false, the operations
/// are done and not measured.
pub(crate) struct Latencies<const TIMED: bool = true> {
    mallocs: Histogram<u64>,
    frees: Histogram<u64>,
}

impl<const TIMED: bool> Latencies<TIMED> {
    pub(crate) fn new() -> Self {
        let empty = || Histogram::new_with_bounds(1, LONGEST, 3).expect("valid bounds");
        Latencies { mallocs: empty(), frees: empty() }
    }

    pub(crate) fn clear(&mut self) {
        self.mallocs.clear();
        self.frees.clear();
    }

    pub(crate) fn count(&self) -> u64 {
        self.mallocs.len() + self.frees.len()
    }

    /// Allocates. The write of the first word counts, so that a page fault counts the same wherever it falls.
    #[inline(always)]
    pub(crate) fn make(&mut self, size: usize) -> Block {
        if !TIMED {
            return Block::new(size);
        }
        let start = ticks();
        let block = Block::new(size);
        self.mallocs.saturating_record(ticks_since(start));
        block
    }

    /// Frees, with the first word in the cache, as after the block's last use.
    #[inline(always)]
    pub(crate) fn free(&mut self, block: Block) {
        if !TIMED {
            return;
        }
        block.check();
        let start = ticks();
        drop(block);
        self.frees.saturating_record(ticks_since(start));
    }

    /// Adds the percentiles of all threads' operations: p50 to the maximum as `malloc_p50` ...
    /// `free_max`, the means as `malloc_mean` and `free_mean`, and the curves `malloc` and
    /// `free`, whose x is 1/(1 - quantile). `overhead_ns` is the counter's.
    pub(crate) fn report(threads: &[Self], results: &mut Results) {
        let ns_per_tick = ns_per_tick();
        let mut all = Self::new();
        for thread in threads {
            all.mallocs.add(&thread.mallocs).expect("equal bounds");
            all.frees.add(&thread.frees).expect("equal bounds");
        }
        percentiles("malloc", &all.mallocs, ns_per_tick, results);
        percentiles("free", &all.frees, ns_per_tick, results);
        let overhead_ns = overhead_ticks() as f64 * ns_per_tick;
        results.values.insert("overhead_ns".to_owned(), overhead_ns);
    }
}

fn percentiles(name: &str, ticks: &Histogram<u64>, ns_per_tick: f64, results: &mut Results) {
    let at = |quantile| ticks.value_at_quantile(quantile) as f64 * ns_per_tick;
    for (label, quantile) in
        [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999), ("max", 1.0)]
    {
        results.values.insert(format!("{name}_{label}"), at(quantile));
    }
    results.values.insert(format!("{name}_mean"), ticks.mean() * ns_per_tick);
    let count = ticks.len() as f64;
    let one_in = std::iter::successors(Some(1.0), |n| Some(n * 1.5)).take_while(|&n| n < count);
    let mut curve: Curve = one_in.map(|n| [n, at(1.0 - 1.0 / n)]).collect();
    curve.push([count.max(1.0), at(1.0)]);
    results.curves.insert(name.to_owned(), curve);
}

/// The time-stamp counter: read after all earlier instructions and before all later ones.
///
/// rdtscp alone only waits for the earlier ones; without the fence the processor may start
/// on the operation to be measured before it reads the counter.
#[inline(always)]
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: rdtscp exists on every x86-64 of the last fifteen years, lfence on all of them; neither touches memory.
    unsafe {
        let mut processor = 0;
        let now = std::arch::x86_64::__rdtscp(&mut processor);
        std::arch::x86_64::_mm_lfence();
        now
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

/// Ticks since `first`; 0 where another processor's counter is a little behind.
#[inline(always)]
fn ticks_since(first: u64) -> u64 {
    ticks().saturating_sub(first)
}

/// Nanoseconds of one tick, measured over 20 ms.
fn ns_per_tick() -> f64 {
    let (start, first) = (std::time::Instant::now(), ticks());
    std::thread::sleep(std::time::Duration::from_millis(20));
    start.elapsed().as_nanos() as f64 / ticks_since(first) as f64
}

/// Ticks that reading the counter twice in a row takes, as a rule: the cost of measuring, contained in every latency.
fn overhead_ticks() -> u64 {
    let mut samples = [0; 1001].map(|_| ticks_since(ticks()));
    samples.sort_unstable();
    samples[500]
}
