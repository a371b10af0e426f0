//! Google's tcmalloc of June 2025, from crate tcmalloc-better, with 8 KiB pages. Compiled by its
//! crate: `-O3 -DNDEBUG`, with frame pointers and stack protectors as Bazel has them.

/// The engine's allocator.
pub(crate) type Allocator = tcmalloc_better::TCMalloc;
/// Its only value.
pub(crate) const ALLOCATOR: Allocator = tcmalloc_better::TCMalloc;

unsafe extern "C" {
    fn MallocExtension_Internal_GetPerCpuCachesActive() -> bool;
}

/// Has the linker take in the constructor that turns the caches per CPU on: nothing else of what
/// the crate uses names its object file.
#[used]
static CPU_CACHES: unsafe extern "C" fn() -> bool = MallocExtension_Internal_GetPerCpuCachesActive;
