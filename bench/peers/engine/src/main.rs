//! The lab's workloads with the chosen peer as Rust's global allocator. Each is compiled by its
//! own crate, with that crate's flags; the versions are pinned in the manifest.

include!(concat!(env!("OUT_DIR"), "/peer.rs"));

#[cfg(feature = "tcmalloc")]
unsafe extern "C" {
    fn MallocExtension_Internal_GetPerCpuCachesActive() -> bool;
}

/// Has the linker take in the constructor that turns the caches per CPU on: nothing else of what
/// the crate uses names its object file.
#[cfg(feature = "tcmalloc")]
#[used]
static CPU_CACHES: unsafe extern "C" fn() -> bool = MallocExtension_Internal_GetPerCpuCachesActive;

fn main() -> impl std::process::Termination {
    cairn_workloads::command::main(Some(env!("PEER")))
}
