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
