//! mimalloc 3.3.2 with its mitigations, from crate mimalloc: as the plain one, with
//! `-DMI_SECURE=4`.

/// The engine's allocator.
pub(crate) type Allocator = mimalloc::MiMalloc;
/// Its only value.
pub(crate) const ALLOCATOR: Allocator = mimalloc::MiMalloc;
