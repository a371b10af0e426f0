//! hardened_malloc 2026071503, from crate hardened-malloc, default configuration.

/// The engine's allocator.
pub(crate) type Allocator = hardened_malloc::HardenedMalloc;
/// Its only value.
pub(crate) const ALLOCATOR: Allocator = hardened_malloc::HardenedMalloc;
