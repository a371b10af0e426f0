//! What a program does while system calls fail. The table names each scenario; `threads` stands
//! apart, as faults belong to a thread.

use super::{Attempt, Held, KIB, MIB, filling};
use crate::base::{CLASSES, HARDENED, SLICE_SIZE};
use crate::map::address_map;
use crate::os::fault;
use crate::{HeapId, RegionCalls, RegionError, RegionId, allocate, check, deallocate, purge};
use std::vec::Vec;

pub(super) type Scenario = fn(&mut Attempt);

pub(super) const SCENARIOS: [(&str, Scenario); 18] = [
    ("first", first),
    ("first_zeroed", first_zeroed),
    ("first_large", first_large),
    ("first_mapping", first_mapping),
    ("classes", classes),
    ("runs", runs),
    ("mappings", mappings),
    ("many_mappings", many_mappings),
    ("aligned", aligned),
    ("zeroed", zeroed),
    ("growers", growers),
    ("stepwise_grower", stepwise_grower),
    ("movers", movers),
    ("shrinkers", shrinkers),
    ("purges", purges),
    ("bursts", bursts),
    ("heaps", heaps),
    ("regions", regions),
];

/// One allocation: all of the start.
fn first(attempt: &mut Attempt) {
    attempt.allocate(24);
}

fn first_zeroed(attempt: &mut Attempt) {
    attempt.allocate_zeroed(24);
}

/// The same, of a block that needs no span.
fn first_large(attempt: &mut Attempt) {
    attempt.allocate(200 * KIB);
}

fn first_mapping(attempt: &mut Attempt) {
    attempt.allocate(33 * MIB);
}

/// Blocks of all classes, of the smaller ones several spans.
fn classes(attempt: &mut Attempt) {
    for class in &CLASSES {
        let size = filling(class.size as usize);
        let count = if size <= KIB { usize::from(class.blocks) + 1 } else { 2 };
        for _ in 0..count {
            if !attempt.allocate(size) {
                break;
            }
        }
    }
}

fn runs(attempt: &mut Attempt) {
    for _ in 0..12 {
        attempt.allocate(MIB);
    }
    for at in [7, 3, 1] {
        if at < attempt.live.len() {
            attempt.free(at);
        }
    }
    attempt.allocate(3 * MIB);
    attempt.allocate(7 * MIB);
}

/// Mappings.
fn mappings(attempt: &mut Attempt) {
    for size in [40 * MIB, 33 * MIB, 40 * MIB] {
        attempt.allocate(size);
    }
    if !attempt.live.is_empty() {
        attempt.free(0);
    }
    attempt.allocate(35 * MIB);
    attempt.allocate(64 * MIB);
}

/// As many mappings as make their table grow.
fn many_mappings(attempt: &mut Attempt) {
    for _ in 0..180 {
        let size = 33 * MIB;
        // Marked at one place: they are many.
        if !attempt.take(size, size, || allocate(size)) {
            break;
        }
    }
}

fn aligned(attempt: &mut Attempt) {
    for (size, align) in [
        (100, 64),
        (100, 8 * KIB),
        (100, 64 * KIB),
        (100 * KIB, MIB),
        (100, 4 * MIB),
        (MIB, 4 * MIB),
        (40 * MIB, 4 * MIB),
        (33 * MIB, 64 * KIB),
    ] {
        attempt.allocate_aligned(size, align);
    }
}

/// Zeroed memory that was not zero before, given back to the system or not.
fn zeroed(attempt: &mut Attempt) {
    let sizes = [48, 1000, 5000, 60 * KIB, 150 * KIB, 2 * MIB, 12 * MIB];
    for round in 0..3 {
        for size in sizes {
            attempt.allocate(size);
        }
        attempt.free_all();
        if round > 0 {
            purge();
        }
        for size in sizes {
            attempt.allocate_zeroed(size);
        }
        attempt.free_all();
    }
}

