//! ferroc 1.0.0-pre.3, in Rust.

/// The engine's allocator.
pub(crate) type Allocator = ferroc::Ferroc;
/// Its only value.
pub(crate) const ALLOCATOR: Allocator = ferroc::Ferroc;
