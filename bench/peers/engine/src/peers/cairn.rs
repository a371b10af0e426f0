//! cairn itself.

/// The engine's allocator.
pub(crate) type Allocator = cairn::Cairn;
/// Its only value.
pub(crate) const ALLOCATOR: Allocator = cairn::Cairn;
