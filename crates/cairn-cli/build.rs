//! Builds `libcairn.so` and `libcairn-hardened.so` for the command to carry, and two small libraries beside them.
//!
//! Their sources are in `library`, by links in a clone and as files in the package that cargo makes
//! of the command: both build the same way, without a network once the command's own crates are
//! there.
//!
//! A nested cargo builds each into its own target directory, because the outer one is locked, and
//! cargo would take one build's file for the other's in a common one. Always in the release profile,
//! because a debug command must not hand out a debug allocator.

use sha2::{Digest, Sha256};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// Variables that the outer cargo or its user set for the outer build alone. The wrappers would
/// lint the library instead of compiling it under `cargo clippy`; the others would send the
/// result elsewhere, or tell the library's build scripts about this crate.
const OUTER_ONLY: [&str; 8] = [
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_RUSTC_WRAPPER",
    "CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_BUILD_DIR",
    "CARGO_INCREMENTAL",
    "CLIPPY_ARGS",
    "__CARGO_DEFAULT_LIB_METADATA",
];
const OUTER_ONLY_PREFIXES: [&str; 5] =
    ["CARGO_CFG_", "CARGO_FEATURE_", "CARGO_PKG_", "CARGO_MANIFEST_", "DEP_"];

/// Names the folder of both libraries if they are built already: an installation has the command
/// carry what it installs.
const PREBUILT: &str = "CAIRN_PREBUILT_LIBRARIES";

fn main() {
    assert!(
        variable("CARGO_CFG_TARGET_OS") == "linux" && variable("CARGO_CFG_TARGET_ENV") == "gnu",
        "the cairn command carries libcairn.so, which needs Linux with glibc: build it for a \
         *-linux-gnu target"
    );
    println!("cargo::rerun-if-changed=build.rs");
    let package = lay_out().expect("the sources of libcairn.so are at hand");

    let hash = embed("EMBEDDED_LIBRARY", &build_library(&package, "libcairn", &[]));
    println!("cargo::rustc-env=EMBEDDED_LIBRARY_HASH8={}", &hash[..8]);
    let hardened = build_library(&package, "libcairn-hardened", &["--features", "hardened"]);
    embed("EMBEDDED_HARDENED", &hardened);
    embed("EMBEDDED_PLUGINS", &build_beside("plugins", &["-nostartfiles"]));
    // Exceptions pass through its operators.
    embed("EMBEDDED_RECORDER", &build_beside("recorder", &["-fno-builtin", "-fexceptions"]));
}

/// Compiles a library that is preloaded beside libcairn.so.
fn build_beside(name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(&variable("CARGO_MANIFEST_DIR")).join(format!("library/{name}.c"));
    println!("cargo::rerun-if-changed={}", source.display());
    let soname = format!("libcairn-{name}.so");
    let library = Path::new(&variable("OUT_DIR")).join(&soname);
    // CC may be several words; they are the shell's to tell apart, as in link.sh.
    const COMPILE: &str =
        r#"if command -v "${CC:-cc}" >/dev/null; then "${CC:-cc}" "$@"; else $CC "$@"; fi"#;
    let mut compiler = Command::new("sh");
    compiler.args(["-c", COMPILE, "cc"]);
    compiler.envs(env::var_os("RUSTC_LINKER").map(|linker| ("CC", linker)));
    compiler.args(["-O2", "-g0", "-shared", "-fPIC", "-fvisibility=hidden", "-s"]);
    compiler.args(["-fno-stack-protector", "-foptimize-sibling-calls"]).args(flags);
    compiler.arg("-o").arg(&library).arg(source);
    compiler.arg(format!("-Wl,-soname,{soname},-z,now,-z,relro,-z,noexecstack"));
    // Where it is not in the C library itself.
    compiler.arg("-ldl");
    let compiled = compiler.status().is_ok_and(|status| status.success());
    assert!(compiled, "{compiler:?} does not make {soname}: see its messages above");
    library
}

