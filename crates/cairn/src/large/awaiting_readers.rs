//! Owns: which freed large blocks of a heap for lock-free readers wait for these.
//! Idea: a block's metadata says that it waits. So nobody believes what stands in a block, and a heap that ends finds
//!   those that wait among all that belong to it.
//! Never: decides when one has waited long enough.
//! Threads: any; the lock of `owned`, inside which that of the mappings is taken.
//! Checked: tests/grace.rs; the models `graces`.
//! Story: docs/design/closed-heaps.md

use super::owned::{OWNED, owner_of};
use super::{Owned, Size, Sizes, free, mapping};
use crate::base::Ordering;
use crate::map::address_map;
use crate::store::canary;

/// What becomes of a large block that is being freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kept {
    /// Nobody reads it.
    No,
    /// It waits from now on.
    Waits,
    /// It waits already.
    Twice,
}

/// Keeps the large block at `p`, any value at all, that is being freed, if its heap has readers; a message names `call`.
///
/// # Safety
/// If it is a block, it is the caller's to free.
pub(crate) unsafe fn keep(p: *mut u8, call: &str) -> Kept {
    // SAFETY: a heap's that is there while a block says so; handles are never unmapped.
    let owner = || unsafe { owner_of(p).as_ref() };
    let Some(owned) = owner() else { return Kept::No };
    if !owned.grace.is_on() {
        return waited(p);
    }
    let held = OWNED.lock();
    // Asked again: the heap may have been deleted meanwhile. Under the lock it is not.
    let Some(owned) = owner().filter(|owned| owned.grace.is_on()) else { return waited(p) };
    if !set_waits(p) {
        return Kept::Twice;
    }
    // Now that it waits nobody else frees it.
    if !Size::is_whole(p) {
        // A signal's handler may free.
        drop(held);
        canary::overwritten(call, p);
    }
    // SAFETY: the caller's to free.
    unsafe { owned.grace.keep(p) };
    Kept::Waits
}

/// Of a block that does not wait for readers from now on: it may have waited for them before.
fn waited(p: *mut u8) -> Kept {
    if waits(p) { Kept::Twice } else { Kept::No }
}

/// Says that a heap has no readers any more. Under the lock: who finds that finds what waits, too.
pub(crate) fn end_readers(owned: &Owned) {
    let _held = OWNED.lock();
    owned.grace.end();
}

/// Says that the block at `p` waits; false if it does already.
fn set_waits(p: *mut u8) -> bool {
    match address_map::contains(p) {
        // Relaxed: under the lock.
        true => super::at(p).is_some_and(|large| !large.waits.swap(true, Ordering::Relaxed)),
        false => mapping::set_waits(p),
    }
}

/// Whether the block at `p`, any value at all, waits.
pub(crate) fn waits(p: *mut u8) -> bool {
    match address_map::contains(p) {
        true => super::at(p).is_some_and(|large| large.waits.load(Ordering::Relaxed)),
        false => mapping::waits(p),
    }
}

/// Whether the large block at `p` has readers besides who has it: it does not move, or lose pages.
pub(crate) fn is_read_by_others(p: *mut u8) -> bool {
    // SAFETY: a heap's that is there while a block says so; handles are never unmapped.
    unsafe { owner_of(p).as_ref() }.is_some_and(|owned| owned.grace.is_on())
}

/// Frees the large blocks that have waited long enough for a heap's readers.
pub(crate) fn free_due(owned: &Owned) {
    if !owned.grace.has_waiting() {
        return;
    }
    // One at a time: a child that is forked meanwhile loses one at most.
    let next = || {
        let _held = OWNED.lock();
        owned.grace.take_due()
    };
    while let Some(p) = next() {
        let _ = free(p, "free") || mapping::free(p, "free");
    }
}
