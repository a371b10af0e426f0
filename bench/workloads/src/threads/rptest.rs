//! A loop frees a part of a thread's blocks, scattered over the set, and fills or replaces another
//! part; every second loop also allocates a few blocks that the next thread frees.

use crate::case::{Case, Results, Settings, Workload};
use crate::malloc::Block;
use crate::team::{self, Mail};
use std::time::Duration;

const SIZES: std::ops::RangeInclusive<usize> = 16..=16_000;
/// Places for blocks in a thread.
const PLACES: usize = 3000;
/// Blocks freed in a loop, and then allocated; they lie [`STRIDE`] places apart.
const PER_LOOP: usize = 100;
/// Coprime to [`PLACES`]: in time every place comes up.
const STRIDE: usize = 1009;
/// Blocks handed over in every second loop.
const HANDED: usize = 50;
/// Blocks on the way to a thread at most.
const INBOX: usize = 800;
/// Loops of all threads at scale 1.
const LOOPS: usize = 30_000;

pub(crate) const WORKLOADS: &[Workload] = &[Case::threads(
    "rptest",
    "Threads each keep thousands of blocks of 16-16,000 B, the larger the rarer; a fifth of all \
     is freed by the next thread.",
)
.from("rpmalloc-benchmark, Jansson, 2017")
.quick(0.2)
.c(run)];

fn run(settings: &Settings) -> Results {
    let threads = settings.threads();
    let loops = settings.scaled(LOOPS).div_ceil(threads);
    Results::ns(time(threads, loops), threads * (loops * PER_LOOP + loops.div_ceil(2) * HANDED))
}

struct Member {
    rng: fastrand::Rng,
    places: Vec<Option<Block>>,
    mail: Mail<Block>,
    received: usize,
}

/// The time of `loops` loops in every thread.
fn time(threads: usize, loops: usize) -> Duration {
    let mail = Mail::ring(threads, 1, INBOX).into_iter().enumerate();
    let (time, received) =
        team::timed(mail, Member::new, |member| member.work(loops), |member| member.received);
    let handed = threads * loops.div_ceil(2) * HANDED;
    assert_eq!(received.iter().sum::<usize>(), handed, "blocks were lost");
    time
}

impl Member {
    fn new((me, mail): (usize, Mail<Block>)) -> Member {
        let mut rng = fastrand::Rng::with_seed(me as u64);
        let places = (0..PLACES).map(|_| Some(block(&mut rng))).collect();
        Member { rng, places, mail, received: 0 }
    }

    fn work(&mut self, loops: usize) {
        let Member { rng, places, mail, received } = self;
        for turn in 0..loops {
            mail.receive(|_| *received += 1);
            let first = rng.usize(0..PLACES);
            for nth in 0..PER_LOOP {
                places[(first + nth * STRIDE) % PLACES] = None;
            }
            let first = rng.usize(0..PLACES);
            for nth in 0..PER_LOOP {
                places[(first + nth * STRIDE) % PLACES] = Some(block(rng));
            }
            for _ in 0..if turn % 2 == 0 { HANDED } else { 0 } {
                mail.deliver(0, block(rng), |_| *received += 1);
            }
        }
        mail.close(|_| *received += 1);
    }
}

/// The smaller of two sizes: the density falls linearly to nothing at the largest size.
fn block(rng: &mut fastrand::Rng) -> Block {
    Block::paged(rng.usize(SIZES).min(rng.usize(SIZES)))
}
