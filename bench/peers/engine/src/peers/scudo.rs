//! scudo of 2021 (LLVM 14), from crate scudo.

/// The engine's allocator.
pub(crate) type Allocator = scudo::GlobalScudoAllocator;
/// Its only value.
pub(crate) const ALLOCATOR: Allocator = scudo::GlobalScudoAllocator;
