//! jemalloc 5.3.1, from crate tikv-jemallocator. Compiled by its crate with what `configure`
//! chooses: `-O3 -funroll-loops`, initial-exec TLS, statistics off.

// Pins the version.
use tikv_jemalloc_sys as _;

/// The engine's allocator.
pub(crate) type Allocator = tikv_jemallocator::Jemalloc;
/// Its only value.
pub(crate) const ALLOCATOR: Allocator = tikv_jemallocator::Jemalloc;
