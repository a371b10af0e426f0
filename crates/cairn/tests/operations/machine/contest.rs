//! Heaps that end while others free blocks of them, and large blocks that wait for readers while others free more.

use super::bytes::Bytes;
use super::exchange::exchange;
use super::heaps::{self, Hold, STEP_BYTES};
use super::step::{Company, MIN_ALIGN, free, note};
use super::table::{Held, Table};
use super::world;
use cairn::HeapId;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The heap with readers.
const CONCURRENT: usize = 3;
/// How often something is done in a duel.
const DUEL: usize = 32;
/// How often the other one does its part meanwhile, at most, for each time: what waits for readers grows until an epoch begins,
/// and four who go on without end outrun who begins it.
const ROUNDS: usize = 8;
/// Bytes of the least large block.
const LARGE_MIN: usize = (64 << 10) + 1;

/// Blocks of a heap, filled, in no table yet.
unsafe fn fill(
    table: &mut Table,
    heap: HeapId,
    size: usize,
    count: usize,
    company: Company,
) -> Vec<Held> {
    let mut made = Vec::with_capacity(count);
    for _ in 0..count {
        // SAFETY: the caller's to use.
        let p = unsafe { heap.allocate(size, MIN_ALIGN) };
        if p.is_null() {
            // SAFETY: as above.
            unsafe { heaps::refuses(heap, size, MIN_ALIGN, company) };
            continue;
        }
        let held = note(table, p, size, MIN_ALIGN, None);
        heaps::expect_mine(p);
        held.fill();
        made.push(held);
    }
    made
}

/// Blocks of a shared heap, or of an owned one, are freed while it ends: here, or by others that do the same.
pub(super) fn small(table: &mut Table, bytes: &mut Bytes, company: Company) {
    let (number, how) = (bytes.number(), bytes.number());
    let (size, count) = (bytes.size(), 4 * bytes.count());
    let count = count.min(1 + STEP_BYTES / size.max(1));
    let Some(hold) = Hold::take(number) else { return };
    // SAFETY: held.
    let made = unsafe { fill(table, hold.heap, size, count, company) };
    hold.give(false);
    if how % 4 == 0 {
        duel(table, number, size, |table, _| {
            // SAFETY: nobody else has it; its blocks live on.
            unsafe { heaps::end(table, number, false) };
        });
    }
    for (turn, held) in made.into_iter().enumerate() {
        match how / 4 % 8 {
            0 if company == Company::Together => {
                exchange(how + 5 * turn, Some(held)).into_iter().for_each(|held| free(table, held));
            }
            1 if turn % 8 == 0 => table.put(held),
            _ => free(table, held),
        }
    }
}

/// Does something again and again while another thread allocates in a heap, and frees when it has given it up.
fn duel(table: &mut Table, number: usize, size: usize, mut step: impl FnMut(&mut Table, usize)) {
    let (stop, turns) = (AtomicBool::new(false), AtomicUsize::new(1));
    let count = 16.min(1 + STEP_BYTES / size.max(1));
    let me = world::new_number();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            world::set_me(me);
            let mut table = Table::new(false);
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                if rounds >= ROUNDS * turns.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                    continue;
                }
                rounds += 1;
                let Some(hold) = Hold::take(number) else { break };
                // SAFETY: held.
                let made = unsafe { fill(&mut table, hold.heap, size, count, Company::Together) };
                hold.give(false);
                made.into_iter().for_each(|held| free(&mut table, held));
            }
        });
        for turn in 0..DUEL {
            step(table, turn);
            turns.fetch_add(1, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
        other.join().expect("a panic ends the process");
    });
}

/// Large blocks come and go in the heap with readers, by several threads, and epochs begin, and it ends.
pub(super) fn large(table: &mut Table, bytes: &mut Bytes, company: Company) {
    let (how, detail, count) = (bytes.number(), bytes.number(), bytes.count().min(16));
    if how & 16 != 0 {
        duel(table, CONCURRENT, LARGE_MIN + detail, |table, turn| {
            let Some(hold) = Hold::take(CONCURRENT) else { return };
            // SAFETY: held.
            let made = unsafe { fill(table, hold.heap, LARGE_MIN + detail, 2, Company::Together) };
            // SAFETY: held.
            unsafe { heaps::begin_epoch(hold.heap) };
            hold.give(false);
            made.into_iter().for_each(|held| free(table, held));
            if how & 32 != 0 && turn == DUEL / 2 {
                // SAFETY: nobody else has it; its blocks live on.
                unsafe { heaps::end(table, CONCURRENT, false) };
            }
        });
    }
    for turn in 0..count {
        let Some(hold) = Hold::take(CONCURRENT) else { return };
        let size = LARGE_MIN + detail * 256 + turn % 4 * (16 << 10);
        // SAFETY: held.
        let made = unsafe { fill(table, hold.heap, size, 1, company) };
        if (how + turn) % 4 == 0 {
            // SAFETY: held.
            unsafe { heaps::begin_epoch(hold.heap) };
        }
        hold.give(false);
        for held in made {
            let freed = match company {
                Company::Together if how & 4 == 0 => exchange(how + turn, Some(held)),
                _ => Some(held),
            };
            freed.into_iter().for_each(|held| free(table, held));
        }
        if how & 8 != 0 && turn % 8 == 7 {
            // SAFETY: nobody else has it; its blocks live on.
            unsafe { heaps::end(table, CONCURRENT, false) };
        }
    }
}

/// Heaps of this thread alone come and go, with their blocks.
pub(super) fn private(table: &mut Table, bytes: &mut Bytes) {
    let (count, size, random) = (bytes.count(), bytes.size(), bytes.number());
    let (count, size) = (count.min(24), size.min(STEP_BYTES));
    for turn in 0..count {
        let heap =
            if (random + turn) % 4 == 0 { HeapId::new_shared() } else { HeapId::new_owned() };
        let heap = heap.expect("memory");
        let blocks = (1 + random % 32).min(1 + STEP_BYTES / size.max(1));
        // SAFETY: this thread's alone, and so are its blocks.
        unsafe {
            let mut made = fill(table, heap, size, blocks, Company::Alone);
            (0..random % 4).for_each(|_| made.pop().into_iter().for_each(|held| free(table, held)));
            if random & turn & 8 != 0 {
                heap.delete();
                made.into_iter().for_each(|held| free(table, held));
            } else {
                made.iter().for_each(Held::verify);
                heap.destroy();
            }
        }
    }
}

/// An owned heap gets blocks, and stays attached.
pub(super) fn left_attached(table: &mut Table, bytes: &mut Bytes) {
    let (number, size, count) = (2 * bytes.number(), bytes.size(), bytes.count());
    let Some(hold) = Hold::take(number) else { return };
    let count = count.min(1 + STEP_BYTES / size.max(1));
    // SAFETY: held.
    let made = unsafe { fill(table, hold.heap, size, count, Company::Alone) };
    made.into_iter().for_each(|held| table.put(held));
    hold.give(true);
}
