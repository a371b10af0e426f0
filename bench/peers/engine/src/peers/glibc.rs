//! The C library's malloc, by way of Rust's standard library.

/// The engine's allocator.
pub(crate) type Allocator = std::alloc::System;
/// Its only value.
pub(crate) const ALLOCATOR: Allocator = std::alloc::System;
