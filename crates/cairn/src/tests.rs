//! Failing system calls: the Nth one fails, for N = 0, 1, 2, ... until a scenario ends without
//! reaching it; once alone, and once with all later ones.
//!
//! Each attempt is a process of its own, so that N counts from the first call that the allocator
//! makes at all, its start included. `CAIRN_FAULT=growers:3:from` names one; the message of a
//! failed attempt is the command that repeats it.

#[cfg(test)]
mod alone;
#[cfg(test)]
mod arena;
#[cfg(test)]
mod batches;
#[cfg(test)]
mod cadence;
#[cfg(test)]
mod canary;
#[cfg(test)]
mod choices;
#[cfg(test)]
mod closed;
#[cfg(test)]
mod counts;
#[cfg(test)]
mod deferred;
#[cfg(test)]
mod density;
#[cfg(test)]
mod empty;
#[cfg(test)]
mod exits;
#[cfg(test)]
mod forks;
#[cfg(test)]
mod grace;
#[cfg(test)]
mod guards;
#[cfg(test)]
mod hand_over;
#[cfg(test)]
mod hardened_nursery;
#[cfg(test)]
mod heap;
#[cfg(test)]
mod heaps;
#[cfg(test)]
mod holes;
#[cfg(test)]
mod huge;
#[cfg(test)]
mod idle;
#[cfg(test)]
mod interface;
#[cfg(test)]
mod keeping;
#[cfg(test)]
mod large;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod lock;
#[cfg(test)]
mod mappings;
#[cfg(test)]
mod misuse;
#[cfg(test)]
mod nursery;
#[cfg(test)]
mod partitions;
#[cfg(test)]
mod purges;
#[cfg(test)]
mod quarantine;
#[cfg(test)]
mod region;
#[cfg(test)]
mod remote;
#[cfg(test)]
mod reservation;
#[cfg(test)]
mod rooms;
#[cfg(test)]
mod sample;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod shared;
#[cfg(test)]
mod sizes;
#[cfg(test)]
mod span;
#[cfg(test)]
mod twice;
#[cfg(test)]
mod visit;

use crate::base::{CANARY_BYTES, HARDENED, SLICE_SIZE};
use crate::map::address_map;
use crate::os::fault;
use crate::slices::fences;
use crate::{
    Stats, allocate, allocate_aligned, allocate_zeroed, check, deallocate, purge, reallocate,
    usable_size,
};
use scenarios::{SCENARIOS, threads};
use std::format;
use std::string::{String, ToString};
use std::sync::atomic::Ordering;
use std::vec::Vec;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// What a program asks for that is to fill a block of so many bytes.
const fn filling(block_bytes: usize) -> usize {
    block_bytes - CANARY_BYTES
}

/// More calls than any scenario makes: a loop that does not end is a failure, not a wait.
const CALLS_MAX: usize = 3000;
/// The call after one of many: the first ones each, then ever fewer.
const THINNING: fn(usize) -> usize = |nth| nth + 1 + nth / 8;
/// After this an attempt counts as hung.
const HUNG_AFTER_SECONDS: u32 = 300;

/// Which call is to fail.
#[derive(Clone, Copy, Debug)]
struct Plan {
    nth: usize,
    sticky: bool,
}

/// A block and what was written to it.
#[derive(Debug)]
struct Held {
    block: *mut u8,
    size: usize,
    seed: u8,
    /// Between marks. Large where a block is not to become resident.
    step: usize,
}

impl Held {
    fn places(&self, from: usize, to: usize) -> impl Iterator<Item = usize> + use<> {
        let (size, step) = (self.size, self.step);
        (from.next_multiple_of(step)..to.min(size)).step_by(step)
    }

    fn mark(&self, at: usize) -> u8 {
        self.seed ^ (at ^ at >> 8 ^ at >> 16) as u8
    }

    fn fill(&self, from: usize) {
        for at in self.places(from, self.size) {
            // SAFETY: inside the block.
            unsafe { self.block.add(at).write(self.mark(at)) };
        }
    }

    fn verify(&self, from: usize, to: usize) {
        for at in self.places(from, to) {
            // SAFETY: inside the block.
            let got = unsafe { self.block.add(at).read() };
            assert_eq!(got, self.mark(at), "{self:?} at {at}");
        }
    }
}

/// One attempt: what is live, and what has failed.
struct Attempt {
    plan: Plan,
    live: Vec<Held>,
    requests: usize,
    fired: bool,
}

impl Attempt {
    fn new(plan: Plan) -> Attempt {
        fault::arm(plan.nth, plan.sticky);
        Attempt { plan, live: Vec::new(), requests: 0, fired: false }
    }

    /// Looks at everything after a request has answered null, as it may only if the call that
    /// was to fail has been reached; goes on failing then if that is the plan.
    fn failed(&mut self, size: usize) {
        let reached = fault::disarm();
        assert!(reached || self.fired, "{size} bytes are refused without a reason");
        assert!(!self.fired || self.plan.sticky, "{size} bytes are refused once more");
        self.fired = true;
        check();
        self.verify();
        let smaller = allocate(size / 2);
        assert!(!smaller.is_null(), "{} bytes after {size} were refused", size / 2);
        // SAFETY: allocated just now.
        unsafe { deallocate(smaller) };
        if self.plan.sticky {
            fault::arm(0, true);
        }
    }

