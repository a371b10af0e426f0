//! The wheel for Python: the command, which carries the libraries, and the package `cairn`, which
//! finds it. The same sources give the same bytes.

use crate::library::{shell, target_dir, workspace};
use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::FileHeader;
use sha2::{Digest, Sha256};
use std::env::consts::ARCH;
use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use xshell::cmd;
use zip::write::SimpleFileOptions;
use zip::{DateTime, ZipWriter};

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the wheel goes; target/dist, if not said.
    #[arg(long)]
    out: Option<PathBuf>,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// What stands for it in the sources.
const VERSION_MARK: &str = "0.0.0";
/// Libraries that each system with such a tag has.
const SYSTEM_LIBRARIES: [&str; 3] = ["libc.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"];

/// A file of the wheel: its name there, contents, and mode.
type Entry = (String, Vec<u8>, u32);

/// Makes the wheel, and prints its hash and path.
pub(crate) fn run(args: &Args) -> Result<()> {
    let out = args.out.clone().unwrap_or_else(|| target_dir("dist"));
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let command = command()?;
    let tag = tag(&command)?;
    let wheel = pack(entries(&command, &tag)?)?;
    let path = out.join(format!("cairn_malloc-{VERSION}-{tag}.whl"));
    fs::write(&path, &wheel).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}  {}", hex::encode(Sha256::digest(&wheel)), path.display());
    Ok(())
}

/// Builds the command as it is delivered.
fn command() -> Result<PathBuf> {
    let (shell, target) = (shell()?, target_dir("wheel"));
    let build = cmd!(shell, "cargo build --quiet --locked --release --target-dir {target}");
    build.args(["--manifest-path", "crates/cairn-cli/Cargo.toml"]).quiet().run()?;
    Ok(target.join("release/cairn"))
}

/// Which interpreters and systems the wheel is for: all that have the version of glibc whose symbols
/// the command and its libraries use.
fn tag(command: &Path) -> Result<String> {
    ensure!(ARCH == "x86_64", "wheels are made and tried on x86-64 only");
    let (shell, cache) = (shell()?, tempfile::tempdir()?);
    shell.set_var("XDG_CACHE_HOME", cache.path());
    let library = cmd!(shell, "{command} path").quiet().read()?;
    let hardened = cmd!(shell, "{command} path --hardened").quiet().read()?;
    let mut newest = (0, 0);
    for file in [command, library.as_ref(), hardened.as_ref()] {
        let glibc = glibc_of(&fs::read(file)?).with_context(|| file.display().to_string())?;
        newest = newest.max(glibc);
    }
    Ok(format!("py3-none-manylinux_{}_{}_{ARCH}", newest.0, newest.1))
}

/// The version of glibc that a file needs.
fn glibc_of(file: &[u8]) -> Result<(u32, u32)> {
    let header = FileHeader64::<Endianness>::parse(file)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, file)?;
    let (mut needs, strings) =
        sections.gnu_verneed(endian, file)?.context("it names no version of any library")?;
    let strings = sections.strings(endian, file, strings)?;
    let mut newest = (0, 0);
    while let Some((need, mut versions)) = needs.next()? {
        let library = std::str::from_utf8(need.file(endian, strings)?)?;
        ensure!(SYSTEM_LIBRARIES.contains(&library), "it needs {library}");
        while let Some(version) = versions.next()? {
            let name = std::str::from_utf8(version.name(endian, strings)?)?;
            let Some(number) = name.strip_prefix("GLIBC_") else { continue };
            let Some((major, minor)) = number.split_once('.') else { bail!("it needs {name}") };
            let minor = minor.split('.').next().unwrap_or_default();
            newest = newest.max((major.parse()?, minor.parse()?));
        }
    }
    Ok(newest)
}

/// What the wheel holds, in its order.
fn entries(command: &Path, tag: &str) -> Result<Vec<Entry>> {
    let python = workspace().join("packages/python");
    let text = |path: &str| -> Result<Vec<u8>> {
        let text = fs::read_to_string(python.join(path)).with_context(|| path.to_owned())?;
        Ok(text.replace(VERSION_MARK, VERSION).into_bytes())
    };
    let (stem, info) =
        (format!("cairn_malloc-{VERSION}"), format!("cairn_malloc-{VERSION}.dist-info"));
    let mut entries = Vec::new();
    for name in ["cairn/__init__.py", "cairn/__main__.py"] {
        entries.push((name.to_owned(), text(name)?, 0o644));
    }
    entries.push((format!("{stem}.data/scripts/cairn"), fs::read(command)?, 0o755));
    // The record last, as the format recommends; it has no hash of its own.
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        let contents = fs::read(workspace().join(licence))?;
        entries.push((format!("{info}/licenses/{licence}"), contents, 0o644));
    }
    let metadata = [text("METADATA")?, text("README.md")?].concat();
    entries.push((format!("{info}/METADATA"), metadata, 0o644));
    let wheel = format!(
        "Wheel-Version: 1.0\nGenerator: cairn ({VERSION})\nRoot-Is-Purelib: false\nTag: {tag}\n"
    );
    entries.push((format!("{info}/WHEEL"), wheel.into_bytes(), 0o644));
    let mut record = String::new();
    for (name, contents, _) in &entries {
        let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(contents));
        record += &format!("{name},sha256={hash},{}\n", contents.len());
    }
    record += &format!("{info}/RECORD,,\n");
    entries.push((format!("{info}/RECORD"), record.into_bytes(), 0o644));
    Ok(entries)
}

/// Without the times of the files.
fn pack(entries: Vec<Entry>) -> Result<Vec<u8>> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, contents, mode) in entries {
        let options = SimpleFileOptions::default().last_modified_time(DateTime::default());
        archive.start_file(name, options.unix_permissions(mode))?;
        archive.write_all(&contents)?;
    }
    Ok(archive.finish()?.into_inner())
}
