//! One thread allocates, another frees: 64 B blocks through a bounded queue of pointers.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::malloc::Block;
use crate::team::{self, Mail};
use std::time::Duration;

/// Blocks in flight at most.
const QUEUE: usize = 4096;
const WARM_UP: usize = 200_000;

pub(crate) const WORKLOADS: &[Workload] = &[Case::new(
    "prodcons",
    Group::Threads,
    "One producer, one consumer, 64 B blocks through a bounded queue.",
    Row::NS_PEAK,
)
.from("malloc-test: Lever and Boreham, USENIX 2000")
.quick(0.3)
.c(run)];

fn run(settings: &Settings) -> Results {
    let blocks = settings.scaled(20_000_000);
    pass(WARM_UP);
    Results::ns(pass(blocks), blocks)
}

/// Hands `blocks` blocks over.
fn pass(blocks: usize) -> Duration {
    let ends = Mail::ring(2, 1, QUEUE).into_iter().zip([blocks, 0]);
    let work = |(mail, to_make): &mut (Mail<Block>, usize)| {
        (0..*to_make).for_each(|_| mail.deliver(0, Block::new(64), drop));
        mail.close(drop);
    };
    team::timed(ends, |end| end, work, drop).0
}
