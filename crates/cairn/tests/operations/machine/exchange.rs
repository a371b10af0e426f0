//! Blocks go from thread to thread while all are at work.

use super::bytes::Bytes;
use super::step::{How, STEP_BYTES, allocate, free, pick};
use super::table::{Held, Table};
use super::world::{lock, world};

/// Puts a block into a slot, or none, and takes out what is there.
pub(super) fn exchange(slot: usize, held: Option<Held>) -> Option<Held> {
    let slots = &world().exchange;
    std::mem::replace(&mut *lock(&slots[slot % slots.len()]), held)
}

/// Puts a block where any thread may take it, or takes what some thread has put there.
pub(super) fn give_or_receive(table: &mut Table, bytes: &mut Bytes) {
    let slot = bytes.number();
    if slot < 128 {
        let Some(index) = pick(table, bytes) else { return };
        let held = table.take(index);
        if let Some(found) = exchange(slot, Some(held)) {
            free(table, found);
        }
    } else if let Some(found) = exchange(slot, None) {
        found.verify();
        table.put(found);
    }
}

/// Blocks of about one size go from thread to thread: nearly every one is freed by another than
/// has allocated it, all out of few spans.
pub(super) fn trade(table: &mut Table, bytes: &mut Bytes) {
    let (count, random, size) = (8 * bytes.count(), bytes.number(), bytes.size());
    for turn in 0..count.min(1 + 8 * STEP_BYTES / size.max(1)) {
        allocate(table, size, How::Plain);
        let held = table.take(table.blocks.len() - 1);
        if let Some(found) = exchange(random + 5 * turn, Some(held)) {
            free(table, found);
        }
    }
}

/// Takes back what nobody has taken.
pub(super) fn clear(table: &mut Table) {
    for slot in 0..world().exchange.len() {
        if let Some(held) = exchange(slot, None) {
            table.put(held);
        }
    }
}
