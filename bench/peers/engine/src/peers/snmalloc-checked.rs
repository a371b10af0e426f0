//! snmalloc 0.7.6 with its checks, from crate snmalloc-rs, feature `check`
//! (`SNMALLOC_CHECK_CLIENT`); without the checked memcpy, which only its library has.

/// The engine's allocator.
pub(crate) type Allocator = snmalloc_rs::SnMalloc;
/// Its only value.
pub(crate) const ALLOCATOR: Allocator = snmalloc_rs::SnMalloc;
