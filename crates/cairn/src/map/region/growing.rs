//! Owns: which thread asks the program for more memory for a region.
//! Idea: one at a time does, without the lock; who ends inside the program's function does not any more.
//! Never: calls the program.
//! Threads: any; under the lock of the regions.
//! Checked: the models `growers`; tests/region.rs
//! Story: docs/design/regions.md

use super::{REGIONS, Region, RegionCalls, has_room, regions};
use crate::base::{AtomicUsize, Ordering};
use crate::os;

/// Who asks the program for more memory.
pub(crate) enum Grower {
    /// The caller, by these calls, and says when it is done (`end_growing`).
    Caller(RegionCalls),
    /// Another thread does now.
    Other,
    /// Nobody: it would be of no use.
    Nobody,
}

/// Not 0: some region has had a grower. Relaxed: for a thread that has been one, and for a forked child, which touches no page
/// of the regions if there is none.
static GROWERS: AtomicUsize = AtomicUsize::new(0);

/// Whether the caller is to ask the program for more memory. One that does already is inside the program, which allocates there
/// against its word: there is no more.
pub(crate) fn begin(region: usize) -> Grower {
    let (mut all, token) = (regions(), os::thread_token());
    let region = all.region(region);
    let can_grow = !region.is_refused && region.calls.reserve.is_some() && has_room();
    if !can_grow || region.grower == token {
        Grower::Nobody
    } else if region.grower == 0 {
        region.grower = token;
        GROWERS.store(1, Ordering::Relaxed);
        Grower::Caller(region.calls)
    } else {
        Grower::Other
    }
}

/// The caller has asked.
pub(crate) fn end(region: usize) {
    regions().region(region).grower = 0;
}

/// The calling thread ends, inside the program's function perhaps: it does not ask any more.
#[inline(never)]
pub(crate) fn leave() {
    if GROWERS.load(Ordering::Relaxed) > 0 {
        let token = os::thread_token();
        let is_its = |region: &&mut Region| region.grower == token;
        regions().regions.iter_mut().filter(is_its).for_each(|region| region.grower = 0);
    }
}

/// In a forked child, before it has a second thread. The one that it has may have been a grower, and need not be one any more.
pub(super) fn settle_in_child(is_torn: bool) {
    // One that was about to say so held the lock.
    if GROWERS.swap(0, Ordering::Relaxed) > 0 || is_torn {
        // SAFETY: there is one thread.
        unsafe { (*REGIONS.alone()).regions.iter_mut().for_each(|region| region.grower = 0) };
    }
}
