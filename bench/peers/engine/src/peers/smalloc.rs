//! smalloc 7.6.13, from crate smmalloc; in Rust.

/// The engine's allocator.
pub(crate) type Allocator = smmalloc::Smalloc;
/// Its only value.
pub(crate) const ALLOCATOR: Allocator = smmalloc::Smalloc::new();
