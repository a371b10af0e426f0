//! Resident memory along a run.

use crate::case::{Curve, Results};
use crate::process::{peak_kib, resident_about_kib, resident_kib};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Points kept at most; beyond that every second one is dropped and the pace halved.
const MOST: usize = 400;

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
    /// MiB, exact, when the sampler was up.
    before: f64,
}

/// What the two threads share. Leaked, so that the sampler may outlive a panic.
struct Shared {
    every: Duration,
    state: Mutex<State>,
    /// Told at the first point and at the end.
    changed: Condvar,
}

struct State {
    curve: Curve,
    stop: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the holder does not panic")
    }
}

impl Sampler {
    /// Starts sampling every `every`. Start it after the workload's own lists are there and
    /// touched, and before the first block.
    pub(crate) fn start(every: Duration) -> Sampler {
        let mut curve: Curve = vec![[1.0; 2]; MOST + 1];
        curve.clear();
        let state = Mutex::new(State { curve, stop: false });
        let shared: &'static Shared =
            Box::leak(Box::new(Shared { every, state, changed: Condvar::new() }));
        let mut thread = 0;
        // SAFETY: `shared` lives for ever; `sample` only reads it as what it is.
        let failed = unsafe {
            let argument = std::ptr::from_ref(shared).cast_mut().cast();
            libc::pthread_create(&mut thread, null_mut(), sample, argument)
        };
        assert_eq!(failed, 0, "pthread_create");
        let mut state = shared.lock();
        while state.curve.is_empty() {
            state = shared.changed.wait(state).expect("the sampler does not panic");
        }
        drop(state);
        Sampler { shared, thread, before: resident_kib() / 1024.0 }
    }

    /// Ends with a last point.
    fn finish(self) -> Curve {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        // SAFETY: the thread was created in `start` and is joined once, `self` being consumed.
        unsafe { libc::pthread_join(self.thread, null_mut()) };
        std::mem::take(&mut self.shared.lock().curve)
    }

    /// Ends, and adds to the results the curve as `rss` and what the process took beyond its
    /// state at the start: `after_mib` now, `mean_mib` over time, `heap_mib` at the peak.
    pub(crate) fn report(self, mut results: Results) -> Results {
        let before = self.before;
        let curve = self.finish();
        for (key, mib) in [
            ("after_mib", curve.last().map_or(before, |point| point[1])),
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
    let (start, mut every) = (Instant::now(), shared.every);
    let mut state = shared.lock();
    state.curve.push([0.0, resident_kib() / 1024.0]);
    shared.changed.notify_all();
    let mut due = Instant::now() + every;
    while !state.stop {
        let wait = due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            state = shared.changed.wait_timeout(state, wait).expect("nobody panics").0;
            continue;
        }
        state.curve.push([start.elapsed().as_secs_f64(), resident_about_kib() / 1024.0]);
        if state.curve.len() == MOST {
            let mut at = 0;
            state.curve.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            every *= 2;
        }
        due = Instant::now() + every;
    }
    state.curve.push([start.elapsed().as_secs_f64(), resident_kib() / 1024.0]);
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
        assert!((MOST / 2..=MOST).contains(&curve.len()), "{} points", curve.len());
    }
}
