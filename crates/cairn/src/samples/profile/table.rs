//! Owns: live samples by their addresses, and sites: what has been allocated by one stack in blocks of one size.
//! Idea: arrays of fixed length, of which only what is used is ever touched. Each change becomes visible by one store,
//!   so that a forked child finds whole whatever another thread was changing.
//! Never: forgets a site: numbers of them stay what they are.
//! Threads: changes under the room's lock; readers of sites any.
//! Checked: tests/sample/profile.rs
//! Story: docs/guide/profile.md

use super::CHANGING;
use crate::base::random::mixed;
use crate::base::{AtomicU32, AtomicUsize, Ordering};
use crate::samples::tuning::{PROFILE_CALLS, PROFILE_SAMPLES, PROFILE_SITES};

// Invariants
//  1. A place in a chain is the number of a record plus 1, or 0: the chain ends.
//  2. A record in a chain is complete before the store that puts it there. A sample that is taken out is in the chain of
//     free ones after that, or lost to a fork.

/// What is known of a live sample.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) block: usize,
    pub(crate) asked: usize,
    pub(crate) site: u32,
}

/// A sample in the table.
struct Record {
    block: AtomicUsize,
    asked: AtomicUsize,
    site: AtomicU32,
    next: AtomicU32,
}

const _: () = assert!(size_of::<Record>() <= 40);

/// Blocks, and the bytes that the program has asked for in them.
struct Tally {
    count: AtomicUsize,
    bytes: AtomicUsize,
}

impl Tally {
    // Relaxed: under the lock; a reader takes what it finds.
    fn add(&self, asked: usize) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(asked, Ordering::Relaxed);
    }

    fn subtract(&self, asked: usize) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(asked, Ordering::Relaxed);
    }

    fn get(&self) -> Amounts {
        Amounts {
            count: self.count.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// A site in the table. Constant but for the chain and the tallies.
struct Place {
    next: AtomicU32,
    depth: AtomicU32,
    /// Where its calls begin.
    calls: AtomicUsize,
    weighed: AtomicUsize,
    rate: AtomicUsize,
    allocated: Tally,
    freed: Tally,
}

/// Blocks, and the bytes that the program has asked for in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

/// What has been allocated by one stack in blocks of one size: the samples, of which each stands for
/// 1 / (1 - exp(-weighed / rate)) blocks.
pub(crate) struct Site<'a> {
    /// Bytes as which each of its blocks has been drawn.
    pub(crate) weighed: usize,
    /// Bytes from one sample to the next on average.
    pub(crate) rate: usize,
    /// All of its samples.
    pub(crate) allocated: Amounts,
    /// Those of them that have been freed.
    pub(crate) freed: Amounts,
    calls: &'a [AtomicUsize],
}

impl Site<'_> {
    /// Return addresses, the innermost first.
    pub(crate) fn calls(&self) -> impl Iterator<Item = usize> {
        self.calls.iter().map(|call| call.load(Ordering::Relaxed))
    }
}

const SAMPLE_CHAINS: usize = PROFILE_SAMPLES / 4;
const SITE_CHAINS: usize = PROFILE_SITES;

/// What is known.
pub(super) struct Table {
    /// Samples that have been used ever.
    used: AtomicU32,
    /// A chain of those that are free again.
    free: AtomicU32,
    /// Sites. Whoever sees it sees them.
    sites: AtomicU32,
    /// Calls of all sites.
    calls: AtomicUsize,
    sample_chains: [AtomicU32; SAMPLE_CHAINS],
    site_chains: [AtomicU32; SITE_CHAINS],
    samples: [Record; PROFILE_SAMPLES],
    places: [Place; PROFILE_SITES],
    all_calls: [AtomicUsize; PROFILE_CALLS],
}

/// In a forked child, before it has a second thread.
pub(crate) fn settle_in_child() {
    CHANGING.settle_in_child();
}

/// One of the chains of a hashed number.
fn chain(chains: &[AtomicU32], hash: u64) -> &AtomicU32 {
    &chains[hash as usize % chains.len()]
}

/// Which record a link leads to.
fn follow(link: &AtomicU32) -> Option<usize> {
    (link.load(Ordering::Relaxed) as usize).checked_sub(1)
}

impl Table {
    /// The number of a site, made if need be; None: there is no room.
    pub(super) fn site(&self, calls: &[usize], weighed: usize, rate: usize) -> Option<u32> {
        let depth = calls.iter().position(|&call| call == 0).unwrap_or(calls.len());
        let calls = &calls[..depth];
        let begin = mixed(weighed as u64) ^ rate as u64;
        let hash = calls.iter().fold(begin, |hash, &call| mixed(hash ^ call as u64));
        let first = chain(&self.site_chains, hash);
        let mut link = first;
        while let Some(number) = follow(link) {
            let place = self.places.get(number)?;
            if self.is(place, calls, weighed, rate) {
                return Some(number as u32);
            }
            link = &place.next;
        }
        self.make_site(first, calls, weighed, rate)
    }

