//! What packages are made of: tarballs, compressed, without anything that differs from run to run.

use super::{File, Files};
use anyhow::Result;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

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
