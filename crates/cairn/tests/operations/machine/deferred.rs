//! Deferred frees among the steps: blocks wait, and are freed inside other allocations.

use super::bytes::Bytes;
use super::hand_over;
use super::step::pick;
use super::table::Table;
use super::world::{lock, world};
use std::cell::Cell;
use std::sync::MutexGuard;

thread_local! {
    /// The last heartbeat that the thread has had.
    static LAST: Cell<u64> = const { Cell::new(0) };
}

/// Blocks that a call frees, unless it is told to free all.
const AT_ONCE: usize = 8;

fn waiting() -> MutexGuard<'static, Vec<usize>> {
    lock(&world().waiting)
}

/// Some blocks wait from now on.
pub(super) fn put_off(table: &mut Table, bytes: &mut Bytes) {
    cairn::on_deferred_free(Some(free_some), [AT_ONCE, 0]);
    for _ in 0..bytes.count() {
        let Some(index) = pick(table, bytes) else { return };
        table.operations += 1;
        let held = table.take(index);
        held.verify();
        waiting().push(held.p.expose_provenance());
    }
}

fn free_some(force: bool, heartbeat: u64, [most, _]: [usize; 2]) {
    assert!(most == AT_ONCE);
    let last = LAST.replace(heartbeat);
    // A thread that has given its heap back already is lent one, each time anew.
    let is_next = heartbeat == last + 1 || heartbeat == 1 && hand_over::is_late();
    assert!(is_next, "heartbeat {heartbeat} after {last}");
    // Another thread may be at it.
    let Ok(mut waiting) = world().waiting.try_lock() else { return };
    let left = waiting.len().saturating_sub(if force { usize::MAX } else { most });
    free(waiting.drain(left..));
}

/// None waits after this.
pub(super) fn free_all() {
    free(waiting().drain(..));
}

fn free(blocks: impl Iterator<Item = usize>) {
    for block in blocks {
        // SAFETY: a live block that is nobody else's.
        unsafe { cairn::deallocate(std::ptr::with_exposed_provenance_mut(block)) };
    }
}

/// Nobody is called any more, and none waits.
pub(super) fn end() {
    cairn::on_deferred_free(None, [0; 2]);
    free_all();
}
