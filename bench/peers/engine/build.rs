//! Writes the chosen peer's allocator as a static.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

/// Each peer, the type of its allocator and the value.
const ALLOCATORS: [(&str, &str, &str); 16] = [
    ("cairn", "cairn::Cairn", "cairn::Cairn"),
    ("cairn-hardened", "cairn::Cairn", "cairn::Cairn"),
    ("ferroc", "ferroc::Ferroc", "ferroc::Ferroc"),
    ("glibc", "std::alloc::System", "std::alloc::System"),
    ("hardened", "hardened_malloc::HardenedMalloc", "hardened_malloc::HardenedMalloc"),
    ("hardened-light", "hardened_malloc::HardenedMalloc", "hardened_malloc::HardenedMalloc"),
    ("jemalloc", "tikv_jemallocator::Jemalloc", "tikv_jemallocator::Jemalloc"),
    ("mimalloc", "mimalloc::MiMalloc", "mimalloc::MiMalloc"),
    ("mimalloc-secure", "mimalloc::MiMalloc", "mimalloc::MiMalloc"),
    ("mimalloc2", "mimalloc::MiMalloc", "mimalloc::MiMalloc"),
    ("rpmalloc", "rpmalloc::RpMalloc", "rpmalloc::RpMalloc"),
    ("scudo", "scudo::GlobalScudoAllocator", "scudo::GlobalScudoAllocator"),
    ("smalloc", "smmalloc::Smalloc", "smmalloc::Smalloc::new()"),
    ("snmalloc", "snmalloc_rs::SnMalloc", "snmalloc_rs::SnMalloc"),
    ("snmalloc-checked", "snmalloc_rs::SnMalloc", "snmalloc_rs::SnMalloc"),
    ("tcmalloc", "tcmalloc_better::TCMalloc", "tcmalloc_better::TCMalloc"),
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let mut chosen = ALLOCATORS.iter().filter(|(name, ..)| {
        let feature = name.to_uppercase().replace('-', "_");
        env::var_os(format!("CARGO_FEATURE_{feature}")).is_some()
    });
    let (Some((name, kind, value)), None) = (chosen.next(), chosen.next()) else {
        return Err("choose one peer: --features NAME".into());
    };
    println!("cargo:rustc-env=PEER={name}");
    let text = format!("#[global_allocator]\nstatic ALLOCATOR: {kind} = {value};\n");
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("peer.rs"), text)?;
    Ok(())
}
