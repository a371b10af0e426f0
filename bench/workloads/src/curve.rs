//! Resident memory along a run.

use crate::case::{Curve, Results};
use crate::process::{peak_kib, resident_about_kib, resident_kib};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Points of a curve at most; of more, only each n-th is kept.
const MOST: usize = 400;
/// Points there is room for: a minute at the usual pace.
const ROOM: usize = 15_000;

/// A thread that looks at the resident set every few milliseconds.
///
/// It allocates before its first point, the room for its points included, which it touches, and not again until its
/// end. The first and the last point are exact; those between are the kernel's counters, because the exact figure costs
/// milliseconds on a big heap and holds up every mmap and munmap of the process meanwhile.
pub(crate) struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Curve>,
}

impl Sampler {
    /// Starts sampling every `every`. Start it after the workload's own lists are there and
    /// touched, and before the first block.
    pub(crate) fn start(every: Duration) -> Sampler {
        let stop = Arc::new(AtomicBool::new(false));
        let started = Arc::new(Barrier::new(2));
        let (stopped, ready) = (Arc::clone(&stop), Arc::clone(&started));
        let thread = std::thread::spawn(move || {
            let mut curve: Curve = vec![[1.0; 2]; ROOM];
            curve.clear();
            let start = Instant::now();
            let mut add = |kib: f64| {
                // Without room the last point moves on.
                curve.truncate(ROOM - 1);
                curve.push([start.elapsed().as_secs_f64(), kib / 1024.0]);
            };
            add(resident_kib());
            ready.wait();
            while !stopped.load(Relaxed) {
                std::thread::sleep(every);
                add(resident_about_kib());
            }
            add(resident_kib());
            curve
        });
        // The thread's own stack belongs to the state at the start.
        started.wait();
        Sampler { stop, thread }
    }

    fn finish(self) -> Curve {
        self.stop.store(true, Relaxed);
        let all = self.thread.join().expect("the sampler ends well");
        let last = all.len() - 1;
        let kept = (0..last).step_by(last.div_ceil(MOST).max(1)).chain([last]);
        kept.map(|at| all[at]).collect()
    }

    /// Ends, and adds to the results the curve as `rss` and what the process took beyond its
    /// state at the start: `after_mib` now, `mean_mib` over time, `heap_mib` at the peak.
    pub(crate) fn report(self, results: Results) -> Results {
        let curve = self.finish();
        let before = curve[0][1];
        let results = results.and([
            ("after_mib", curve[curve.len() - 1][1] - before),
            ("mean_mib", mean(&curve) - before),
            ("heap_mib", peak_kib() / 1024.0 - before),
        ]);
        results.with_curve("rss", curve)
    }
}

/// The mean of y over x: every stretch counts by its length.
fn mean(curve: &[[f64; 2]]) -> f64 {
    let stretches = || curve.iter().zip(curve.iter().skip(1));
    let area: f64 = stretches().map(|(a, b)| (b[0] - a[0]) * (a[1] + b[1]) / 2.0).sum();
    let length: f64 = stretches().map(|(a, b)| b[0] - a[0]).sum();
    if length > 0.0 { area / length } else { curve.first().map_or(0.0, |point| point[1]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_counts_stretches_by_their_length() {
        let curve = [[0.0, 10.0], [1.0, 10.0], [1.0, 20.0], [4.0, 20.0]];
        assert_eq!(mean(&curve), 17.5);
        assert_eq!(mean(&[[3.0, 7.0]]), 7.0);
    }
}
