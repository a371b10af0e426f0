//! 10,000 blocks are allocated, then freed: in order, in reverse, or shuffled.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::clock::per_op;
use crate::malloc::Block;
use crate::random::SMALL;

const BLOCKS: usize = 10_000;

/// The cases.
pub const WORKLOADS: &[Workload] = &[
    case("batch-fifo", "10,000 x 64 B, freed in the order of allocation", |s| run(s, Order::Fifo)),
    case("batch-lifo", "10,000 x 64 B, freed in reverse", |s| run(s, Order::Lifo)),
    case("batch-random", "10,000 x 64 B, freed in random order", |s| run(s, Order::Random)),
    case("batch-mixed", "10,000 x 16-1024 B, freed in random order", |s| run(s, Order::Mixed)),
];

const fn case(name: &'static str, about: &'static str, run: fn(&Settings) -> Results) -> Workload {
    Case::new(name, Group::Single, about, Row::NS_PEAK).quick(0.3).c(run)
}

#[derive(Clone, Copy)]
enum Order {
    Fifo,
    Lifo,
    Random,
    /// Random order, random sizes.
    Mixed,
}

fn run(settings: &Settings, order: Order) -> Results {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut free_order: Vec<u32> = (0..BLOCKS as u32).collect();
    match order {
        Order::Fifo => {}
        Order::Lifo => free_order.reverse(),
        Order::Random | Order::Mixed => rng.shuffle(&mut free_order),
    }
    let sizes: Vec<u32> = (0..BLOCKS)
        .map(|_| if let Order::Mixed = order { rng.usize(SMALL) as u32 } else { 64 })
        .collect();
    let mut blocks: Vec<Option<Block>> = (0..BLOCKS).map(|_| None).collect();
    let time = per_op(settings, BLOCKS as u64, || {
        for (tag, (slot, &size)) in blocks.iter_mut().zip(&sizes).enumerate() {
            *slot = Some(Block::new(size as usize, tag as u64));
        }
        for &at in &free_order {
            blocks[at as usize].take().expect("allocated above").free(at.into());
        }
    });
    Results::of([("ns", time.ns), ("cpu_ns", time.cpu_ns)])
}
