//! Owns: live samples by their addresses, and sites: what has been allocated by one stack in blocks of one size.
//! Idea: arrays of fixed length, of which only what is used is ever touched. Each change becomes visible by one store,
//!   so that a forked child finds whole whatever another thread was changing. What was live at the peak is kept for each
//!   site when it first changes after it.
//! Never: forgets a site: numbers of them stay what they are.
//! Threads: changes under the room's lock; readers any.
//! Checked: tests/sample/profile.rs
//! Story: docs/guide/profile.md

use super::CHANGING;
use crate::base::random::mixed;
use crate::base::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::os;
use crate::samples::tuning::{PROFILE_CALLS, PROFILE_SAMPLES, PROFILE_SITES};
use core::mem::offset_of;

// Invariants
//  1. A place in a chain is the number of a record plus 1, or 0: the chain ends.
//  2. A record in a chain is complete before the store that puts it there. A sample that is taken out is in the chain of
//     free ones after that, or lost to a fork. Its block is 0 before it is taken out.
//  3. What a site had live at the last peak is `at_peak` if its `peak` is the table's, and else what it has now.

/// What is known of a live sample.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) block: usize,
    pub(crate) asked: usize,
    pub(super) site: u32,
    /// The number plus 1 of the slice in which the block was that it stands in for; 0: it stands in for none.
    near: u32,
    /// When it was allocated, in nanoseconds.
    born: u64,
    /// Which of `LIFETIMES` it has come to, when it has been freed.
    lifetime: usize,
}

impl Sample {
    pub(super) fn new(block: *mut u8, asked: usize, near: u32) -> Sample {
        Sample { block: block.addr(), asked, site: 0, near, born: os::now_ns(), lifetime: 0 }
    }
}

/// A live sample, for whoever reads the profile.
pub(crate) struct Live {
    pub(crate) site: u32,
    pub(crate) asked: usize,
    /// As its site says.
    pub(crate) weighed: usize,
    /// As in `Sample`.
    pub(crate) near: u32,
}

/// How many lifetimes are told apart: below 1 ms, 10 ms, and so on to 1000 s, and others.
const LIFETIMES: usize = 8;

/// Which of them a time is.
fn lifetime(ns: u64) -> usize {
    let mut limit = 1_000_000;
    for nth in 0..LIFETIMES - 1 {
        if ns < limit {
            return nth;
        }
        limit *= 10;
    }
    LIFETIMES - 1
}

/// A sample in the table. Tools read it: `LAYOUT`.
#[repr(C)]
struct Record {
    block: AtomicUsize,
    asked: AtomicUsize,
    born: AtomicU64,
    site: AtomicU32,
    near: AtomicU32,
    next: AtomicU32,
}

const _: () = assert!(size_of::<Record>() <= 40);

