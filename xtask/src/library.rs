//! Where things are, and the release libraries.

use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use xshell::{Cmd, Shell, cmd};

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

/// Which of both builds a command is about: the flag that all such commands have.
#[derive(Clone, Copy, Default, clap::Args)]
pub(crate) struct Build {
    /// The hardened build in place of the default one.
    #[arg(long)]
    hardened: bool,
}

impl Build {
    /// The features of cairn's crates, and of the models and the fuzz targets.
    pub(crate) fn features(self) -> &'static str {
        if self.hardened { "hardened" } else { "" }
    }

    /// A folder as of `target_dir`. Each build has its own: cargo gives both builds' files the same
    /// names, and logs and results must not displace those of the other.
    pub(crate) fn target_dir(self, name: &str) -> PathBuf {
        target_dir(self.features()).join(name)
    }

    /// Builds the release libraries; libcairn.so or libcairn-hardened.so. Its archive lies beside
    /// it, and the other build's.
    pub(crate) fn library(self) -> Result<PathBuf> {
        let (shell, target, features) = (shell()?, self.target_dir(""), self.features());
        let build =
            cmd!(shell, "cargo build --quiet --profile library -p cairn-c --features {features}");
        let archive = built(build.arg("--target-dir").arg(target), "libcairn_archive.a")?;
        let (folder, name) = (target_dir("release/lib"), self.library_name());
        link(&shell, &archive, &folder, name)?;
        Ok(folder.join(name).with_extension("so"))
    }

    /// What its libraries are called, without the extension.
    pub(crate) fn library_name(self) -> &'static str {
        if self.hardened { "libcairn-hardened" } else { "libcairn" }
    }

    /// For a command's last line: how to run the same of the other build.
    pub(crate) fn other(self) -> &'static str {
        match self.hardened {
            true => "the default build (without --hardened)",
            false => "the hardened build (--hardened)",
        }
    }
}

/// Runs cargo, which builds a file of this name; where it is. A target in the user's settings has cargo put it elsewhere.
pub(crate) fn built(build: Cmd<'_>, name: &str) -> Result<PathBuf> {
    let said = build.arg("--message-format=json-render-diagnostics").quiet().read()?;
    let messages = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let files = messages.flat_map(|message| message["filenames"].as_array().cloned());
    let mut files = files.flatten().filter_map(|file| file.as_str().map(PathBuf::from));
    let file = files.find(|file| file.file_name().is_some_and(|found| found == name));
    file.with_context(|| format!("cargo builds no {name}"))
}

/// Makes what programs are linked with, from the archive that cargo has built.
pub(crate) fn link(shell: &Shell, archive: &Path, folder: &Path, name: &str) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    cmd!(shell, "sh crates/cairn-c/link.sh {archive} {folder} {name} {version}")
        .quiet()
        .run()
        .context("`cc` and the programs beside it are needed")
}
