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

/// Builds `cairn-c` in release mode; libcairn.so, beside which libcairn.a lies.
pub(crate) fn build() -> Result<PathBuf> {
    let shell = shell()?;
    cmd!(shell, "cargo build --quiet --release -p cairn-c").quiet().run()?;
    Ok(target_dir("release/libcairn.so"))
}

/// Builds the hardened libraries; libcairn-hardened.so, beside the others. Cargo has its own folder
/// for them: it gives both builds' files the same names.
pub(crate) fn build_hardened() -> Result<PathBuf> {
    let (shell, folder) = (shell()?, target_dir("hardened"));
    let build = cmd!(shell, "cargo build --quiet --release -p cairn-c --features hardened");
    build.arg("--target-dir").arg(&folder).quiet().run()?;
    let shared = target_dir("release/libcairn-hardened.so");
    for end in ["a", "so"] {
        let built = folder.join("release/libcairn").with_extension(end);
        // A new file, not new contents: the old one may be mapped somewhere.
        let (fresh, kept) = (shared.with_extension("new"), shared.with_extension(end));
        shell.copy_file(built, &fresh)?;
        std::fs::rename(fresh, kept)?;
    }
    Ok(shared)
}
