//! Owns: what happens around a fork.
//! Idea: a fork takes no lock, and waits for nobody but who lets go of the forking thread's spans. What other threads were
//!   changing the child makes whole before it is used.
//! Never: takes longer for a larger heap, unless a lock was held.
//! Threads: the one that forks; in the child there is no other.
//! Checked: tests/forks.rs; the models fork at every step.
//! Story: docs/design/fork.md

use super::low_memory;
use super::{STARTED, outside, own};
use crate::base::{AtomicBool, AtomicU32, Ordering, SLICE_SIZE};
use crate::heap::{Heap, handle};
use crate::map::{OWNER_LARGE, address_map, heads_from, heads_in_regions, region};
use crate::samples::{deferred_frees, profile};
use crate::spans::{abandoned, waiting};
use crate::thread::pool::{self, salvage, shared};
use crate::{large, os, slices::arena};
use core::ptr::null_mut;

/// Whether the C library calls us around each fork.
pub(super) static FORKS_SEEN: AtomicBool = AtomicBool::new(false);

/// Asks to be called around forks, until the C library agrees (it may be out of memory). The first
/// allocation does so; who can be earlier is older than fork handlers of others that allocate.
///
/// A fork that has begun before is not noticed: where the first allocation of all comes while another thread forks, the child
/// may wait for ever for a lock. So who can asks before there are threads.
pub fn see_forks() {
    // Relaxed: it is asked once.
    if !FORKS_SEEN.swap(true, Ordering::Relaxed) {
        let handlers =
            os::ForkHandlers { prepare: Some(prepare), parent: Some(parent), child: Some(child) };
        FORKS_SEEN.store(outside(|| os::on_fork(handlers)), Ordering::Relaxed);
    }
}

extern "C" fn prepare() {
    // Numbers of processes come again: in another namespace a child may have its parent's.
    SETTLED.store(0, Ordering::Relaxed);
    os::begin_fork(repair);
    // Nobody lets go of the spans that the child goes on with.
    // SAFETY: the calling thread's own.
    own().inspect(|&heap| unsafe { core::mem::forget((*heap).presence.enter()) });
}

extern "C" fn parent() {
    leave();
    os::end_fork();
}

extern "C" fn child() {
    repair();
    leave();
}

/// Others may let go of the thread's spans again, as at other times.
fn leave() {
    // SAFETY: the calling thread's own.
    own().inspect(|&heap| unsafe { (*heap).presence.leave_if_inside() });
}

/// What a forked child does first, once: by its handler, or where it finds a lock taken before.
fn repair() {
    // Relaxed: there is one thread.
    if SETTLED.swap(os::process_id(), Ordering::Relaxed) != os::process_id() {
        os::forget_forkers();
        settle();
    }
}

/// The forked child in which `settle` was called last.
static SETTLED: AtomicU32 = AtomicU32::new(0);

/// In a forked child, before it has a second thread: makes whole what other threads were changing under
/// a lock, if any was, and says that their heaps are dead. Both heaps that are not can be believed: the
/// calling thread's, which is not inside the allocator, and the shared heap, if nobody was. Nothing here
/// takes longer for a larger heap unless a lock was held.
fn settle() {
    STARTED.settle_in_child();
    deferred_frees::settle_in_child();
    low_memory::settle_in_child();
    let mut own = own().unwrap_or(null_mut());
    // SAFETY: null, or this thread's.
    if unsafe { own.as_ref() }.is_some_and(|heap| heap.presence.is_torn()) {
        // It was forked without our handlers. The heap is another dead one.
        super::tls::set(crate::heap::EMPTY.heap());
        own = null_mut();
    }
    pool::settle_in_child([own, shared::settle_in_child()]);
    pool::left::settle_in_child();
    abandoned::settle_in_child();
    waiting::settle_in_child();
    pool::partitions::settle_in_child();
    arena::settle_kept_in_child();
    large::settle_in_child();
    profile::settle_in_child();
    let mut are_new = arena::settle_in_child(|| {
        let spans = heads_from(0).map(|(index, owner, class)| match owner {
            OWNER_LARGE => {
                let is_block = large::nursery_around(address_map::slice_address(index)).is_none();
                (index, large::slices_at(index), is_block)
            }
            _ => (index, class.span_slices(), false),
        });
        // SAFETY: heaps are never unmapped.
        let kept = |heap: *mut Heap| large::cached_run(unsafe { &(*heap).large_cache });
        let kept = pool::all()
            .filter_map(kept)
            .map(|(at, bytes)| (address_map::slice_of(at), bytes / SLICE_SIZE, true));
        // SAFETY: as above.
        let ahead = pool::all().map(|heap| unsafe { (*heap).ahead.run() });
        let ahead = ahead.map(|(index, slices)| (index, slices, false));
        // What begins in a region the region knows.
        let end = address_map::committed();
        let aside =
            arena::aside().map(move |(at, slices)| (at, slices.min(end.saturating_sub(at)), false));
        spans.chain(kept).chain(ahead).chain(aside)
    });
    are_new |= region::settle_in_child(|| {
        heads_in_regions().map(|(index, owner, class)| {
            let is_large = owner == OWNER_LARGE;
            let slices = if is_large { large::slices_at(index) } else { class.span_slices() };
            (address_map::slice_address(index), slices, is_large)
        })
    });
    // SAFETY: handles are never unmapped.
    large::settle_owned_in_child(are_new, handle::made().map(|name| unsafe { &(*name).owned }));
    salvage::settle_in_child();
}