/// Two blocks that grow by turns, so that neither always finds room behind itself.
fn growers(attempt: &mut Attempt) {
    if !attempt.allocate(16) || !attempt.allocate(16) {
        return;
    }
    // On every fourth page, which is enough to notice one that is lost or comes from elsewhere.
    attempt.live.iter_mut().for_each(|held| held.step = 16381);
    let mut size = 32;
    while size <= 64 * MIB {
        let grown = attempt.reallocate(0, size) & attempt.reallocate(1, size);
        if !grown {
            break;
        }
        size *= 2;
    }
}

fn stepwise_grower(attempt: &mut Attempt) {
    if !attempt.allocate(16) {
        return;
    }
    attempt.live[0].step = 16381;
    let mut size = 16;
    while size < 64 * MIB {
        size += 4 * KIB;
        if !attempt.reallocate(0, size) {
            break;
        }
    }
}

/// Blocks of all kinds grow to all kinds, with a neighbour in the way.
fn movers(attempt: &mut Attempt) {
    for (from, to) in [
        (100, 33 * MIB),
        (50 * KIB, 300 * KIB),
        (200 * KIB, 5 * MIB),
        (MIB, 20 * MIB),
        (7 * MIB, 15 * MIB),
        (7 * MIB, 60 * MIB),
        (33 * MIB, 40 * MIB),
        (40 * MIB, 90 * MIB),
    ] {
        let at = attempt.live.len();
        if attempt.allocate(from) && attempt.allocate(100 * KIB) {
            attempt.reallocate(at, to);
        }
    }
}

fn shrinkers(attempt: &mut Attempt) {
    for from in [64 * MIB, 6 * MIB, 40 * KIB] {
        let at = attempt.live.len();
        if !attempt.allocate(from) {
            continue;
        }
        let mut size = from;
        while size > 16 {
            size = size * 2 / 3;
            attempt.reallocate(at, size);
        }
    }
}

/// Frees and gives back, in parts and all.
fn purges(attempt: &mut Attempt) {
    for round in 0..3 {
        for size in [40, 700, 3000, 30 * KIB, 100 * KIB, MIB, 33 * MIB] {
            for _ in 0..if size < MIB { 40 } else { 3 } {
                attempt.allocate(size);
            }
        }
        let mut at = round;
        while at < attempt.live.len() {
            attempt.free(at);
            at += 1;
        }
        purge();
        attempt.verify();
        attempt.free_all();
        purge();
    }
    // More than may lie dirty: the release itself gives back.
    for _ in 0..12 {
        attempt.allocate(7 * MIB);
    }
    attempt.free_all();
}

/// A burst of which a few blocks survive; what is free around them goes back, and is needed again.
fn bursts(attempt: &mut Attempt) {
    // So much that heaps look for pages around survivors.
    for _ in 0..600 {
        attempt.allocate(60 * KIB);
    }
    attempt.free_all();
    for _ in 0..6000 {
        attempt.allocate(KIB);
    }
    // One of 64 side by side stays.
    for at in (0..attempt.live.len()).rev().filter(|at| at % 64 > 0) {
        attempt.free(at);
    }
    attempt.verify();
    for at in 0..1000 {
        attempt.allocate(at % KIB);
    }
    attempt.free_all();
}

/// Heaps of both kinds, which grow, are purged, and end with their blocks or leave them.
fn heaps(attempt: &mut Attempt) {
    for round in 0..6 {
        let make = || match round {
            0 | 2 => HeapId::new_owned(),
            // The hardened build has none with readers.
            4 | 5 if !HARDENED => HeapId::new_concurrent(16),
            _ => HeapId::new_shared(),
        };
        use_heap(attempt, make, [0, 1, 4].contains(&round));
    }
}

