//! Owns: what a forked child does with nurseries of threads that it does not have.
//! Idea: each says itself who has it, a heap or the `Spares` of a thread.
//! Never: believes a list of a thread that may have been anywhere in its work.
//! Threads: `settle_in_child` alone; the rest any.
//! Checked: tests/hand_over.rs, tests/nursery.rs
//! Story: docs/design/fork.md

use super::super::owned::Runs;
use super::{Large, Nursery, POOL, around, of_slice, put};
use crate::base::{Ordering, Stack};
use crate::map::{OWNER_LARGE, address_map, heads_from};
use core::ptr::null_mut;

/// All nurseries that there are, in use or not.
pub(crate) fn all() -> impl Iterator<Item = *mut Nursery> {
    let of_large = heads_from(0).filter(|&(_, owner, _)| owner == OWNER_LARGE);
    of_large.flat_map(|(index, ..)| of_slice(index))
}

/// In a forked child: takes those back that `Spares` keep whose thread it does not have, as `is_dead` says of their addresses.
pub(crate) fn salvage(is_dead: impl Fn(usize) -> bool) {
    // SAFETY: never unmapped.
    for nursery in all().filter(|&it| unsafe { (*it).keeper() }.is_some_and(&is_dead)) {
        put(nursery);
    }
}

/// In a forked child, before it has a second thread: a list that another thread was changing is made anew.
pub(in crate::large) fn settle_in_child() {
    if !POOL.settle_in_child() {
        return;
    }
    let mut pool = POOL.lock();
    (pool.slices, pool.unused) = (Runs::of(null_mut()), Stack::EMPTY);
    for (index, owner, _) in heads_from(0) {
        if owner == OWNER_LARGE && around(address_map::slice_address(index)).is_some() {
            // SAFETY: a large block's slot.
            let large = unsafe { &*address_map::slot(index).cast::<Large>() };
            if large.free.load(Ordering::Relaxed) != 0 {
                pool.slices.insert(large);
            }
        }
    }
}

/// Holds the lock, for tests, and has the lists as a fork may find them then.
#[cfg(test)]
pub(crate) fn hold() -> impl Drop {
    struct Torn(crate::os::Guard<'static, super::Pool>, Runs, Stack<Nursery>);
    impl Drop for Torn {
        fn drop(&mut self) {
            core::mem::swap(&mut self.0.slices, &mut self.1);
            core::mem::swap(&mut self.0.unused, &mut self.2);
        }
    }
    let mut pool = POOL.lock();
    let slices =
        core::mem::replace(&mut pool.slices, Runs::of(core::ptr::without_provenance_mut(64)));
    let unused = core::mem::replace(&mut pool.unused, Stack::torn());
    Torn(pool, slices, unused)
}
