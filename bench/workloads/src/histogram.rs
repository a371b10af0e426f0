//! Latency of single operations, by the processor's time-stamp counter.

use crate::case::{Curve, Results};
use hdrhistogram::Histogram;

/// Nanoseconds of single operations, to three digits.
///
/// Memory is reserved up front: recording allocates nothing.
pub struct Latencies {
    histogram: Histogram<u64>,
    ns_per_tick: f64,
}

/// Longest latency that is told apart from longer ones: 100 s, in ticks of up to 10 GHz.
const LONGEST: u64 = 1_000_000_000_000;

impl Latencies {
    /// No latencies yet; `ns_per_tick` from [`ns_per_tick`].
    pub fn new(ns_per_tick: f64) -> Latencies {
        let histogram = Histogram::new_with_bounds(1, LONGEST, 3).expect("valid bounds");
        Latencies { histogram, ns_per_tick }
    }

    /// Adds one operation of so many ticks.
    #[inline]
    pub fn record(&mut self, ticks: u64) {
        self.histogram.saturating_record(ticks.max(1));
    }

    /// Number of operations recorded.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Adds another thread's.
    pub fn add(&mut self, other: &Latencies) {
        self.histogram.add(&other.histogram).expect("equal bounds");
    }

    /// Writes p50 to the maximum as `NAME_p50` ... `NAME_max`, the mean as `NAME_mean`, and
    /// the curve `NAME`, whose x is 1/(1 - quantile).
    pub fn report(&self, name: &str, results: &mut Results) {
        let ns = |ticks: u64| ticks as f64 * self.ns_per_tick;
        for (label, quantile) in
            [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999), ("max", 1.0)]
        {
            let value = ns(self.histogram.value_at_quantile(quantile));
            results.values.insert(format!("{name}_{label}"), value);
        }
        let mean = self.histogram.mean() * self.ns_per_tick;
        results.values.insert(format!("{name}_mean"), mean);
        let count = self.histogram.len() as f64;
        let mut curve = Curve::new();
        let mut one_in = 1.0;
        while one_in < count {
            curve.push([one_in, ns(self.histogram.value_at_quantile(1.0 - 1.0 / one_in))]);
            one_in *= 1.5;
        }
        curve.push([count.max(1.0), ns(self.histogram.max())]);
        results.curves.insert(name.to_owned(), curve);
    }
}

/// The time-stamp counter: read after all earlier instructions and before all later ones.
///
/// rdtscp alone only waits for the earlier ones; without the fence the processor may start
/// on the operation to be measured before it reads the counter.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: rdtscp exists on every x86-64 of the last fifteen years, lfence on all of them;
    // neither touches memory.
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
pub fn ticks_since(first: u64) -> u64 {
    ticks().saturating_sub(first)
}

/// Nanoseconds of one tick, measured over 20 ms.
pub fn ns_per_tick() -> f64 {
    let (start, first) = (std::time::Instant::now(), ticks());
    std::thread::sleep(std::time::Duration::from_millis(20));
    start.elapsed().as_nanos() as f64 / (ticks() - first) as f64
}

/// Ticks that reading the counter twice in a row takes, as a rule: the cost of measuring,
/// contained in every latency.
pub fn overhead_ticks() -> u64 {
    let mut samples = [0; 1001];
    for sample in &mut samples {
        let first = ticks();
        *sample = ticks_since(first);
    }
    samples.sort_unstable();
    samples[500]
}

/// The counter's smallest step: below it latencies cannot be told apart.
pub fn resolution_ticks() -> u64 {
    let (mut step, mut before) = (0, ticks());
    for _ in 0..10_000 {
        let now = ticks();
        // Any two readings are a multiple of it apart.
        step = gcd(now.saturating_sub(before), step);
        before = now;
    }
    step
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_samples() {
        let (mut all, mut half) = (Latencies::new(2.0), Latencies::new(2.0));
        for ticks in 1..=500 {
            all.record(ticks);
            half.record(ticks + 500);
        }
        all.add(&half);
        let mut results = Results::default();
        all.report("malloc", &mut results);
        for (key, ns) in [
            ("p50", 1000.0),
            ("p99", 1980.0),
            ("p99.9", 1998.0),
            ("p99.99", 2000.0),
            ("max", 2000.0),
        ] {
            assert_eq!(results.values[&format!("malloc_{key}")], ns, "{key}");
        }
        let curve = &results.curves["malloc"];
        assert!(curve.is_sorted_by(|a, b| a[0] < b[0] && a[1] <= b[1]), "{curve:?}");
        assert_eq!(curve.last(), Some(&[1000.0, 2000.0]));
    }

    #[test]
    fn a_tick_has_a_length() {
        let ns = ns_per_tick();
        assert!(ns > 0.05 && ns < 100.0, "{ns} ns per tick");
        let overhead = overhead_ticks() as f64 * ns;
        assert!(overhead < 2000.0, "{overhead} ns to read the counter");
    }
}
