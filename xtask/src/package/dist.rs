//! Packages for machines that do not build: a tarball, and packages for Debian. The same sources
//! give the same bytes, from whatever folder.

use super::archive::tar;
use super::debian::{self, Origin};
use super::{VERSION, files};
use crate::library::{shell, target_dir, workspace};
use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use xshell::cmd;

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where packages go; target/dist, if not said.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Build once more from a copy in another folder, and compare.
    #[arg(long)]
    check: bool,
}

/// Makes the packages and prints their hashes and paths.
pub(crate) fn run(args: &Args) -> Result<()> {
    let out = args.out.clone().unwrap_or_else(|| target_dir("dist"));
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let origin = Origin { time: source_time()?, contact: contact()? };
    let packages = packages(workspace(), &target_dir("package"), &origin)?;
    if args.check {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let copy = folder.path().join("a copy of the sources");
        copy_sources(&copy)?;
        let again = self::packages(&copy, &folder.path().join("target"), &origin)?;
        for ((name, one), (_, other)) in packages.iter().zip(&again) {
            ensure!(one == other, "{name} differs when it is built in {}", copy.display());
        }
        println!("the same from two folders:");
    }
    for (name, contents) in packages {
        let path = out.join(name);
        fs::write(&path, &contents).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}  {}", hex::encode(Sha256::digest(&contents)), path.display());
    }
    Ok(())
}

/// Seconds that files in packages carry: `SOURCE_DATE_EPOCH`, or the time of the last commit.
fn source_time() -> Result<u64> {
    let shell = shell()?;
    let text = match shell.var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => cmd!(shell, "git log -1 --format=%ct").quiet().read()?,
    };
    text.trim().parse().context("SOURCE_DATE_EPOCH is a number of seconds")
}

/// Who makes the packages: `DEBFULLNAME` and `DEBEMAIL`, as Debian's tools have it, or the author of the last commit.
fn contact() -> Result<String> {
    let shell = shell()?;
    if let Ok(address) = shell.var("DEBEMAIL") {
        let name = shell.var("DEBFULLNAME").unwrap_or_else(|_| "The cairn contributors".into());
        return Ok(format!("{name} <{address}>"));
    }
    let author = cmd!(shell, "git log -1").arg("--format=%an <%ae>");
    author.quiet().read().context("DEBEMAIL is not set")
}

/// Copies what git knows, as it is here.
fn copy_sources(to: &Path) -> Result<()> {
    let shell = shell()?;
    let list = cmd!(shell, "git ls-files --cached --others --exclude-standard").quiet().read()?;
    let there = list.lines().filter(|path| workspace().join(path).symlink_metadata().is_ok());
    let copy = cmd!(shell, "cp --parents --no-dereference --target-directory {to}").args(there);
    shell.create_dir(to)?;
    Ok(copy.quiet().run()?)
}

/// Names of packages, and their contents.
fn packages(source: &Path, target: &Path, origin: &Origin) -> Result<Vec<(String, Vec<u8>)>> {
    let plain = files(source, target, ["lib", "share/zsh/site-functions"], None)?;
    let name = format!("cairn-{VERSION}-{ARCH}-linux-gnu");
    let tarball = (format!("{name}.tar.gz"), tar(&format!("{name}/"), &plain, origin.time)?);
    let libraries = format!("lib/{ARCH}-linux-gnu");
    let system = files(source, target, [&libraries, "share/zsh/vendor-completions"], Some("/usr"))?;
    let mut all = vec![tarball];
    all.extend(debian::packages(system, source, origin)?);
    Ok(all)
}
