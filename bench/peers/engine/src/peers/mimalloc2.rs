//! mimalloc 2.3.2, from crate mimalloc, feature `v2`; the flags are those of the third version.

/// The engine's allocator.
pub(crate) type Allocator = mimalloc::MiMalloc;
/// Its only value.
pub(crate) const ALLOCATOR: Allocator = mimalloc::MiMalloc;
