//! The benchmark of rpmalloc, after its description: every thread holds 3,000 blocks of
//! 16-16,000 B, the larger the rarer. A loop frees a part, scattered over the set, and
//! fills or replaces another part; every second loop also allocates a few blocks that the
//! next thread frees.

use super::post::Post;
use super::team;
use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::malloc::Block;

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

/// The case.
pub const WORKLOADS: &[Workload] = &[Case::new(
    "rptest",
    Group::Threads,
    "Threads each keep thousands of blocks of 16-16,000 B, the larger the rarer; a fifth of all \
     is freed by the next thread.",
    Row::NS_PEAK,
)
.from("rpmalloc-benchmark, Jansson, 2017")
.quick(0.2)
.c(run)];

type Tagged = (Block, u64);

fn run(settings: &Settings) -> Results {
    let threads = settings.threads();
    let loops = settings.scaled(LOOPS).div_ceil(threads);
    let (ns, allocated) = loops_of(threads, loops);
    Results::of([("ns", ns / allocated as f64)])
}

struct Member {
    me: usize,
    rng: fastrand::Rng,
    places: Vec<Option<Tagged>>,
    outgoing: Vec<Tagged>,
    arrived: Vec<Tagged>,
    next_tag: u64,
    freed: u64,
}

/// Nanoseconds and the number of blocks of `loops` loops in every thread.
fn loops_of(threads: usize, loops: usize) -> (f64, u64) {
    let post = Post::new(threads, INBOX);
    let (time, counts) = team::timed(
        threads,
        Member::new,
        |me, member| {
            let allocated = member.next_tag;
            for turn in 0..loops {
                member.receive(&post);
                member.one_loop();
                if turn % 2 == 0 {
                    member.hand_over(&post, (me + 1) % threads);
                }
            }
            post.close(|| member.receive(&post));
            member.next_tag -= allocated;
        },
        |_, mut member| {
            for place in std::mem::take(&mut member.places) {
                member.free(place);
            }
            (member.next_tag, member.freed)
        },
    );
    let allocated = counts.iter().map(|count| count.0).sum();
    let freed = counts.iter().map(|count| count.1).sum::<u64>();
    // Those that filled the places before the clock ran are not counted as allocated.
    assert_eq!(allocated + (threads * PLACES) as u64, freed, "blocks were lost");
    (time.as_nanos() as f64, allocated)
}

impl Member {
    fn new(me: usize) -> Member {
        let mut member = Member {
            me,
            rng: fastrand::Rng::with_seed(me as u64),
            places: Vec::with_capacity(PLACES),
            outgoing: Vec::with_capacity(HANDED),
            arrived: Vec::with_capacity(INBOX),
            next_tag: 0,
            freed: 0,
        };
        for _ in 0..PLACES {
            let block = member.allocate();
            member.places.push(Some(block));
        }
        member
    }

    fn allocate(&mut self) -> Tagged {
        // The smaller of two: the density falls linearly to nothing at the largest size.
        let size = self.rng.usize(SIZES).min(self.rng.usize(SIZES));
        let tag = (self.me as u64) << 48 | self.next_tag;
        self.next_tag += 1;
        (Block::paged(size, tag), tag)
    }

    fn free(&mut self, block: Option<Tagged>) {
        if let Some((block, tag)) = block {
            block.free(tag);
            self.freed += 1;
        }
    }

    fn one_loop(&mut self) {
        let mut at = self.rng.usize(0..PLACES);
        for _ in 0..PER_LOOP {
            let old = self.places[at].take();
            self.free(old);
            at = (at + STRIDE) % PLACES;
        }
        let mut at = self.rng.usize(0..PLACES);
        for _ in 0..PER_LOOP {
            let fresh = self.allocate();
            let old = self.places[at].replace(fresh);
            self.free(old);
            at = (at + STRIDE) % PLACES;
        }
    }

    fn hand_over(&mut self, post: &Post<Tagged>, to: usize) {
        for _ in 0..HANDED {
            let block = self.allocate();
            self.outgoing.push(block);
        }
        let mut outgoing = std::mem::take(&mut self.outgoing);
        post.send(to, &mut outgoing, || self.receive(post));
        self.outgoing = outgoing;
    }

    /// Frees what the thread before sent.
    fn receive(&mut self, post: &Post<Tagged>) {
        post.receive(self.me, &mut self.arrived);
        self.freed += self.arrived.len() as u64;
        for (block, tag) in self.arrived.drain(..) {
            block.free(tag);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_loop_allocates_its_share() {
        assert_eq!(super::loops_of(2, 10).1, 2 * (10 * 100 + 5 * 50));
        assert_eq!(super::loops_of(1, 2).1, 2 * 100 + 50);
    }
}
