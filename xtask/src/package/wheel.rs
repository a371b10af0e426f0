//! The wheel for Python: the command, which carries the libraries, and the package `cairn`, which
//! finds it. The same sources give the same bytes.

use super::archive::newest_glibc;
use super::{VERSION, build};
use crate::library::{target_dir, workspace};
use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use std::env::consts::ARCH;
use std::fs;
use std::io::{Cursor, Write};
use std::path::PathBuf;
use zip::write::SimpleFileOptions;
use zip::{DateTime, ZipWriter};

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the wheel goes; target/dist, if not said.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// What stands for the version in the sources.
const VERSION_MARK: &str = "0.0.0";
/// A file of the wheel: its name there, contents, and mode.
type Entry = (String, Vec<u8>, u32);

/// Makes the wheel, and prints its hash and path.
pub(crate) fn run(args: &Args) -> Result<()> {
    let out = args.out.clone().unwrap_or_else(|| target_dir("dist"));
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let (command, _) = build(workspace(), &target_dir("package"))?;
    let command = fs::read(command)?;
    let tag = tag(&command)?;
    let wheel = pack(&entries(command, &tag)?)?;
    let path = out.join(format!("cairn_malloc-{VERSION}-{tag}.whl"));
    fs::write(&path, &wheel).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}  {}", hex::encode(Sha256::digest(&wheel)), path.display());
    Ok(())
}

/// Which interpreters and systems the wheel is for: all that have the version of glibc whose symbols
/// the command uses, and the libraries in it.
fn tag(command: &[u8]) -> Result<String> {
    ensure!(ARCH == "x86_64", "wheels are made and tried on x86-64 only");
    let glibc = newest_glibc(command).context("the command does not need the C library")?;
    Ok(format!("py3-none-manylinux_2_{glibc}_{ARCH}"))
}

/// What the wheel holds, in its order.
fn entries(command: Vec<u8>, tag: &str) -> Result<Vec<Entry>> {
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
    entries.push((format!("{stem}.data/scripts/cairn"), command, 0o755));
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
    // Last, as the format recommends; it has no hash of its own.
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
fn pack(entries: &[Entry]) -> Result<Vec<u8>> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, contents, mode) in entries {
        let options = SimpleFileOptions::default().last_modified_time(DateTime::default());
        archive.start_file(name.as_str(), options.unix_permissions(*mode))?;
        archive.write_all(contents)?;
    }
    Ok(archive.finish()?.into_inner())
}
