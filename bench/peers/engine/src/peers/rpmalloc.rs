//! rpmalloc 1.4.3, from crate rpmalloc.

// Pins the version.
use rpmalloc_sys as _;

/// The engine's allocator.
pub(crate) type Allocator = rpmalloc::RpMalloc;
/// Its only value.
pub(crate) const ALLOCATOR: Allocator = rpmalloc::RpMalloc;
