//! A place where threads exchange blocks, by one atomic swap.

use crate::malloc::Block;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Bits of an address in user space; the tag of the block travels in those above.
const ADDRESS: u32 = 48;

/// A block with its tag, or nothing.
///
/// Invariant 1: the pointer is null, or a block's with its tag in the upper bits, given up
/// by whoever put it here.
#[derive(Default)]
pub(super) struct Slot(AtomicPtr<u64>);

impl Slot {
    /// So many empty ones.
    pub(super) fn several(count: usize) -> Vec<Slot> {
        (0..count).map(|_| Slot::default()).collect()
    }

    /// Puts `item` in and takes out what was there.
    #[inline]
    pub(super) fn swap(&self, item: Option<(Block, u16)>) -> Option<(Block, u16)> {
        let packed = item.map_or(null_mut(), |(block, tag)| {
            let raw = block.into_raw().as_ptr();
            assert!(raw.addr() >> ADDRESS == 0, "an address wider than {ADDRESS} bits");
            raw.map_addr(|address| address | (tag as usize) << ADDRESS)
        });
        let found = self.0.swap(packed, Ordering::AcqRel);
        let raw = NonNull::new(found.map_addr(|bits| bits & ((1 << ADDRESS) - 1)))?;
        // SAFETY: invariant 1; the swap took it out, so nobody else makes it a block.
        Some((unsafe { Block::from_raw(raw) }, (found.addr() >> ADDRESS) as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::Slot;
    use crate::malloc::Block;

    #[test]
    fn blocks_keep_their_tags() {
        let slot = Slot::default();
        assert!(slot.swap(Some((Block::new(16, 0xffff), 0xffff))).is_none());
        for tag in [0xfffe, 1] {
            let (block, old) = slot.swap(Some((Block::new(16, tag), tag as u16))).unwrap();
            block.free(old.into());
        }
        let (block, tag) = slot.swap(None).unwrap();
        assert_eq!(tag, 1);
        block.free(1);
        assert!(slot.swap(None).is_none());
    }
}
