//! The region of some heaps. It has as many bytes, and what is around them stays as it is.

use super::world::{lock, world};
use cairn::{RegionCalls, RegionId};
use std::sync::OnceLock;

const REGION_BYTES: usize = 4 << 20;
const FENCE: usize = 64 << 10;
const FENCED: u8 = 0xa5;

/// The region, made if there is none; None in the hardened build, or if its place is in use.
pub(super) fn region() -> Option<RegionId> {
    let mut region = lock(&world().region);
    if region.is_none() {
        let start = memory().wrapping_add(FENCE);
        // SAFETY: nobody else uses it, until the region ends.
        *region = unsafe { RegionId::new(start, REGION_BYTES, RegionCalls::default()) }.ok();
    }
    *region
}

/// The region's memory between its fences, which is there for good.
fn memory() -> *mut u8 {
    static MEMORY: OnceLock<usize> = OnceLock::new();
    let make = || vec![FENCED; REGION_BYTES + 2 * FENCE].leak().as_mut_ptr().expose_provenance();
    std::ptr::with_exposed_provenance_mut(*MEMORY.get_or_init(make))
}

/// Whether a block is in the region's memory.
pub(super) fn is_in_region(p: *const u8) -> bool {
    p.addr().wrapping_sub(memory().addr()) < REGION_BYTES + 2 * FENCE
}

/// Ends the region, in which nothing is any more.
pub(super) fn end() {
    if let Some(region) = lock(&world().region).take() {
        cairn::purge();
        assert!(region.end(), "something is in the region: {:?}", region.stats());
        for at in [memory(), memory().wrapping_add(FENCE + REGION_BYTES)] {
            // SAFETY: the fences are nobody's.
            let fence = unsafe { std::slice::from_raw_parts(at, FENCE) };
            assert!(fence.iter().all(|&byte| byte == FENCED), "a fence is broken");
        }
    }
}
