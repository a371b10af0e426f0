//! Owns: what becomes of dead heaps in a forked child, once no thread's span names one of them any more.
//! Idea: a thread's heap goes back to the pool. A closed heap is the program's: it is made anew of the spans and nurseries
//!   that name it, and belongs to no thread.
//! Never: believes a list of a thread that may have been anywhere in its work.
//! Threads: any; one at a time, by the lock of `salvage`.
//! Checked: tests/hand_over/heirs.rs; the models fork at every step.
//! Story: docs/design/fork.md

use super::{all, end_salvage, is_dead, is_dead_owner, is_dead_user, left, partitions, put_closed};
use crate::base::{LEFT_BEHIND, NOBODY, Ordering};
use crate::heap::handle::{self, salvage_spares};
use crate::heap::{Handle, Heap, OWNED};
use crate::large;
use crate::map::{OWNER_CLOSED, address_map, all_heads};
use crate::spans::Span;
use core::mem::offset_of;

/// Makes dead heaps free, or whole.
pub(super) fn bury() {
    // The low half of an address is what an owner is called.
    salvage_spares(|spares| is_dead_owner((spares - offset_of!(Heap, spares)) as u32));
    renew_nurseries();
    renew_spans();
    // Release: who finds that one is nobody's finds it whole (`closed::attach`).
    // SAFETY: a handle of a thread that is not here.
    left_names().for_each(|name| unsafe { (*name).user.store(NOBODY, Ordering::Release) });
    // Those of threads last: they say who is dead.
    for heap in all().filter(|&heap| is_dead(heap)) {
        // SAFETY: its thread is not in this process; the caller alone buries.
        unsafe {
            large::drop_cached(&(*heap).large_cache);
            (*heap).ahead.release();
            put_closed(heap);
        }
    }
    end_salvage();
}

/// The handle's user is a thread that a fork has left behind.
///
/// # Safety
/// A handle.
unsafe fn is_left(name: *mut Handle) -> bool {
    // SAFETY: handles are never unmapped.
    let name = unsafe { &*name };
    name.kind.load(Ordering::Relaxed) == OWNED
        && is_dead_user(name.user_heap, name.user.load(Ordering::Relaxed))
}

/// The handles of such users.
fn left_names() -> impl Iterator<Item = *mut Handle> {
    // SAFETY: handles that have been made.
    handle::made().filter(|&name| unsafe { is_left(name) })
}

/// Gives owned heaps the nurseries that name them. They allocate from them no more.
fn renew_nurseries() {
    // SAFETY: the heaps of threads that are not here.
    unsafe {
        left_names().for_each(|name| Handle::begin_anew(name));
        for nursery in large::nurseries() {
            let of: *mut Handle = (*nursery).of().cast();
            if !of.is_null() && is_left(of) {
                Handle::take_in(of, nursery);
            }
        }
    }
}

/// Gives closed heaps the spans that name them. Of these all blocks count as used that are not on their way home: what the
/// dead thread had ready there is lost until the heap ends.
fn renew_spans() {
    // SAFETY: the heaps of threads that are not here. Others may free into their spans at any time, by the words.
    unsafe {
        let dead = || all().filter(|&heap| (*heap).is_closed() && is_dead(heap));
        if dead().next().is_none() {
            return;
        }
        // They have the same user still, who says that they are dead.
        dead().for_each(|heap| Heap::write_over(heap, (*heap).begun_anew()));
        dead().for_each(|heap| (*heap).member.turn.begin_anew());
        for (index, owner, _) in all_heads() {
            if owner & OWNER_CLOSED == 0 || !is_dead_owner(owner) {
                continue;
            }
            let span: *mut Span = address_map::slot(index).cast();
            Heap::of_owner(owner).into_iter().for_each(|heap| take_in(heap, span));
        }
        for heap in dead() {
            match usize::from((*heap).partition).checked_sub(1) {
                Some(partition) => partitions::put(partition, heap),
                None if (*heap).member.of.is_null() => left::put_anew(heap),
                None => (*heap).member.user.store(NOBODY, Ordering::Relaxed),
            }
        }
    }
}

/// Gives a closed heap a span that names it, but for one that has not been carved: that may have been in the making, with
/// descriptors that are not written yet, and nobody has a block of it.
///
/// # Safety
/// As for `renew_spans`; the heap has been made anew.
unsafe fn take_in(heap: *mut Heap, span: *mut Span) {
    // SAFETY: as above.
    unsafe {
        if (*span).carved == 0 {
            (*span).set_partition((*heap).partition);
            return (*heap).release(span);
        }
        // Who takes spans out of a deleted heap changes none that stays.
        let is_left = (*heap).member.user.load(Ordering::Relaxed) == LEFT_BEHIND;
        if !is_left || (*span).used() == 0 {
            (*span).forget_lists();
        }
        (*span).empty_since = 0;
        (*span).take_in();
        (*heap).park(span);
    }
}