    fn verify(&self) {
        for held in &self.live {
            held.verify(0, held.size);
        }
    }

    /// Keeps what a request has answered; tries again, once, if that is null.
    fn take(&mut self, size: usize, step: usize, request: impl Fn() -> *mut u8) -> bool {
        self.requests += 1;
        let mut block = request();
        if block.is_null() {
            self.failed(size);
            block = request();
        }
        if block.is_null() {
            // Only while all calls fail.
            self.failed(size);
            return false;
        }
        // SAFETY: a live block.
        assert!(unsafe { usable_size(block) } >= size);
        let held = Held { block, size, seed: self.requests as u8, step };
        held.fill(0);
        self.live.push(held);
        true
    }

    fn allocate(&mut self, size: usize) -> bool {
        self.take(size, step_for(size), || allocate(size))
    }

    fn allocate_aligned(&mut self, size: usize, align: usize) -> bool {
        self.take(size, step_for(size), || {
            let block = allocate_aligned(size, align);
            assert_eq!(block.addr() % align, 0);
            block
        })
    }

    fn allocate_zeroed(&mut self, size: usize) -> bool {
        self.take(size, step_for(size), || {
            let block = allocate_zeroed(size);
            // SAFETY: a live block has that many bytes.
            let zero = block.is_null() || unsafe { all_zero(block, size) };
            assert!(zero, "{size} bytes are not zero");
            block
        })
    }

    /// Resizes block number `at`; false, with the block as it was, if that fails for good.
    fn reallocate(&mut self, at: usize, size: usize) -> bool {
        let resize = |held: &Held| {
            // SAFETY: a live block.
            let block = unsafe { reallocate(held.block, size) };
            (!block.is_null()).then_some(block)
        };
        let mut resized = resize(&self.live[at]);
        if resized.is_none() {
            self.failed(size);
            resized = resize(&self.live[at]);
        }
        let Some(block) = resized else {
            self.failed(size);
            return false;
        };
        let held = &mut self.live[at];
        let (moved, kept) = (block != held.block, held.size.min(size));
        held.block = block;
        held.size = size;
        // A block that stayed where it was need not be read as a whole each time.
        held.verify(if moved { 0 } else { kept.saturating_sub(8 * KIB) }, kept);
        held.fill(kept);
        // SAFETY: a live block.
        assert!(unsafe { usable_size(block) } >= size);
        true
    }

    fn free(&mut self, at: usize) {
        let held = self.live.swap_remove(at);
        held.verify(0, held.size);
        // SAFETY: a live block.
        unsafe { deallocate(held.block) };
    }

    fn free_all(&mut self) {
        // Neither the order of allocation nor its reverse.
        while !self.live.is_empty() {
            let at = self.live.len() * 5 / 8;
            self.free(at);
        }
    }

    /// Ends the attempt: with nothing failing any more all is well, and nothing is left over.
    fn end(mut self) -> bool {
        let reached = fault::disarm() || self.fired;
        check();
        self.verify();
        let sizes = [1, 100, 3000, 40 * KIB, 300 * KIB, 5 * MIB, 20 * MIB];
        for size in sizes {
            let block = allocate_zeroed(size);
            // SAFETY: a live block has that many bytes.
            assert!(!block.is_null() && unsafe { all_zero(block, size) }, "{size} afterwards");
            self.live.push(Held { block, size, seed: 7, step: step_for(size) });
            self.live[self.live.len() - 1].fill(0);
        }
        self.free_all();
        purge();
        check();
        assert_nothing_is_left();
        reached
    }
}

/// Marks are closer than a page up to 4 MiB, and a few thousand beyond.
fn step_for(size: usize) -> usize {
    ((size / 4096) | 1).clamp(509, 16 * KIB)
}

unsafe fn all_zero(block: *const u8, size: usize) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    // SAFETY: the block has that many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(block, size) };
    bytes.chunks(ZEROS.len()).all(|chunk| chunk == &ZEROS[..chunk.len()])
}

/// Every slice is free and given back, and nothing counts as in use.
fn assert_nothing_is_left() {
    let stats = Stats::take();
    for row in &stats.classes {
        assert_eq!((row.spans, row.in_use, row.cached), (0, 0, 0), "{row:?}");
    }
    assert_eq!((stats.large_blocks, stats.mapping_blocks, stats.allocated()), (0, 0, 0));
    assert_eq!(stats.dirty.bytes, 0);
    let slices = address_map::committed();
    // Hardened, a run whose guards the system does not take away is in no use any more.
    let lost = fences::LOST.load(Ordering::Relaxed);
    assert_eq!(stats.clean, (slices - lost) * SLICE_SIZE, "slices are lost");
}

