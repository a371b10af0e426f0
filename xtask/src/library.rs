//! Where things are, and the release libraries.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use xshell::{Shell, cmd};

/// The root of the workspace.
pub(crate) fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives inside the workspace")
}

/// What runs commands there.
pub(crate) fn shell() -> Result<Shell> {
    let shell = Shell::new().context("there is no present folder")?;
    shell.change_dir(workspace());
    Ok(shell)
}

/// A folder in the one where cargo puts what it builds: of a profile, or for what is not to
/// displace other builds.
pub(crate) fn target_dir(name: &str) -> PathBuf {
    let usual = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    workspace().join(usual).join(name)
}

/// Builds the release libraries; libcairn.so, beside which libcairn.a lies.
pub(crate) fn build() -> Result<PathBuf> {
    linked("libcairn", "release", &[])
}

/// Builds the hardened ones; libcairn-hardened.so, beside the others. Cargo has its own folder for
/// them: it gives both builds' files the same names.
pub(crate) fn build_hardened() -> Result<PathBuf> {
    linked("libcairn-hardened", "hardened/release", &["--features", "hardened"])
}

/// Builds one of both in this folder of cargo's, and links it.
fn linked(name: &str, release: &str, features: &[&str]) -> Result<PathBuf> {
    let (shell, release) = (shell()?, target_dir(release));
    let target = release.parent().context("cargo has a folder for each profile")?;
    let build = cmd!(shell, "cargo build --quiet --release -p cairn-c --target-dir {target}");
    build.args(features).quiet().run()?;
    let (archive, folder) = (release.join("libcairn.a"), target_dir("release/lib"));
    link(&shell, &archive, &folder, name, &[])?;
    Ok(folder.join(name).with_extension("so"))
}

/// Makes what programs are linked with, from the archive that cargo has built.
pub(crate) fn link(
    shell: &Shell,
    archive: &Path,
    folder: &Path,
    name: &str,
    flags: &[&str],
) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    cmd!(shell, "sh crates/cairn-c/link.sh {archive} {folder} {name} {version} {flags...}")
        .quiet()
        .run()
        .context("`cc` and the programs beside it are needed")
}
