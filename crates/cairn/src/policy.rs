//! Owns: what the hardened build does otherwise than the default one.
//! Idea: a constant in ordinary `if`s: both sides always compile, and the default build has no trace of it.
//! Never: decides at run time.
//! Threads: any; the key is written once, before there is a block.
//! Checked: the unit tests of heaps and spans run in both builds.
//! Story: docs/design/policy.md

use crate::sync::{AtomicUsize, Ordering};

/// Whether this is the hardened build: `--features hardened`.
pub(crate) const HARDENED: bool = cfg!(feature = "hardened");

/// What the links of free blocks are encoded with. Relaxed: who has a block has it from the thread that
/// made the reservation, or by the program's own synchronisation.
static LINK_KEY: AtomicUsize = AtomicUsize::new(0);

/// Chooses the key; once, by the thread that makes the reservation.
pub(crate) fn set_link_key(key: usize) {
    LINK_KEY.store(key, Ordering::Relaxed);
}

/// What stands in memory for a link at `place`, and the link for what stands there: the address as it is,
/// or, hardened, nothing that shows an address or can be made up without the key.
#[inline(always)]
pub(crate) fn veiled<T>(link: *mut T, place: usize) -> *mut T {
    if HARDENED {
        let key = LINK_KEY.load(Ordering::Relaxed);
        // The place: else two equal links show that they are, and one can be copied elsewhere.
        return link.map_addr(|link| link ^ key ^ place.rotate_left(17));
    }
    link
}
