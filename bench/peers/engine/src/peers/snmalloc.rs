//! snmalloc 0.7.6, from crate snmalloc-rs. Compiled by its crate with CMake's release flags and
//! `-ftls-model=initial-exec`.

/// The engine's allocator.
pub(crate) type Allocator = snmalloc_rs::SnMalloc;
/// Its only value.
pub(crate) const ALLOCATOR: Allocator = snmalloc_rs::SnMalloc;
