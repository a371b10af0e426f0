//! Which allocators there are and where their libraries lie.

use crate::case::{Line, Settings};
use crate::child::{self, Failure, Limits};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An allocator, found or not.
#[derive(Clone, Serialize)]
pub struct Peer {
    /// Column header.
    pub name: String,
    /// Library to preload; none for the C library's own malloc.
    pub library: Option<PathBuf>,
    /// Version of the package, or what is known.
    pub version: String,
    /// Why it cannot run here, and what to do about it.
    pub missing: Option<String>,
}

struct Packaged {
    name: &'static str,
    package: &'static str,
    library: &'static str,
}

/// Peers taken from their Debian packages.
const PACKAGED: &[Packaged] = &[
    Packaged { name: "mimalloc", package: "libmimalloc2.0", library: "libmimalloc.so.2" },
    Packaged { name: "jemalloc", package: "libjemalloc2", library: "libjemalloc.so.2" },
    Packaged {
        name: "gperftools",
        package: "libtcmalloc-minimal4",
        library: "libtcmalloc_minimal.so.4",
    },
];

/// Where the loader looks, when there is no dpkg to ask.
const DIRECTORIES: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
];

/// All peers: glibc, the packaged ones, cairn, and those named on the command line, which
/// replace one of the same name.
pub fn all(cairn: &Path, named: &[(String, PathBuf)]) -> Vec<Peer> {
    let mut peers = vec![glibc()];
    peers.extend(PACKAGED.iter().map(packaged));
    peers.push(library(
        "cairn",
        cairn,
        env!("CARGO_PKG_VERSION"),
        "cargo build --release -p cairn-c",
    ));
    for (name, path) in named {
        let peer = library(name, path, "given by path", "check the path");
        match peers.iter_mut().find(|p| p.name == *name) {
            Some(slot) => *slot = peer,
            None => peers.push(peer),
        }
    }
    peers
}

fn glibc() -> Peer {
    // SAFETY: returns a static C string.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    Peer {
        name: "glibc".into(),
        library: None,
        version: query_version("libc6").unwrap_or(version.to_string_lossy().into_owned()),
        missing: None,
    }
}

fn packaged(peer: &Packaged) -> Peer {
    let listed = dpkg("dpkg", &["-L", peer.package])
        .and_then(|files| files.lines().map(PathBuf::from).find(|f| f.ends_with(peer.library)));
    let path = listed.or_else(|| {
        DIRECTORIES.iter().map(|dir| Path::new(dir).join(peer.library)).find(|f| f.exists())
    });
    let version = query_version(peer.package).unwrap_or_else(|| "unknown version".into());
    let hint = format!("apt-get install {}", peer.package);
    library(peer.name, &path.unwrap_or_else(|| peer.library.into()), &version, &hint)
}

fn library(name: &str, path: &Path, version: &str, hint: &str) -> Peer {
    let found = path.canonicalize();
    let missing = found.is_err().then(|| format!("no {}: {hint}", path.display()));
    Peer { name: name.into(), library: found.ok(), version: version.into(), missing }
}

fn query_version(package: &str) -> Option<String> {
    dpkg("dpkg-query", &["-W", "-f", "${Version}", package]).filter(|v| !v.is_empty())
}

fn dpkg(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs one workload under one peer, and makes sure that it was this peer's malloc.
pub fn run_workload(
    workload: &Path,
    peer: &Peer,
    name: &str,
    settings: &Settings,
    limits: Limits,
) -> Result<crate::case::Values, Failure> {
    let mut command = Command::new(workload);
    command.env_clear().args([name, "--scale", &settings.scale.to_string()]);
    if let Some(threads) = settings.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    if let Some(library) = &peer.library {
        command.env("LD_PRELOAD", library);
    }
    let output = child::run(&mut command, limits)?;
    let line: Line = serde_json::from_str(&output.stdout)
        .map_err(|error| Failure::wrong(format!("unreadable result: {error}")))?;
    let from = line.malloc_from.canonicalize().unwrap_or_default();
    match &peer.library {
        Some(library) if from != *library => {
            Err(Failure::wrong(format!("malloc came from {}", from.display())))
        }
        _ => Ok(line.values),
    }
}
