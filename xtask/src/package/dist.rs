//! Packages for machines that do not build: a tarball, and packages for Debian. The same sources
//! give the same bytes, from whatever folder.

use super::debian::{self, Origin};
use super::{File, Files, VERSION, files};
use crate::library::{shell, target_dir, workspace};
use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::env::consts::ARCH;
use std::fs;
use std::io::Write;
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

/// The second number of the newest version of glibc whose symbols a program or a library names.
pub(super) fn newest_glibc(contents: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"GLIBC_2.";
    let names = contents.windows(NAME.len()).enumerate().filter(|(_, window)| *window == NAME);
    let number = |at: usize| {
        let digits = contents[at + NAME.len()..].iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
    };
    names.map(|(at, _)| number(at)).max()
}

/// A tarball of these files, with the folders that they are in.
pub(super) fn tar(prefix: &str, files: &Files, time: u64) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let header = |kind: tar::EntryType, mode: u32, size: usize| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size as u64);
        header.set_mtime(time);
        header.set_uid(0);
        header.set_gid(0);
        header
    };
    let mut folders = BTreeSet::new();
    for path in files.keys().map(|path| format!("{prefix}{path}")) {
        let outer =
            Path::new(&path).ancestors().skip(1).map(|folder| format!("{}/", folder.display()));
        folders.extend(outer.filter(|folder| folder != "/" && folder != "./"));
    }
    for folder in folders {
        let mut header = header(tar::EntryType::Directory, 0o755, 0);
        archive.append_data(&mut header, folder, std::io::empty())?;
    }
    for (path, file) in files {
        let path = format!("{prefix}{path}");
        match file {
            File::Plain(contents, mode) => {
                let mut header = header(tar::EntryType::Regular, *mode, contents.len());
                archive.append_data(&mut header, path, contents.as_slice())?;
            }
            File::Link(target) => {
                let mut header = header(tar::EntryType::Symlink, 0o777, 0);
                archive.append_link(&mut header, path, target)?;
            }
        }
    }
    gzip(&archive.into_inner()?)
}

/// Compresses, without a name or a time.
pub(super) fn gzip(contents: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(contents)?;
    Ok(encoder.finish()?)
}
