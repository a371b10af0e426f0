//! The alloc-test workload with a heap of its own in every thread.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::single::alloc_test::Heap;
use crate::threads::team;

/// Slots of each thread at scale 1, of which half are full.
const SLOTS: usize = 1 << 18;
/// Operations of each thread at scale 1.
const STEPS: usize = 1_500_000;

/// The case.
pub const WORKLOADS: &[Workload] = &[Case::new(
    "alloc-test-n",
    Group::Threads,
    "alloc-test in every thread: random slots of an array are filled or emptied, sizes by a \
     Pareto distribution, every byte written. Threads that share nothing but the allocator.",
    Row::NS_PEAK,
)
.from("alloc-test: OLogN Technologies (ITHare), 2018")
.quick(0.1)
.c(run)];

fn run(settings: &Settings) -> Results {
    let threads = settings.threads();
    let (slots, steps) = (settings.scaled(SLOTS), settings.scaled(STEPS));
    let prepare = |thread| {
        let mut heap = Heap::new(thread as u64, slots);
        heap.churn(steps / 20);
        heap
    };
    let work = |_, heap: &mut Heap| heap.churn(steps);
    let (time, _) = team::timed(threads, prepare, work, |_, heap| heap.finish());
    Results::of([("ns", time.as_nanos() as f64 / (threads * steps) as f64)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_with_any_number_of_threads() {
        for threads in 1..4 {
            let results = run(&Settings { threads: Some(threads), scale: 1e-3, no_alloc: false });
            assert!(results.values["ns"] > 0.0);
        }
    }
}
