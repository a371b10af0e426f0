//! Owns: what a program may know of sizes: those of the classes, what a request would get, what it has got.
//! Idea: a program that can use more than it needs asks for what costs nothing.
//! Never: knows C types or errno.
//! Threads: any, at any time in a thread's life; holds nothing.
//! Checked: tests/sizes.rs
//! Story: docs/design/spans.md

use super::{SIZE_MAX, allocate_aligned, usable_size};
use crate::base::{CANARY_BYTES, MEDIUM_MAX, size_class};
use crate::{large, store::canary};

/// What programs may have of the classes' blocks, smallest first. Larger blocks own whole slices of 16 KiB.
///
/// ```
/// assert!(cairn::class_sizes().is_sorted());
/// ```
pub fn class_sizes() -> impl ExactSizeIterator<Item = usize> + Clone {
    (0..size_class::CLASS_COUNT).map(|class| size_class::class_size(class) - CANARY_BYTES)
}

/// The most bytes that a request can name and take no more memory than one of `size`: what a program asks for
/// that can use it. 0 if no request of `size` can succeed. The good size of a good size is the same.
///
/// A block of `size` bytes may have less: a large one by up to a page, a guarded one has none to spare.
/// `allocate_at_least` tells.
///
/// ```
/// // Hardened, a block keeps its last eight bytes.
/// let good = if cfg!(feature = "hardened") { 104 } else { 112 };
/// assert_eq!(cairn::good_size(100), good);
/// assert_eq!(cairn::good_size(cairn::good_size(100_000)), cairn::good_size(100_000));
/// assert_eq!(cairn::good_size(usize::MAX), 0);
/// ```
#[must_use]
pub fn good_size(size: usize) -> usize {
    if size <= MEDIUM_MAX {
        return canary::room(size_class::class_of(size));
    }
    if size <= SIZE_MAX { large::good_size(size).min(SIZE_MAX) } else { 0 }
}

/// As `allocate_aligned`, and how many bytes the block has: all of them may be used. 0 beside null.
///
/// ```
/// let (block, usable) = cairn::allocate_at_least(100, 16);
/// assert!(usable >= 100);
/// // SAFETY: it has that many bytes, and nobody uses them after this.
/// unsafe {
///     block.write_bytes(1, usable);
///     cairn::deallocate(block);
/// }
/// ```
pub fn allocate_at_least(size: usize, align: usize) -> (*mut u8, usize) {
    let block = allocate_aligned(size, align);
    // SAFETY: null, or a live block.
    (block, unsafe { usable_size(block) })
}