/// Makes a package of the folder `library`, and returns where it is.
fn lay_out() -> io::Result<PathBuf> {
    let manifest_dir = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let (library, version) = (manifest_dir.join("library"), variable("CARGO_PKG_VERSION"));
    let package = Path::new(&variable("OUT_DIR")).join("package");
    if package.exists() {
        fs::remove_dir_all(&package)?;
    }
    fs::create_dir_all(package.join("core"))?;
    for source in [".cargo", "libcairn.map", "link.sh", "rare.ld", "src", "core/src"] {
        let original = library.join(source).canonicalize()?;
        println!("cargo::rerun-if-changed={}", original.display());
        symlink(original, package.join(source))?;
    }
    for folder in ["", "core"] {
        let manifest = library.join(folder).join("manifest.toml");
        println!("cargo::rerun-if-changed={}", manifest.display());
        let manifest = fs::read_to_string(manifest)?.replace("0.0.0", &version);
        fs::write(package.join(folder).join("Cargo.toml"), manifest)?;
    }

    // The command's: its own in the package, the workspace's in a clone.
    let locks = [manifest_dir.join("Cargo.lock"), manifest_dir.join("../../Cargo.lock")];
    let lock = locks.iter().find(|lock| lock.exists()).unwrap_or(&locks[0]);
    println!("cargo::rerun-if-changed={}", lock.display());
    fs::write(package.join("Cargo.lock"), lock_file(&fs::read_to_string(lock)?, &version))?;
    Ok(package)
}

/// The lock file of the package: with the version of libc that the command has.
fn lock_file(of_command: &str, version: &str) -> String {
    let libc =
        of_command.split("[[package]]\n").find(|block| block.starts_with("name = \"libc\"\n"));
    let libc = libc.expect("the command depends on libc").trim_end();
    let package = |name, needs| {
        format!("[[package]]\nname = {name:?}\nversion = {version:?}\ndependencies = {needs:?}\n\n")
    };
    let layer = package("cairn-c", &["cairn-malloc", "libc"][..]);
    let core = package("cairn-malloc", &["libc"]);
    format!("version = 4\n\n{layer}{core}[[package]]\n{libc}\n")
}

/// Tells the command where a library is, and its hash, which is returned.
fn embed(variable: &str, library: &Path) -> String {
    let contents = fs::read(library)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", library.display()));
    println!("cargo::rustc-env={variable}={}", library.display());
    let hash = short_hash(&contents);
    println!("cargo::rustc-env={variable}_HASH={hash}");
    hash
}

/// Runs the nested cargo, and links the library as an installed one is.
fn build_library(package: &Path, name: &str, features: &[&str]) -> PathBuf {
    let target = variable("TARGET");
    let target_dir = Path::new(&variable("OUT_DIR")).join(name);
    println!("cargo::rerun-if-env-changed={PREBUILT}");
    if let Some(folder) = env::var_os(PREBUILT) {
        // A copy: these are replaced by equal ones, and their time tells cargo nothing.
        let (library, copy) = (Path::new(&folder).join(name), target_dir.with_extension("so"));
        fs::copy(library.with_extension("so"), &copy).expect(PREBUILT);
        return copy;
    }

    let mut cargo = Command::new(variable("CARGO"));
    for (name, _) in env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        if OUTER_ONLY.contains(&name) || OUTER_ONLY_PREFIXES.iter().any(|p| name.starts_with(p)) {
            cargo.env_remove(name);
        }
    }
    let status = cargo
        .current_dir(package)
        .args(["build", "--locked", "--release"])
        .args(features)
        .args(["--target", &target])
        .arg("--target-dir")
        .arg(&target_dir)
        .status()
        .expect("cargo starts");
    assert!(status.success(), "{name}.so does not build: see cargo's messages above");

    let release = target_dir.join(target).join("release");
    let (folder, version) = (release.join("lib"), variable("CARGO_PKG_VERSION"));
    let mut link = Command::new("sh");
    link.arg(package.join("link.sh")).arg(release.join("libcairn_archive.a"));
    link.arg(&folder).args([name, &version]);
    // The one that cargo takes for this target, if it is not `cc`.
    link.envs(env::var_os("RUSTC_LINKER").map(|linker| ("CC", linker)));
    assert!(link.status().expect("a shell").success(), "{name}.so does not link");
    folder.join(name).with_extension("so")
}

/// The first 16 hex digits of the SHA-256. They name a version, they do not prove one: the
/// command compares whole contents.
fn short_hash(contents: &[u8]) -> String {
    Sha256::digest(contents)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
