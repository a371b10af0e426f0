//! Deferred frees among the steps: blocks wait, and are freed inside other allocations.

use super::bytes::Bytes;
use super::step::pick;
use super::table::Table;
use std::sync::{Mutex, MutexGuard};

/// Addresses of blocks that wait.
static WAITING: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Blocks that a call frees, unless it is told to free all.
const AT_ONCE: usize = 8;

fn waiting() -> MutexGuard<'static, Vec<usize>> {
    WAITING.lock().expect("a panic ends the process")
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
    assert!(heartbeat > 0 && most == AT_ONCE);
    // Another thread may be at it.
    let Ok(mut waiting) = WAITING.try_lock() else { return };
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