/// Blocks, and the bytes that the program has asked for in them.
#[repr(C)]
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

    fn set(&self, amounts: Amounts) {
        self.count.store(amounts.count, Ordering::Relaxed);
        self.bytes.store(amounts.bytes, Ordering::Relaxed);
    }

    fn get(&self) -> Amounts {
        Amounts {
            count: self.count.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// A site in the table. Constant but for the chain, the tallies and the peak. Tools read it: `LAYOUT`.
#[repr(C)]
struct Place {
    next: AtomicU32,
    depth: AtomicU32,
    /// Where its calls begin.
    calls: AtomicUsize,
    weighed: AtomicUsize,
    rate: AtomicUsize,
    allocated: Tally,
    freed: Tally,
    at_peak: Tally,
    /// The number of the peak to which that belongs.
    peak: AtomicUsize,
    /// How many of its samples have lived how long.
    lived: [AtomicU32; LIFETIMES],
}

impl Place {
    fn live(&self) -> Amounts {
        // In this order: what has been freed has been allocated, too.
        let freed = self.freed.get();
        self.allocated.get().without(freed)
    }

    /// About how many blocks a sample stands for, in 256ths: 1 / (1 - exp(-x)), where x is the part of the rate that the block
    /// is. The peak is found by it, and no more. At most 3 % off.
    fn scale(&self) -> usize {
        let x = self.weighed.load(Ordering::Relaxed) as f64
            / self.rate.load(Ordering::Relaxed).max(1) as f64;
        // From 4 on it is 1.02 at most; below, the first terms of a series.
        let blocks = if x < 4.0 { 1.0 / x + 0.5 + x / 12.0 - x * x * x / 720.0 } else { 1.0 };
        (blocks * 256.0) as usize
    }

    /// So many more of its samples have lived so long.
    fn count_lifetime(&self, lifetime: usize, more: i32) {
        if let Some(lived) = self.lived.get(lifetime) {
            // Relaxed, both: under the lock.
            lived.store(lived.load(Ordering::Relaxed).wrapping_add_signed(more), Ordering::Relaxed);
        }
    }

    /// Bytes that a sample stands for, about.
    fn stands_for(&self, asked: usize) -> usize {
        asked.saturating_mul(self.scale()) / 256
    }
}

/// Blocks, and the bytes that the program has asked for in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

impl Amounts {
    fn without(self, other: Amounts) -> Amounts {
        Amounts {
            count: self.count.saturating_sub(other.count),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
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
    /// Those that were live when most bytes were.
    pub(crate) at_peak: Amounts,
    lived: &'a [AtomicU32; LIFETIMES],
    calls: &'a [AtomicUsize],
}

impl Site<'_> {
    /// Return addresses, the innermost first.
    pub(crate) fn calls(&self) -> impl Iterator<Item = usize> {
        self.calls.iter().map(|call| call.load(Ordering::Relaxed))
    }

    /// How many have been freed before they were 1 ms old, then 10 ms, and so on.
    pub(crate) fn lived(&self) -> [u32; LIFETIMES] {
        self.lived.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

const SAMPLE_CHAINS: usize = PROFILE_SAMPLES / 4;
const SITE_CHAINS: usize = PROFILE_SITES;

/// What is known. Tools read it: `LAYOUT`.
#[repr(C)]
pub(super) struct Table {
    /// Samples that have been used ever.
    used: AtomicU32,
    /// A chain of those that are free again.
    free: AtomicU32,
    /// Sites. Whoever sees it sees them.
    sites: AtomicU32,
    /// Calls of all sites.
    calls: AtomicUsize,
    /// Bytes that are live, about, and the most that ever were; how often there have been more than ever. Relaxed, all three:
    /// under the lock.
    live: AtomicUsize,
    most: AtomicUsize,
    peak: AtomicUsize,
    sample_chains: [AtomicU32; SAMPLE_CHAINS],
    site_chains: [AtomicU32; SITE_CHAINS],
    samples: [Record; PROFILE_SAMPLES],
    places: [Place; PROFILE_SITES],
    all_calls: [AtomicUsize; PROFILE_CALLS],
}

/// How tools read a table: the number of this form, then places in it, sizes, and how many there are of each.
pub(super) type Layout = [u32; 12];

pub(super) const LAYOUT: Layout = [
    1,
    offset_of!(Table, sites) as u32,
    offset_of!(Table, places) as u32,
    size_of::<Place>() as u32,
    PROFILE_SITES as u32,
    offset_of!(Table, calls) as u32,
    offset_of!(Table, all_calls) as u32,
    PROFILE_CALLS as u32,
    offset_of!(Table, samples) as u32,
    size_of::<Record>() as u32,
    PROFILE_SAMPLES as u32,
    offset_of!(Table, peak) as u32,
];

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
        record.born.store(sample.born, Ordering::Relaxed);
        record.site.store(sample.site, Ordering::Relaxed);
        record.near.store(sample.near, Ordering::Relaxed);
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
                let sample = Sample {
                    block,
                    asked: record.asked.load(Ordering::Relaxed),
                    site: record.site.load(Ordering::Relaxed),
                    near: record.near.load(Ordering::Relaxed),
                    born: record.born.load(Ordering::Relaxed),
                    lifetime: 0,
                };
                // Release, all: invariant 2.
                record.block.store(0, Ordering::Release);
                link.store(record.next.load(Ordering::Relaxed), Ordering::Release);
                record.next.store(self.free.load(Ordering::Relaxed), Ordering::Release);
                self.free.store(number as u32 + 1, Ordering::Release);
                return Some(sample);
            }
            link = &record.next;
        }
        None
    }

    /// Counts a sample that has been allocated.
    pub(super) fn count_allocated(&self, sample: &Sample) {
        let Some(place) = self.changing(sample) else { return };
        place.allocated.add(sample.asked);
        self.add_live(place.stands_for(sample.asked));
    }

    /// Counts a sample that has been freed.
    pub(super) fn count_freed(&self, sample: &mut Sample) {
        let Some(place) = self.changing(sample) else { return };
        sample.lifetime = lifetime(os::now_ns().saturating_sub(sample.born));
        place.freed.add(sample.asked);
        place.count_lifetime(sample.lifetime, 1);
        let live = self.live.load(Ordering::Relaxed);
        self.live.store(live.saturating_sub(place.stands_for(sample.asked)), Ordering::Relaxed);
    }

    /// Takes back that it was counted so.
    pub(super) fn count_kept(&self, sample: &Sample) {
        let Some(place) = self.changing(sample) else { return };
        place.freed.subtract(sample.asked);
        place.count_lifetime(sample.lifetime, -1);
        self.add_live(place.stands_for(sample.asked));
    }

    /// A sample's site, of which the amounts are about to change: what it had at the peak is kept (invariant 3).
    fn changing(&self, sample: &Sample) -> Option<&Place> {
        let place = self.places.get(sample.site as usize)?;
        let peak = self.peak.load(Ordering::Relaxed);
        if place.peak.load(Ordering::Relaxed) != peak {
            place.at_peak.set(place.live());
            place.peak.store(peak, Ordering::Relaxed);
        }
        Some(place)
    }

    /// Counts bytes that have been allocated. More than ever are a new peak, of which no site has kept anything yet.
    fn add_live(&self, bytes: usize) {
        let live = self.live.load(Ordering::Relaxed).saturating_add(bytes);
        self.live.store(live, Ordering::Relaxed);
        if live > self.most.load(Ordering::Relaxed) {
            self.most.store(live, Ordering::Relaxed);
            self.peak.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All live samples.
    pub(super) fn live(&self) -> impl Iterator<Item = Live> {
        // Acquire: pairs with `take_record`.
        let used = self.used.load(Ordering::Acquire) as usize;
        self.samples.iter().take(used).filter_map(|record| {
            // Acquire: pairs with `remove`.
            let is_live = record.block.load(Ordering::Acquire) != 0;
            let site = record.site.load(Ordering::Relaxed);
            let place = self.places.get(site as usize).filter(|_| is_live)?;
            Some(Live {
                site,
                asked: record.asked.load(Ordering::Relaxed),
                weighed: place.weighed.load(Ordering::Relaxed),
                near: record.near.load(Ordering::Relaxed),
            })
        })
    }

    /// All sites.
    pub(super) fn sites(&self) -> impl Iterator<Item = Site<'_>> {
        // Acquire: pairs with `make_site`.
        let count = self.sites.load(Ordering::Acquire) as usize;
        let peak = self.peak.load(Ordering::Relaxed);
        self.places.iter().take(count).map(move |place| {
            // In this order: what has been freed has been allocated, too.
            let freed = place.freed.get();
            Site {
                weighed: place.weighed.load(Ordering::Relaxed),
                rate: place.rate.load(Ordering::Relaxed),
                allocated: place.allocated.get(),
                freed,
                at_peak: match place.peak.load(Ordering::Relaxed) == peak {
                    true => place.at_peak.get(),
                    false => place.live(),
                },
                lived: &place.lived,
                calls: self.calls_of(place),
            }
        })
    }
}