/// The same in memory that is not the allocator's.
fn regions(attempt: &mut Attempt) {
    if HARDENED {
        return;
    }
    let bytes = 64 * MIB;
    let (rights, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory.
    let map = || unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, kind, -1, 0) };
    let mut start = map();
    for round in 0..4 {
        // SAFETY: nobody else's until it is unmapped.
        let at = |start: *mut _| unsafe { RegionId::new(start, bytes, RegionCalls::default()) };
        // By chance the heap may have what its metadata needs. Nobody else has.
        let mut make = || loop {
            match at(start.cast()) {
                Err(RegionError::PlaceInUse) => {
                    let all = address_map::slice_limit();
                    let first = address_map::slice_of(start.cast()) % all;
                    let is_heaps = first < address_map::committed();
                    assert!(is_heaps || first + bytes / SLICE_SIZE >= all, "a place is lost");
                    start = map();
                }
                made => return made,
            }
        };
        let made = make().or_else(|_| {
            attempt.failed(1);
            make()
        });
        let Ok(region) = made else {
            attempt.failed(1);
            continue;
        };
        let is_shared = round % 2 == 1;
        let make = || if is_shared { region.new_shared() } else { region.new_owned() };
        use_heap(attempt, make, round < 2);
        assert!(region.end());
    }
    // SAFETY: mapped above, and in no use.
    unsafe { libc::munmap(start, bytes) };
}

/// Makes a heap, uses it, and ends it: with its blocks, or they are freed after it.
fn use_heap(attempt: &mut Attempt, make: impl Fn() -> Option<HeapId>, with_blocks: bool) {
    let made = make().or_else(|| {
        attempt.failed(1);
        make()
    });
    let Some(heap) = made else { return attempt.failed(1) };
    for size in [16, 700, 5000, 60 * KIB, 200 * KIB, 33 * MIB] {
        for nth in 0..12usize.min(34 * MIB / size) {
            // SAFETY: the heap is there, and this thread's.
            let request = || unsafe { heap.allocate(size, 16 << (nth % 3)) };
            if !attempt.take(size, super::step_for(size), request) {
                break;
            }
        }
    }
    // SAFETY: as above; nobody uses a block that goes.
    unsafe {
        for at in (0..attempt.live.len()).rev().step_by(2) {
            attempt.free(at);
        }
        heap.purge();
        attempt.verify();
        if with_blocks {
            attempt.live.clear();
            heap.destroy();
        } else {
            heap.delete();
            attempt.free_all();
        }
    }
}

/// A thread whose first, and later, requests fail; what it leaves is freed here.
pub(super) fn threads(attempt: &mut Attempt) {
    let plan = attempt.plan;
    for round in 0..3 {
        // Faults belong to a thread: the others go on undisturbed.
        let (addresses, fired) = std::thread::spawn(move || {
            // As a thread that frees before it allocates.
            if round > 0 {
                // SAFETY: null is fine.
                unsafe { deallocate(std::ptr::null_mut()) };
            }
            let mut inner = Attempt::new(plan);
            for size in [16, 64, 700, 5000, 60 * KIB, 200 * KIB, 33 * MIB] {
                for _ in 0..20usize.min(40 * MIB / size) {
                    inner.allocate(size);
                }
            }
            for at in (0..inner.live.len() / 2).rev() {
                inner.free(at);
            }
            let left: Vec<_> = inner
                .live
                .drain(..)
                .map(|held| (held.block.expose_provenance(), held.size, held.seed, held.step))
                .collect();
            if !plan.sticky {
                return (left, fault::disarm() || inner.fired);
            }
            // Its way out is disturbed, too.
            let fired = inner.fired || fault::disarm();
            if fired {
                fault::arm(0, true);
            }
            (left, fired)
        })
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        attempt.fired |= fired;
        for (address, size, seed, step) in addresses {
            let block = std::ptr::with_exposed_provenance_mut(address);
            let held = Held { block, size, seed, step };
            held.verify(0, size);
            attempt.live.push(held);
        }
        check();
        attempt.free_all();
    }
}