    /// Whether it is the site of those calls, that size and rate.
    fn is(&self, place: &Place, calls: &[usize], weighed: usize, rate: usize) -> bool {
        place.weighed.load(Ordering::Relaxed) == weighed
            && place.rate.load(Ordering::Relaxed) == rate
            && self
                .calls_of(place)
                .iter()
                .map(|call| call.load(Ordering::Relaxed))
                .eq(calls.iter().copied())
    }

    fn calls_of(&self, place: &Place) -> &[AtomicUsize] {
        let from = place.calls.load(Ordering::Relaxed);
        let depth = place.depth.load(Ordering::Relaxed) as usize;
        self.all_calls.get(from..from + depth).unwrap_or(&[])
    }

    fn make_site(
        &self,
        first: &AtomicU32,
        calls: &[usize],
        weighed: usize,
        rate: usize,
    ) -> Option<u32> {
        let number = self.sites.load(Ordering::Relaxed);
        let place = self.places.get(number as usize)?;
        let from = self.calls.load(Ordering::Relaxed);
        let room = self.all_calls.get(from..from + calls.len())?;
        room.iter().zip(calls).for_each(|(to, &call)| to.store(call, Ordering::Relaxed));
        place.depth.store(calls.len() as u32, Ordering::Relaxed);
        place.calls.store(from, Ordering::Relaxed);
        place.weighed.store(weighed, Ordering::Relaxed);
        place.rate.store(rate, Ordering::Relaxed);
        place.next.store(first.load(Ordering::Relaxed), Ordering::Relaxed);
        self.calls.store(from + calls.len(), Ordering::Relaxed);
        // Release, both: who finds the site finds it complete. In this order: a number that a child finds used is not
        // used again, whether the chain has it or not.
        self.sites.store(number + 1, Ordering::Release);
        first.store(number + 1, Ordering::Release);
        Some(number)
    }

    /// Puts a sample into the table; false if there is no room.
    pub(super) fn insert(&self, sample: Sample) -> bool {
        let Some((number, record)) = self.take_record() else { return false };
        let first = chain(&self.sample_chains, mixed(sample.block as u64));
        record.block.store(sample.block, Ordering::Relaxed);
        record.asked.store(sample.asked, Ordering::Relaxed);
        record.site.store(sample.site, Ordering::Relaxed);
        record.next.store(first.load(Ordering::Relaxed), Ordering::Relaxed);
        // Release: a child that finds the sample finds it complete.
        first.store(number as u32 + 1, Ordering::Release);
        true
    }

    fn take_record(&self) -> Option<(usize, &Record)> {
        if let Some(number) = follow(&self.free) {
            let record = self.samples.get(number)?;
            self.free.store(record.next.load(Ordering::Relaxed), Ordering::Release);
            return Some((number, record));
        }
        let number = self.used.load(Ordering::Relaxed) as usize;
        let record = self.samples.get(number)?;
        self.used.store(number as u32 + 1, Ordering::Release);
        Some((number, record))
    }

    /// Takes the sample out whose block starts there, if there is one.
    pub(super) fn remove(&self, block: usize) -> Option<Sample> {
        let mut link = chain(&self.sample_chains, mixed(block as u64));
        while let Some(number) = follow(link) {
            let record = self.samples.get(number)?;
            if record.block.load(Ordering::Relaxed) == block {
                let asked = record.asked.load(Ordering::Relaxed);
                let site = record.site.load(Ordering::Relaxed);
                // Release, both: invariant 2.
                link.store(record.next.load(Ordering::Relaxed), Ordering::Release);
                record.next.store(self.free.load(Ordering::Relaxed), Ordering::Release);
                self.free.store(number as u32 + 1, Ordering::Release);
                return Some(Sample { block, asked, site });
            }
            link = &record.next;
        }
        None
    }

    /// Counts a sample that has been allocated.
    pub(super) fn count_allocated(&self, sample: Sample) {
        let place = self.places.get(sample.site as usize);
        place.inspect(|place| place.allocated.add(sample.asked));
    }

    /// Counts a sample that has been freed.
    pub(super) fn count_freed(&self, sample: Sample) {
        let place = self.places.get(sample.site as usize);
        place.inspect(|place| place.freed.add(sample.asked));
    }

    /// Takes back that it was counted so.
    pub(super) fn count_kept(&self, sample: Sample) {
        let place = self.places.get(sample.site as usize);
        place.inspect(|place| place.freed.subtract(sample.asked));
    }

    /// All sites.
    pub(super) fn sites(&self) -> impl Iterator<Item = Site<'_>> {
        // Acquire: pairs with `make_site`.
        let count = self.sites.load(Ordering::Acquire) as usize;
        self.places.iter().take(count).map(|place| {
            // In this order: what has been freed has been allocated, too.
            let freed = place.freed.get();
            Site {
                weighed: place.weighed.load(Ordering::Relaxed),
                rate: place.rate.load(Ordering::Relaxed),
                allocated: place.allocated.get(),
                freed,
                calls: self.calls_of(place),
            }
        })
    }
}