/// One attempt; not a test by itself.
#[test]
#[ignore = "run by the tests below, each time in a new process"]
fn attempt() {
    let Ok(spec) = std::env::var("CAIRN_FAULT") else { return };
    // SAFETY: no preconditions.
    unsafe { libc::alarm(HUNG_AFTER_SECONDS) };
    let mut parts = spec.split(':');
    let (name, nth, mode) = (parts.next(), parts.next(), parts.next());
    let nth = nth.and_then(|n| n.parse().ok()).expect("a number");
    let plan = Plan { nth, sticky: mode == Some("from") };
    let reached = if name == Some("threads") {
        let mut attempt = Attempt::new(plan);
        fault::disarm();
        threads(&mut attempt);
        attempt.end()
    } else {
        let found = SCENARIOS.iter().find(|(known, _)| Some(*known) == name);
        let (_, scenario) = found.expect("a scenario");
        let mut attempt = Attempt::new(plan);
        scenario(&mut attempt);
        attempt.end()
    };
    std::println!("the call was reached: {reached}");
}

/// Whether the attempt reached the call that was to fail.
fn run(name: &str, plan: Plan) -> bool {
    let spec = format!("{name}:{}:{}", plan.nth, if plan.sticky { "from" } else { "once" });
    let mut command = alone::only("tests::attempt");
    command.arg("--include-ignored").env("CAIRN_FAULT", &spec);
    let output = command.output().expect("this program starts");
    let said = String::from_utf8_lossy(&output.stdout).to_string();
    assert!(
        output.status.success(),
        "CAIRN_FAULT={spec} cargo test -p cairn-malloc --lib -- --exact tests::attempt \
         --include-ignored --nocapture\n{}\n{said}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr),
    );
    let word = said.lines().find_map(|line| line.rsplit_once("the call was reached: "));
    word.map(|(_, word)| word == "true").expect("a word about it")
}

/// Fails each call of a scenario.
fn fail_each_call(name: &str) {
    fail_calls(name, |nth| nth + 1);
}

/// Fails the first call of a scenario, then the one `after` it, and so on.
fn fail_calls(name: &str, after: fn(usize) -> usize) {
    for sticky in [false, true] {
        let end = std::iter::successors(Some(0), |&nth| Some(after(nth)))
            .take_while(|&nth| nth < CALLS_MAX)
            .find(|&nth| !run(name, Plan { nth, sticky }));
        let calls = end.expect("the scenario ends");
        assert!(calls > 0, "{name} makes no system call");
        std::println!("{name}: {calls} calls, sticky: {sticky}");
    }
}

/// Soon done: without a fault, every scenario leaves nothing behind.
#[test]
fn scenarios_without_faults() {
    for name in SCENARIOS.iter().map(|(name, _)| *name).chain(["threads"]) {
        assert!(!run(name, Plan { nth: CALLS_MAX, sticky: false }), "{name} makes many calls");
    }
}

#[test]
fn faults_at_the_start() {
    fail_each_call("first");
    fail_each_call("first_zeroed");
    fail_each_call("first_large");
    fail_each_call("first_mapping");
}

#[test]
fn faults_in_spans_and_runs() {
    fail_each_call("classes");
    fail_each_call("runs");
}

#[test]
fn faults_in_mappings() {
    fail_each_call("mappings");
}

#[test]
fn faults_in_the_table_of_mappings() {
    // The calls at its begin and end are the same as of few mappings.
    for sticky in [false, true] {
        for nth in (0..CALLS_MAX).step_by(7) {
            if !run("many_mappings", Plan { nth, sticky }) {
                break;
            }
        }
    }
    for nth in 160..200 {
        run("many_mappings", Plan { nth, sticky: false });
    }
}

#[test]
fn faults_in_aligned_blocks() {
    fail_each_call("aligned");
}

#[test]
fn faults_in_zeroed_blocks() {
    fail_each_call("zeroed");
}

#[test]
fn faults_in_growing_blocks() {
    fail_calls("growers", THINNING);
    fail_calls("movers", THINNING);
}

#[test]
fn faults_in_a_block_that_grows_by_steps() {
    fail_calls("stepwise_grower", THINNING);
}

#[test]
fn faults_in_shrinking_blocks() {
    fail_each_call("shrinkers");
}

#[test]
fn faults_in_giving_back() {
    fail_calls("purges", THINNING);
    fail_calls("bursts", |nth| 2 * nth + 1);
}

#[test]
#[ignore = "minutes: cargo test --profile library -p cairn-malloc --lib -- --ignored every_fault"]
fn every_fault_of_many() {
    ["growers", "movers", "stepwise_grower", "purges", "heaps"]
        .into_iter()
        .for_each(fail_each_call);
}

#[test]
fn faults_in_heaps() {
    fail_calls("heaps", THINNING);
}

#[test]
fn faults_in_regions() {
    // The hardened build has none.
    if !HARDENED {
        fail_each_call("regions");
    }
}

#[test]
fn faults_in_threads() {
    fail_each_call("threads");
}
