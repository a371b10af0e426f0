//! What cargo packages of each crate builds in a folder of its own, without the rest of the clone.

mod common;

use common::{VERSION, cargo, output_of, scratch, workspace};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages a crate, and unpacks the package below `folder`.
fn unpacked(manifest: &Path, flags: &[&str], folder: &Path) -> PathBuf {
    let target = folder.join("target");
    let mut package = cargo(workspace(), &target);
    package.args(["package", "--quiet", "--offline", "--allow-dirty", "--no-verify"]).args(flags);
    output_of(package.arg("--manifest-path").arg(manifest));
    let manifest: toml::Table = fs::read_to_string(manifest).unwrap().parse().unwrap();
    let name = format!("{}-{VERSION}", manifest["package"]["name"].as_str().unwrap());
    let package = target.join(format!("package/{name}.crate"));
    output_of(Command::new("tar").arg("-xf").arg(package).arg("-C").arg(folder));
    folder.join(name)
}

/// What the registry shows, and what a user has a right to.
fn is_complete(package: &Path) {
    let manifest = fs::read_to_string(package.join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    for key in ["description", "keywords", "categories", "license", "readme", "rust-version"] {
        assert!(manifest["package"].get(key).is_some(), "no {key} in {}", package.display());
    }
    for name in ["README.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        let file = package.join(name);
        assert!(file.metadata().unwrap().len() > 500, "{}", file.display());
        assert!(!file.is_symlink(), "{}", file.display());
    }
}

#[test]
#[ignore = "builds all crates anew: a minute"]
fn each_crate_builds_from_its_package() {
    let (_folder, folder) = scratch();
    let unpacked = |name: &str, flags: &[&str]| {
        let manifest = workspace().join("crates").join(name).join("Cargo.toml");
        unpacked(&manifest, flags, &folder)
    };
    let (core, sight) = (unpacked("cairn", &[]), unpacked("cairn-sight", &[]));
    // The registry, where a lock file would have the core, may be a folder here, or lack it.
    let [layer, command] =
        ["cairn-c", "cairn-cli"].map(|name| unpacked(name, &["--exclude-lockfile"]));
    for package in [&core, &sight, &layer, &command] {
        is_complete(package);
    }
    let target = folder.join("target");

    // A program that depends on the core.
    let program = folder.join("program");
    let manifest = format!(
        "[package]\nname = 'program'\nedition = '2024'\n\n[dependencies]\n\
         cairn-malloc = {{ path = '{}' }}\n",
        core.display()
    );
    fs::create_dir_all(program.join("src")).unwrap();
    fs::write(program.join("Cargo.toml"), manifest).unwrap();
    let source = workspace().join("xtask/tests/samples/program.rs");
    fs::copy(source, program.join("src/main.rs")).unwrap();
    let said = output_of(cargo(&program, &target).args(["run", "--quiet", "--offline"]));
    assert_eq!(said, "on cairn\n");

    // The library, with the core from beside it: the registry does not have it yet.
    let patch = format!("patch.crates-io.cairn-malloc.path='{}'", core.display());
    let build = ["build", "--quiet", "--offline", "--release", "--config", &patch];
    output_of(cargo(&layer, &target).args(build));
    let (archive, lib) = (target.join("release/libcairn_archive.a"), folder.join("lib"));
    let mut link = Command::new("sh");
    link.current_dir(&layer).arg("link.sh").args([&archive, &lib]).args(["libcairn", VERSION]);
    // Some have more than one word there.
    output_of(link.env("CC", "env cc"));
    let preloaded = output_of(
        Command::new("cat").arg("/proc/self/maps").env("LD_PRELOAD", lib.join("libcairn.so")),
    );
    assert!(preloaded.contains("libcairn.so"), "{preloaded}");

    // The command, which builds the library inside itself, with what reads heaps from beside it.
    let patch = format!("patch.crates-io.cairn-malloc-sight.path='{}'", sight.display());
    let run = ["run", "--quiet", "--offline", "--config", &patch];
    let run = [&run[..], &["--", "run", "cat", "/proc/self/maps"]].concat();
    let run = output_of(cargo(&command, &target).args(run).env("XDG_CACHE_HOME", &folder));
    assert!(run.contains("libcairn-"), "{run}");
}
