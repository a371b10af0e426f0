//! Compiles the chosen peer as its entry in `peers.toml` says, and has the library export the
//! malloc family and nothing else.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// What every peer must export; of C++'s operators, what it defines.
const FAMILY: &str = "malloc free calloc realloc memalign aligned_alloc posix_memalign valloc \
                      pvalloc malloc_usable_size reallocarray _Zn* _Zd*";

/// The file of all peers.
#[derive(Deserialize)]
struct Peers {
    peer: Vec<Peer>,
}

/// The part of a peer's entry that matters here.
#[derive(Deserialize)]
struct Peer {
    name: String,
    #[serde(rename = "crate")]
    package: String,
    flags: String,
    #[serde(default)]
    exports: Vec<String>,
    /// Whether some of the family is not the peer's but of `missing.c`.
    #[serde(default)]
    missing: bool,
    sources: Option<Sources>,
}

/// What to compile for a peer in C or C++.
#[derive(Deserialize)]
struct Sources {
    /// Of the crate; everything below is relative to it.
    directory: String,
    files: Vec<String>,
    #[serde(default)]
    include: Vec<String>,
    /// Whether this is C++.
    #[serde(default)]
    cpp: bool,
    /// The compiler, when the project recommends one.
    compiler: Option<String>,
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let file = here.join("../peers.toml");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={}", file.display());

    let peers: Peers = toml::from_str(&fs::read_to_string(file)?)?;
    let mut chosen = peers.peer.iter().filter(|peer| {
        let feature = peer.name.to_uppercase().replace('-', "_");
        env::var_os(format!("CARGO_FEATURE_{feature}")).is_some()
    });
    let (Some(peer), None) = (chosen.next(), chosen.next()) else {
        return Err("choose one peer: --features NAME".into());
    };

    if let Some(sources) = &peer.sources {
        compile(peer, sources, &here)?;
    }
    if peer.missing {
        let file = here.join("src/missing.c");
        println!("cargo:rerun-if-changed={}", file.display());
        cc::Build::new()
            .file(file)
            .debug(false)
            .force_frame_pointer(false)
            .link_lib_modifier("+whole-archive")
            .try_compile("missing")?;
    }
    link(peer, &out)
}

/// Compiles the peer into the library.
fn compile(peer: &Peer, sources: &Sources, here: &Path) -> Result<()> {
    let directory = crate_directory(&peer.package, here)?.join(&sources.directory);
    let mut build = cc::Build::new();
    build
        .cpp(sources.cpp)
        .cpp_link_stdlib(None)
        .debug(false)
        .force_frame_pointer(false)
        .warnings(false)
        .pic(true)
        .link_lib_modifier("+whole-archive");
    if let Some(compiler) = &sources.compiler {
        build.compiler(compiler);
    }
    for flag in peer.flags.split_whitespace().chain(["-w"]) {
        build.flag(flag);
    }
    for include in &sources.include {
        build.include(directory.join(include));
    }
    for pattern in &sources.files {
        build.files(matching(&directory, pattern)?);
    }
    build.try_compile("peer")?;
    Ok(())
}

/// Writes the list of what the library exports, and the rest of the link line.
fn link(peer: &Peer, out: &Path) -> Result<()> {
    let exports = FAMILY.split(' ').chain(peer.exports.iter().map(String::as_str));
    let mut map = String::from("{ global:\n");
    for name in exports {
        map.push_str(&format!("  {name};\n"));
        if !name.contains('*') {
            argument(&format!("-Wl,-u,{name}"));
        }
    }
    map.push_str("local: *; };\n");
    let path = out.join("exports.map");
    fs::write(&path, map)?;
    // Beside the list of what Rust exports; that two lists are taken together needs LLD, which is
    // Rust's linker on this platform.
    argument(&format!("-Wl,--version-script={}", path.display()));
    argument("-Wl,-z,nodelete");
    argument("-Wl,-z,now");
    argument(&format!("-Wl,-soname,lib{}.so", peer.name));
    if peer.sources.as_ref().is_some_and(|sources| sources.cpp) {
        // GCC's own, ahead of Rust's copies, which want an unwinder.
        println!("cargo:rustc-link-lib=static:-bundle=gcc");
        // Inside, so that a program in C does not load a second library for the peer's sake.
        for name in ["-Wl,-Bstatic", "-lstdc++", "-lgcc_eh", "-Wl,-Bdynamic"] {
            argument(name);
        }
    }
    for name in ["-lm", "-lgcc", "-lc"] {
        argument(name);
    }
    Ok(())
}

fn argument(text: &str) {
    println!("cargo:rustc-cdylib-link-arg={text}");
}

/// The files that match a pattern: a choice of names in braces, or a star before the end of all.
fn matching(directory: &Path, pattern: &str) -> Result<Vec<PathBuf>> {
    if let Some((before, rest)) = pattern.split_once('{') {
        let (names, after) = rest.split_once('}').ok_or("an open brace")?;
        let paths = names.split(',').map(|name| directory.join(format!("{before}{name}{after}")));
        return Ok(paths.collect());
    }
    let Some((folder, end)) = pattern.split_once('*') else {
        return Ok(vec![directory.join(pattern)]);
    };
    let entries = fs::read_dir(directory.join(folder))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|path| path.to_string_lossy().ends_with(end));
    files.sort();
    Ok(files)
}

/// Where Cargo keeps the sources of a crate: an optional dependency of this package that no
/// peer's feature turns on, so that it is locked and downloaded but not compiled.
fn crate_directory(name: &str, here: &Path) -> Result<PathBuf> {
    let output = Command::new(env::var("CARGO")?)
        .args(["metadata", "--format-version", "1", "--no-default-features"])
        .args(["--filter-platform", &env::var("TARGET")?])
        .args(["--features", &format!("{}/{name}", env::var("CARGO_PKG_NAME")?)])
        .current_dir(here)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let manifest = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == name)
        .and_then(|package| package["manifest_path"].as_str())
        .ok_or_else(|| format!("no crate {name} in the lock file"))?;
    Ok(Path::new(manifest).parent().ok_or("a manifest without directory")?.to_owned())
}
