//! mimalloc 3.3.2, from crate mimalloc. Compiled by its crate: `-O3 -DMI_BUILD_RELEASE -DNDEBUG
//! -ftls-model=initial-exec`.

/// The engine's allocator.
pub(crate) type Allocator = mimalloc::MiMalloc;
/// Its only value.
pub(crate) const ALLOCATOR: Allocator = mimalloc::MiMalloc;
