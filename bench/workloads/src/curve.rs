//! Resident memory along a run.

use crate::case::{Curve, Results};
use crate::process::{peak_kib, resident_about_kib, resident_kib};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Points of a curve at most; of more, only each n-th is kept.
const MOST: usize = 400;
/// Points there is room for: a minute at the usual pace.
const ROOM: usize = 15_000;

/// A thread that looks at the resident set every few milliseconds.
///
/// It never calls the allocator under test: the room for its points is allocated and touched
/// before it starts, and it is a bare pthread, since those of std allocate on their own
/// account. The first and the last point are exact; those between are the kernel's
/// counters, because the exact figure costs milliseconds on a big heap and holds up every
/// mmap and munmap of the process meanwhile.
pub(crate) struct Sampler {
    shared: &'static Shared,
    thread: libc::pthread_t,
}

/// What the two threads share. Leaked, so that the sampler may outlive a panic.
struct Shared {
    start: Instant,
    every: Duration,
    stop: AtomicBool,
    curve: Mutex<Curve>,
}

impl Shared {
    fn add(&self, kib: f64) {
        let mut curve = self.curve.lock().expect("the holder does not panic");
        // Without room the last point moves on.
        curve.truncate(ROOM - 1);
        curve.push([self.start.elapsed().as_secs_f64(), kib / 1024.0]);
    }
}

impl Sampler {
    /// Starts sampling every `every`. Start it after the workload's own lists are there and
    /// touched, and before the first block.
    pub(crate) fn start(every: Duration) -> Sampler {
        let mut curve: Curve = vec![[1.0; 2]; ROOM];
        curve.clear();
        let (stop, curve) = (AtomicBool::new(false), Mutex::new(curve));
        let shared: &'static Shared =
            Box::leak(Box::new(Shared { start: Instant::now(), every, stop, curve }));
        let mut thread = 0;
        // SAFETY: `shared` lives for ever; `sample` only reads it as what it is.
        let failed = unsafe {
            let argument = std::ptr::from_ref(shared).cast_mut().cast();
            libc::pthread_create(&mut thread, null_mut(), sample, argument)
        };
        assert_eq!(failed, 0, "pthread_create");
        // The thread's own stack belongs to the state at the start.
        while shared.curve.lock().expect("the holder does not panic").is_empty() {
            std::thread::yield_now();
        }
        Sampler { shared, thread }
    }

    /// Ends with a last point.
    fn finish(self) -> Curve {
        self.shared.stop.store(true, Relaxed);
        // SAFETY: the thread was created in `start` and is joined once, `self` being consumed.
        unsafe { libc::pthread_join(self.thread, null_mut()) };
        let all = std::mem::take(&mut *self.shared.curve.lock().expect("it has ended"));
        let last = all.len() - 1;
        let kept = (0..last).step_by(last.div_ceil(MOST).max(1)).chain([last]);
        kept.map(|at| all[at]).collect()
    }

    /// Ends, and adds to the results the curve as `rss` and what the process took beyond its
    /// state at the start: `after_mib` now, `mean_mib` over time, `heap_mib` at the peak.
    pub(crate) fn report(self, mut results: Results) -> Results {
        let curve = self.finish();
        let before = curve[0][1];
        for (key, mib) in [
            ("after_mib", curve[curve.len() - 1][1]),
            ("mean_mib", mean(&curve)),
            ("heap_mib", peak_kib(None) / 1024.0),
        ] {
            results.values.insert(key.to_owned(), mib - before);
        }
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

/// The sampler's life. Allocates nothing.
extern "C" fn sample(shared: *mut c_void) -> *mut c_void {
    // SAFETY: the argument is the leaked `Shared` that `start` passed, only read here.
    let shared = unsafe { &*shared.cast::<Shared>() };
    shared.add(resident_kib());
    while !shared.stop.load(Relaxed) {
        std::thread::sleep(shared.every);
        shared.add(resident_about_kib());
    }
    shared.add(resident_kib());
    null_mut()
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

    #[test]
    fn a_block_that_comes_and_goes_is_seen() {
        let sampler = Sampler::start(Duration::from_millis(1));
        let block = crate::malloc::Block::paged(64 << 20);
        std::thread::sleep(Duration::from_millis(30));
        drop(block);
        std::thread::sleep(Duration::from_millis(30));
        let results = sampler.report(Results::default());
        let curve = &results.curves["rss"];
        assert!(curve.len() > 10, "{} points", curve.len());
        assert!(curve.is_sorted_by(|a, b| a[0] < b[0]));
        // Other tests run meanwhile: no upper bounds.
        assert!(results.values["heap_mib"] > 50.0, "{:?}", results.values);
    }

    #[test]
    fn points_are_thinned_out() {
        let sampler = Sampler::start(Duration::from_micros(50));
        std::thread::sleep(Duration::from_millis(300));
        let curve = sampler.finish();
        assert!((MOST / 2..=MOST + 1).contains(&curve.len()), "{} points", curve.len());
    }
}
