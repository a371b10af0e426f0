//! A server's heap: few large blocks among many small ones, some places in use much more often
//! than others, and a live set well beyond the caches. The slots follow the 80/20 rule as the
//! sizes do: four in five operations go to a fifth of the slots, and so on inside that fifth.

use crate::case::{Results, Settings};
use crate::malloc::Block;
use crate::team;
use std::time::Instant;

const QUANTILES: usize = 4096;
/// The smallest and largest size; the mean is near 105 bytes.
const SIZES: (f64, f64) = (24.0, 8192.0);

pub(crate) fn alone(settings: &Settings) -> Results {
    let steps = settings.scaled(2_000_000);
    let mut heap = Heap::new(1, settings.scaled(1 << 20), steps / 20);
    let start = Instant::now();
    heap.churn(steps);
    Results::ns(start.elapsed(), steps)
}

pub(crate) fn together(settings: &Settings) -> Results {
    let threads = settings.threads();
    let (slots, steps) = (settings.scaled(1 << 18), settings.scaled(1_500_000));
    let prepare = |seed| Heap::new(seed, slots, steps / 20);
    let (time, _) = team::timed(0..threads as u64, prepare, |heap| heap.churn(steps), drop);
    Results::ns(time, threads * steps)
}

struct Heap {
    rng: fastrand::Rng,
    sizes: Vec<u16>,
    slots: Vec<Option<Block>>,
}

impl Heap {
    /// With every other slot full, and then some steps.
    fn new(seed: u64, slots: usize, steps: usize) -> Heap {
        let mut rng = fastrand::Rng::with_seed(seed);
        let sizes: Vec<u16> = (0..QUANTILES).map(pareto).collect();
        let mut fill = |at| (at % 2 == 0).then(|| block(&mut rng, &sizes));
        let slots: Vec<_> = (0..slots).map(&mut fill).collect();
        let mut heap = Heap { rng, sizes, slots };
        heap.churn(steps);
        heap
    }

    fn churn(&mut self, steps: usize) {
        for _ in 0..steps {
            let at = self.pick();
            if self.slots[at].take().is_none() {
                self.slots[at] = Some(block(&mut self.rng, &self.sizes));
            }
        }
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
fn block(rng: &mut fastrand::Rng, sizes: &[u16]) -> Block {
    Block::written(sizes[rng.usize(0..QUANTILES)].into())
}

/// The size at one of [`QUANTILES`], by Pareto's distribution with the shape of the 80/20 rule, bounded above.
fn pareto(quantile: usize) -> u16 {
    let shape = 5.0f64.ln() / 4.0f64.ln();
    let (least, most) = SIZES;
    let rest = (quantile as f64 + 0.5) / QUANTILES as f64;
    let bounded = rest + (1.0 - rest) * (least / most).powf(shape);
    (least * bounded.powf(-1.0 / shape)) as u16
}
