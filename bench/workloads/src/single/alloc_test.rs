//! Random slots of a large array are emptied if full and filled if empty, with sizes of a
//! Pareto distribution, every byte written.
//!
//! Stands for a server's heap: few large blocks among many small ones, some places in use
//! much more often than others, and a live set well beyond the caches. The slots follow the
//! 80/20 rule as the sizes do: four in five operations go to a fifth of the slots, and so on
//! inside that fifth.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::malloc::Block;
use std::time::Instant;

/// Slots at scale 1, of which half are full.
const SLOTS: usize = 1 << 20;
/// Operations at scale 1.
const STEPS: usize = 2_000_000;
/// How many distinct quantiles of the sizes there are.
const QUANTILES: usize = 4096;
/// The smallest and largest size; the mean is near 105 bytes.
const SIZES: (f64, f64) = (24.0, 8192.0);

/// The case.
pub const WORKLOADS: &[Workload] = &[Case::new(
    "alloc-test-1",
    Group::Single,
    "Random slots of a large array are filled or emptied, sizes by a Pareto distribution, \
     every byte written: a server's heap of some 60 MiB.",
    Row::NS_PEAK,
)
.from("alloc-test: OLogN Technologies (ITHare), 2018")
.quick(0.15)
.c(run)];

fn run(settings: &Settings) -> Results {
    let mut heap = Heap::new(1, settings.scaled(SLOTS));
    let steps = settings.scaled(STEPS);
    heap.churn(steps / 20);
    let start = Instant::now();
    heap.churn(steps);
    let ns = start.elapsed().as_nanos() as f64;
    heap.finish();
    Results::of([("ns", ns / steps as f64)])
}

/// The array of slots of one thread.
pub struct Heap {
    rng: fastrand::Rng,
    sizes: Vec<u16>,
    slots: Vec<Option<Block>>,
    full: usize,
}

impl Heap {
    /// With every other slot full.
    pub fn new(seed: u64, slots: usize) -> Heap {
        let mut rng = fastrand::Rng::with_seed(seed);
        let sizes: Vec<u16> = (0..QUANTILES).map(pareto).collect();
        let mut fill = |at| (at % 2 == 0).then(|| block(&mut rng, &sizes, at));
        let slots: Vec<_> = (0..slots).map(&mut fill).collect();
        Heap { full: slots.len().div_ceil(2), rng, sizes, slots }
    }

    /// Fills or empties a slot, so many times.
    pub fn churn(&mut self, steps: usize) {
        for _ in 0..steps {
            let at = self.pick();
            match self.slots[at].take() {
                Some(old) => {
                    old.free(at as u64);
                    self.full -= 1;
                }
                None => {
                    self.slots[at] = Some(block(&mut self.rng, &self.sizes, at));
                    self.full += 1;
                }
            }
        }
    }

    /// Frees everything; as many blocks must be left as were counted.
    pub fn finish(self) {
        let mut left = 0;
        for (at, slot) in self.slots.into_iter().enumerate() {
            if let Some(block) = slot {
                block.free(at as u64);
                left += 1;
            }
        }
        assert_eq!(left, self.full, "blocks left");
    }

    /// A slot, by the 80/20 rule three levels deep.
    #[inline]
    fn pick(&mut self) -> usize {
        let mut span = self.slots.len();
        let mut coins = self.rng.u32(..);
        for _ in 0..3 {
            if coins & 0xff >= 205 {
                break;
            }
            span = (span / 5).max(1);
            coins >>= 8;
        }
        self.rng.usize(0..span)
    }
}

#[inline]
fn block(rng: &mut fastrand::Rng, sizes: &[u16], tag: usize) -> Block {
    Block::written(sizes[rng.usize(0..QUANTILES)].into(), tag as u64)
}

/// The size at one of [`QUANTILES`], by Pareto's distribution with the shape of the 80/20
/// rule, bounded above.
fn pareto(quantile: usize) -> u16 {
    let shape = 5.0f64.ln() / 4.0f64.ln();
    let (least, most) = SIZES;
    let rest = (quantile as f64 + 0.5) / QUANTILES as f64;
    let bounded = rest + (1.0 - rest) * (least / most).powf(shape);
    (least * bounded.powf(-1.0 / shape)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bounded_and_mostly_small() {
        let sizes: Vec<usize> = (0..QUANTILES).map(|q| pareto(q).into()).collect();
        assert!(sizes.iter().all(|size| (24..=8192).contains(size)));
        assert!(sizes.iter().filter(|&&size| size < 64).count() > QUANTILES / 2);
        let mean = sizes.iter().sum::<usize>() / QUANTILES;
        assert!((95..115).contains(&mean), "{mean}");
    }

    #[test]
    fn about_half_the_slots_stay_full() {
        let mut heap = Heap::new(5, 1000);
        heap.churn(20_000);
        assert!((400..600).contains(&heap.full), "{}", heap.full);
        heap.finish();
    }
}
